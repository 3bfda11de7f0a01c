//! The client's layers around real clients, over loopback: hyper-util's and tonic's.

use crate::wire::{Plain, serve};
use axum::{Router, response::IntoResponse, routing::any};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::oneshot;
use tollgate::{Clock, Limiter, Quota, hedge::HedgePolicy};
use tollgate_tower::client::{
    HedgeLayer, Pace, PaceError, PaceLayer, RetryBudget, RetryLayer, Spend,
};
use tonic::{
    Code, Status,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tower::{Layer, ServiceExt};

/// A server that allows 20 calls per second, and says so.
async fn limited() -> (SocketAddr, Arc<AtomicU64>) {
    let limiter = Limiter::new(Quota::per_second(20)).unwrap();
    let refusals = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&refusals);
    let reply = move || {
        let decision = limiter.try_acquire();
        let mut headers = HeaderMap::new();
        let left = format!("\"all\";r={};t=1", decision.remaining());
        headers.insert("ratelimit", HeaderValue::from_str(&left).unwrap());
        headers.insert("ratelimit-policy", HeaderValue::from_static("\"all\";q=20;w=1"));
        let mut status = StatusCode::OK;
        if decision.is_denied() {
            // ORDERING: Relaxed. A count publishes nothing else.
            counted.fetch_add(1, Relaxed);
            status = StatusCode::TOO_MANY_REQUESTS;
            headers.insert("retry-after", HeaderValue::from_static("1"));
        }
        std::future::ready((status, headers, "hello"))
    };
    (serve(Router::new().fallback(any(reply))).await, refusals)
}

type Hyper = Client<HttpConnector, Full<Bytes>>;

#[tokio::test]
async fn a_client_of_hyper_util_follows_a_server() {
    let (address, refusals) = limited().await;
    let hyper: Hyper = Client::builder(TokioExecutor::new()).build_http();
    let pace = PaceLayer::builder().spend(Spend::Burst).build().unwrap();
    let retry = RetryLayer::builder().build().unwrap();
    let client = retry.layer(pace.layer(hyper));
    let calls = (0..45).map(|_| {
        let request = Request::get(format!("http://{address}/")).body(Full::default()).unwrap();
        client.clone().oneshot(request)
    });
    // Four at a time.
    let mut calls = calls.collect::<Vec<_>>();
    while !calls.is_empty() {
        let four = calls.split_off(calls.len().saturating_sub(4));
        for call in four.into_iter().map(tokio::spawn).collect::<Vec<_>>() {
            let response = call.await.unwrap().unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, "hello");
        }
    }
    let counts = pace.counts();
    assert!(counts.sent >= 45 && counts.waited > 0, "{counts:?}");
    // A scheduler that stalls may cost a few.
    assert!(refusals.load(Relaxed) <= 2, "{counts:?}");
}

#[tokio::test]
async fn the_error_of_a_client_of_hyper_util_is_kept() {
    // A port without a listener.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let hyper: Hyper = Client::builder(TokioExecutor::new()).build_http();
    let client: Pace<Hyper> = PaceLayer::builder().build().unwrap().layer(hyper);
    let request = Request::get(format!("http://{address}/")).body(Full::default()).unwrap();
    let error = client.oneshot(request).await.unwrap_err();
    assert!(std::error::Error::source(&error).is_some());
    assert!(matches!(&error, PaceError::Inner(inner) if inner.is_connect()), "{error:?}");
}

/// Sends a message when it is dropped.
struct Ends(Option<oneshot::Sender<()>>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.take().map(|ends| ends.send(()));
    }
}

#[tokio::test]
async fn a_hedge_wins_over_a_server_that_hangs_and_the_loser_ends_there() {
    // The first call hangs, and the server sees its end.
    let (arrives, arrived) = oneshot::channel();
    let (ends, ended) = oneshot::channel();
    let first = Arc::new(Mutex::new(Some((arrives, Ends(Some(ends))))));
    let reply = move |body: Bytes| {
        let first = first.lock().unwrap().take();
        async move {
            let Some((arrives, _ends)) = first else { return body };
            arrives.send(()).unwrap();
            std::future::pending().await
        }
    };
    let address = serve(Router::new().fallback(any(reply))).await;
    let (clock, hand) = Clock::manual();
    let policy = HedgePolicy::after(Duration::from_secs(1)).clock(clock).build().unwrap();
    let hedge = HedgeLayer::builder(policy).build().unwrap();
    let hyper: Hyper = Client::builder(TokioExecutor::new()).build_http();
    let request = Request::put(format!("http://{address}/")).body(Full::from("twice")).unwrap();
    let call = tokio::spawn(hedge.layer(hyper).oneshot(request));
    arrived.await.unwrap();
    hand.advance(Duration::from_secs(1));
    let response = call.await.unwrap().unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "twice");
    ended.await.unwrap();
    assert_eq!((hedge.counts().hedges, hedge.counts().wins), (1, 1));
}

/// A gRPC server that refuses the first call, for 300 ms.
async fn refuses_once() -> SocketAddr {
    let calls = AtomicU64::new(0);
    let reply = move |request: Request<axum::body::Body>| {
        // ORDERING: Relaxed. Each call takes a number.
        let is_first = calls.fetch_add(1, Relaxed) == 0;
        let mut response = Response::new(axum::body::Body::empty());
        if is_first {
            // As tonic refuses: the status is in the headers, and there is no message.
            response = Status::resource_exhausted("slow down").into_http();
            let pushback = HeaderValue::from_static("300");
            response.headers_mut().insert("grpc-retry-pushback-ms", pushback);
        } else {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            let message = Full::new(Bytes::from_static(b"\0\0\0\0\x02hi"));
            let body = message.with_trailers(std::future::ready(Some(Ok(trailers))));
            *response.body_mut() = axum::body::Body::new(body);
            let kind = HeaderValue::from_static("application/grpc");
            response.headers_mut().insert("content-type", kind);
        }
        drop(request);
        std::future::ready(response.into_response())
    };
    let reply = Arc::new(reply);
    serve(Router::new().fallback(any(move |request| reply(request)))).await
}

#[tokio::test]
async fn a_channel_of_tonic_is_paced() {
    let address = refuses_once().await;
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let pace = PaceLayer::builder().build().unwrap();
    let paced: Pace<Channel> = pace.layer(channel);
    let call = || async {
        let mut client = Grpc::new(paced.clone());
        client.ready().await.unwrap();
        let path = "/echo.Echo/Say".parse().unwrap();
        client.unary(tonic::Request::new(Bytes::from_static(b"hello")), path, Plain).await
    };
    assert_eq!(call().await.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(pace.counts().stops, 1);
    // It waits until the server admits it.
    assert_eq!(call().await.unwrap().into_inner(), "hi");
    assert_eq!((pace.counts().waited, pace.counts().sent), (1, 2));
}

#[tokio::test]
async fn a_channel_of_tonic_keeps_its_error_type_behind_an_answering_layer() {
    let address = refuses_once().await;
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let pace = PaceLayer::builder().max_wait(Duration::ZERO).build().unwrap().answering();
    let mut client = Grpc::new(pace.layer(channel));
    for message in ["slow down", "not sent: the client paces itself"] {
        client.ready().await.unwrap();
        let path = "/echo.Echo/Say".parse().unwrap();
        let status =
            client.unary(tonic::Request::new(Bytes::new()), path, Plain).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, message));
    }
}

#[tokio::test]
async fn a_call_of_grpc_is_repeated_when_the_server_wants_it() {
    let address = refuses_once().await;
    let hyper: Hyper = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let budget = RetryBudget::builder().min_per_second(10).build().unwrap();
    let retry = RetryLayer::builder().budget(budget).build().unwrap();
    let request = Request::post(format!("http://{address}/echo.Echo/Say"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from_static(b"\0\0\0\0\x05hello")))
        .unwrap();
    let response = retry.layer(hyper).oneshot(request).await.unwrap();
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(body.to_bytes(), &b"\0\0\0\0\x02hi"[..]);
}
