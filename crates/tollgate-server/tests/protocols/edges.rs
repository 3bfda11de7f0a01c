//! One server whose time stands still, and a client for each of its protocols.

use crate::{
    http_support::{self, Client as Http, Got},
    support::{Client as Grpc, messages::RateLimitRequest, messages::RateLimitResponse},
};
use std::sync::Arc;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, UnixStream},
};
use tollgate::ManualClock;
use tollgate_server::{
    net::{Connection, Listener, Stream},
    resp,
    server::{Settings, Shared},
};

pub(crate) struct Edges {
    pub(crate) shared: Arc<Shared>,
    pub(crate) hand: ManualClock,
    http: Http,
    grpc: Grpc,
    resp: UnixStream,
    buffer: Vec<u8>,
}

/// A reply of the Redis protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resp {
    Int(i64),
    Text(String),
    Null,
    List(Vec<Resp>),
}

impl Resp {
    pub(crate) fn int(&self) -> i64 {
        match self {
            Self::Int(int) => *int,
            other => panic!("{other:?} is no integer"),
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn list(&self) -> &[Self] {
        match self {
            Self::List(list) => list,
            other => panic!("{other:?} is no list"),
        }
    }
}

impl Edges {
    /// Starts a server. Call it inside a [`tokio::task::LocalSet`].
    pub(crate) async fn start(config: &str, settings: Settings) -> Self {
        let (shared, hand) = http_support::shared(config, settings);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(http_support::accept(listener, Arc::clone(&shared)));
        let (resp, far) = UnixStream::pair().unwrap();
        let connection = Connection::new(Arc::clone(&shared), Listener::Resp, None);
        tokio::task::spawn_local(resp::serve(Stream::Unix(far), connection));
        let (http, grpc) = (Http::connect(address).await, Grpc::connect(&shared).await);
        Self { shared, hand, http, grpc, resp, buffer: Vec::new() }
    }

    pub(crate) async fn get(&mut self, target: &str) -> Got {
        self.http.ask("GET", target, "").await
    }

    pub(crate) async fn get_with(&mut self, target: &str, headers: &str) -> Got {
        self.http.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n")).await;
        self.http.read().await
    }

    pub(crate) async fn post(&mut self, path: &str, body: &serde_json::Value) -> Got {
        self.http.post(path, &body.to_string()).await
    }

    pub(crate) async fn envoy(&mut self, request: &RateLimitRequest) -> RateLimitResponse {
        self.grpc.ask(request).await
    }

    /// Sends a line of words, and reads the reply.
    pub(crate) async fn resp(&mut self, line: &str) -> Resp {
        self.resp.write_all(format!("{line}\r\n").as_bytes()).await.unwrap();
        self.reply().await
    }

    async fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                let line = String::from_utf8(self.buffer[..end].to_vec()).unwrap();
                self.buffer.drain(..end + 2);
                return line;
            }
            assert!(self.resp.read_buf(&mut self.buffer).await.unwrap() > 0, "the reply broke off");
        }
    }

    async fn reply(&mut self) -> Resp {
        let line = self.line().await;
        let (kind, rest) = line.split_at(1);
        match kind {
            ":" => Resp::Int(rest.parse().unwrap()),
            "+" | "-" => Resp::Text(rest.into()),
            "$" | "*" if rest == "-1" => Resp::Null,
            "$" => Resp::Text(self.line().await),
            "*" => {
                let mut list = Vec::new();
                for _ in 0..rest.parse::<usize>().unwrap() {
                    list.push(Box::pin(self.reply()).await);
                }
                Resp::List(list)
            }
            _ => panic!("{line:?} is no reply"),
        }
    }
}
