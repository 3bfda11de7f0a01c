//! A network that misbehaves: a proxy for TCP, with modes that change at run time.
//!
//! It runs on a thread of its own with a runtime of its own, so a test's paused clock does not reach
//! it, and plain tests can use it.
//!
//! Bytes on a connection are never lost in the middle and then followed by others: no network does
//! that. A connection that lost bytes stays silent in both directions until it is closed, also when
//! the mode changes. [`Mode::Stall`] loses nothing: all of it comes late.

mod connection;
mod count;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// Connections at a time. More than any test opens; beyond it, new ones are reset.
const CONNECTIONS_MAX: usize = 4_096;

/// What a proxy does to connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Passes everything on.
    #[default]
    Pass,
    /// Accepts, swallows what comes, and never answers. Bytes are lost in both directions.
    BlackHole,
    /// Holds everything back in both directions, until the mode changes: then it all comes, late.
    Stall,
    /// Resets new connections. Those that are open go on.
    Refuse,
    /// Replies come this much later, in order, any number on the way at a time.
    Delay(Duration),
    /// Replies come at this many bytes in a second.
    Throttle(u64),
    /// Passes this many bytes of replies, on each connection, then resets it.
    ResetAfter(u64),
    /// Inverts the highest bit of one byte of the replies, the one at this place counted from 0, on each
    /// connection.
    Corrupt(u64),
    /// Requests are lost, the connection stays. What was asked before is still answered.
    DropRequests,
    /// Requests arrive and are carried out, but the replies are lost.
    DropReplies,
}

/// A proxy on a port of 127.0.0.1 that the system chose. It ends when this value is dropped.
///
/// # Examples
///
/// ```
/// use tollgate_rig::{Flavor, Mode, Proxy, Redis};
///
/// let redis = Redis::start(Flavor::Redis);
/// let proxy = Proxy::start(redis.address());
/// let url = format!("redis://{}", proxy.address());
/// proxy.set(Mode::BlackHole);
/// assert_eq!(proxy.connections(), 0);
/// # drop(url);
/// ```
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    orders: watch::Sender<Orders>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

/// What connections are told. Each change is seen by all of them.
#[derive(Clone, Copy, Debug)]
struct Orders {
    mode: Mode,
    /// Grows with each mode, so that setting the same again counts bytes from 0 again.
    mode_number: u64,
    /// Grows with each cut. A connection that began under a smaller one is reset.
    cut_number: u64,
    target: SocketAddr,
    ends: bool,
}

#[derive(Debug, Default)]
struct Counters {
    connections: AtomicU64,
    open: AtomicU64,
    requests: AtomicU64,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
}

impl Proxy {
    /// Starts a proxy in front of an address, in mode [`Mode::Pass`].
    ///
    /// # Panics
    ///
    /// If the system has no port or no thread for it.
    #[must_use]
    pub fn start(target: SocketAddr) -> Self {
        let (orders, seen) = watch::channel(Orders {
            mode: Mode::Pass,
            mode_number: 0,
            cut_number: 0,
            target,
            ends: false,
        });
        let counters = Arc::new(Counters::default());
        let (sender, address) = mpsc::channel();
        let counted = counters.clone();
        let thread = thread::Builder::new()
            .name("rig-proxy".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime");
                // Connections stay on this thread.
                tokio::task::LocalSet::new().block_on(&runtime, async {
                    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
                    let listener = TcpListener::bind(any).await.expect("a port");
                    let address = listener.local_addr().expect("a bound port has an address");
                    if sender.send(address).is_ok() {
                        accept(listener, seen, counted).await;
                    }
                });
            })
            .expect("a thread");
        let address = address.recv().expect("the proxy listens");
        Self { address, orders, counters, thread: Some(thread) }
    }

    /// Returns where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the mode, for connections that are open and those to come.
    ///
    /// Bytes for [`Mode::ResetAfter`] and [`Mode::Corrupt`] are counted anew.
    pub fn set(&self, mode: Mode) {
        self.orders.send_modify(|orders| {
            orders.mode = mode;
            orders.mode_number += 1;
        });
    }

    /// Connects new connections to another address.
    pub fn set_target(&self, target: SocketAddr) {
        self.orders.send_modify(|orders| orders.target = target);
    }

    /// Resets all connections that are open now, and waits until they are gone.
    ///
    /// # Panics
    ///
    /// If that takes more than 5 s.
    pub fn cut(&self) {
        let open = self.connections_open();
        self.orders.send_modify(|orders| orders.cut_number += 1);
        if open > 0 {
            let (before, closed) = (self.connections(), || self.closed());
            crate::within(Duration::from_secs(5), "connections are cut", || closed() >= before);
        }
    }

    /// Returns how many connections were accepted so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        // ORDERING: these counters publish nothing else; the two of `closed` are read so that it
        // is never too large.
        self.counters.connections.load(SeqCst)
    }

    /// Returns how many connections are open.
    #[must_use]
    pub fn connections_open(&self) -> u64 {
        // ORDERING: as above.
        self.counters.open.load(SeqCst)
    }

    /// Returns how many requests came so far, if they are in the Redis protocol and not encrypted.
    /// Those that were swallowed count too.
    #[must_use]
    pub fn requests(&self) -> u64 {
        // ORDERING: Relaxed is enough, it publishes nothing else.
        self.counters.requests.load(Relaxed)
    }

    /// Returns how many bytes came from clients so far.
    #[must_use]
    pub fn bytes_up(&self) -> u64 {
        // ORDERING: as above.
        self.counters.bytes_up.load(Relaxed)
    }

    /// Returns how many bytes were given to clients so far.
    #[must_use]
    pub fn bytes_down(&self) -> u64 {
        // ORDERING: as above.
        self.counters.bytes_down.load(Relaxed)
    }

    fn closed(&self) -> u64 {
        let open = self.connections_open();
        self.connections().saturating_sub(open)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.orders.send_modify(|orders| orders.ends = true);
        if let Some(thread) = self.thread.take() {
            // If it panicked, the test saw what came of it.
            drop(thread.join());
        }
    }
}

async fn accept(
    listener: TcpListener,
    mut orders: watch::Receiver<Orders>,
    counters: Arc<Counters>,
) {
    let mut connections = JoinSet::new();
    loop {
        let client = tokio::select! {
            biased;
            _ = orders.wait_for(|orders| orders.ends) => break,
            Some(_) = connections.join_next() => continue,
            Ok((client, _)) = listener.accept() => client,
        };
        let now = *orders.borrow();
        // ORDERING: `open` grows after `connections` and is read before it, so `closed` is never
        // too large.
        counters.connections.fetch_add(1, SeqCst);
        if now.mode == Mode::Refuse || connections.len() >= CONNECTIONS_MAX {
            reset(&client);
            continue;
        }
        counters.open.fetch_add(1, SeqCst);
        let mut orders = orders.clone();
        orders.mark_unchanged();
        let counters = counters.clone();
        connections.spawn_local(async move {
            let began = connection::Connection { client, now, orders, counters: &counters };
            began.run().await;
            // ORDERING: as above.
            counters.open.fetch_sub(1, SeqCst);
        });
    }
    connections.shutdown().await;
}

/// Makes closing a reset, so that the other side gets an error and not an end.
fn reset(stream: &TcpStream) {
    // It fails for a connection that is gone already.
    drop(stream.set_zero_linger());
}
