//! Listeners, connections and the threads that serve them.
//!
//! Each worker is a thread with its own runtime; a connection stays with its worker, the one with
//! the fewest connections when it was accepted. So a connection's task never moves, and workers
//! share only the engine.

mod access;
pub(crate) mod browser;
mod descriptors;
mod http2;
mod listen;
mod memory;
mod permission;
mod secret;
mod stream;
mod tls;
mod workers;
mod wrong_secrets;

pub use access::{Access, AuthError, Client, Token, bearer, network};
pub use descriptors::raise_descriptor_limit;
pub(crate) use descriptors::{RESERVED, connections_allowed};
pub(crate) use http2::{
    HEADER_TABLE, Http2Stream, LOOKS, MAX_ERROR_RESETS, MAX_FRAME, MAX_PENDING_RESETS, Progress,
    Stall,
};
pub use listen::{BindError, Bound};
pub use memory::{Claim, ConnectionMemory, MemoryBudget, MemoryError};
pub use permission::{Permission, Permissions};
pub use secret::Secret;
pub use stream::Stream;
pub(crate) use tls::settings_of;
pub use tls::{TlsError, TlsFiles, TlsOf};
pub(crate) use workers::Workers;
pub(crate) use wrong_secrets::{Penalty, WrongSecrets};

use crate::server::Shared;
use std::{
    fmt,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tokio::sync::watch;

/// Which listener a connection came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Listener {
    /// HTTP: `/v1`, `/json`, forward-auth.
    Http,
    /// gRPC: Envoy's rate limit protocol, health, reflection.
    Grpc,
    /// The Redis protocol.
    Resp,
    /// Administrators, metrics.
    Admin,
}

impl Listener {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Http, Self::Grpc, Self::Resp, Self::Admin];

    /// Returns the name used in flags, configuration and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Grpc => "grpc",
            Self::Resp => "resp",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The activity of a listener.
#[derive(Debug, Default)]
pub struct Traffic {
    open: AtomicU64,
    accepted: AtomicU64,
    turned_away: AtomicU64,
    requests: AtomicU64,
    bad_requests: AtomicU64,
    wrong_secrets: AtomicU64,
    cut_off: AtomicU64,
    refused: [AtomicU64; RefusalReason::ALL.len()],
}

/// Which bound refused a request or closed a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The listener has as many connections as it may.
    Connections,
    /// The connection, or all together, held as much memory as they may.
    Memory,
    /// The process has no file descriptors for more connections.
    Descriptors,
    /// A request that had begun did not arrive within the request timeout.
    Slow,
    /// The client did not read its replies within the request timeout.
    Unread,
}

impl RefusalReason {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Connections, Self::Memory, Self::Descriptors, Self::Slow, Self::Unread];

    /// Returns the name used in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Memory => "memory",
            Self::Descriptors => "descriptors",
            Self::Slow => "slow",
            Self::Unread => "unread",
        }
    }
}

/// The counts of [`Traffic`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    /// Connections that are open.
    pub open: u64,
    /// Connections so far.
    pub accepted: u64,
    /// Connections that were closed at once: too many, or no TLS.
    pub turned_away: u64,
    /// Requests so far.
    pub requests: u64,
    /// Requests that made no sense.
    pub bad_requests: u64,
    /// Wrong passwords and tokens.
    pub wrong_secrets: u64,
    /// Wrong passwords and tokens for which the connection was closed: too many of one source.
    pub cut_off: u64,
    /// Requests refused and connections closed by a bound, in the order of [`RefusalReason::ALL`].
    pub refused: [u64; RefusalReason::ALL.len()],
}

impl Traffic {
    /// Counts requests; once per batch.
    pub fn requests(&self, count: u64) {
        // ORDERING: Relaxed, here and below. The counts are statistics, and a bound that may be
        // exceeded by as many connections as are accepted at the same moment: one.
        self.requests.fetch_add(count, Relaxed);
    }

    /// Counts a request that made no sense.
    pub fn bad_request(&self) {
        self.bad_requests.fetch_add(1, Relaxed);
    }

    /// Counts a wrong password or token, and whether the connection is closed for it.
    pub(crate) fn wrong_secret(&self, is_cut_off: bool) {
        self.wrong_secrets.fetch_add(1, Relaxed);
        self.cut_off.fetch_add(u64::from(is_cut_off), Relaxed);
    }

    /// Counts a connection that is closed at once.
    pub fn turned_away(&self) {
        self.turned_away.fetch_add(1, Relaxed);
    }

    /// Counts a request that was refused, or a connection that was closed, by a bound.
    pub fn refused(&self, reason: RefusalReason) {
        self.refused[reason as usize].fetch_add(1, Relaxed);
    }

    /// Returns what was counted.
    pub fn counts(&self) -> TrafficCounts {
        TrafficCounts {
            open: self.open.load(Relaxed),
            accepted: self.accepted.load(Relaxed),
            turned_away: self.turned_away.load(Relaxed),
            requests: self.requests.load(Relaxed),
            bad_requests: self.bad_requests.load(Relaxed),
            wrong_secrets: self.wrong_secrets.load(Relaxed),
            cut_off: self.cut_off.load(Relaxed),
            refused: self.refused.each_ref().map(|count| count.load(Relaxed)),
        }
    }
}

/// One connection, for the protocol that serves it. While it lives, it counts as open.
#[derive(Debug)]
pub struct Connection {
    /// The state that all connections share.
    pub shared: Arc<Shared>,
    /// Where it came from.
    pub listener: Listener,
    /// The other end; none for Unix sockets.
    pub peer: Option<SocketAddr>,
    /// Its share of the memory of all connections.
    pub memory: Arc<ConnectionMemory>,
    drain: watch::Receiver<bool>,
}

impl Connection {
    /// Returns a connection that counts as open.
    #[must_use]
    pub fn new(shared: Arc<Shared>, listener: Listener, peer: Option<SocketAddr>) -> Self {
        let traffic = shared.traffic(listener);
        traffic.open.fetch_add(1, Relaxed);
        traffic.accepted.fetch_add(1, Relaxed);
        let (memory, drain) = (ConnectionMemory::open(&shared, listener), shared.drain());
        Self { shared, listener, peer, memory, drain }
    }

    /// Returns the counts of its listener.
    #[must_use]
    pub fn traffic(&self) -> &Traffic {
        self.shared.traffic(self.listener)
    }

    /// Waits until the server shuts down: finish what was begun, and close. Cancel-safe.
    pub async fn draining(&mut self) {
        // An error means that the server is gone.
        let _ = self.drain.wait_for(|draining| *draining).await;
    }

    /// Tells whether the server shuts down.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        *self.drain.borrow()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.traffic().open.fetch_sub(1, Relaxed);
    }
}
