//! The server: what all connections share, and its life from start to shutdown.

mod files;
mod manager;
mod notify;
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
    net::{Listener, Traffic},
    trace::Trace,
};
use std::sync::Arc;
use tokio::sync::watch;

/// What all connections share.
#[derive(Debug)]
pub struct Shared {
    /// What decides.
    pub engine: Engine,
    /// The settings of the process.
    pub settings: Settings,
    /// What administrators see and do.
    pub admin: Desk,
    /// What sends traces, if something does.
    pub trace: Trace,
    traffic: [Traffic; Listener::ALL.len()],
    drain: watch::Sender<bool>,
}

impl Shared {
    /// Returns what connections share.
    #[must_use]
    pub fn new(engine: Engine, settings: Settings) -> Arc<Self> {
        let drain = watch::Sender::new(false);
        let admin = Desk::new(engine.now());
        let (trace, traffic) = (Trace::default(), Default::default());
        Arc::new(Self { engine, settings, admin, trace, traffic, drain })
    }

    /// Returns the counts of a listener.
    #[must_use]
    pub const fn traffic(&self, listener: Listener) -> &Traffic {
        &self.traffic[listener as usize]
    }

    /// Tells all connections to finish what they have begun, and to close.
    pub fn start_draining(&self) {
        self.drain.send_replace(true);
    }

    pub(crate) fn drain(&self) -> watch::Receiver<bool> {
        self.drain.subscribe()
    }
}
