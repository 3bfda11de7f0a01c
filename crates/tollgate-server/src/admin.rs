//! Administrators' interface and metrics.
//!
//! A listener of its own: HTTP/1.1 with JSON, and a dashboard for browsers. `GET /` lists the
//! endpoints. This table shows the access that each of them needs:
//!
//! | | no token set | token set |
//! |---|---|---|
//! | `/`, `/health`, `/ready`, `/version`, `/metrics`, the login page | everybody | everybody |
//! | endpoints that only read | everybody | tokens that grant `read` |
//! | endpoints that change something | only over a Unix socket | tokens that grant `administer` |
//!
//! A change that is made here lives in this process only and always has an end; a lasting change
//! belongs in the configuration. The [audit log](Audit) records each change.

pub(crate) use policies::level;
pub(crate) use read::store_name;

mod audit;
mod change;
mod control;
mod events;
mod explain;
mod key;
mod policies;
mod query;
mod read;
mod reply;
mod route;
mod sampler;
mod session;
mod ui;

pub use audit::{Audit, AuditEntry};
pub use control::{
    Control, ControlFuture, ControlStatus, LoadStatus, ReloadReport, SnapshotStatus,
};
pub use events::sample;
pub use sampler::{Alarm, Rates, Sampler, Window};

use crate::net::{Client, Connection, Stream};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{
    fmt,
    pin::pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use tokio::{select, time::interval};
use tollgate::Tick;

/// The most bytes that the head of a request may have.
const MAX_HEAD: usize = 16 << 10;

/// The state that administrators see and change. One per server, in
/// [`Shared`](crate::server::Shared).
pub struct Desk {
    started: Tick,
    sampler: Sampler,
    ticks: events::Ticks,
    audit: Audit,
    control: OnceLock<Arc<dyn Control>>,
    lost_log_lines: OnceLock<Box<dyn Fn() -> LostLogLines + Send + Sync>>,
}

/// Log lines of the process that were not written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostLogLines {
    /// Left out because their callsite logged too many.
    pub throttled: u64,
    /// Dropped because the output was full or slow.
    pub dropped: u64,
}

impl Desk {
    /// Returns the state of a server that has just started.
    #[must_use]
    pub fn new(started: Tick) -> Self {
        let (sampler, ticks) = (Sampler::default(), events::Ticks::default());
        let (control, lost_log_lines) = (OnceLock::new(), OnceLock::new());
        Self { started, sampler, ticks, audit: Audit::default(), control, lost_log_lines }
    }

    /// Returns when the server was started.
    #[must_use]
    pub const fn started(&self) -> Tick {
        self.started
    }

    /// Returns the sampler of the rates. The server must call [`tick`](Sampler::tick) every second.
    #[must_use]
    pub const fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// Returns the log of changes.
    #[must_use]
    pub const fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Sets the object that loads the configuration and reports on snapshots. Only the first call
    /// sets it; later calls change nothing and return false.
    pub fn set_control(&self, control: Arc<dyn Control>) -> bool {
        self.control.set(control).is_ok()
    }

    /// Sets the function that counts the log lines that were not written. Only the first call sets
    /// it; later calls change nothing and return false.
    pub fn set_lost_log_lines(
        &self,
        count: impl Fn() -> LostLogLines + Send + Sync + 'static,
    ) -> bool {
        self.lost_log_lines.set(Box::new(count)).is_ok()
    }

    /// Returns the counts of log lines that were not written; `None` if no counter is set.
    #[must_use]
    pub fn lost_log_lines(&self) -> Option<LostLogLines> {
        self.lost_log_lines.get().map(|count| count())
    }

    /// Returns the object that loads the configuration, if it is set.
    #[must_use]
    pub fn control(&self) -> Option<&Arc<dyn Control>> {
        self.control.get()
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("started", &self.started).finish_non_exhaustive()
    }
}

/// Serves one connection until it ends.
///
/// Closes the connection when the head of a request takes longer than the request timeout, or when
/// no request begins and no event is sent for the idle timeout (which also ends clients that do not
/// read their response). At shutdown, the connection ends after the request in progress.
pub async fn serve(stream: Stream, connection: Connection) {
    let shared = Arc::clone(&connection.shared);
    let settings = &shared.settings;
    let client = Client::new(&stream, &connection);
    let active = Arc::new(AtomicBool::new(true));
    let peer = route::Peer { client, is_tls: stream.is_tls(), active: Arc::clone(&active) };
    let service = service_fn(|request| {
        // ORDERING: Relaxed. One task reads and writes it.
        active.store(true, Relaxed);
        connection.shared.traffic(connection.listener).requests(1);
        route::answer(&shared, &peer, request)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.request_timeout)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service);
    let mut served = pin!(served);
    let mut drain = shared.drain();
    let mut idle = interval(settings.idle_timeout.max(settings.request_timeout));
    idle.reset();
    // A connection that arrives while the server drains gets one response, so that the client
    // learns that the server is not ready.
    let mut is_draining = connection.is_draining();
    loop {
        select! {
            _ = served.as_mut() => break,
            _ = drain.wait_for(|draining| *draining), if !is_draining => {
                is_draining = true;
                served.as_mut().graceful_shutdown();
            }
            _ = idle.tick() => {
                // ORDERING: Relaxed, as above.
                if !active.swap(false, Relaxed) {
                    break;
                }
            }
        }
    }
}
