//! The first program of `docs/http.md`: a limit by address and one for all requests.
//!
//! `cargo run -p tollgate-examples --bin first_limit`, then `curl -i localhost:3000/`.

use std::net::SocketAddr;

use axum::{Router, routing::get};
use tollgate::Quota;
use tollgate_tower::{Key, Policy, RateLimitLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limits = RateLimitLayer::builder()
        .policy(Policy::new("per-address", Quota::per_minute(60)).key(Key::peer()))
        .policy(Policy::new("global", Quota::per_second(1000)))
        .build()?;
    let app = Router::new().route("/", get(|| async { "hello" })).layer(limits);

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
