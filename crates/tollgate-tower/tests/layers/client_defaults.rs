//! Sentences of `docs/clients.md` that no other test holds, mostly its defaults.

use crate::stub::{Stub, get, seconds};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tollgate_tower::client::{Learned, PaceError, PaceLayer, Reader, RetryLayer, RetryWhen};
use tower::{Layer, Service, ServiceExt};

fn read(status: u16, lines: &[(&str, &str)]) -> Learned {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let name: HeaderName = name.parse().unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    let wall = Duration::from_secs(1_700_000_000);
    Reader::new().read(StatusCode::from_u16(status).unwrap(), &headers, wall)
}

/// The families in the order of the page. Each reports a different number of remaining calls.
const FAMILIES: [&[(&str, &str)]; 8] = [
    &[("RateLimit", "\"x\";r=1;t=3"), ("RateLimit-Policy", "\"x\";q=9;w=9")],
    &[("RateLimit", "limit=100, remaining=2, reset=30")],
    &[("RateLimit-Limit", "100"), ("RateLimit-Remaining", "3"), ("RateLimit-Reset", "30")],
    &[
        ("anthropic-ratelimit-requests-limit", "100"),
        ("anthropic-ratelimit-requests-remaining", "4"),
        ("anthropic-ratelimit-requests-reset", "2023-11-14T22:13:50Z"),
    ],
    &[
        ("x-ratelimit-limit-requests", "100"),
        ("x-ratelimit-remaining-requests", "5"),
        ("x-ratelimit-reset-requests", "30s"),
    ],
    &[("X-RateLimit-Limit", "100"), ("X-RateLimit-Remaining", "6"), ("X-RateLimit-Reset", "30")],
    &[("X-RateLimit-Limit-Minute", "100"), ("X-RateLimit-Remaining-Minute", "7")],
    &[("X-Shopify-Shop-Api-Call-Limit", "92/100")],
];

#[test]
fn of_two_families_the_first_of_the_page_is_read() {
    let left = |lines: &[(&str, &str)]| -> Vec<u64> {
        read(200, lines).policies.iter().map(|policy| policy.remaining).collect()
    };
    for (first, lines) in FAMILIES.iter().enumerate() {
        let expected = [first as u64 + 1];
        assert_eq!(left(lines), expected, "{lines:?} alone");
        for (second, others) in FAMILIES.iter().enumerate().skip(first + 1) {
            // Two forms of one field are not two families, but a field that cannot be read.
            if (first, second) != (0, 1) {
                let both = [*lines, *others].concat();
                assert_eq!(left(&both), expected, "{lines:?} and {others:?}");
            }
        }
    }
}

#[test]
fn what_grpc_says_of_the_wait_goes_before_retry_after() {
    const INFO: &str = "CAgSCXNsb3cgZG93bho2Cih0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUmV0cnlJbmZvEgoKCAgBEIDKte4B";
    for (name, value, expected_ms) in
        [("grpc-retry-pushback-ms", "2000", 2_000), ("grpc-status-details-bin", INFO, 1_500)]
    {
        let learned = read(200, &[("grpc-status", "8"), ("Retry-After", "9"), (name, value)]);
        let expected = RetryWhen::After(Duration::from_millis(expected_ms));
        assert_eq!(learned.retry, Some(expected), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_of_what_passes_holds_nobody_back() {
    for (status, is_heeded) in [(200, false), (301, false), (500, false), (429, true)] {
        let stub = Stub::scripted([(status, "Retry-After: 20"), (200, "")]);
        let client = PaceLayer::builder().build().unwrap().layer(stub.clone());
        for _ in 0..2 {
            client.clone().oneshot(get("http://a/")).await.unwrap();
        }
        let expected = seconds(if is_heeded { 20 } else { 0 });
        assert_eq!(stub.starts()[1], expected, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_more_than_thirty_seconds() {
    for (wait, is_sent) in [("Retry-After: 30", true), ("Retry-After: 31", false)] {
        let stub = Stub::scripted([(429, wait), (200, "")]);
        let client = PaceLayer::builder().build().unwrap().layer(stub.clone());
        client.clone().oneshot(get("http://a/")).await.unwrap();
        let second = client.oneshot(get("http://a/")).await;
        assert_eq!(second.is_ok(), is_sent, "{wait}");
        let too_long = PaceError::TooLong { wait: seconds(31), max_wait: seconds(30) };
        assert!(second.is_ok() || second.unwrap_err() == too_long);
    }
}

#[tokio::test(start_paused = true)]
async fn a_thousand_wait_for_one_server_and_a_thousand_servers_are_remembered() {
    let stub = Stub::scripted([(429, "Retry-After: 5"), (200, "RateLimit: \"x\";r=9;t=9")]);
    let layer = PaceLayer::builder().build().unwrap();
    let mut client = layer.layer(stub.clone());
    client.ready().await.unwrap().call(get("http://a/")).await.unwrap();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut waits: Vec<_> = (0..1_000).map(|_| Box::pin(client.call(get("http://a/")))).collect();
    assert!(waits.iter_mut().all(|wait| wait.as_mut().poll(&mut context).is_pending()));
    let error = client.call(get("http://a/")).await.unwrap_err();
    assert_eq!(error, PaceError::QueueFull { max_waiting: 1_000 });
    drop(waits);
    for number in 0..1_010 {
        client.call(get(&format!("http://server-{number}/"))).await.unwrap();
    }
    assert_eq!(layer.lanes(), 1_000);
}

#[tokio::test(start_paused = true)]
async fn of_a_body_64_kib_are_kept() {
    // A frame counts as 64 bytes more than it has.
    for (length, expected) in [(64 * 1024 - 64, 2), (64 * 1024 - 63, 1)] {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let server = tower::service_fn(move |request: Request<BoxBody<Bytes, tower::BoxError>>| {
            let count = Arc::clone(&count);
            async move {
                assert_eq!(request.into_body().collect().await.unwrap().to_bytes().len(), length);
                // ORDERING: SeqCst for simplicity.
                let status = if count.fetch_add(1, SeqCst) == 0 { 429 } else { 200 };
                Ok::<_, Infallible>(Response::builder().status(status).body(()).unwrap())
            }
        });
        let layer = RetryLayer::builder().replay(BodyExt::boxed).build().unwrap();
        let body = Full::<Bytes>::from(vec![7; length]).map_err(Into::into).boxed();
        let response = layer.layer(server).oneshot(Request::post("http://a/").body(body).unwrap());
        let status = response.await.unwrap().status();
        assert_eq!((calls.load(SeqCst), status == 200), (expected, expected == 2), "{length}");
    }
}
