//! A client of reqwest that follows the limits that a server reports: it is never refused.
//!
//! `cargo run -p tollgate-examples --features reqwest --bin client_follows`

use axum::{Router, routing::get};
use http::{Request, Response};
use reqwest::Body;
use std::{error::Error, net::SocketAddr};
use tokio::net::TcpListener;
use tollgate::Quota;
use tollgate_tower::{
    LayerError, Policy, RateLimitLayer,
    client::{PaceCounts, PaceLayer, RetryLayer},
};
use tower::{Layer, ServiceExt, service_fn};

/// A server that allows 20 calls a second, and says so in its headers.
pub(crate) fn server() -> Result<Router, LayerError> {
    let limits =
        RateLimitLayer::builder().policy(Policy::new("calls", Quota::per_second(20))).build()?;
    Ok(Router::new().route("/", get(|| async { "hello" })).layer(limits))
}

/// Lets reqwest send requests of the crate `http`, the type that tower layers use.
async fn send(
    client: reqwest::Client,
    request: Request<Body>,
) -> Result<Response<Body>, reqwest::Error> {
    let response = client.execute(request.try_into()?).await?;
    Ok(response.into())
}

/// Makes this many calls, as fast as the server allows; returns how many were refused, and the
/// counts of the layer.
pub(crate) async fn call(
    server: SocketAddr,
    calls: usize,
) -> Result<(usize, PaceCounts), Box<dyn Error>> {
    let reqwest = reqwest::Client::new();
    let pace = PaceLayer::builder().build()?;
    // A body of reqwest may be a stream, which cannot be cloned: the layer keeps the frames that it
    // sends.
    let retry = RetryLayer::builder().replay(Body::wrap).build()?;
    let inner = service_fn(move |request| send(reqwest.clone(), request));
    let client = retry.layer(pace.layer(inner));
    let mut refused = 0;
    for _ in 0..calls {
        let request = Request::get(format!("http://{server}/")).body(Body::default())?;
        let response = client.clone().oneshot(request).await?;
        refused += usize::from(!response.status().is_success());
    }
    Ok((refused, pace.counts()))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let app = server()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    let (refused, counts) = call(address, 60).await?;
    println!("60 calls, {refused} refused, {} waited", counts.waited);
    Ok(())
}
