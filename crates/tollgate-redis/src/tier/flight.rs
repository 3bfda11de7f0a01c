//! One call for many who wait.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::sync::Semaphore;

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

    /// Waits until the call is over. Returns false if the store could not answer.
    pub(super) async fn is_over(&self) -> bool {
        let _closed = self.over.acquire().await;
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
