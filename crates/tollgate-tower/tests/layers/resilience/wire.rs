//! The layers around real clients and servers, over loopback: hyper-util, axum, tonic.

use super::{MS, SECOND};
use crate::{
    concurrency::Fed,
    wire::{Plain, serve},
};
use axum::{Extension, Router, body::Body, routing::any};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tollgate::{Breaker, Trip};
use tollgate_tower::{
    BreakerLayer, Deadline, Degraded, FallbackLayer, Info, Peer, TimeoutError, TimeoutLayer,
    client::RetryLayer, fallback::FallbackCause, key::Trust, timeout::TimeoutPhase,
};
use tonic::{Code, Status, client::Grpc, transport::Endpoint};
use tower::{ServiceBuilder, ServiceExt};

type Seen = Arc<Mutex<Vec<HeaderMap>>>;

/// A server that believes deadlines, records the headers of calls, and answers by the path.
async fn server() -> (SocketAddr, Seen) {
    let seen = Seen::default();
    let notes = Arc::clone(&seen);
    let reply = move |request: Request<Body>| {
        notes.lock().unwrap().push(request.headers().clone());
        let has_deadline = request.extensions().get::<Deadline>().is_some();
        async move {
            let is_grpc = Info::of(&request).is_grpc();
            let mut response = Response::new(Body::from(has_deadline.to_string()));
            match request.uri().path() {
                "/hangs" => std::future::pending().await,
                "/fails" => *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR,
                "/body" => *response.body_mut() = Body::new(Fed::endless("begun")),
                _ if is_grpc => response = Status::unavailable("down").into_http(),
                _ => {}
            }
            response
        }
    };
    let timeout = TimeoutLayer::builder().trust_deadline(Trust::hops(1)).build().unwrap();
    let peer = Extension(Peer(([127, 0, 0, 1], 1).into()));
    let router = Router::new().fallback(any(reply)).layer(timeout).layer(peer);
    (serve(router).await, seen)
}

fn breaker() -> Breaker {
    Breaker::builder().trip(Trip::consecutive(2)).open_for(60 * SECOND).build().unwrap()
}

#[tokio::test]
async fn a_client_of_hyper_util_goes_through_the_whole_stack() {
    let (address, seen) = server().await;
    let hyper: Client<HttpConnector, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).build_http();
    let say = |_: &http::request::Parts, cause: &FallbackCause<'_>| {
        let part = cause.refused_by().map(|refused| refused.part());
        let phase = cause.timeout().map(|timeout| timeout.phase().name());
        let status = cause.response().map_or("none", |head| head.status.as_str());
        let text = part.or(phase).unwrap_or(status).to_owned();
        Response::new(Bytes::from(text))
    };
    let breaker = breaker();
    let layer = BreakerLayer::builder(breaker.clone()).build().unwrap();
    let attempt = TimeoutLayer::builder().attempt(20 * SECOND).send_deadline().build().unwrap();
    let client = ServiceBuilder::new()
        .layer(FallbackLayer::function(say).build().unwrap())
        .layer(TimeoutLayer::builder().total(30 * SECOND).build().unwrap())
        .layer(RetryLayer::builder().max_attempts(2).build().unwrap())
        .layer(layer)
        .layer(attempt)
        .service(hyper);
    let get = async |path: &str| {
        let request = Request::get(format!("http://{address}{path}")).body(Full::default());
        let response = client.clone().oneshot(request.unwrap()).await.unwrap();
        let is_degraded = response.extensions().get::<Degraded>().is_some();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (is_degraded, body)
    };
    assert_eq!(get("/").await, (false, Bytes::from_static(b"true")), "the server has a deadline");
    assert!(seen.lock().unwrap()[0].contains_key("x-envoy-expected-rq-timeout-ms"));
    for _ in 0..2 {
        assert_eq!(get("/fails").await, (true, Bytes::from_static(b"500")));
    }
    assert!(!breaker.state().is_closed());
    // No retry waits for a break of 60 s: the deadline is earlier.
    for _ in 0..20 {
        assert_eq!(get("/").await, (true, Bytes::from_static(b"breaker")));
    }
    assert_eq!(seen.lock().unwrap().len(), 3, "the server is left alone");
}

#[tokio::test]
async fn a_server_that_hangs_is_late_in_its_head_or_in_its_body() {
    let (address, _seen) = server().await;
    let hyper: Client<HttpConnector, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).build_http();
    let layer = TimeoutLayer::builder().attempt(50 * MS).build().unwrap();
    let client = ServiceBuilder::new().layer(layer.clone()).service(hyper);
    let request = |path| Request::get(format!("http://{address}{path}")).body(Full::default());
    let late = client.clone().oneshot(request("/hangs").unwrap()).await.unwrap();
    let error = late.extensions().get::<TimeoutError>().unwrap();
    assert_eq!((late.status().as_u16(), error.phase()), (504, TimeoutPhase::Attempt));
    let response = client.clone().oneshot(request("/body").unwrap()).await.unwrap();
    if response.status() == 200 {
        let error = response.into_body().collect().await.unwrap_err();
        assert!(error.is::<TimeoutError>(), "{error}");
    }
    assert_eq!(layer.counts().attempt, 2);
}

#[tokio::test]
async fn a_channel_of_tonic_has_a_breaker_and_sends_its_deadline() {
    let (address, seen) = server().await;
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let breaker = breaker();
    let client = ServiceBuilder::new()
        .layer(BreakerLayer::builder(breaker.clone()).build().unwrap())
        .layer(TimeoutLayer::builder().total(20 * SECOND).send_deadline().build().unwrap())
        .service(channel);
    let mut client = Grpc::new(client);
    for number in 0..5 {
        client.ready().await.unwrap();
        let path = "/echo.Echo/Say".parse().unwrap();
        let status =
            client.unary(tonic::Request::new(Bytes::new()), path, Plain).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.message() == "down", number < 2, "{status:?}");
    }
    let seen = seen.lock().unwrap();
    assert_eq!((seen.len(), breaker.counts().refused), (2, 3));
    let timeout = seen[0]["grpc-timeout"].to_str().unwrap();
    assert!(timeout.ends_with('u') && timeout.len() == 9, "{timeout}: below 20 s");
}
