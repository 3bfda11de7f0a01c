//! A server with a manual clock, and a small client.

use serde_json::Value;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
};
use tollgate::{
    CallOutcome, Clock, ManualClock,
    store::{Demand, MemoryStore, Reserved, Store, StoreError, forward_store},
};
use tollgate_server::{
    admin,
    config::Config,
    engine::{Answer, Ask, Backend, Engine, Hits, Report, Request, Subject, Verb},
    net::{Access, Connection, Listener, Secret, Stream, Token},
    plan::Plan,
    server::{Settings, Shared},
};

pub(crate) const CONFIG: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { name: per-user, unit: minute, requests_per_unit: 3, warn: [50%, 100%] }
  - key: tenant
    descriptors:
      - key: path
        rate_limit: { name: tenant-path, unit: hour, requests_per_unit: 2 }
  - key: site
    value: all
    rate_limit: { name: whole-site, unit: second, requests_per_unit: 100 }
  - key: free
    value: all
    rate_limit: { unlimited: true }
  - key: upstream
    rate_limit: { name: upstream, quota: 100/s, algorithm: gcra }
    adaptive: { follow: reports, min: 10/s }
  - key: export
    concurrency: { name: exports, limit: 2, lease: 10s }
";

/// A server that nothing listens for yet.
pub(crate) struct Harness {
    pub(crate) shared: Arc<Shared>,
    pub(crate) hand: ManualClock,
}

/// A store that cannot be reached for reservations.
struct NoReservations(MemoryStore);

impl Store for NoReservations {
    forward_store!(self => &self.0, except reserve);

    async fn reserve(&self, _: &mut [Demand<'_>], _: Duration) -> Result<Reserved, StoreError> {
        Err(StoreError::unavailable("the server is away"))
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Told {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Harness {
    pub(crate) fn new(config: &str, settings: Settings) -> Self {
        Self::of(&[("shop.yaml", config)], settings)
    }

    /// A server with several files.
    pub(crate) fn of(files: &[(&str, &str)], settings: Settings) -> Self {
        let (clock, hand) = Clock::manual();
        // 2026-01-01T00:00:00Z
        clock.set_wall_offset(Duration::from_secs(1_767_225_600));
        let plan = Plan::compile(Config::from_texts(files).unwrap(), None).unwrap();
        let store =
            MemoryStore::builder().clock(clock).max_keys(1000).max_reservations(1).build().unwrap();
        let engine = Engine::new(plan, vec![Backend::Memory(store)]);
        Self { shared: Shared::new(engine, settings), hand }
    }

    /// A server whose store can be reached for everything but reservations.
    pub(crate) fn without_reservations() -> Self {
        let harness = Self::with_token();
        let (config, clock) = (Config::from_text("shop.yaml", CONFIG).unwrap(), Clock::manual());
        let store = NoReservations(MemoryStore::builder().clock(clock.0).build().unwrap());
        let plan = Plan::compile(config, None).unwrap();
        let engine = Engine::new(plan, vec![Backend::Other(Arc::new(store))]);
        let settings = harness.shared.settings.clone();
        Self { shared: Shared::new(engine, settings), hand: clock.1 }
    }

    pub(crate) fn with_token() -> Self {
        let token = Token::of(Listener::Admin, Secret::new("open sesame"));
        let access = Access::new(vec![token]);
        Self::new(CONFIG, Settings { access, ..Settings::default() })
    }

    /// Serves on a free port.
    pub(crate) async fn listen(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            loop {
                let (stream, peer) = listener.accept().await.unwrap();
                let connection = Connection::new(Arc::clone(&shared), Listener::Admin, Some(peer));
                tokio::spawn(admin::serve(Stream::Tcp(stream), connection));
            }
        });
        address
    }

    /// Opens a connection by a Unix socket.
    pub(crate) fn open_unix(&self) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let connection = Connection::new(Arc::clone(&self.shared), Listener::Admin, None);
        tokio::spawn(admin::serve(Stream::Unix(theirs), connection));
        ours
    }

    /// Asks over a Unix socket.
    pub(crate) async fn ask_unix(&self, method: &str, path: &str, body: &str) -> Told {
        exchange(self.open_unix(), &request(method, path, "", body)).await
    }

    /// Decides, so often.
    pub(crate) async fn decide(&self, policy: &str, keys: &[&[u8]], times: u64) -> u64 {
        self.run(Verb::Check, policy, keys, times).await
    }

    /// Enters, so often.
    pub(crate) async fn enter(&self, policy: &str, keys: &[&[u8]], times: u64) -> u64 {
        self.run(Verb::Enter, policy, keys, times).await
    }

    /// Reports calls of a policy that were too much for it, and ends the period.
    pub(crate) fn report(&self, policy: &str, count: u64) {
        let engine = &self.shared.engine;
        let report = Report { policy, outcome: CallOutcome::Overload, latency: None, count };
        engine.report(&engine.plan(), &report).unwrap();
        self.hand.advance(std::time::Duration::from_secs(2));
        engine.adapt();
    }

    async fn run(&self, verb: Verb, policy: &str, keys: &[&[u8]], times: u64) -> u64 {
        let engine = &self.shared.engine;
        let (plan, now, mut answer) = (engine.plan_arc(), engine.now(), Answer::new());
        let mut passed = 0;
        for _ in 0..times {
            let subject = Subject::Named { policy, keys };
            let asks = [Ask { subject, hits: Hits::Take(1), limit: None }];
            let request = Request { domain: "", asks: &asks, verb };
            engine.decide(&plan, now, &request, &mut answer).await.unwrap();
            passed += u64::from(answer.is_allowed());
        }
        passed
    }

    /// Reserves. The store can hold one reservation.
    pub(crate) async fn reserve(&self) {
        let engine = &self.shared.engine;
        let (plan, now, mut answer) = (engine.plan_arc(), engine.now(), Answer::new());
        let subject = Subject::Named { policy: "whole-site", keys: &[] };
        let asks = [Ask { subject, hits: Hits::Take(1), limit: None }];
        let verb = Verb::Reserve(Duration::from_secs(3600));
        let request = Request { domain: "", asks: &asks, verb };
        engine.decide(&plan, now, &request, &mut answer).await.unwrap();
    }

    pub(crate) fn tick(&self) {
        self.hand.advance(Duration::from_secs(1));
        admin::sample(&self.shared);
    }
}

pub(crate) fn request(method: &str, path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
}

pub(crate) async fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> Told {
    let token = "Authorization: Bearer open sesame\r\n";
    let stream = TcpStream::connect(address).await.unwrap();
    exchange(stream, &request(method, path, token, body)).await
}

pub(crate) async fn ask_with(address: SocketAddr, text: &str) -> Told {
    exchange(TcpStream::connect(address).await.unwrap(), text).await
}

pub(crate) async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, text: &str) -> Told {
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let head = head.to_ascii_lowercase();
    let is_chunked = head.contains("transfer-encoding: chunked");
    let body = if is_chunked { joined(body) } else { body.to_owned() };
    Told { status, head, body }
}

/// Joins the chunks of a body.
fn joined(mut rest: &str) -> String {
    let mut all = String::new();
    while let Some((length, after)) = rest.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        all.push_str(&after[..length]);
        rest = after[length..].strip_prefix("\r\n").unwrap();
    }
    all
}
