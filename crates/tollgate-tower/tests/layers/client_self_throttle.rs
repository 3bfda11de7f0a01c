//! A client that throttles itself: which calls count, which are refused, and which resources are
//! released.

use super::strict::{HANGS, Strict, error, get, status};
use http::{HeaderValue, Request, header};
use std::time::Duration;
use tokio::time::timeout;
use tollgate::{
    CallOutcome, Clock, Priority,
    self_throttle::{SelfThrottle, SelfThrottleCounts},
};
use tollgate_tower::{
    ConcurrencyLayer, NotRun, RefusedBy,
    client::{RetryLayer, SelfThrottleLayer, SelfThrottleLayerBuilder},
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

fn throttle() -> SelfThrottle {
    SelfThrottle::builder().seed(5).clock(Clock::tokio()).build().unwrap()
}

fn built(builder: SelfThrottleLayerBuilder) -> SelfThrottleLayer {
    let Ok(layer) = builder.build();
    layer
}

fn layer(throttle: &SelfThrottle) -> SelfThrottleLayer {
    built(SelfThrottleLayer::builder(throttle.clone()))
}

fn counts(throttle: &SelfThrottle) -> (u64, u64, u64) {
    let SelfThrottleCounts { accepted, overloaded, refused, .. } = throttle.counts();
    (accepted, overloaded, refused)
}

#[tokio::test(start_paused = true)]
async fn outcomes_are_counted_by_status_and_error() {
    for (step, accepted, overloaded) in [
        (status(200, 0), 1, 0),
        (status(404, 0), 1, 0),
        (status(500, 0), 1, 0), // the server has done its work, and failed
        (status(503, 0), 0, 1),
        (status(429, 0), 0, 1),
        (status(504, 0), 0, 1),
        (status(499, 0), 0, 0),
        (error("timeout", 0), 0, 1),
    ] {
        let throttle = throttle();
        let answer = layer(&throttle).layer(Strict::new([step])).oneshot(get("/")).await;
        // Responses and errors stay as they are.
        match answer {
            Ok(response) => {
                let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap();
                assert!(format!("{step:?}").contains(&*String::from_utf8_lossy(&body.to_bytes())));
            }
            Err(text) => assert_eq!(text, "timeout"),
        }
        assert_eq!(counts(&throttle), (accepted, overloaded, 0), "{step:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn classifiers_decide_what_is_an_accept() {
    let throttle = throttle();
    let layer = built(
        SelfThrottleLayer::builder(throttle.clone())
            .classify(|head| match head.status.as_u16() {
                500 => CallOutcome::Overload,
                _ => CallOutcome::Success,
            })
            .on_error(CallOutcome::Ignore)
            .classify_error(|text: &&'static str| match *text {
                "shed" => CallOutcome::Overload,
                _ => CallOutcome::Failure,
            }),
    );
    let steps = [status(500, 0), status(503, 0), error("shed", 0), error("parse", 0)];
    let mut service = layer.layer(Strict::new(steps));
    for expected in [(0, 1, 0), (1, 1, 0), (1, 2, 0), (2, 2, 0)] {
        let _any = service.ready().await.unwrap().call(get("/")).await;
        assert_eq!(counts(&throttle), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_gets_fewer_calls_and_clones_share_the_count() {
    let throttle = throttle();
    let strict = Strict::new([status(503, 0)]);
    let shared = strict.shared();
    let service = layer(&throttle).clone().layer(strict);
    let mut refused = 0;
    for _ in 0..1000 {
        let response = service.clone().oneshot(get("/")).await.unwrap();
        assert_eq!(response.status(), 503);
        let Some(by) = response.extensions().get::<RefusedBy>() else { continue };
        refused += 1;
        assert_eq!((by.part(), by.retry_after()), ("self-throttle", None));
        assert!(response.extensions().get::<NotRun>().is_some());
        assert!(!response.headers().contains_key(header::RETRY_AFTER), "nobody knows when");
    }
    assert!((850..930).contains(&refused), "{refused}");
    assert_eq!(shared.starts().len() as u64, 1000 - refused);
    assert_eq!(counts(&throttle), (0, 1000 - refused, refused));
    assert_eq!(shared.reserved(), 0, "a refused call holds no ready service");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_grpc_is_unavailable() {
    let throttle = throttle();
    let mut service = layer(&throttle).layer(Strict::new([status(503, 0)]));
    loop {
        let mut request = Request::post("/shop.Cart/Add").body(String::new()).unwrap();
        let kind = HeaderValue::from_static("application/grpc");
        request.headers_mut().insert(header::CONTENT_TYPE, kind);
        let response = service.ready().await.unwrap().call(request).await.unwrap();
        if response.extensions().get::<RefusedBy>().is_some() {
            assert_eq!(
                (response.status().as_u16(), &response.headers()["grpc-status"]),
                (200, &"14".parse().unwrap())
            );
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_not_retried() {
    let throttle = throttle();
    let retry = RetryLayer::builder().max_attempts(2).build().unwrap();
    let stack = ServiceBuilder::new().layer(retry.clone()).layer(layer(&throttle));
    let mut service = stack.service(Strict::new([status(503, 0)]));
    while counts(&throttle).2 == 0 {
        let _any = service.ready().await.unwrap().call(get("/")).await;
    }
    assert_eq!(retry.counts().retries, 0);
}

#[tokio::test(start_paused = true)]
async fn priorities_come_from_the_closure_and_the_extensions() {
    let throttle = throttle();
    let layer = built(
        SelfThrottleLayer::builder(throttle.clone())
            .priority_by(|info| (info.uri().path() == "/batch").then_some(Priority::BACKGROUND)),
    );
    let mut service = layer.layer(Strict::new([status(503, 0)]));
    let mut urgent = get("/");
    urgent.extensions_mut().insert(Priority::CRITICAL);
    for _ in 0..50 {
        for request in [get("/batch"), urgent.clone()] {
            service.ready().await.unwrap().call(request).await.unwrap();
        }
    }
    for (priority, is_refused) in
        [(Priority::BACKGROUND, true), (Priority::CRITICAL, true), (Priority::NORMAL, false)]
    {
        assert_eq!(throttle.refusal_probability(priority) > 0.0, is_refused, "{priority}");
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_calls_and_refusals_of_inner_layers_count_for_nothing() {
    let throttle = throttle();
    let strict = Strict::new([HANGS]);
    let shared = strict.shared();
    let full = ConcurrencyLayer::builder(tollgate::Concurrency::new(1).unwrap()).build().unwrap();
    let stack = ServiceBuilder::new().layer(layer(&throttle)).layer(full);
    let service = stack.service(strict);
    let response = {
        // One call hangs in the only slot, so the limit refuses the other.
        let mut hangs = std::pin::pin!(service.clone().oneshot(get("/")));
        assert!(timeout(Duration::ZERO, hangs.as_mut()).await.is_err());
        service.clone().oneshot(get("/")).await.unwrap()
    };
    assert_eq!(response.extensions().get::<RefusedBy>().unwrap().part(), "concurrency");
    assert_eq!(counts(&throttle), (0, 0, 0));
    assert_eq!((shared.running(), shared.reserved()), (0, 0));
}
