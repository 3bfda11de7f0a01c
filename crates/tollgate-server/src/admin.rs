//! Administrators' interface and metrics.
//!
//! A listener of its own: HTTP/1.1 with JSON, and a dashboard for browsers. `GET /` lists the endpoints. Who
//! may do what:
//!
//! | | no token set | token set |
//! |---|---|---|
//! | `/`, `/health`, `/ready`, `/version`, `/metrics`, the login page | everybody | everybody |
//! | what only reads | everybody | tokens that grant `read` |
//! | what changes something | only over a Unix socket | tokens that grant `administer` |
//!
//! What is changed here lives in this process only and always has an end; what should last belongs
//! into the configuration. Each change is [written down](Audit).

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

/// What administrators see and do. One per server, in [`Shared`](crate::server::Shared).
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
    /// Returns a desk that nobody has used yet.
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

    /// Returns what knows the rates. It must be told the counts [every second](Sampler::tick).
    #[must_use]
    pub const fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// Returns what was changed, by whom.
    #[must_use]
    pub const fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Says who loads the configuration and writes snapshots. Once; later calls change nothing and
    /// return false.
    pub fn set_control(&self, control: Arc<dyn Control>) -> bool {
        self.control.set(control).is_ok()
    }

    /// Says who counts the log lines that were not written. Once; later calls change nothing and return false.
    pub fn set_lost_log_lines(
        &self,
        count: impl Fn() -> LostLogLines + Send + Sync + 'static,
    ) -> bool {
        self.lost_log_lines.set(Box::new(count)).is_ok()
    }

    /// Returns the log lines that were not written, if somebody counts them.
    #[must_use]
    pub fn lost_log_lines(&self) -> Option<LostLogLines> {
        self.lost_log_lines.get().map(|count| count())
    }

    /// Returns who loads the configuration, if that was said.
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
/// It is closed when the head of a request takes longer than the request timeout, when for the idle
/// timeout no request begins and no event is sent (which also ends clients that do not read their
/// answer), and at shutdown after what has begun.
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
    // Who comes while the server drains gets one answer, to learn that it is not ready.
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
