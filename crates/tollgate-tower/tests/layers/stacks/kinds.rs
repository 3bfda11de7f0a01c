//! Combinations of servers, bodies and boxes that have to compile.

use super::{get, hello, once};
use axum::body::Body;
use bytes::{Buf, Bytes};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, combinators::UnsyncBoxBody};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use std::{collections::VecDeque, convert::Infallible, net::SocketAddr};
use tokio::net::{TcpListener, TcpStream};
use tollgate::Quota;
use tollgate_tower::{ConcurrencyLayer, LimitBody, Policy, RateLimit, RateLimitLayer, Settle};
use tonic::transport::{Endpoint, Server, server::TcpIncoming};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tower::{Layer, ServiceBuilder, ServiceExt, make::Shared, util::BoxCloneSyncService};

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Sends requests over loopback, on one connection.
async fn statuses(address: SocketAddr, count: usize) -> Vec<u16> {
    let client = reqwest::Client::new();
    let mut statuses = Vec::new();
    for _ in 0..count {
        let response = client.get(format!("http://{address}/")).send().await.unwrap();
        statuses.push(response.status().as_u16());
        response.bytes().await.unwrap();
    }
    statuses
}

#[tokio::test]
async fn a_service_of_tower_is_served_by_axum_without_a_router() {
    let (listener, address) = listen().await;
    // `axum::serve` requires the body of axum, which a router makes of any body.
    let service = ServiceBuilder::new()
        .map_response(|response: Response<_>| response.map(Body::new))
        .layer(once(2))
        .service_fn(hello::<Body>);
    tokio::spawn(async move { axum::serve(listener, Shared::new(service)).await });
    assert_eq!(statuses(address, 3).await, [200, 200, 429]);
}

#[tokio::test]
async fn hyper_serves_it_by_itself() {
    let (listener, address) = listen().await;
    let service = once(2).layer(tower::service_fn(hello::<hyper::body::Incoming>));
    tokio::spawn(async move {
        loop {
            let (stream, _): (TcpStream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            let builder = hyper::server::conn::http1::Builder::new();
            tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
        }
    });
    assert_eq!(statuses(address, 3).await, [200, 200, 429]);
}

/// Calls until the limit refuses.
async fn calls(address: SocketAddr) -> u32 {
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = HealthClient::new(channel.connect().await.unwrap());
    let mut passed = 0;
    loop {
        match client.check(HealthCheckRequest::default()).await {
            Ok(_) => passed += 1,
            Err(status) => {
                assert_eq!(status.code(), tonic::Code::ResourceExhausted, "{status:?}");
                return passed;
            }
        }
    }
}

#[tokio::test]
async fn tonic_takes_it_in_every_place() {
    let (_reporter, health) = tonic_health::server::health_reporter();
    let concurrency = || {
        let limit = tollgate::Concurrency::new(8).unwrap();
        ConcurrencyLayer::builder(limit).build().unwrap()
    };
    let pass = |request: tonic::Request<()>| Ok(request);

    // The server's layer, alone and in a stack with an interceptor.
    let (listener, address) = listen().await;
    let server = Server::builder().layer(once(3)).add_service(health.clone());
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    assert_eq!(calls(address).await, 3);

    let (listener, address) = listen().await;
    let stack = ServiceBuilder::new()
        .layer(tonic::service::InterceptorLayer::new(pass))
        .layer(once(3))
        .layer(concurrency())
        .into_inner();
    let server = Server::builder()
        .load_shed(true)
        .concurrency_limit_per_connection(4)
        .timeout(std::time::Duration::from_secs(20))
        .layer(stack)
        .add_service(health.clone());
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    assert_eq!(calls(address).await, 3);

    // One service of several; and in a router of axum.
    let (listener, address) = listen().await;
    let limited = ServiceBuilder::new().layer(once(3)).service(health.clone());
    let routes = axum::Router::new().route_service("/grpc.health.v1.Health/{*rest}", limited);
    tokio::spawn(async move { axum::serve(listener, routes).await });
    assert_eq!(calls(address).await, 3);

    let (listener, address) = listen().await;
    let routes = tonic::service::Routes::new(health).into_axum_router().layer(once(3));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    assert_eq!(calls(address).await, 3);
}

#[tokio::test]
async fn the_body_can_be_boxed_and_mapped() {
    type Boxed = UnsyncBoxBody<Bytes, axum::Error>;
    let inner = tower::service_fn(|_: Request<String>| async {
        Ok::<_, Infallible>(Response::new(Body::from("hello")))
    });
    let service = ServiceBuilder::new()
        .map_response(|response: Response<LimitBody<Body>>| response.map(BodyExt::boxed_unsync))
        .layer(once(1))
        .service(inner);
    let service: BoxCloneSyncService<Request<String>, Response<Boxed>, Infallible> =
        BoxCloneSyncService::new(service);
    let body = |response: Response<Boxed>| async {
        response.into_body().collect().await.unwrap().to_bytes()
    };
    assert_eq!(body(service.clone().oneshot(get("/")).await.unwrap()).await, "hello");
    assert!(body(service.clone().oneshot(get("/")).await.unwrap()).await.starts_with(b"{"));
}

/// A body whose data is not `Bytes`.
struct Chain(Option<VecDeque<u8>>);

impl http_body::Body for Chain {
    type Data = VecDeque<u8>;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<VecDeque<u8>>, Infallible>>> {
        std::task::Poll::Ready(self.0.take().map(|data| Ok(Frame::data(data))))
    }
}

#[tokio::test]
async fn a_body_of_other_data_is_mapped_further_in() {
    let policy = Policy::new("p", Quota::once(100)).cost(10).settle(Settle::body_bytes());
    let limits = RateLimitLayer::builder().policy(policy).build().unwrap();
    let inner = tower::service_fn(|_: Request<String>| async {
        Ok::<_, Infallible>(Response::new(Chain(Some(VecDeque::from([7; 60])))))
    });
    let service = ServiceBuilder::new()
        .layer(limits)
        .map_response(|response: Response<Chain>| {
            response.map(|body| {
                body.map_frame(|frame| frame.map_data(|mut it| it.copy_to_bytes(it.remaining())))
            })
        })
        .service(inner);
    for expected in [60, 60] {
        let response = service.clone().oneshot(get("/")).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body.len(), expected);
    }
    let refused = service.clone().oneshot(get("/")).await.unwrap();
    assert_eq!(refused.status(), 429, "20 into debt");
}

#[test]
fn services_and_futures_can_be_sent() {
    fn is<T: Send + Sync + Clone + 'static>(_: &T) {}
    fn is_send<T: Send + 'static>(_: &T) {}
    let layer = once(1);
    is(&layer);
    let mut service: RateLimit<_> = layer.layer(tower::service_fn(hello::<Empty<Bytes>>));
    is(&service);
    is_send(&tower::Service::call(&mut service, Request::new(Empty::<Bytes>::new())));
    fn body<B: http_body::Body + Send + Sync>() {}
    body::<LimitBody<Full<Bytes>>>();
}
