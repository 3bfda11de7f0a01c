//! Stacks of clients and servers: their order, their refusals, and tower's contract.

/// A stack with every part but a fallback, around a service.
macro_rules! full {
    ($breaker:expr, $slots:expr, $pace:expr) => {{
        let budget = RetryBudget::builder().clock(Clock::tokio()).build().unwrap();
        let policy = HedgePolicy::after(ms(10_000)).shared_budget(budget.clone());
        let policy = policy.clock(Clock::tokio()).build().unwrap();
        let throttle = SelfThrottle::builder().clock(Clock::tokio()).build().unwrap();
        let Ok(hedge) = HedgeLayer::builder(policy).build();
        let Ok(throttle) = SelfThrottleLayer::builder(throttle).build();
        ClientStack::builder("payments")
            .attempt_timeout(attempt(ms(2_000)))
            .concurrency($slots)
            .breaker(breaker_layer($breaker))
            .pace($pace)
            .throttle(throttle)
            .hedge(hedge)
            .retry(retry(&budget))
            .total_timeout(total(ms(5_000)))
    }};
}

mod client;
mod client_refusals;
mod contract;
mod observed;
mod server;

use crate::strict::{HANGS, Strict, error, get, status};
use http::{Request, Response};
use std::{
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::{
    Breaker, Clock, Concurrency, Limiter, Quota, RetryBudget, Trip, hedge::HedgePolicy,
    self_throttle::SelfThrottle,
};
use tollgate_tower::{
    BreakerLayer, ClientStack, ConcurrencyLayer, RefusedBy, TimeoutLayer,
    client::{Backoff, HedgeLayer, PaceLayer, RetryLayer, SelfThrottleLayer},
    stack::StackHandle,
};
use tower::{Layer, Service, ServiceExt};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Opens after two failures in a row, for a second; one trial.
fn breaker() -> Breaker {
    Breaker::builder()
        .trip(Trip::consecutive(2))
        .open_for(ms(1_000))
        .jitter(0)
        .trials(1)
        .clock(Clock::tokio())
        .build()
        .unwrap()
}

fn breaker_layer(breaker: &Breaker) -> BreakerLayer {
    BreakerLayer::builder(breaker.clone()).build().unwrap()
}

/// Two attempts, 100 ms apart.
fn retry(budget: &RetryBudget) -> RetryLayer {
    RetryLayer::builder()
        .max_attempts(2)
        .backoff(Backoff::fixed(ms(100)))
        .budget(budget.clone())
        .clock(Clock::tokio())
        .build()
        .unwrap()
}

fn total(longest: Duration) -> TimeoutLayer {
    TimeoutLayer::builder().total(longest).clock(Clock::tokio()).build().unwrap()
}

fn attempt(longest: Duration) -> TimeoutLayer {
    TimeoutLayer::builder().attempt(longest).clock(Clock::tokio()).build().unwrap()
}

/// Ten in a second, two at once, and waits of up to `max_wait`. It follows nothing but that.
fn pace(max_wait: Duration) -> (Limiter, PaceLayer) {
    let quota = Quota::per_second(10).burst(2);
    let quota = Limiter::builder(quota).clock(Clock::tokio()).build().unwrap();
    let pace = PaceLayer::builder().quota(quota.clone()).max_wait(max_wait).clock(Clock::tokio());
    (quota, pace.without_learning().build().unwrap())
}

/// A rate that no test here exhausts.
fn wide_pace() -> PaceLayer {
    let quota = Limiter::builder(Quota::per_second(1_000_000)).clock(Clock::tokio());
    let pace = PaceLayer::builder().quota(quota.build().unwrap()).clock(Clock::tokio());
    pace.build().unwrap()
}

fn slots(limit: u64, waiting: u64) -> (Concurrency, ConcurrencyLayer) {
    let slots = Concurrency::builder(limit).max_waiting(waiting).clock(Clock::tokio());
    let slots = slots.build().unwrap();
    let layer = ConcurrencyLayer::builder(slots.clone());
    let layer = if waiting > 0 { layer.max_wait(ms(1_000)) } else { layer };
    (slots, layer.build().unwrap())
}

/// Calls once, and returns the status, or the error.
async fn once<S, B>(service: &S) -> Result<u16, S::Error>
where
    S: Service<Request<String>, Response = Response<B>> + Clone,
{
    let response = service.clone().oneshot(get("/")).await?;
    Ok(response.status().as_u16())
}

/// Calls once, and returns which part refused.
async fn refusal<S, B>(service: &S) -> RefusedBy
where
    S: Service<Request<String>, Response = Response<B>, Error = &'static str> + Clone,
{
    let response = service.clone().oneshot(get("/")).await.unwrap();
    *response.extensions().get().expect("it is refused")
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Asserts that all resources are released.
fn assert_released(handle: &StackHandle, inner: &crate::strict::Shared, what: &str) {
    for limit in handle.report().limits {
        assert_eq!((limit.in_flight, limit.waiting), (0, 0), "{what}: {limit:?}");
    }
    assert_eq!((inner.running(), inner.reserved()), (0, 0), "{what}");
}
