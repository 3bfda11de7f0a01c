//! Counters of a limit, spread over cache lines.

use super::full::Full;
use crate::observe::{Samples, StripedCounters, StripedHistogram, WaitHistogram, family};
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// What happened at a limit since it was built.
///
/// Every call that has come to an end is in exactly one of `admitted`, `refused` and `cancelled`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ConcurrencyCounts {
    /// Calls that got their permits.
    pub admitted: u64,
    /// Calls that were refused, at once or after a wait.
    pub refused: u64,
    /// Calls that had to wait, whatever became of them.
    pub waited: u64,
    /// Futures that were dropped while they waited, or before they fetched what they had got.
    pub cancelled: u64,
    /// The most permits that were in flight at once; for keys, the most of any one key.
    pub peak_in_flight: u64,
}

/// The fields of [`ConcurrencyCounts`], striped; nothing at all unless asked for.
#[derive(Debug)]
pub(super) struct Tally(Option<Box<Striped>>);

#[derive(Debug, Default)]
struct Striped {
    events: StripedCounters<4>,
    peak: AtomicU64,
    waits: StripedHistogram,
}

/// The events that are counted, in the order of the fields.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counted {
    Admitted,
    Refused,
    Waited,
    Cancelled,
}

impl Tally {
    pub(super) fn new(is_on: bool) -> Self {
        Self(is_on.then(Box::default))
    }

    pub(super) fn add(&self, event: Counted) {
        if let Some(striped) = &self.0 {
            striped.events.add(event as usize, 1);
        }
    }

    pub(super) fn answer(&self, answer: &Result<(), Full>) {
        self.add(match answer {
            Ok(()) => Counted::Admitted,
            Err(_) => Counted::Refused,
        });
    }

    pub(super) const fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Counts how long a call that passed had to wait.
    pub(super) fn wait(&self, wait: Duration) {
        if let Some(striped) = &self.0 {
            striped.waits.add(wait);
        }
    }

    pub(super) fn waits(&self) -> WaitHistogram {
        self.0.as_ref().map(|striped| striped.waits.sum()).unwrap_or_default()
    }

    /// Writes what is counted, if anything is.
    pub(super) fn collect(&self, samples: &mut Samples) {
        if !self.is_on() {
            return;
        }
        let counts = self.sum();
        samples.calls(counts.admitted, counts.refused);
        samples.count_by(&family::DECISIONS, "cancelled", counts.cancelled);
        samples.gauge(&family::IN_FLIGHT_PEAK, counts.peak_in_flight as f64);
        samples.waits(&family::WAITS, self.waits());
    }

    pub(super) fn peak(&self, in_flight: u32) {
        let Some(striped) = &self.0 else { return };
        // ORDERING: Relaxed. A maximum does not depend on the order. It is read first, because a
        // new peak is rare and reading disturbs nobody.
        if striped.peak.load(Relaxed) < in_flight.into() {
            striped.peak.fetch_max(in_flight.into(), Relaxed);
        }
    }

    pub(super) fn sum(&self) -> ConcurrencyCounts {
        let Some(striped) = &self.0 else { return ConcurrencyCounts::default() };
        let [admitted, refused, waited, cancelled] = striped.events.sum();
        // ORDERING: Relaxed, as in `peak`: a reading taken meanwhile may miss the latest.
        let peak_in_flight = striped.peak.load(Relaxed);
        ConcurrencyCounts { admitted, refused, waited, cancelled, peak_in_flight }
    }
}
