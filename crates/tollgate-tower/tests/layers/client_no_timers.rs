//! Without timers: outside of a runtime, and in one that was built without them.
//!
//! Tokio panics when a timer is made there. The layers catch that: calls that have to wait are not
//! sent, and refusals are not repeated.

use crate::stub::{Stub, get};
use std::{future::Future, time::Duration};
use tollgate::{Clock, Limiter, Quota};
use tollgate_tower::client::{PaceError, PaceLayer, RetryLayer};
use tower::{Layer, ServiceExt};

/// Runs a future where there are no timers.
fn each_way<F: Future>(make: impl Fn() -> F) -> [F::Output; 2] {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let inside = runtime.block_on(make());
    // A runtime of another kind, without tokio.
    let mut outside = std::pin::pin!(make());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(outside) = outside.as_mut().poll(&mut context) else {
        panic!("it waits for nobody")
    };
    [inside, outside]
}

#[test]
fn what_has_to_wait_is_not_sent() {
    for result in each_way(|| async {
        let stub = Stub::scripted([(200, "RateLimit: \"a\";r=0;t=10")]);
        let layer = PaceLayer::builder().clock(Clock::monotonic()).build().unwrap();
        let client = layer.layer(stub.clone());
        assert_eq!(client.clone().oneshot(get("http://a/")).await.unwrap().status(), 200);
        let second = client.oneshot(get("http://a/")).await;
        (second, stub.starts().len(), layer.counts())
    }) {
        let (second, sent, counts) = result;
        let error = second.unwrap_err();
        assert_eq!(error, PaceError::NoTimers);
        assert!(error.is_unsent() && error.to_string().contains("enable_time"), "{error}");
        assert_eq!((sent, counts.sent, counts.refused), (1, 1, 1));
    }
}

#[test]
fn a_refusal_is_returned_as_it_came() {
    for (response, sent) in each_way(|| async {
        let stub = Stub::scripted([(429, "Retry-After: 1"), (200, "")]);
        let layer = RetryLayer::builder().clock(Clock::monotonic()).build().unwrap();
        let response = layer.layer(stub.clone()).oneshot(get("http://a/")).await.unwrap();
        (response, stub.starts().len())
    }) {
        assert_eq!((response.status().as_u16(), sent), (429, 1));
        assert_eq!(response.headers()["retry-after"], "1");
    }
}

#[test]
fn a_quota_of_ones_own_refuses_what_has_to_wait() {
    for errors in each_way(|| async {
        let quota = Limiter::new(Quota::per_second(1)).unwrap();
        let layer = PaceLayer::builder().quota(quota).max_wait(Duration::from_secs(5));
        let client = layer.build().unwrap().layer(Stub::scripted([(200, "")]));
        client.clone().oneshot(get("http://a/")).await.unwrap();
        client.oneshot(get("http://a/")).await.unwrap_err()
    }) {
        assert!(matches!(errors, PaceError::Quota(tollgate::Refused::NoRuntime(_))), "{errors:?}");
    }
}
