//! The layer in the stacks that people build: it fits, counts once, and calls what was ready.

mod faults;
mod kinds;
mod ready;
mod routers;
mod shed;

use http::{Request, Response};
use std::convert::Infallible;
use tollgate::Quota;
use tollgate_tower::{Policy, RateLimitLayer};

/// A limit over all requests that is never refilled.
fn once(permits: u64) -> RateLimitLayer {
    RateLimitLayer::builder().policy(Policy::new("p", Quota::once(permits))).build().unwrap()
}

/// A service that answers everything.
async fn hello<B>(_: Request<B>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("hello".into()))
}

fn get(path: &str) -> Request<String> {
    Request::get(path).body(String::new()).unwrap()
}

/// Returns what is left of a limit, and spends it.
async fn drain(limits: &RateLimitLayer) -> u64 {
    use tower::{Layer, ServiceExt};
    let mut left = 0;
    while limits.layer(tower::service_fn(hello)).oneshot(get("/")).await.unwrap().status() == 200 {
        left += 1;
    }
    left
}
