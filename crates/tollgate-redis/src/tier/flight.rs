//! One call for many who wait.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};
use tokio::{runtime::Handle, sync::Semaphore, time::timeout};

/// How long to wait for the call of somebody else: far longer than a store's deadline.
const PATIENCE: Duration = Duration::from_secs(1);

/// A store call that is under way. Others who need the same permits wait for it.
#[derive(Debug)]
pub(super) struct Flight {
    /// Never has a permit: closing it wakes all who wait, and whoever comes later at once.
    over: Semaphore,
    has_failed: AtomicBool,
}

impl Flight {
    pub(super) fn new() -> Self {
        Self { over: Semaphore::new(0), has_failed: AtomicBool::new(false) }
    }

    /// Waits until the call is over. Returns false if the store could not answer, or who asks it does
    /// not go on: its runtime may stand still.
    pub(super) async fn is_over(&self) -> bool {
        let over = self.over.acquire();
        if Handle::try_current().is_err() {
            let _closed = over.await;
        } else if timeout(PATIENCE, over).await.is_err() {
            return false;
        }
        // ORDERING: Relaxed, here and below. Closing the semaphore takes its lock after the flag is
        // written, and waking up takes it before the flag is read.
        !self.has_failed.load(Relaxed)
    }

    pub(super) fn end(&self) {
        self.over.close();
    }

    pub(super) fn fail(&self) {
        self.has_failed.store(true, Relaxed);
    }
}
