//! Which responses become samples, and when.

use super::{MS, Recorder, Scene, call, head, poll_once, scene, with_head};
use crate::concurrency::{ask, request};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Empty, Full};
use std::convert::Infallible;
use tollgate::{
    CallOutcome::{self, Failure, Ignore, Overload, Success},
    Clock, Concurrency,
};
use tollgate_tower::{AdaptiveLayer, NotRun};
use tower::{Layer, ServiceExt};

#[tokio::test]
async fn latency_ends_at_the_head_and_the_slot_at_the_end_of_the_body() {
    let mut scene = scene(1, |builder| builder);
    let running = call(&mut scene.service, request("/")).await;
    scene.hand.advance(30 * MS);
    let response = running.await.unwrap();
    assert_eq!(scene.law.seen(), [(30 * MS, Success)]);
    scene.hand.advance(1_000 * MS);
    assert_eq!(scene.limit.report().in_flight, 1, "the body is still to come");
    drop(scene.senders.recv().await);
    assert!(response.into_body().frame().await.is_none());
    assert_eq!(scene.limit.report().in_flight, 0);
    assert_eq!(scene.law.seen(), [], "a call is one sample");
}

#[tokio::test]
async fn until_body_waits_for_a_complete_body() {
    for (end, expected) in [
        ("ends", &[(50 * MS, Success)][..]),
        ("fails", &[]),
        ("is dropped half way", &[]),
        ("is dropped unread", &[]),
    ] {
        let mut scene = scene(1, |builder| builder.until_body());
        let mut body = ask(&scene.service, request("/")).await.into_body();
        let sender = scene.senders.recv().await.unwrap();
        assert_eq!(scene.law.seen(), [], "{end}: the head is no end");
        scene.hand.advance(50 * MS);
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
        assert_eq!(scene.limit.report().in_flight, 0, "{end}");
        assert_eq!(scene.law.seen(), expected, "{end}");
    }
}

#[test]
fn outcomes_follow_the_status() {
    let grpc = ("content-type", "application/grpc");
    for (row, (status, fields, expected)) in [
        (200, &[][..], Success),
        (404, &[], Success),
        (429, &[], Overload),
        (499, &[], Ignore),
        (500, &[], Failure),
        (501, &[], Success),
        (502, &[], Failure),
        (503, &[], Overload),
        (504, &[], Overload),
        (505, &[], Success),
        (599, &[], Failure),
        (200, &[grpc], Success),
        (200, &[grpc, ("grpc-status", "0")], Success),
        (200, &[grpc, ("grpc-status", "1")], Ignore),
        (200, &[grpc, ("grpc-status", "2")], Failure),
        (200, &[grpc, ("grpc-status", "4")], Overload),
        (200, &[grpc, ("grpc-status", "5")], Success),
        (200, &[grpc, ("grpc-status", "8")], Overload),
        (200, &[grpc, ("grpc-status", "12")], Success),
        (200, &[grpc, ("grpc-status", "13")], Failure),
        (200, &[grpc, ("grpc-status", "14")], Overload),
        (200, &[grpc, ("grpc-status", "15")], Failure),
        (503, &[grpc], Overload),
    ]
    .into_iter()
    .enumerate()
    {
        let (parts, ()) = head(status, fields).into_parts();
        let found = AdaptiveLayer::outcome_of(&parts);
        assert_eq!(found, expected, "row {row}: {status} {fields:?}");
    }
}

/// Returns the outcomes that the law gets for a response.
async fn measured(scene: &Scene, head: Response<()>) -> Vec<CallOutcome> {
    drop(ask(&scene.service, with_head(head)).await);
    scene.law.seen().into_iter().map(|(_, outcome)| outcome).collect()
}

#[tokio::test]
async fn refusals_further_in_and_streams_are_no_samples() {
    let refused = || {
        let mut refused = head(503, &[]);
        refused.extensions_mut().insert(NotRun);
        refused
    };
    let kind = |kind: &str| head(200, &[("content-type", kind)]);
    let streams = [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc-web",
        "text/event-stream; charset=utf-8",
    ];
    let default = scene(1, |builder| builder);
    assert_eq!(measured(&default, head(503, &[])).await, [Overload]);
    assert_eq!(measured(&default, head(500, &[])).await, [], "laws do not use failures");
    assert_eq!(measured(&default, refused()).await, []);
    let asked = scene(1, |builder| builder.measure_streams());
    assert_eq!(measured(&asked, refused()).await, []);
    for stream in streams {
        assert_eq!(measured(&default, kind(stream)).await, [], "{stream}");
        assert_eq!(measured(&asked, kind(stream)).await, [Success], "{stream}");
    }
    let status = [("content-type", "application/grpc"), ("grpc-status", "14")];
    assert_eq!(measured(&default, head(200, &status)).await, []);
    assert_eq!(measured(&asked, head(200, &status)).await, [Overload]);
    let own = scene(1, |builder| builder.classify(|_| Overload));
    assert_eq!(measured(&own, head(200, &[])).await, [Overload]);
    assert_eq!(measured(&own, refused()).await, [], "whatever a classifier says");
}

#[tokio::test]
async fn errors_stay_as_they_are_and_have_a_chosen_outcome() {
    for (outcome, expected) in
        [(None, &[Overload][..]), (Some(Success), &[Success]), (Some(Ignore), &[])]
    {
        let scene = scene(1, |builder| match outcome {
            None => builder,
            Some(outcome) => builder.on_error(outcome),
        });
        let error = scene.service.clone().oneshot(request("/fails")).await.err();
        assert_eq!((error.as_deref(), scene.limit.report().in_flight), (Some("it failed"), 0));
        let seen: Vec<_> = scene.law.seen().into_iter().map(|(_, outcome)| outcome).collect();
        assert_eq!(seen, expected, "{outcome:?}");
    }
}

#[tokio::test]
async fn a_call_that_is_dropped_is_no_sample_and_frees_its_slot() {
    let mut scene = scene(1, |builder| builder);
    drop(call(&mut scene.service, request("/")).await);
    assert_eq!(scene.limit.report().in_flight, 0, "never polled");
    let mut running = call(&mut scene.service, request("/hangs")).await;
    assert!(poll_once(&mut running).is_pending());
    assert_eq!(scene.limit.report().in_flight, 1);
    drop(running);
    assert_eq!(scene.limit.report().in_flight, 0, "dropped while it ran");
    assert_eq!(scene.law.seen(), []);
}

#[tokio::test]
async fn bodies_that_are_never_polled_and_trailers_of_grpc_are_measured() {
    let layer = |law: &Recorder| {
        let (clock, _hand) = Clock::manual();
        let limit = law.over(Concurrency::builder(0).clock(clock));
        AdaptiveLayer::builder(limit).until_body().measure_streams().build().unwrap()
    };
    let law = Recorder::of(1);
    let empty =
        |_: Request<()>| async { Ok::<_, Infallible>(Response::new(Empty::<bytes::Bytes>::new())) };
    // A server does not send an empty body, and does not poll it.
    drop(layer(&law).layer(tower::service_fn(empty)).oneshot(Request::new(())).await);
    assert_eq!(law.seen().len(), 1);

    for (status, expected) in [("0", &[Success][..]), ("14", &[Overload]), ("13", &[])] {
        let grpc = move |_: Request<()>| async move {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", http::HeaderValue::from_static(status));
            let body = Full::new(bytes::Bytes::from_static(b"reply"));
            let body = body.with_trailers(std::future::ready(Some(Ok(trailers))));
            let response = Response::builder().header("content-type", "application/grpc");
            Ok::<_, Infallible>(response.body(body).unwrap())
        };
        let service = layer(&law).layer(tower::service_fn(grpc));
        let response = service.oneshot(Request::new(())).await.unwrap();
        assert_eq!(law.seen(), [], "{status}: the status is still to come");
        response.into_body().collect().await.unwrap();
        let seen: Vec<_> = law.seen().into_iter().map(|(_, outcome)| outcome).collect();
        assert_eq!(seen, expected, "{status}");
    }
}
