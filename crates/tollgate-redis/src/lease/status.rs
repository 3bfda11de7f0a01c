//! The counts of a two-tier store.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// The counts of a [`TwoTier`](super::TwoTier) since it was built.
///
/// Of N decisions, `allowed_by_leases + refused_by_leases + refused_by_memory` needed no store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TierStatus {
    /// Demands that passed with permits held already.
    pub allowed_by_leases: u64,
    /// Demands that were refused because the store had too little a moment ago.
    pub refused_by_leases: u64,
    /// Demands that were refused by a remembered refusal.
    pub refused_by_memory: u64,
    /// Store calls for decisions and permits, including those ahead of the need.
    pub store_calls: u64,
    /// Of those, calls ahead of the need, which no request waited for.
    pub refills_ahead: u64,
    /// Requests that waited for another request's call.
    pub shared_calls: u64,
    /// Permits that were fetched and dropped unused.
    pub wasted: u64,
    /// Keys with permits held, or remembered demand.
    pub lease_entries: usize,
    /// Refusals remembered.
    pub deny_entries: usize,
    /// How long the store takes to answer, a moving average.
    pub round_trip: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) store_calls: AtomicU64,
    pub(super) refills_ahead: AtomicU64,
    pub(super) shared_calls: AtomicU64,
    round_trip_ns: AtomicU64,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64, count: u64) {
        // ORDERING: Relaxed, here and below. The counts order nothing.
        counter.fetch_add(count, Relaxed);
    }

    pub(super) fn get(counter: &AtomicU64) -> u64 {
        counter.load(Relaxed)
    }

    /// Records a round trip, with a weight of one eighth. Of two at once, one may get lost.
    pub(super) fn note_round_trip(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let known = self.round_trip_ns.load(Relaxed);
        let average = if known == 0 { took } else { known - known / 8 + took / 8 };
        self.round_trip_ns.store(average, Relaxed);
    }

    pub(super) fn round_trip_ns(&self) -> u64 {
        self.round_trip_ns.load(Relaxed)
    }
}
