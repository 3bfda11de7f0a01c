//! Requests that end in unusual ways, stacks of layers, and the figures that clients get.

mod client;
mod ends;
mod figures;
#[cfg(feature = "axum")]
#[path = "../../../../examples/login_protection.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod login_protection;
mod stack;

use http::{Request, Response};
use std::convert::Infallible;
use tollgate::{Clock, ManualClock, store::MemoryStore};
use tollgate_tower::{LimitBody, RateLimitBuilder, RateLimitLayer};
use tower::{Layer, ServiceExt};

/// A builder of a layer in memory on a manual clock, the memory, and the handle of the clock.
fn manual() -> (RateLimitBuilder, MemoryStore, ManualClock) {
    let (clock, hand) = Clock::manual();
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    (RateLimitLayer::builder().memory(store.clone()), store, hand)
}

/// A service that answers every request.
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

/// Polls a future once, and asserts that it is pending.
fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(future.poll(&mut context).is_pending());
}
