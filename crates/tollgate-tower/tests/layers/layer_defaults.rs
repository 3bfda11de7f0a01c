//! Sentences of `docs/http.md` that no other test holds, mostly its defaults.

use crate::away::Away;
use crate::heard::Heard;
use http::{HeaderName, Method, Request, Response, StatusCode};
use std::{convert::Infallible, pin::pin, sync::atomic::Ordering::SeqCst, time::Duration};
use tokio::{sync::Semaphore, time::timeout};
use tollgate::{
    Clock, Quota,
    store::{MemoryStore, ReservationId, Store, StoreError, forward_store},
    testing::block_on,
};
use tollgate_tower::{Key, Mode, OnStoreError, Policy, RateLimitBuilder, RateLimitLayer, Settle};
use tower::{Layer, Service, ServiceExt};

/// Answers with the requested header: `x-used` as it is.
async fn answer(request: Request<()>) -> Result<Response<String>, Infallible> {
    let mut response = Response::new("hello".to_owned());
    if let Some(used) = request.headers().get("x-used") {
        response.headers_mut().insert("x-used", used.clone());
    }
    Ok(response)
}

async fn ask(
    layer: &RateLimitLayer,
    request: Request<()>,
) -> Response<tollgate_tower::LimitBody<String>> {
    layer.layer(tower::service_fn(answer)).oneshot(request).await.unwrap()
}

async fn status(layer: &RateLimitLayer, headers: &[(&str, &str)]) -> u16 {
    let request =
        headers.iter().fold(Request::get("/"), |it, (name, value)| it.header(*name, *value));
    ask(layer, request.body(()).unwrap()).await.status().as_u16()
}

fn layer(policy: Policy) -> RateLimitLayer {
    RateLimitLayer::builder().policy(policy).build().unwrap()
}

fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::Pin::new(future).poll(&mut context).is_pending()
}

#[tokio::test]
async fn a_tier_that_does_not_exist_counts_as_none() {
    let policy = Policy::new("p", Quota::once(2)).tier("paid", Quota::once(9));
    let limits = layer(policy.tier_by(|_| Some(1)));
    for expected in [200, 200, 429] {
        assert_eq!(status(&limits, &[]).await, expected);
    }
}

#[tokio::test]
async fn two_different_tokens_are_refused_unless_it_is_a_shadow() {
    let two = [("authorization", "Bearer a"), ("authorization", "Bearer b")];
    for key in [Key::bearer(), Key::bearer().or_anonymous(), Key::bearer().or_skip()] {
        for (mode, expected) in
            [(Mode::Enforce, 403), (Mode::Percent(0), 403), (Mode::Shadow, 200), (Mode::Tag, 200)]
        {
            let limits = layer(Policy::new("p", Quota::once(9)).key(key.clone()).mode(mode));
            assert_eq!(status(&limits, &two).await, expected, "{mode:?} {key:?}");
        }
    }
}

#[tokio::test]
async fn a_cost_of_zero_and_a_preflight_are_not_counted() {
    let free = Policy::new("p", Quota::once(1)).cost_by(|info| info.headers().len() as u64);
    let preflight = Policy::new("p", Quota::once(1)).only(|info| info.method() != Method::OPTIONS);
    for (policy, headers) in [(free, Some(("x-one", "1"))), (preflight, None)] {
        let limits = layer(policy);
        for _ in 0..5 {
            let free = Request::options("/").body(()).unwrap();
            assert_eq!(ask(&limits, free).await.status(), 200);
        }
        let headers: Vec<_> = headers.into_iter().collect();
        for expected in [200, 429] {
            assert_eq!(status(&limits, &headers).await, expected);
        }
    }
}

#[tokio::test]
async fn grpc_of_browsers_is_answered_as_http() {
    let limits = layer(Policy::new("p", Quota::per_minute(1)));
    let mut refused = None;
    for _ in 0..2 {
        let call = Request::post("/a.B/C").header("content-type", "application/grpc-web+proto");
        refused = Some(ask(&limits, call.body(()).unwrap()).await);
    }
    let refused = refused.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    assert_eq!(refused.headers()["retry-after"], "60");
    assert!(!refused.headers().contains_key("grpc-status"));
}

#[tokio::test]
async fn a_key_stays_on_its_side_of_a_percentage() {
    let policy = || Policy::new("p", Quota::once(1)).key(Key::header("x-key"));
    let mut held = 0;
    // Two layers of the same policy, as in two processes: they enforce it for the same keys.
    let layers = [0, 1].map(|_| layer(policy().mode(Mode::Percent(50))));
    for key in 0..100 {
        let key = [("x-key", &*key.to_string())];
        let mut seen = Vec::new();
        for limits in &layers {
            assert_eq!(status(limits, &key).await, 200);
            for _ in 0..3 {
                seen.push(status(limits, &key).await);
            }
        }
        assert!(seen.iter().all(|status| *status == seen[0]), "{key:?}: {seen:?}");
        held += u32::from(seen[0] == 429);
    }
    assert!((25..75).contains(&held), "{held} of 100");
}

#[tokio::test]
async fn what_takes_longer_than_five_minutes_gets_nothing_back() {
    for (seconds, expected) in [(299, 200), (301, 429)] {
        let (clock, hand) = Clock::manual();
        let memory = MemoryStore::builder().clock(clock).build().unwrap();
        let bytes = Policy::new("p", Quota::once(20)).cost(20).settle(Settle::body_bytes());
        let limits = RateLimitLayer::builder().memory(memory).policy(bytes).build().unwrap();
        let response = ask(&limits, Request::new(())).await;
        hand.advance(Duration::from_secs(seconds));
        drop(response);
        assert_eq!(status(&limits, &[]).await, expected, "nothing was sent, after {seconds} s");
    }
}

#[tokio::test(start_paused = true)]
async fn of_those_who_wait_there_are_1024() {
    let memory = MemoryStore::builder().clock(Clock::tokio()).build().unwrap();
    let limits = RateLimitLayer::builder()
        .memory(memory)
        .policy(Policy::new("p", Quota::per_second(1)))
        .wait_up_to(Duration::from_secs(3_600))
        .build()
        .unwrap();
    assert_eq!(status(&limits, &[]).await, 200);
    let mut service = limits.layer(tower::service_fn(answer));
    let mut waits: Vec<_> = (0..1024).map(|_| Box::pin(service.call(Request::new(())))).collect();
    assert!(waits.iter_mut().all(is_pending));
    assert_eq!(status(&limits, &[]).await, 429, "there is no place for another one");
    drop(waits.pop());
    assert!(is_pending(&mut Box::pin(service.call(Request::new(())))), "there is one");
}

#[tokio::test(start_paused = true)]
async fn a_store_has_two_seconds() {
    let store = Away::held(MemoryStore::builder().clock(Clock::tokio()).build().unwrap());
    let limits = RateLimitLayer::builder()
        .store(store.clone())
        .on_store_error(OnStoreError::Refuse)
        .policy(Policy::new("p", Quota::once(1)))
        .build()
        .unwrap();
    let mut call = pin!(status(&limits, &[]));
    assert!(
        timeout(Duration::from_millis(1_990), call.as_mut()).await.is_err(),
        "it is waited for"
    );
    assert_eq!(timeout(Duration::from_millis(20), call).await, Ok(503));
}

#[test]
fn a_store_that_fails_is_logged_once_each_second() {
    let (clock, hand) = Clock::manual();
    let store = Away::new(MemoryStore::builder().clock(clock).build().unwrap());
    store.is_down.store(true, SeqCst);
    let policy = Policy::new("p", Quota::once(1));
    let limits = RateLimitLayer::builder().store(store).policy(policy).build().unwrap();
    let heard = Heard::during(|| {
        for advance_ms in [0, 0, 999, 1, 0, 0, 1_000] {
            hand.advance(Duration::from_millis(advance_ms));
            assert_eq!(block_on(status(&limits, &[])), 200, "it passes");
        }
    });
    let left_out: Vec<_> = heard
        .iter()
        .map(|line| {
            assert!(line.starts_with("WARN ") && line.contains("the store is away"), "{line}");
            let (_, rest) = line.split_once("left_out=").unwrap();
            rest.split(' ').next().unwrap()
        })
        .collect();
    assert_eq!(left_out, ["0", "2", "2"], "{heard:?}");
}

/// A store that settles when a test releases it.
struct Slow(MemoryStore, Semaphore);

impl Store for Slow {
    forward_store!(self => &self.0, except settle);

    async fn settle(&self, id: ReservationId, actual: &[u64]) -> Result<bool, StoreError> {
        self.1.acquire().await.unwrap().forget();
        self.0.settle(id, actual).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_settles_waits_for_the_store_and_not_for_long() {
    let memory = MemoryStore::builder().clock(Clock::tokio()).build().unwrap();
    let slow: &'static Slow = Box::leak(Box::new(Slow(memory, Semaphore::new(0))));
    let used = Settle::header(HeaderName::from_static("x-used"));
    let policy = Policy::new("p", Quota::once(100)).cost(40).settle(used);
    let limits = RateLimitLayer::builder().store(slow).policy(policy).build().unwrap();
    let used = [("x-used", "10")];
    let mut call = pin!(status(&limits, &used));
    assert!(timeout(Duration::from_millis(1_000), call.as_mut()).await.is_err(), "not settled yet");
    slow.1.add_permits(1);
    assert_eq!(timeout(Duration::from_millis(10), call).await, Ok(200), "it is now");
    let mut call = pin!(status(&limits, &used));
    assert!(timeout(Duration::from_millis(1_990), call.as_mut()).await.is_err());
    assert_eq!(timeout(Duration::from_millis(20), call).await, Ok(200), "2 s are enough");
}

#[test]
fn memory_of_its_own_is_for_a_million_keys() {
    assert_eq!(RateLimitBuilder::MAX_KEYS, 1_000_000);
}
