//! A trace collector: receives OTLP over gRPC and keeps the spans.
#![allow(missing_docs, unreachable_pub, reason = "not a library")]

use bytes::Bytes;
use prost::Message;
use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::net::TcpListener;

const METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

#[derive(Clone, PartialEq, Message)]
pub struct Export {
    #[prost(message, repeated, tag = "1")]
    pub resources: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub scopes: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub trace: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub parent: Vec<u8>,
    #[prost(string, tag = "5")]
    pub name: String,
    #[prost(int32, tag = "6")]
    pub kind: i32,
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Attribute {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Value {
    #[prost(string, optional, tag = "1")]
    pub text: Option<String>,
    #[prost(int64, optional, tag = "3")]
    pub number: Option<i64>,
}

fn value<'a>(attributes: &'a [Attribute], key: &str) -> Option<&'a Value> {
    attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()
}

impl Span {
    pub fn number(&self, key: &str) -> Option<i64> {
        value(&self.attributes, key)?.number
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        value(&self.attributes, key)?.text.as_deref()
    }

    /// Tells whether the span continues a caller's span.
    pub fn continues(&self, trace: &str, span: &str) -> bool {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        hex(&self.trace) == trace && hex(&self.parent) == span
    }
}

/// The received spans.
pub struct Received {
    raw: Vec<u8>,
    exports: Vec<Export>,
}

impl Received {
    pub fn spans(&self) -> Vec<&Span> {
        let resources = self.exports.iter().flat_map(|export| &export.resources);
        resources.flat_map(|resource| &resource.scopes).flat_map(|scope| &scope.spans).collect()
    }

    /// Returns the name of the service that the first spans came from.
    pub fn service(&self) -> Option<&str> {
        let resource = self.exports.first()?.resources.first()?.resource.as_ref()?;
        value(&resource.attributes, "service.name")?.text.as_deref()
    }

    pub fn contains(&self, text: &[u8]) -> bool {
        self.raw.windows(text.len()).any(|window| window == text)
    }
}

pub struct Collector {
    address: SocketAddr,
    messages: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let messages = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&messages);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&kept)));
            }
        });
        Self { address, messages }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn received(&self) -> Received {
        let messages = self.messages.lock().unwrap();
        let exports = messages.iter().map(|message| Export::decode(&message[..]).unwrap());
        Received { raw: messages.concat(), exports: exports.collect() }
    }
}

async fn serve(stream: tokio::net::TcpStream, kept: Arc<Mutex<Vec<Vec<u8>>>>) {
    let mut http = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut respond))) = http.accept().await {
        let kept = Arc::clone(&kept);
        tokio::spawn(async move {
            assert_eq!(request.uri().path(), METHOD);
            let (mut body, mut message) = (request.into_body(), Vec::new());
            while let Some(piece) = body.data().await {
                let piece = piece.unwrap();
                body.flow_control().release_capacity(piece.len()).unwrap();
                message.extend_from_slice(&piece);
            }
            kept.lock().unwrap().push(message.split_off(5));
            let head = http::Response::builder().header("content-type", "application/grpc");
            let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
            stream.send_data(Bytes::from_static(&[0; 5]), false).unwrap();
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
            stream.send_trailers(trailers).unwrap();
        });
    }
}
