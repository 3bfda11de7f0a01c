//! The outcome that a breaker records for a response, its body or its latency.

use super::*;
use http::HeaderMap;
use http_body_util::BodyExt;
use std::convert::Infallible;
use tollgate::{BreakerState, CallOutcome};
use tollgate_tower::AdaptiveLayer;

const GRPC: (&str, &str) = ("content-type", "application/grpc");

#[tokio::test]
async fn a_response_is_classified_by_its_head() {
    // head, failed
    for (row, (response, failed)) in [
        (head(200, &[]), 0),
        (head(404, &[]), 0),
        (head(429, &[]), 1),
        (head(499, &[]), 0),
        (head(500, &[]), 1),
        (head(501, &[]), 0),
        (head(502, &[]), 1),
        (head(503, &[("retry-after", "60")]), 1),
        (head(504, &[]), 1),
        (head(505, &[]), 0),
        (head(200, &[GRPC, ("grpc-status", "0")]), 0),
        (head(200, &[GRPC, ("grpc-status", "1")]), 0), // CANCELLED
        (head(200, &[GRPC, ("grpc-status", "4")]), 1),
        (head(200, &[GRPC, ("grpc-status", "5")]), 0), // NOT_FOUND
        (head(200, &[GRPC, ("grpc-status", "8")]), 1),
        (head(200, &[GRPC, ("grpc-status", "13")]), 1),
        (head(200, &[GRPC, ("grpc-status", "14")]), 1),
        (head(200, &[GRPC]), 0), // the status comes in the trailers
        (head(200, &[("content-type", "text/event-stream")]), 0),
        (head(500, &[("content-type", "text/event-stream")]), 1),
    ]
    .into_iter()
    .enumerate()
    {
        let scene = scene(|builder| builder);
        let answer = once(&scene.service, answered(response.clone())).await.unwrap();
        assert_eq!(answer.status(), response.status(), "row {row}");
        assert_eq!(scene.breaker.counts().failed, failed, "row {row}, {response:?}");
        assert_eq!(scene.breaker.state(), BreakerState::Closed, "row {row}: one is not two");
    }
}

#[tokio::test]
async fn a_classifier_of_the_user_decides() {
    let scene = scene(|builder| {
        builder.classify(|head| match head.status.as_u16() {
            404 => CallOutcome::Failure,
            _ => AdaptiveLayer::outcome_of(head),
        })
    });
    for (status, failed) in [(404, 1), (200, 1), (500, 2)] {
        drop(once(&scene.service, answered(head(status, &[]))).await.unwrap());
        assert_eq!(scene.breaker.counts().failed, failed, "{status}");
    }
}

#[tokio::test]
async fn the_servers_time_opens_it_for_that_long_if_it_is_followed() {
    let retry = |value| [("retry-after", value)];
    let pushback = [GRPC, ("grpc-status", "14"), ("grpc-retry-pushback-ms", "1500")];
    // head, break
    for (row, (response, expected)) in [
        (head(503, &retry("7")), Some(7_000)),
        (head(429, &retry("7")), Some(7_000)),
        (head(429, &[("retry-after-ms", "250")]), Some(250)),
        (head(503, &retry("3600")), Some(60_000)), // no longer than is believed
        (head(200, &pushback), Some(1_500)),
        (head(503, &[]), None),
        (head(429, &[]), None),
        (head(500, &retry("7")), None), // not a refusal
        (head(200, &retry("7")), None),
        (head(503, &retry("0")), None),
        (head(503, &retry("soon")), None),
    ]
    .into_iter()
    .enumerate()
    {
        for follows in [true, false] {
            let mut scene = scene(|builder| match follows {
                true => builder.follow_retry_after(60 * SECOND),
                false => builder,
            });
            drop(once(&scene.service, answered(response.clone())).await.unwrap());
            let expected = expected.filter(|_| follows).map(|ms| MS * ms);
            let next = once(&scene.service, request("/")).await.unwrap();
            let wait = refused_by(&next).and_then(|(_, wait)| wait);
            assert_eq!(wait, expected, "row {row}, follows: {follows}");
            if let Some(wait) = expected {
                assert_eq!(scene.calls(), 1, "row {row}");
                scene.hand.advance(wait);
                assert_eq!(once(&scene.service, request("/")).await.unwrap().status(), 200);
            }
        }
    }
}

#[tokio::test]
async fn slow_calls_are_slow_until_their_head() {
    let (clock, hand) = Clock::manual();
    let breaker = settings(clock).trip(Trip::slow_percent(50, SECOND)).min_calls(2);
    let breaker = breaker.build().unwrap();
    let (mut service, mut senders) =
        limited(&BreakerLayer::builder(breaker.clone()).build().unwrap());
    for (head_ms, body_ms, slow) in [(999, 5_000, 0), (1_000, 0, 1)] {
        let running = call(&mut service, request("/")).await;
        hand.advance(MS * head_ms);
        let response = running.await.unwrap();
        hand.advance(MS * body_ms);
        drop(senders.recv().await);
        assert!(response.into_body().frame().await.is_none());
        assert_eq!(breaker.counts().slow, slow, "{head_ms} ms");
    }
    assert_eq!(breaker.state(), BreakerState::Open, "half of them");
}

#[tokio::test]
async fn until_body_the_end_of_the_body_decides() {
    // how it ends, ended, failed
    for (end, ended, failed) in [
        ("ends", 1, 0),
        ("fails", 1, 1),
        ("is dropped half way", 0, 0),
        ("is dropped unread", 0, 0),
    ] {
        let mut scene = scene(|builder| builder.until_body());
        let mut body = once(&scene.service, request("/")).await.unwrap().into_body();
        let sender = scene.senders.recv().await.unwrap();
        assert_eq!(scene.breaker.counts().ended, 0, "{end}: the head is no end");
        if end != "is dropped unread" {
            sender.send(Ok("half")).unwrap();
            assert!(body.frame().await.unwrap().is_ok());
        }
        match end {
            "ends" => {
                drop(sender);
                assert!(body.frame().await.is_none());
            }
            "fails" => {
                sender.send(Err("broken".into())).unwrap();
                assert_eq!(body.frame().await.unwrap().unwrap_err(), "broken");
            }
            _ => drop(body),
        }
        let counts = scene.breaker.counts();
        assert_eq!((counts.ended, counts.failed), (ended, failed), "the body {end}");
    }
}

#[tokio::test]
async fn a_head_that_says_failure_counts_although_its_body_is_dropped() {
    let scene = scene(|builder| builder.until_body());
    drop(once(&scene.service, answered(head(500, &[]))).await.unwrap());
    assert_eq!(scene.breaker.counts().failed, 1);
}

#[tokio::test]
async fn until_body_trailers_of_grpc_decide() {
    for (status, failed) in [("0", 0), ("5", 0), ("13", 1), ("14", 1)] {
        for until_body in [true, false] {
            let (clock, _hand) = Clock::manual();
            let breaker = settings(clock).build().unwrap();
            let builder = BreakerLayer::builder(breaker.clone());
            let layer = if until_body { builder.until_body() } else { builder };
            let service = tower::service_fn(async move |_: Request<String>| {
                let trailers = HeaderMap::from_iter([(
                    "grpc-status".parse().unwrap(),
                    status.parse().unwrap(),
                )]);
                let body = http_body_util::Full::new(bytes::Bytes::from_static(b"message"));
                let body = body.with_trailers(async move { Some(Ok(trailers)) });
                Ok::<_, Infallible>(head(200, &[GRPC]).map(|()| Box::pin(body)))
            });
            let service = layer.build().unwrap().layer(service);
            let response = once(&service, request("/")).await.unwrap();
            assert!(response.into_body().collect().await.is_ok());
            let counts = breaker.counts();
            let expected = if until_body { failed } else { 0 };
            assert_eq!((counts.ended, counts.failed), (1, expected), "{status} {until_body}");
        }
    }
}
