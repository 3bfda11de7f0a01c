//! A first program with the layers: its experience at the start, on the server and on the client.

mod client;
mod server;
mod start;

use http::{HeaderMap, Request, Response};
use std::convert::Infallible;
use tollgate_tower::{LimitBody, RateLimitLayer};
use tower::{Layer, ServiceExt};

/// A service that answers every request.
async fn hello(_: Request<String>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("hello".into()))
}

fn get() -> Request<String> {
    Request::get("/").body(String::new()).unwrap()
}

async fn ask(limits: &RateLimitLayer) -> Response<LimitBody<String>> {
    limits.layer(tower::service_fn(hello)).oneshot(get()).await.unwrap()
}

/// The lines of a field, as a recipient may join them (RFC 9110, section 5.3).
fn joined(headers: &HeaderMap, name: &str) -> String {
    let lines: Vec<_> = headers.get_all(name).iter().map(|line| line.to_str().unwrap()).collect();
    lines.join(", ")
}
