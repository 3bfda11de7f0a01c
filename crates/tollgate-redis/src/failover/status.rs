//! The counts of a guarded store.

use super::FailurePolicy;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tollgate::{Tick, store::StoreError};

/// The state and the counts of a [`Guarded`](super::Guarded) store, for metrics and admin pages.
/// The counts only grow.
///
/// # Examples
///
/// ```
/// use tollgate::store::MemoryStore;
/// use tollgate_redis::{GuardStatus, Guarded};
///
/// let store = Guarded::builder(MemoryStore::new()).build()?;
/// let GuardStatus { local, pending_spend, since, .. } = store.status();
/// assert_eq!((local, pending_spend, since), (0, 0, None));
/// # Ok::<(), tollgate_redis::GuardError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GuardStatus {
    /// Demands that passed because their failure policy is open.
    pub open: u64,
    /// Demands that were refused because their failure policy is closed.
    pub closed: u64,
    /// Demands that the local limiter decided.
    pub local: u64,
    /// Calls that the store failed, those of unknown outcome included.
    pub store_errors: u64,
    /// Calls whose outcome is unknown: each was charged in the store once or not at all.
    pub unknown_outcomes: u64,
    /// Permits that were admitted here and then booked into the store.
    pub carried_back: u64,
    /// Keys whose spend waits to be booked into the store.
    pub pending_spend: u64,
    /// Spends that were given up: the table was full, the store refused them, or it is unknown
    /// whether they were booked.
    pub dropped_spend: u64,
    /// Whether the last call to the store failed.
    pub is_degraded_now: bool,
    /// Since when the store has failed, on the store's clock; `None` while it answers.
    pub since: Option<Tick>,
}

/// The counts behind [`GuardStatus`].
#[derive(Debug, Default)]
pub(super) struct Counts {
    open: AtomicU64,
    closed: AtomicU64,
    local: AtomicU64,
    store_errors: AtomicU64,
    unknown_outcomes: AtomicU64,
    carried_back: AtomicU64,
    /// The tick since when the store has failed, plus one; zero while it answers.
    since: AtomicU64,
}

// ORDERING: Relaxed in this file. Each word is an independent number that guards nothing; a reader
// may see one count before another.
impl Counts {
    pub(super) fn decided(&self, failure: FailurePolicy) {
        let count = match failure {
            FailurePolicy::Open => &self.open,
            FailurePolicy::Closed => &self.closed,
            FailurePolicy::Local => &self.local,
        };
        count.fetch_add(1, Relaxed);
    }

    /// Records that the store has failed. Returns whether it had answered before.
    pub(super) fn failed(&self, error: &StoreError, now: Tick) -> bool {
        self.store_errors.fetch_add(1, Relaxed);
        self.unknown_outcomes.fetch_add(error.is_timeout().into(), Relaxed);
        // The exchange fails if another call failed at the same time: its tick is as good.
        let since = now.as_nanos().saturating_add(1);
        self.since.load(Relaxed) == 0
            && self.since.compare_exchange(0, since, Relaxed, Relaxed).is_ok()
    }

    /// Records that the store has answered. Returns whether it had failed before.
    pub(super) fn answered(&self) -> bool {
        // A load first: all threads share the cache line, and usually there is nothing to write.
        self.since.load(Relaxed) != 0 && self.since.swap(0, Relaxed) != 0
    }

    pub(super) fn is_degraded(&self) -> bool {
        self.since.load(Relaxed) != 0
    }

    pub(super) fn carried(&self, permits: u64) {
        self.carried_back.fetch_add(permits, Relaxed);
    }

    pub(super) fn status(&self) -> GuardStatus {
        let since = self.since.load(Relaxed);
        GuardStatus {
            open: self.open.load(Relaxed),
            closed: self.closed.load(Relaxed),
            local: self.local.load(Relaxed),
            store_errors: self.store_errors.load(Relaxed),
            unknown_outcomes: self.unknown_outcomes.load(Relaxed),
            carried_back: self.carried_back.load(Relaxed),
            pending_spend: 0,
            dropped_spend: 0,
            is_degraded_now: since != 0,
            since: since.checked_sub(1).map(Tick::from_nanos),
        }
    }
}
