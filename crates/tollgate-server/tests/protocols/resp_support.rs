//! A listener for tests: real sockets, and a clock that only the test moves.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};
use tokio::{net::TcpListener, sync::oneshot, task::LocalSet};
use tollgate::{Clock, ManualClock, store::MemoryStore};
use tollgate_server::{
    config::Config,
    engine::{Backend, Engine},
    net::{Connection, Listener, Stream},
    plan::Plan,
    resp,
    server::{Settings, Shared},
};

/// The rules of all tests.
pub(crate) const RULES: &str = "
domain: shop
defaults: {algorithm: gcra}
descriptors:
  - key: user
    rate_limit: {name: per-user, unit: minute, requests_per_unit: 3}
  - key: tenant
    rate_limit: {name: per-tenant, unit: hour, requests_per_unit: 5}
    descriptors:
      - key: path
        rate_limit: {name: per-path, unit: second, requests_per_unit: 2}
  - key: export
    concurrency: {name: exports, limit: 2, lease: 10s}
  - key: upstream
    rate_limit: {name: upstream, quota: 100/s}
    adaptive: {follow: reports, min: 10/s}
  - key: open
    rate_limit: {name: open, unlimited: true}
";

/// A server in its own thread, until it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) clock: ManualClock,
    pub(crate) shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Returns the state that connections share, with a clock that stands still.
pub(crate) fn shared(settings: Settings) -> (Arc<Shared>, ManualClock) {
    shared_after(settings, Duration::ZERO)
}

/// Returns the state that connections share, for a server that starts `time` after the origin of
/// its clock.
pub(crate) fn shared_after(settings: Settings, time: Duration) -> (Arc<Shared>, ManualClock) {
    let (clock, manual) = Clock::manual();
    manual.advance(time);
    let config = Config::from_text("rules.yaml", RULES).unwrap();
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    let engine = Engine::new(Plan::compile(config, None).unwrap(), vec![Backend::Memory(store)]);
    (Shared::new(engine, settings), manual)
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(Settings::default())
    }

    pub(crate) fn with(settings: Settings) -> Self {
        Self::of(shared(settings))
    }

    pub(crate) fn of((shared, clock): (Arc<Shared>, ManualClock)) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let served = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let local = LocalSet::new();
            let accept = async move {
                let listener = TcpListener::from_std(listener).unwrap();
                loop {
                    let (stream, peer) = listener.accept().await.unwrap();
                    let connection =
                        Connection::new(Arc::clone(&served), Listener::Resp, Some(peer));
                    tokio::task::spawn_local(resp::serve(Stream::Tcp(stream), connection));
                }
            };
            let until = async {
                tokio::select! { () = accept => {}, _ = stopped => {} }
            };
            local.block_on(&runtime.unwrap(), until);
        });
        Self { address, clock, shared, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Client(stream)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// A client that sends and receives plain bytes.
pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).unwrap();
    }

    /// Reads exactly what is expected.
    #[track_caller]
    pub(crate) fn expect(&mut self, expected: &str, why: &str) {
        let mut got = vec![0; expected.len()];
        let mut filled = 0;
        while filled < got.len() {
            match self.0.read(&mut got[filled..]) {
                Ok(0) | Err(_) => break,
                Ok(read) => filled += read,
            }
            // Stop at the first difference: the rest may never come.
            if got[..filled] != expected.as_bytes()[..filled] {
                break;
            }
        }
        let got = String::from_utf8_lossy(&got[..filled]);
        assert_eq!(got, expected, "{why}");
    }

    /// Sends a line, and reads exactly what is expected.
    #[track_caller]
    pub(crate) fn ask(&mut self, line: &str, expected: &str) {
        self.send(format!("{line}\r\n"));
        self.expect(expected, line);
    }

    /// Sends a line, and reads one reply of integers.
    #[track_caller]
    pub(crate) fn integers(&mut self, line: &str, expected: &[i64]) {
        let mut text = format!("*{}\r\n", expected.len());
        for number in expected {
            text += &format!(":{number}\r\n");
        }
        self.ask(line, &text);
    }

    /// Reads until the other side closes.
    pub(crate) fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        let _ = self.0.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
