//! A service that shows its limits: `/metrics` for Prometheus, `/debug/limiters` for people.
//!
//! `cargo run -p tollgate-examples --bin observed`, then `curl localhost:9184/` several times,
//! `curl localhost:9184/debug/limiters` and `curl localhost:9184/metrics`. Another address:
//! `-- 127.0.0.1:9999`.

use axum::{
    Router,
    http::{Request, Response},
    routing::get,
};
use std::{convert::Infallible, time::Duration};
use tollgate::{
    Breaker, Concurrency, KeyedLimiter, Limiter, Quota,
    hedge::HedgePolicy,
    observe::{KeyForm, Registry},
    self_throttle::SelfThrottle,
};
use tollgate_tower::{
    BandwidthLayer, BreakerLayer, ClientStack, ConcurrencyLayer, FallbackLayer, Key, Mode, Policy,
    RateLimitLayer, RegistryEndpoint, Shaping, TimeoutLayer,
    client::{HedgeLayer, PaceLayer, RetryLayer, SelfThrottleLayer},
};
use tower::{Layer, ServiceExt, service_fn};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The limits that this program calls directly.
#[derive(Clone)]
pub(crate) struct Limits {
    pub(crate) api: Limiter,
    pub(crate) users: KeyedLimiter<str>,
    uploads: Concurrency,
    database: Breaker,
}

/// Builds the limits, and names them in the registry.
pub(crate) fn limits(registry: &Registry) -> Result<Limits, Failure> {
    let limits = Limits {
        api: Limiter::builder(Quota::per_second(100)).counted().build()?,
        users: KeyedLimiter::builder(Quota::per_minute(60)).bounded(10_000).counted().build()?,
        uploads: Concurrency::builder(8).max_waiting(100).counted().build()?,
        database: Breaker::builder().build()?,
    };
    registry.add("api", &limits.api)?;
    registry.add("users", &limits.users)?;
    registry.add("uploads", &limits.uploads)?;
    registry.add("database", &limits.database)?;
    Ok(limits)
}

/// Shows the metrics and the list. Serve this where only operators have access.
pub(crate) fn routes(registry: Registry) -> Router {
    Router::new()
        .route_service("/metrics", RegistryEndpoint::metrics(registry.clone()))
        .route_service("/debug/limiters", RegistryEndpoint::limiters(registry))
}

/// Returns a service behind layers, which calls another one through a stack.
pub(crate) fn app(limits: &Limits, registry: &Registry) -> Result<Router, Failure> {
    let second = Duration::from_secs(1);
    let user = Key::header("x-user").or_anonymous();
    let rate = RateLimitLayer::builder()
        .policy(Policy::new("per-user", Quota::per_minute(60)).key(user))
        .policy(Policy::new("stricter", Quota::per_minute(30)).mode(Mode::Shadow))
        .counted()
        .top_keys(100, KeyForm::Hashed)
        .build()?;
    let slots = ConcurrencyLayer::builder(limits.uploads.clone()).counted().build()?;
    let bytes = Shaping::each(Quota::per_second(1_000_000));
    let bandwidth = BandwidthLayer::builder().response(bytes).build()?;
    let retry = RetryLayer::builder().build()?;
    let hedge = HedgePolicy::at_percentile(95.0).shared_budget(retry.budget().clone()).build()?;
    let Ok(hedge) = HedgeLayer::builder(hedge).build();
    let Ok(throttle) = SelfThrottleLayer::builder(SelfThrottle::builder().build()?).build();
    let prices = ClientStack::builder("prices")
        .fallback(FallbackLayer::value(Response::new("an older price".into())).build()?)
        .total_timeout(TimeoutLayer::builder().total(2 * second).build()?)
        .retry(retry)
        .hedge(hedge)
        .throttle(throttle)
        .pace(PaceLayer::builder().quota(Limiter::new(Quota::per_second(50))?).build()?)
        .breaker(BreakerLayer::builder(limits.database.clone()).build()?)
        .concurrency(ConcurrencyLayer::builder(Concurrency::new(50)?).counted().build()?)
        .attempt_timeout(TimeoutLayer::builder().attempt(second).build()?)
        .build()?;
    registry.add("http", &rate)?;
    registry.add("slots", &slots)?;
    registry.add("bandwidth", &bandwidth)?;
    registry.add("prices", &prices)?;

    let client = prices.layer(service_fn(|_: Request<String>| async {
        Ok::<_, Infallible>(Response::new("42".to_owned()))
    }));
    let limits = limits.clone();
    let price = move || {
        let _ = (limits.api.try_acquire(), limits.users.try_acquire("alice"));
        let call = client.clone().oneshot(Request::new(String::new()));
        async { call.await.map_or_else(|never| match never {}, |response| response.status()) }
    };
    Ok(Router::new().route("/", get(price)).layer(bandwidth).layer(rate).layer(slots))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let registry = Registry::global();
    let app = app(&limits(registry)?, registry)?.merge(routes(registry.clone()));
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9184".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}
