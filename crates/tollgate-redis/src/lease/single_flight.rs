//! One store call that many requests wait for.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};
use tokio::sync::Semaphore;
use tollgate::Tick;

/// How long a call may take: far longer than a store's deadline.
const PATIENCE: Duration = Duration::from_secs(1);

/// A store call that is under way. Other requests for the same permits wait for it.
#[derive(Debug)]
pub(super) struct SingleFlight {
    since: Tick,
    /// Never has a permit: closing it wakes all waiters, and lets later ones return at once.
    over: Semaphore,
    has_failed: AtomicBool,
}

impl SingleFlight {
    pub(super) fn new(since: Tick) -> Self {
        Self { since, over: Semaphore::new(0), has_failed: AtomicBool::new(false) }
    }

    /// Tells whether the call takes too long: its caller may be on a runtime that stands still.
    pub(super) fn is_stuck(&self, now: Tick) -> bool {
        now.since(self.since) > PATIENCE
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
