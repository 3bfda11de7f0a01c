//! The axum program of `docs/quickstart.md`: five requests a minute for each address.
//!
//! `cargo run -p tollgate-examples --bin quickstart`, then `curl -i localhost:3000/` six times.

use axum::{Router, routing::get};
use std::net::SocketAddr;
use tollgate::Quota;
use tollgate_tower::{Key, Policy, RateLimitLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limit = Policy::new("per-address", Quota::per_minute(5)).key(Key::peer());
    let layer = RateLimitLayer::builder().policy(limit).build()?;
    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
