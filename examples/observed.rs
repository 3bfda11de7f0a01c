//! Metrics of all limiters of a program for Prometheus, and a page that lists them.
//!
//! `cargo run -p tollgate-examples --bin observed`, then `curl localhost:9184/metrics` and
//! `curl localhost:9184/debug/limiters`. Another address: `-- 127.0.0.1:9999`.

use axum::{Router, http::header::CONTENT_TYPE, routing::get};
use tollgate::{Breaker, Concurrency, KeyedLimiter, Limiter, Quota, watch::Registry};

/// The limits of this program.
pub(crate) struct Limits {
    pub(crate) api: Limiter,
    pub(crate) users: KeyedLimiter<str>,
    _uploads: Concurrency,
    _database: Breaker,
}

/// Builds the limits, and names them in the registry.
pub(crate) fn limits(registry: &Registry) -> Result<Limits, Box<dyn std::error::Error>> {
    let limits = Limits {
        api: Limiter::builder(Quota::per_second(100)).counted().build()?,
        users: KeyedLimiter::builder(Quota::per_minute(60)).bounded(10_000).counted().build()?,
        _uploads: Concurrency::builder(8).max_waiting(100).counted().build()?,
        _database: Breaker::builder().build()?,
    };
    registry.add("api", &limits.api)?;
    registry.add("users", &limits.users)?;
    registry.add("uploads", &limits._uploads)?;
    registry.add("database", &limits._database)?;
    Ok(limits)
}

/// Shows the metrics and the list. Serve this where only operators get to.
pub(crate) fn routes(registry: Registry) -> Router {
    let listed = registry.clone();
    let metrics =
        move || async move { ([(CONTENT_TYPE, Registry::PROMETHEUS_TEXT)], registry.prometheus()) };
    let list = move || async move {
        listed.list().iter().map(|report| format!("{report}\n")).collect::<String>()
    };
    Router::new().route("/metrics", get(metrics)).route("/debug/limiters", get(list))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limits = limits(Registry::global())?;
    for call in 0..150 {
        let _ = (limits.api.try_acquire(), limits.users.try_acquire(&format!("user {}", call % 3)));
    }
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9184".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    axum::serve(listener, routes(Registry::global().clone())).await?;
    Ok(())
}
