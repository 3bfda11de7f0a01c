//! An outage of a database as the callers of a service see it: with and without stacks.
//!
//! `cargo run -p tollgate-examples --features reqwest,testing --bin outage`
//!
//! It runs for 16 seconds without and for 16 with them, on loopback, prints a table and draws
//! docs/pictures/outage.svg.

#[path = "outage/database.rs"]
mod database;
#[path = "outage/load.rs"]
pub(crate) mod load;
#[path = "outage/picture.rs"]
mod picture;

use axum::{Router, http::StatusCode, routing::get};
use database::Database;
use http::{Request, Response};
use load::{Answer, Client, Failure, Load, PATIENCE, Seen, connect};
use reqwest::Body;
use std::{sync::Arc, time::Duration};
use tollgate::{Breaker, Clock, Concurrency, Trip};
use tollgate_tower::{
    BreakerLayer, ClientStack, ConcurrencyLayer, Degraded, FallbackLayer, ServerStack,
    TimeoutLayer, client::RetryLayer,
};
use tower::{Layer, Service, ServiceExt};

/// A caller waits for a second, and for this long for each attempt.
const ATTEMPT: Duration = Duration::from_millis(250);

/// Whether client and server have their stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stacks {
    On,
    Off,
}

/// Starts a database, and returns the service that queries it.
pub(crate) fn server(stacks: Stacks) -> Result<Router, Failure> {
    let database = Database::start()?;
    let app = Router::new().route("/", get(|| async move { database.ask().await }));
    if stacks == Stacks::Off {
        return Ok(app);
    }
    let slots = Concurrency::builder(8).max_waiting(16).clock(Clock::tokio()).build()?;
    let timeout = TimeoutLayer::builder().clock(Clock::tokio());
    let stack = ServerStack::builder("shop")
        .shed(ConcurrencyLayer::builder(slots).max_wait(ATTEMPT / 2).build()?)
        .handler_timeout(timeout.attempt(ATTEMPT).build()?)
        .build()?;
    Ok(app.layer(stack))
}

/// Calls as most programs do: a timeout, and three more attempts.
async fn try_four_times(client: Client, url: Arc<str>) -> Answer {
    for _ in 0..4 {
        let Ok(request) = Request::get(&*url).body(Body::default()) else { break };
        let response = tokio::time::timeout(ATTEMPT, client.clone().oneshot(request)).await;
        if matches!(response, Ok(Ok(response)) if response.status() == StatusCode::OK) {
            return Answer::Good;
        }
    }
    Answer::Failed
}

/// Makes calls for 16 seconds, and returns the callers' observations.
pub(crate) async fn watch(stacks: Stacks, client: Client, url: &str) -> Result<Seen, Failure> {
    let (load, url): (_, Arc<str>) = (Load::new(), url.into());
    let client = load.counted(client);
    if stacks == Stacks::Off {
        return Ok(load.run(|| try_four_times(client.clone(), Arc::clone(&url))).await);
    }
    let clock = Clock::tokio;
    let timeout = || TimeoutLayer::builder().clock(clock());
    let breaker = Breaker::builder().trip(Trip::consecutive(10)).open_for(2 * ATTEMPT).growth(1);
    let breaker = BreakerLayer::builder(breaker.clock(clock()).build()?).build()?;
    let slots = Concurrency::builder(50).clock(clock()).build()?;
    let stack = ClientStack::builder("shop")
        .fallback(FallbackLayer::value(Response::new("an older answer".into())).build()?)
        .total_timeout(timeout().total(PATIENCE).build()?)
        .retry(RetryLayer::builder().replay(Body::wrap).max_attempts(4).build()?)
        .breaker(breaker)
        .concurrency(ConcurrencyLayer::builder(slots).build()?)
        .attempt_timeout(timeout().attempt(ATTEMPT).build()?)
        .build()?;
    let client = stack.layer(client);
    Ok(load.run(|| call(client.clone(), Arc::clone(&url))).await)
}

/// Calls once: the stack does the rest.
async fn call<S, B>(client: S, url: Arc<str>) -> Answer
where
    S: Service<Request<Body>, Response = Response<B>>,
{
    let Ok(request) = Request::get(&*url).body(Body::default()) else { return Answer::Failed };
    match client.oneshot(request).await {
        Ok(response) if response.extensions().get::<Degraded>().is_some() => Answer::Degraded,
        Ok(response) if response.status() == StatusCode::OK => Answer::Good,
        _ => Answer::Failed,
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let run = async |stacks| {
        let (client, url) = connect(server(stacks)?).await?;
        watch(stacks, client, &url).await
    };
    let (without, with) = (run(Stacks::Off).await?, run(Stacks::On).await?);
    println!("{}", picture::table(&without, &with));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/pictures/outage.svg");
    std::fs::write(path, picture::svg(&without, &with))?;
    Ok(())
}
