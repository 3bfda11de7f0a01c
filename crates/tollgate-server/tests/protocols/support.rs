//! Shared parts of the gRPC tests: the protocol's messages, a server with a clock that stands
//! still, and a client that shows heads and trailers.
#![allow(dead_code, reason = "each test uses what it needs")]
#![allow(missing_docs, unreachable_pub, reason = "not a library")]

pub mod envoy;
pub mod messages;

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, Request, Version};
use messages::{Descriptor, Entry, RateLimitRequest, RateLimitResponse};
use prost::Message;
use std::sync::Arc;
use tollgate::{Clock, ManualClock, store::MemoryStore};
use tollgate_server::{
    config::Config,
    engine::{Backend, Engine},
    net::{Connection, Listener, Stream},
    plan::Plan,
    rls,
    server::{Settings, Shared},
};

/// Returns a server whose time only moves when a test says so.
pub fn server(text: &str, settings: Settings) -> (Arc<Shared>, ManualClock) {
    let (clock, hand) = Clock::manual();
    // Well into a minute, and not at the start of anything.
    hand.set(tollgate::Tick::from_secs(100 * 60 + 19));
    (server_with(text, settings, clock), hand)
}

pub fn server_with(text: &str, settings: Settings, clock: Clock) -> Arc<Shared> {
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    server_on(text, settings, Backend::Memory(store))
}

/// Returns a server with a store.
pub fn server_on(text: &str, settings: Settings, store: Backend) -> Arc<Shared> {
    let config = Config::from_text("test.yaml", text).unwrap();
    let plan = Plan::compile(config, None).unwrap();
    Shared::new(Engine::new(plan, vec![store]), settings)
}

/// A client of one connection.
#[derive(Clone)]
pub struct Client {
    pub send: SendRequest<Bytes>,
}

/// All of an answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub trailers: HeaderMap,
}

impl Reply {
    /// Returns the gRPC status, from the trailers or the headers.
    pub fn code(&self) -> Option<u16> {
        let value = self.trailers.get("grpc-status").or(self.headers.get("grpc-status"))?;
        value.to_str().unwrap().parse().ok()
    }

    pub fn text(&self) -> &str {
        let value = self.trailers.get("grpc-message").or(self.headers.get("grpc-message"));
        value.map_or("", |value| value.to_str().unwrap())
    }
}

impl Client {
    pub async fn connect(shared: &Arc<Shared>) -> Self {
        Self::connect_with_window(shared, 65_535).await
    }

    /// Connects with a window for replies.
    pub async fn connect_with_window(shared: &Arc<Shared>, window: u32) -> Self {
        let (near, far) = tokio::net::UnixStream::pair().unwrap();
        let connection = Connection::new(Arc::clone(shared), Listener::Grpc, None);
        tokio::spawn(rls::serve(Stream::Unix(far), connection));
        let mut builder = h2::client::Builder::new();
        let shaken = builder.initial_window_size(window).handshake(near).await;
        let (send, driver) = shaken.unwrap();
        tokio::spawn(async move {
            let _ = driver.await;
        });
        Self { send }
    }

    /// Starts a call; the body is to be sent.
    pub async fn open(
        &mut self,
        path: &str,
        content_type: &str,
    ) -> (ResponseFuture, h2::SendStream<Bytes>) {
        let request = Request::builder()
            .method("POST")
            .version(Version::HTTP_2)
            .uri(format!("http://test{path}"))
            .header("content-type", content_type)
            .header("te", "trailers")
            .body(())
            .unwrap();
        self.send = self.send.clone().ready().await.unwrap();
        self.send.send_request(request, false).unwrap()
    }

    pub async fn call(&mut self, path: &str, body: Bytes) -> Reply {
        let (answer, mut stream) = self.open(path, "application/grpc").await;
        stream.send_data(body, true).unwrap();
        reply(answer).await
    }

    /// Asks, and expects an answer.
    pub async fn ask(&mut self, request: &RateLimitRequest) -> RateLimitResponse {
        let reply = self.call(rls::METHOD, framed(&request.encode_to_vec())).await;
        assert_eq!((reply.status, reply.code()), (200, Some(0)), "{reply:?}");
        assert_eq!(reply.headers["content-type"], "application/grpc");
        RateLimitResponse::decode(unframed(&reply.body)).unwrap()
    }
}

/// Waits for all of an answer.
pub async fn reply(answer: ResponseFuture) -> Reply {
    let (parts, mut stream) = answer.await.unwrap().into_parts();
    let mut body = BytesMut::new();
    while let Some(piece) = stream.data().await {
        let piece = piece.unwrap();
        stream.flow_control().release_capacity(piece.len()).unwrap();
        body.extend_from_slice(&piece);
    }
    let trailers = stream.trailers().await.unwrap().unwrap_or_default();
    Reply { status: parts.status.as_u16(), headers: parts.headers, body: body.freeze(), trailers }
}

pub fn framed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).unwrap());
    bytes.put_slice(message);
    bytes.freeze()
}

pub fn unframed(body: &[u8]) -> &[u8] {
    let (prefix, message) = body.split_at(5);
    assert_eq!(prefix[0], 0, "not compressed");
    assert_eq!(message.len(), u32::from_be_bytes(prefix[1..].try_into().unwrap()) as usize);
    message
}

/// Returns a request in the domain `shop`, of one entry for each descriptor.
pub fn request(entries: &[(&str, &str)]) -> RateLimitRequest {
    let descriptors = entries.iter().map(|pair| descriptor(&[*pair])).collect();
    RateLimitRequest { domain: "shop".into(), descriptors, hits_addend: 0 }
}

pub fn descriptor(entries: &[(&str, &str)]) -> Descriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    Descriptor { entries: entries.iter().map(entry).collect(), ..Descriptor::default() }
}
