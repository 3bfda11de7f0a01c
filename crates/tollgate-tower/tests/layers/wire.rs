//! Servers on free ports: of axum, and of tonic with messages that are bytes.
#![allow(dead_code, reason = "each test uses what it needs")]

use axum::Router;
use bytes::{Buf, BufMut, Bytes};
use http::{Request, Response};
use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};
use tollgate_tower::{ConcurrencyLayer, RateLimitLayer};
use tonic::{
    Status, Streaming,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::{ClientStreamingService, Grpc, NamedService},
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};
use tower::Service;

/// Serves a router on a free port, as long as the runtime lives.
pub(crate) async fn serve(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// Messages that are bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(bytes.copy_to_bytes(bytes.remaining())))
    }
}

/// A gRPC service that answers with all messages of a call joined by commas.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Join;

impl NamedService for Join {
    const NAME: &'static str = "test.Join";
}

impl ClientStreamingService<Bytes> for Join {
    type Response = Bytes;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<Bytes>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Streaming<Bytes>>) -> Self::Future {
        Box::pin(async move {
            let mut messages = request.into_inner();
            let mut all = Vec::new();
            while let Some(message) = messages.message().await? {
                if !all.is_empty() {
                    all.push(b',');
                }
                all.extend_from_slice(&message);
            }
            Ok(tonic::Response::new(all.into()))
        })
    }
}

impl Service<Request<tonic::body::Body>> for Join {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        Box::pin(async move { Ok(Grpc::new(Plain).client_streaming(Join, request).await) })
    }
}

/// Serves [`Join`] with tonic, behind a limit, as long as the runtime lives.
pub(crate) async fn join(limits: RateLimitLayer) -> Channel {
    let (incoming, channel) = ends().await;
    let server = Server::builder().layer(limits).add_service(Join);
    tokio::spawn(server.serve_with_incoming(incoming));
    channel
}

/// The same, with a limit on calls in flight.
pub(crate) async fn join_in(slots_layer: ConcurrencyLayer) -> Channel {
    let (incoming, channel) = ends().await;
    let server = Server::builder().layer(slots_layer).add_service(Join);
    tokio::spawn(server.serve_with_incoming(incoming));
    channel
}

async fn ends() -> (TcpIncoming, Channel) {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    (incoming, Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy())
}
