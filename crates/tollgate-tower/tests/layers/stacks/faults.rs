//! Faults that the layer once had, each with the correct behaviour.

use super::{get, hello};
use axum::body::Body;
use http::{Request, Response};
use std::{convert::Infallible, task::Context, time::Duration};
use tollgate::{
    Clock, Quota,
    store::{MemoryStore, MemoryStoreBuilder},
};
use tollgate_tower::{Charge, Key, OnStoreError, Policy, RateLimitBuilder, RateLimitLayer, Settle};
use tower::{Layer, Service, ServiceExt};

/// The same, with an error instead of a client that hangs up.
#[tokio::test]
async fn an_error_leaves_no_reservation_open() {
    let limits = RateLimitLayer::builder()
        .memory(MemoryStore::builder().max_reservations(1).build().unwrap())
        .on_store_error(OnStoreError::Refuse)
        .policy(Policy::new("p", Quota::once(3)).charge(Charge::on_failure()))
        .build()
        .unwrap();
    let fails = tower::service_fn(|_: Request<String>| async { Err::<Response<String>, _>(7) });
    assert_eq!(limits.layer(fails).oneshot(get("/")).await.unwrap_err(), 7);
    let next = limits.layer(tower::service_fn(hello)).oneshot(get("/")).await.unwrap();
    assert_eq!(next.status(), 200);
}

/// There is room for one reservation, and it is taken: the next one is an error of the store.
/// Returns the status that a request gets if it waits meanwhile.
async fn fails_while_one_waits(limits: RateLimitLayer) -> u16 {
    let hangs = tower::service_fn(|_: Request<String>| {
        std::future::pending::<Result<Response<String>, Infallible>>()
    });
    let held = tokio::spawn(limits.layer(hangs).oneshot(get("/")));
    tokio::task::yield_now().await;
    let answer = limits.layer(tower::service_fn(hello)).oneshot(get("/")).await.unwrap();
    held.abort();
    answer.status().as_u16()
}

fn full() -> MemoryStoreBuilder {
    MemoryStore::builder().max_reservations(1)
}

fn waits(longest: Duration) -> RateLimitBuilder {
    RateLimitLayer::builder()
        .on_store_error(OnStoreError::Refuse)
        .policy(Policy::new("p", Quota::per_second(10).burst(1)).charge(Charge::on_failure()))
        .wait_up_to(longest)
}

/// Was a fault: a store that fails while a request waits leaves the previous decision in place. In
/// memory, the time stays that of the old decision, so the wait has no end: 300 s of a longest
/// 10 s, until the blocking reservation has expired.
#[tokio::test(start_paused = true)]
async fn a_store_that_fails_while_a_request_waits_refuses_it_at_once() {
    let clock = Clock::tokio();
    let start = clock.now();
    let memory = full().clock(clock.clone()).build().unwrap();
    let limits = waits(Duration::from_secs(10)).memory(memory).build().unwrap();
    let told = fails_while_one_waits(limits).await;
    let waited = clock.now().since(start);
    assert_eq!(told, 503, "after {waited:?}");
    assert!(waited < Duration::from_millis(200), "{waited:?}");
}

/// The same with a shared store: the old decision says "wait for nothing", so the store is called
/// without pause until the longest wait is over, and the client gets 429 (and with a paused clock,
/// which such a wait does not move, it never ends).
#[tokio::test]
async fn a_store_afar_that_fails_while_a_request_waits_refuses_it_at_once() {
    let store = full().build().unwrap();
    let limits = waits(Duration::from_millis(500)).store(store).build().unwrap();
    assert_eq!(fails_while_one_waits(limits).await, 503);
}

/// Was a fault: a failure of gRPC is HTTP 200 with a `grpc-status`, so `on_failure` gives every
/// wrong guess back, and `unless_server_error` charges for failures of the server.
#[tokio::test]
async fn failures_of_grpc_are_failures() {
    for (charge, code, expected) in [
        (Charge::on_failure(), "16", [0, 8]),
        (Charge::on_failure(), "0", [0, 0]),
        (Charge::unless_server_error(), "13", [0, 0]),
    ] {
        let policy = Policy::new("logins", Quota::once(1)).charge(charge);
        let limits = RateLimitLayer::builder().policy(policy).build().unwrap();
        let service = limits.layer(tower::service_fn(move |_: Request<String>| async move {
            let response = Response::builder().header("content-type", "application/grpc");
            Ok::<_, Infallible>(response.header("grpc-status", code).body(String::new()).unwrap())
        }));
        let mut got = Vec::new();
        for _ in 0..2 {
            let call = Request::post("/a.B/C").header("content-type", "application/grpc");
            let response = service.clone().oneshot(call.body(String::new()).unwrap()).await;
            let is_refused = response.unwrap().headers()["grpc-status"] == "8";
            got.push(if is_refused { 8 } else { 0 });
        }
        assert_eq!(got, expected, "grpc-status {code}");
    }
}

/// Was a fault: `refuse_with` "changes the response to refused requests", but not to those that are
/// refused because they have no key.
#[tokio::test]
async fn the_hook_sees_who_is_refused_without_a_key() {
    let limits = RateLimitLayer::builder()
        .policy(Policy::new("p", Quota::once(1)).key(Key::header("x-key")))
        .refuse_with(|_, mut response| {
            response.headers_mut().insert("x-help", "/limits".parse().unwrap());
            response
        })
        .build()
        .unwrap();
    let refused = limits.layer(tower::service_fn(hello)).oneshot(get("/")).await.unwrap();
    assert_eq!(refused.status(), 403);
    assert_eq!(refused.headers()["x-help"], "/limits");
}

#[tokio::test]
async fn the_hook_can_look_at_the_request_whoever_refuses() {
    let by_path = |policy: Policy| {
        let limits =
            RateLimitLayer::builder().policy(policy).refuse_by(|info, verdict, response| {
                let told = format!("{} {}", info.uri().path(), verdict.is_allowed());
                response.map(|_| told.into())
            });
        limits.build().unwrap().layer(tower::service_fn(hello))
    };
    // exhausted, by a cost that never passes with a short key or a long one, and without a key
    let dear = |policy: Policy| policy.cost_by(|_| 2);
    for policy in [
        dear(Policy::new("p", Quota::once(1))),
        dear(Policy::new("p", Quota::once(1)).key(Key::all([Key::path(), Key::path()]))),
        Policy::new("p", Quota::once(1)).key(Key::header("x-key")),
    ] {
        let refused = by_path(policy).oneshot(get("/some/rather/long/path")).await.unwrap();
        let body = http_body_util::BodyExt::collect(refused.into_body()).await.unwrap().to_bytes();
        assert_eq!(body, "/some/rather/long/path false");
    }
}

/// Was a fault: the same as in `ConcurrencyLayer`, which has a test of this name.
#[test]
fn without_a_runtime_nobody_waits_and_nothing_panics() {
    let limits = RateLimitLayer::builder()
        .policy(Policy::new("p", Quota::per_minute(1)))
        .wait_up_to(Duration::from_secs(100))
        .build()
        .unwrap();
    let mut context = Context::from_waker(std::task::Waker::noop());
    let mut service = limits.layer(tower::service_fn(hello::<Body>));
    let mut statuses = Vec::new();
    for _ in 0..2 {
        assert!(service.poll_ready(&mut context).is_ready());
        let future = std::pin::pin!(service.call(Request::new(Body::empty())));
        let std::task::Poll::Ready(response) = future.poll(&mut context) else {
            panic!("it is answered at once");
        };
        statuses.push(response.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 429]);
}

/// Was a fault: the head of the response settles the cost, but the headers of the same response
/// report the permits before that. A client that follows them waits for permits that it has
/// already.
#[tokio::test]
async fn what_is_left_is_told_after_the_cost_is_settled() {
    let used = http::HeaderName::from_static("x-used");
    for (policy, expected) in [
        (Policy::new("p", Quota::per_hour(100)).cost(40).settle(Settle::header(used)), "90"),
        (Policy::new("p", Quota::per_hour(100)).charge(Charge::on_failure()), "100"),
    ] {
        let limits = RateLimitLayer::builder().policy(policy).build().unwrap();
        let service = limits.layer(tower::service_fn(|_: Request<String>| async {
            let response = Response::builder().header("x-used", "10").body(String::new());
            Ok::<_, Infallible>(response.unwrap())
        }));
        let told = service.oneshot(get("/")).await.unwrap().headers()["ratelimit"].clone();
        let told = told.to_str().unwrap();
        assert_eq!(told.split(';').nth(1), Some(&*format!("r={expected}")), "{told}");
    }
}
