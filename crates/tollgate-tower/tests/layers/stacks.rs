//! The layer in common stacks: it fits, counts once, and calls the service that was ready.

mod faults;
mod kinds;
mod ready;
mod routers;
mod shed;

use http::{Request, Response};
use std::convert::Infallible;
use tollgate::Quota;
use tollgate_tower::{Policy, RateLimitLayer};

/// A limit for all requests that never refills.
fn once(permits: u64) -> RateLimitLayer {
    RateLimitLayer::builder().policy(Policy::new("p", Quota::once(permits))).build().unwrap()
}

/// A service that answers every request.
async fn hello<B>(_: Request<B>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("hello".into()))
}

fn get(path: &str) -> Request<String> {
    Request::get(path).body(String::new()).unwrap()
}

/// Returns the remaining permits of a limit, and spends them.
async fn drain(limits: &RateLimitLayer) -> u64 {
    use tower::{Layer, ServiceExt};
    let mut left = 0;
    while limits.layer(tower::service_fn(hello)).oneshot(get("/")).await.unwrap().status() == 200 {
        left += 1;
    }
    left
}
