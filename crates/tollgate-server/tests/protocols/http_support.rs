//! A server on a free port whose time stands still, and a client that reads replies strictly.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::{net::SocketAddr, sync::Arc, thread::JoinHandle};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};
use tollgate::{Clock, ManualClock, store::MemoryStore};
use tollgate_server::{
    config::Config,
    engine::{Backend, Engine},
    http,
    net::{Connection, Listener, Stream},
    plan::Plan,
    server::{Settings, Shared},
};

/// Limits that most tests use.
pub(crate) const CONFIG: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 5, name: api}
  - key: tenant
    rate_limit: {unit: hour, requests_per_unit: 3, name: tenant}
    descriptors:
      - key: user
        rate_limit: {unit: second, requests_per_unit: 2, name: pair}
  - key: all
    value: x
    rate_limit: {unit: day, requests_per_unit: 7, name: everyone}
  - key: free
    rate_limit: {unlimited: true, name: free}
  - key: shut
    rate_limit: {unit: second, requests_per_unit: 0, name: shut}
  - key: export
    concurrency: {limit: 2, lease: 10s, name: exports}
  - key: upstream
    rate_limit: {quota: 100/s, algorithm: gcra, name: upstream}
    adaptive: {follow: reports, min: 10/s}
  - key: big
    rate_limit: {unit: minute, requests_per_unit: 1000, name: big}
";

/// Returns what connections share, with a clock that the test moves.
pub(crate) fn shared(config: &str, settings: Settings) -> (Arc<Shared>, ManualClock) {
    let config = Config::from_text("test.yaml", config).unwrap();
    let (clock, hand) = Clock::manual();
    clock.set_wall_offset(std::time::Duration::from_secs(784_111_777));
    let plan = Plan::compile(config, None).unwrap();
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    (Shared::new(Engine::new(plan, vec![Backend::Memory(store)]), settings), hand)
}

/// Serves connections of a listener, on the runtime that this is called on.
pub(crate) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let (stream, peer) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let connection = Connection::new(shared.clone(), Listener::Http, Some(peer));
        tokio::spawn(http::serve(Stream::Tcp(stream), connection));
    }
}

/// Starts a server on the runtime that this is called on.
pub(crate) async fn start(
    config: &str,
    settings: Settings,
) -> (SocketAddr, Arc<Shared>, ManualClock) {
    let (shared, hand) = shared(config, settings);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(accept(listener, shared.clone()));
    (address, shared, hand)
}

/// A server with its own thread, for tests that run other programs.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) shared: Arc<Shared>,
    pub(crate) hand: ManualClock,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(config: &str, settings: Settings) -> Self {
        let (shared, hand) = shared(config, settings);
        let (stop, stopped) = oneshot::channel();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let its = shared.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    () = accept(listener, its) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, shared, hand, stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A reply as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Got {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(its, _)| its.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// The content type that every body of a request to `/v1` must have.
pub(crate) const JSON: &str = "Content-Type: application/json\r\n";

/// A client that keeps its connection.
pub(crate) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.unwrap(), buffer: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Says that nothing more comes.
    pub(crate) async fn finish(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    async fn more(&mut self) -> bool {
        matches!(self.stream.read_buf(&mut self.buffer).await, Ok(1..))
    }

    /// Reads a reply, or returns `None` if the connection is closed before one begins.
    pub(crate) async fn read_to(&mut self, method: &str) -> Option<Got> {
        let end = loop {
            let found = self.buffer.windows(4).position(|window| window == b"\r\n\r\n");
            match found {
                Some(at) => break at + 4,
                None if self.more().await => {}
                None => {
                    assert!(self.buffer.is_empty(), "half a reply: {:?}", self.buffer);
                    return None;
                }
            }
        };
        let head = String::from_utf8(self.buffer[..end - 4].to_vec()).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let split =
            |line: &str| line.split_once(": ").map(|(name, value)| (name.into(), value.into()));
        let headers: Vec<(String, String)> = lines.map(|line| split(line).unwrap()).collect();
        let mut got = Got { status, headers, body: String::new() };
        let length = match status {
            100 => 0,
            _ => got.header("content-length").unwrap().parse().unwrap(),
        };
        let length = if method == "HEAD" { 0 } else { length };
        while self.buffer.len() < end + length {
            assert!(self.more().await, "the body broke off");
        }
        got.body = String::from_utf8(self.buffer[end..end + length].to_vec()).unwrap();
        self.buffer.drain(..end + length);
        Some(got)
    }

    pub(crate) async fn read(&mut self) -> Got {
        self.read_to("GET").await.expect("a reply")
    }

    /// Sends a request and reads the reply.
    pub(crate) async fn ask(&mut self, method: &str, target: &str, body: &str) -> Got {
        let length = body.len();
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\n{JSON}Content-Length: {length}\r\n\r\n"
        );
        self.send(head + body).await;
        self.read_to(method).await.expect("a reply")
    }

    pub(crate) async fn post(&mut self, path: &str, body: &str) -> Got {
        self.ask("POST", path, body).await
    }
}

/// Returns a program of the Python environment, which `./test` fills.
pub(crate) fn venv(program: &str, package: &str) -> std::path::PathBuf {
    let folder = std::env::var_os("TOLLGATE_VENV").map_or_else(
        || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv"),
        Into::into,
    );
    let path = folder.join("bin").join(program);
    assert!(
        path.exists(),
        "{} is missing; install it: python3 -m venv .venv && .venv/bin/pip install {package}",
        path.display()
    );
    path
}
