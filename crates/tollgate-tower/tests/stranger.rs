//! Faults that a stranger found with a crate of its own, each with what should be. Those that are not
//! mended are ignored.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "stranger/client.rs"]
mod client;
#[path = "../../../examples/llm_budget.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod llm_budget;
#[path = "stranger/server.rs"]
mod server;
#[path = "stranger/start.rs"]
mod start;

use http::{HeaderMap, Request, Response};
use std::convert::Infallible;
use tollgate_tower::{LimitBody, RateLimitLayer};
use tower::{Layer, ServiceExt};

/// A service that answers everything.
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
