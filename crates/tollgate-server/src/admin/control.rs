//! The interface between the administrators' endpoints and the configuration manager.

use std::{fmt, future::Future, pin::Pin};
use tollgate::Tick;

/// The result of [`Control::reload`].
pub type ControlFuture<'a> =
    Pin<Box<dyn Future<Output = Result<ReloadReport, String>> + Send + 'a>>;

/// Loads the configuration and knows the state of the snapshots.
pub trait Control: Send + Sync {
    /// Loads the configuration again. If it is wrong, the old one stays in force and the error
    /// names the mistakes.
    fn reload(&self) -> ControlFuture<'_>;

    /// Returns how the last load and the last snapshots went. Must not wait.
    fn status(&self) -> ControlStatus;
}

impl fmt::Debug for dyn Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Control")
    }
}

/// The result of a load.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadReport {
    /// The version in force now.
    pub version: u64,
    /// Warnings that did not prevent the load.
    pub warnings: Vec<String>,
}

/// The state of the configuration and the snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlStatus {
    /// The files and folders that the configuration comes from; none for the built-in one.
    pub files: Vec<String>,
    /// Loads that succeeded, the first included.
    pub loads: u64,
    /// Loads that failed.
    pub failed_loads: u64,
    /// The last load.
    pub last_load: Option<LoadStatus>,
    /// Snapshots, one for each store that has them.
    pub snapshots: Vec<SnapshotStatus>,
}

/// How a load went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadStatus {
    /// When it was tried.
    pub at: Tick,
    /// The errors of the configuration, if it was wrong.
    pub error: Option<String>,
    /// Warnings that did not prevent the load.
    pub warnings: Vec<String>,
}

/// The snapshots of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotStatus {
    /// The number of the store.
    pub store: usize,
    /// The file.
    pub path: String,
    /// When one was last written, or restored.
    pub written: Option<Tick>,
    /// Why the last one could not be written.
    pub error: Option<String>,
}
