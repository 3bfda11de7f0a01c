//! The server: what all connections share, and its life from start to shutdown.

mod files;
mod lowest_rate;
mod manager;
mod notify;
mod periodic;
mod redis;
mod settings;
mod start;

pub use manager::{Loaded, Manager, Source};
pub use notify::notify;
pub use settings::Settings;
pub use start::{Server, StartError};

use crate::{
    admin::Desk,
    engine::Engine,
    net::{Access, Listener, MemoryBudget, Traffic, WrongSecrets},
    rls::Bridge,
    trace::Trace,
};
use arc_swap::{ArcSwap, Guard};
use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering::Relaxed},
};
use tokio::sync::watch;

/// How far a server is between its start and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    /// Waits for its shared stores. Only administrators are served.
    Connecting,
    /// Serves.
    Serving,
    /// Serves, and says that it is not ready, so that load balancers choose other servers.
    Leaving,
    /// The listeners are closed. Connections finish what they have begun.
    Draining,
}

/// The state that all connections share.
#[derive(Debug)]
pub struct Shared {
    /// The decision engine.
    pub engine: Engine,
    /// The settings of the process.
    pub settings: Settings,
    /// The state that administrators see and change.
    pub admin: Desk,
    /// The tracer, if it is started.
    pub trace: Trace,
    /// Health and reflection over gRPC.
    pub(crate) bridge: Bridge,
    /// Slows down who sends wrong secrets.
    pub(crate) wrong_secrets: WrongSecrets,
    access: ArcSwap<Access>,
    /// The memory that connections hold.
    pub memory: Arc<MemoryBudget>,
    traffic: [Traffic; Listener::ALL.len()],
    phase: AtomicU8,
    drain: watch::Sender<bool>,
}

impl Shared {
    /// Returns what connections share.
    #[must_use]
    pub fn new(engine: Engine, settings: Settings) -> Arc<Self> {
        let drain = watch::Sender::new(false);
        let admin = Desk::new(engine.now());
        let wrong_secrets = WrongSecrets::new(engine.clock());
        let access = ArcSwap::from_pointee(settings.access.clone());
        let memory = MemoryBudget::new(settings.connection_memory_bytes);
        Arc::new(Self {
            engine,
            settings,
            admin,
            trace: Trace::default(),
            bridge: Bridge::default(),
            wrong_secrets,
            access,
            memory,
            traffic: Default::default(),
            phase: AtomicU8::new(Phase::Serving as u8),
            drain,
        })
    }

    /// Returns who may do what.
    pub fn access(&self) -> Guard<Arc<Access>> {
        self.access.load()
    }

    /// Replaces who may do what: a reload has read the secrets again.
    pub fn set_access(&self, access: Access) {
        self.access.store(Arc::new(access));
    }

    /// Returns the counts of a listener.
    #[must_use]
    pub const fn traffic(&self, listener: Listener) -> &Traffic {
        &self.traffic[listener as usize]
    }

    /// Answers readiness and health checks with no from now on, and serves on: load balancers choose
    /// other servers before the listeners close.
    pub async fn start_leaving(&self) {
        self.set_phase(Phase::Leaving);
        self.bridge.leave().await;
    }

    /// Tells all connections to finish what they have begun, and to close.
    pub fn start_draining(&self) {
        self.set_phase(Phase::Draining);
        self.drain.send_replace(true);
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        // ORDERING: Relaxed, here and below. Readers act on the value alone.
        self.phase.store(phase as u8, Relaxed);
    }

    /// Tells whether the server shuts down, also while it still accepts connections.
    pub(crate) fn is_leaving(&self) -> bool {
        self.phase.load(Relaxed) >= Phase::Leaving as u8
    }

    /// Returns why load balancers should choose another server, if so.
    pub(crate) fn not_ready(&self) -> Option<&'static str> {
        if self.is_leaving() {
            return Some("the server is shutting down");
        }
        let is_connecting = self.phase.load(Relaxed) == Phase::Connecting as u8;
        is_connecting.then_some("the server is connecting to its stores and does not serve yet")
    }

    pub(crate) fn drain(&self) -> watch::Receiver<bool> {
        self.drain.subscribe()
    }
}
