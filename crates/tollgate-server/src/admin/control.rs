//! What the server tells the desk, and is told by it.

use std::{fmt, future::Future, pin::Pin};
use tollgate::Tick;

/// What [`Control::reload`] returns.
pub type ControlFuture<'a> =
    Pin<Box<dyn Future<Output = Result<ReloadReport, String>> + Send + 'a>>;

/// Who loads the configuration and writes snapshots.
pub trait Control: Send + Sync {
    /// Loads the configuration again. If it is wrong, the old one stays in force and the error says
    /// what is wrong.
    fn reload(&self) -> ControlFuture<'_>;

    /// Tells how the last load and the last snapshots went. Must not wait.
    fn status(&self) -> ControlStatus;
}

impl fmt::Debug for dyn Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Control")
    }
}

/// What a load has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReloadReport {
    /// The version in force now.
    pub version: u64,
    /// What to know nevertheless.
    pub warnings: Vec<String>,
}

/// How the configuration and the snapshots are.
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
    /// What was wrong.
    pub error: Option<String>,
    /// What to know nevertheless.
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
