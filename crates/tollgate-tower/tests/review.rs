//! Faults that a review has found, each with what should be. What is not mended yet is ignored.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "away/mod.rs"]
mod away;
#[path = "review/client.rs"]
mod client;
#[path = "review/ends.rs"]
mod ends;
#[path = "review/figures.rs"]
mod figures;
#[path = "../../../examples/llm_budget.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod llm_budget;
#[cfg(feature = "axum")]
#[path = "../../../examples/login_protection.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod login_protection;
#[path = "review/stack.rs"]
mod stack;
#[path = "stub/mod.rs"]
mod stub;

use http::{Request, Response};
use std::convert::Infallible;
use tollgate::{Clock, ManualClock, store::MemoryStore};
use tollgate_tower::{LimitBody, RateLimitBuilder, RateLimitLayer};
use tower::{Layer, ServiceExt};

/// A builder of a layer in memory whose time stands still, the memory, and the hand of its clock.
fn manual() -> (RateLimitBuilder, MemoryStore, ManualClock) {
    let (clock, hand) = Clock::manual();
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    (RateLimitLayer::builder().memory(store.clone()), store, hand)
}

/// A service that answers everything.
async fn hello(_: Request<String>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("hello".into()))
}

/// A service that never answers.
async fn hangs(_: Request<String>) -> Result<Response<String>, Infallible> {
    std::future::pending().await
}

fn get(path: &str) -> Request<String> {
    Request::get(path).body(String::new()).unwrap()
}

async fn ask(limits: &RateLimitLayer, path: &str) -> Response<LimitBody<String>> {
    limits.layer(tower::service_fn(hello)).oneshot(get(path)).await.unwrap()
}

async fn status(limits: &RateLimitLayer) -> u16 {
    ask(limits, "/").await.status().as_u16()
}

/// Polls a future once, which is not ready.
fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(future.poll(&mut context).is_pending());
}
