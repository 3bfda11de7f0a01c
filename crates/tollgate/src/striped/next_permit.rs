//! A cache of the time at which the next permit comes, so that not every refusal has to look
//! at every stripe.
//!
//! If all stripes were empty at the last look, and the next permit comes at tick T, then every call
//! before T is refused: takes only make them emptier. A call that may bring permits earlier, or make the
//! wait longer (a refund, a debt, a reset, a new quota, a costly call that gives back), holds the
//! limiter's lock and calls [`forget`](NextPermit::forget). An entry is made under the same lock, around the
//! look too, so it never outlives the look.
//!
//! A call of one permit then costs a read of its home and of this line. Held by
//! `tests/limiting/striped.rs`: `a_refusal_is_forgotten_when_something_changes`.

use super::across_stripes::Sum;
use crate::sync::MutexGuard;
use crate::{Decision, Quota, Tick, algorithm::word_time, decision::Level};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Shorter times are not cached: they are over before the entry has paid for itself.
const WORTH_NS: u64 = 2_000;

/// Until when every stripe is empty, and the level that a refusal reports.
#[derive(Debug, Default)]
pub(super) struct NextPermit {
    /// In nanoseconds; zero if nothing is known, [`u64::MAX`] if no permit comes any more.
    until: AtomicU64,
    full: AtomicU64,
    limit: AtomicU64,
}

impl NextPermit {
    /// Refuses one permit, if every stripe is known to be empty at `now`.
    pub(super) fn refusal(&self, now: Tick) -> Option<Decision> {
        // ORDERING: Relaxed, all three. A thread that has seen a refund, by whatever means, sees
        // the zero stored before it; one that has not may be refused as if it had called earlier. A
        // mixture of two entries blurs `full_at`, for calls that race with a change.
        let until = self.until.load(Relaxed);
        if now.as_nanos() >= until {
            return None;
        }
        let (limit, full) = (self.limit.load(Relaxed), self.full.load(Relaxed));
        let level = Level { at: now, limit, remaining: 0, full };
        Some(match until {
            u64::MAX => Decision::never(level, 1),
            until => Decision::later(level, 1, word_time::from_nanos(until)),
        })
    }

    /// Stores the result of a look that began and ended under the limiter's lock.
    pub(super) fn store(&self, now: Tick, sum: &Sum, _all: &MutexGuard<'_, Quota>) {
        let until = sum.next.map_or(u64::MAX, Tick::as_nanos);
        if sum.free == 0 && until.saturating_sub(now.as_nanos()) >= WORTH_NS {
            // ORDERING: Relaxed, as in `refusal`; the lock orders those who write.
            self.limit.store(sum.limit, Relaxed);
            self.full.store(sum.full, Relaxed);
            self.until.store(until, Relaxed);
        }
    }

    /// Clears the entry, because the stripes are about to change.
    pub(super) fn forget(&self, _all: &MutexGuard<'_, Quota>) {
        // ORDERING: Relaxed, as in `refusal`.
        self.until.store(0, Relaxed);
    }
}
