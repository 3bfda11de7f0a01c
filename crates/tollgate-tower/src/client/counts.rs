//! Counts of calls and of answers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of the calls of a [`PaceLayer`](super::PaceLayer), all its clones together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PaceCounts {
    /// Calls that were sent.
    pub sent: u64,
    /// Calls that had to wait before they were sent.
    pub waited: u64,
    /// Calls that were not sent, because they would have waited too long.
    pub refused: u64,
    /// Calls that were sent, and that the server refused.
    pub server_refused: u64,
    /// Answers that stopped all calls to a server for a time.
    pub stops: u64,
    /// Times in answers that were implausible, and cut to the bound.
    pub clamped: u64,
    /// Fields of answers that were malformed, and ignored.
    pub malformed: u64,
    /// Answers from a cache, which are ignored.
    pub cached: u64,
    /// Servers that were forgotten to free their place for others.
    pub evicted: u64,
    /// Calls to servers without a place of their own, because all places were in use.
    pub crowded: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        if more > 0 {
            // ORDERING: Relaxed, here and below. A count publishes nothing else.
            self.0.fetch_add(more, Relaxed);
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) sent: Count,
    pub(super) waited: Count,
    pub(super) refused: Count,
    pub(super) server_refused: Count,
    pub(super) stops: Count,
    pub(super) clamped: Count,
    pub(super) malformed: Count,
    pub(super) cached: Count,
    pub(super) evicted: Count,
    pub(super) crowded: Count,
}

impl Counts {
    pub(super) fn get(&self) -> PaceCounts {
        PaceCounts {
            sent: self.sent.get(),
            waited: self.waited.get(),
            refused: self.refused.get(),
            server_refused: self.server_refused.get(),
            stops: self.stops.get(),
            clamped: self.clamped.get(),
            malformed: self.malformed.get(),
            cached: self.cached.get(),
            evicted: self.evicted.get(),
            crowded: self.crowded.get(),
        }
    }
}
