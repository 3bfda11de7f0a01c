//! Refused gRPC calls, as a tonic client sees them and `tonic-types` reads them.

use crate::wire::{Plain, join, join_in};
use bytes::Bytes;
use std::{collections::HashMap, time::Duration};
use tollgate::{Concurrency, Quota};
use tollgate_tower::{
    ConcurrencyLayer, Key, Policy, RateLimitLayer,
    answer::{Headers, Legacy},
};
use tonic::{Code, Request, Status, client::Grpc, codegen::tokio_stream, transport::Channel};
use tonic_types::{ErrorDetails, StatusExt};

/// How a call sends and receives.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Unary,
    ClientStreaming,
    ServerStreaming,
    Streaming,
}

const KINDS: [Kind; 4] =
    [Kind::Unary, Kind::ClientStreaming, Kind::ServerStreaming, Kind::Streaming];

async fn call(channel: &Channel, kind: Kind, key: Option<&'static str>) -> Result<Bytes, Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let path = "/test.Join/Join".parse().unwrap();
    let words = [Bytes::from("one"), Bytes::from("two")];
    fn with<T>(message: T, key: Option<&'static str>) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(key) = key {
            request.metadata_mut().insert("x-key", key.parse().unwrap());
        }
        request
    }
    let one = with(words[0].clone(), key);
    let stream = with(tokio_stream::iter(words.clone()), key);
    match kind {
        Kind::Unary => Ok(client.unary(one, path, Plain).await?.into_inner()),
        Kind::ClientStreaming => {
            Ok(client.client_streaming(stream, path, Plain).await?.into_inner())
        }
        Kind::ServerStreaming => {
            let mut answers = client.server_streaming(one, path, Plain).await?.into_inner();
            Ok(answers.message().await?.unwrap())
        }
        Kind::Streaming => {
            let mut answers = client.streaming(stream, path, Plain).await?.into_inner();
            Ok(answers.message().await?.unwrap())
        }
    }
}

fn limits(policy: Policy) -> RateLimitLayer {
    let headers = Headers::new().three_fields().legacy(Legacy::Epoch).envoy();
    RateLimitLayer::builder().policy(policy).headers(headers).build().unwrap()
}

/// Returns the milliseconds of the pushback.
fn pushback(status: &Status) -> Option<i64> {
    let value = status.metadata().get("grpc-retry-pushback-ms")?;
    Some(value.to_str().unwrap().parse().unwrap())
}

fn reason(details: &ErrorDetails) -> (&str, &str, &HashMap<String, String>) {
    let info = details.error_info().unwrap();
    (&info.reason, &info.domain, &info.metadata)
}

#[tokio::test]
async fn whoever_is_over_its_quota_is_told_when_and_why() {
    for kind in KINDS {
        // The name has to be encoded in the message, and is decoded to the same text.
        let name = "size, 100% \"of\" calls";
        let channel = join(limits(Policy::new(name, Quota::per_hour(2).burst(1)))).await;
        let words = call(&channel, kind, None).await.unwrap();
        assert!(words == "one" || words == "one,two");
        let status = call(&channel, kind, None).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{kind:?}");
        let start = format!("Policy {name} allows 2 requests per 3600 s, 1 at once; retry in ");
        assert!(status.message().starts_with(&start), "{}", status.message());

        let details = status.check_error_details().unwrap();
        let wait = details.retry_info().unwrap().retry_delay.unwrap();
        assert!(wait > Duration::from_secs(1_700) && wait <= Duration::from_secs(1_800));
        assert_eq!(pushback(&status), i64::try_from(wait.as_millis()).ok());

        let violations = &details.quota_failure().unwrap().violations;
        assert_eq!(violations.len(), 1);
        assert_eq!(violations[0].subject, format!("policy:{name}"));
        assert_eq!(violations[0].description, start.split(';').next().unwrap());
        let metadata = HashMap::from([("policy".to_owned(), name.to_owned())]);
        assert_eq!(reason(&details), ("RATE_LIMIT_EXCEEDED", "tollgate", &metadata));
        // The headers that gateways turn into HTTP are there as metadata, once each.
        for header in ["ratelimit", "ratelimit-policy", "retry-after", "cache-control"] {
            assert_eq!(status.metadata().get_all(header).iter().count(), 1, "{header}");
        }
    }
}

#[tokio::test]
async fn what_no_wait_helps_has_no_retry_info() {
    let channel = join(limits(Policy::new("p", Quota::per_hour(2)).cost_by(|_| 3))).await;
    let status = call(&channel, Kind::Unary, None).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let details = status.check_error_details().unwrap();
    assert!(details.retry_info().is_none());
    assert_eq!(details.quota_failure().unwrap().violations.len(), 1);
    assert_eq!(pushback(&status), Some(-1), "clients must not try again");
}

#[tokio::test]
async fn whoever_finds_no_room_is_told_that_the_server_is_busy() {
    for (retry_after, expected) in [(None, None), (Some(Duration::from_millis(1_500)), Some(1_500))]
    {
        let slots = Concurrency::new(1).unwrap();
        let held = slots.try_acquire().unwrap();
        let mut slots_layer = ConcurrencyLayer::builder(slots).name("slots");
        if let Some(wait) = retry_after {
            slots_layer = slots_layer.retry_after(wait);
        }
        let channel = join_in(slots_layer.build().unwrap()).await;
        for kind in KINDS {
            let status = call(&channel, kind, None).await.unwrap_err();
            assert_eq!(status.code(), Code::Unavailable, "{kind:?}: {status:?}");
            let details = status.check_error_details().unwrap();
            assert_eq!(details.retry_info().and_then(|info| info.retry_delay), retry_after);
            assert!(details.quota_failure().is_none(), "no client is at fault");
            let metadata = HashMap::from([("policy".to_owned(), "slots".to_owned())]);
            assert_eq!(reason(&details), ("REDUCED_CAPACITY", "tollgate", &metadata));
            assert_eq!(pushback(&status), expected);
        }
        drop(held);
        assert_eq!(call(&channel, Kind::Unary, None).await.unwrap(), "one");
    }
}

#[tokio::test]
async fn whoever_is_not_known_is_denied() {
    let policy = Policy::new("p", Quota::per_hour(2)).key(Key::header("x-key"));
    let channel = join(limits(policy)).await;
    for kind in KINDS {
        let status = call(&channel, kind, None).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{kind:?}");
        assert!(status.message().contains("does not identify its sender"), "{}", status.message());
        // The details are empty or well formed.
        let details = status.check_error_details().unwrap();
        assert!(details.retry_info().is_none() && pushback(&status).is_none());
    }
    assert_eq!(call(&channel, Kind::Unary, Some("a")).await.unwrap(), "one");
}

#[tokio::test]
async fn a_call_that_passes_has_what_is_left_in_its_metadata() {
    let channel = join(limits(Policy::new("p", Quota::per_hour(2)))).await;
    let mut client = Grpc::new(channel);
    client.ready().await.unwrap();
    let path = "/test.Join/Join".parse().unwrap();
    let answer: tonic::Response<Bytes> =
        client.unary(Request::new(Bytes::new()), path, Plain).await.unwrap();
    assert_eq!(answer.metadata().get("ratelimit-policy").unwrap(), "\"p\";q=2;w=3600");
}
