//! What is known of the time at which the next permit comes, so that not every refusal has to look
//! at every stripe.
//!
//! If all stripes were dry when somebody looked, and the next permit comes at tick T, then a call
//! before T is refused, whoever asks: takes only make it drier. What could make it wetter, or the
//! wait longer (a refund, a debt, a reset, a new quota, a costly call that gives back), holds the
//! limiter's lock and calls [`forget`](Dry::forget). A note is made under the same lock, around the
//! look too, so it never outlives what it was made from.
//!
//! A call of one permit then costs a read of its home and of this line. Held by
//! `tests/limiting/striped.rs`: `a_refusal_is_forgotten_when_something_changes`.

use super::spread::Sum;
use crate::sync::MutexGuard;
use crate::{Decision, Quota, Tick, algorithm::word_time, decision::Level};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Shorter times are not noted: they are over before the note has paid for itself.
const WORTH_NS: u64 = 2_000;

/// Until when every stripe is dry, and what a refusal tells besides.
#[derive(Debug, Default)]
pub(super) struct Dry {
    /// In nanoseconds; zero if nothing is known, [`u64::MAX`] if no permit comes any more.
    until: AtomicU64,
    full: AtomicU64,
    limit: AtomicU64,
}

impl Dry {
    /// Refuses one permit, if every stripe is known to be dry at `now`.
    pub(super) fn refusal(&self, now: Tick) -> Option<Decision> {
        // ORDERING: Relaxed, all three. Who has seen something given back, by whatever means, sees
        // the zero stored before it; who has not may be refused as if he had asked earlier. A
        // mixture of two notes blurs `full_at`, for those who race with a change.
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

    /// Notes what a look has found that began and ended under the limiter's lock.
    pub(super) fn note(&self, now: Tick, sum: &Sum, _all: &MutexGuard<'_, Quota>) {
        let until = sum.next.map_or(u64::MAX, Tick::as_nanos);
        if sum.free == 0 && until.saturating_sub(now.as_nanos()) >= WORTH_NS {
            // ORDERING: Relaxed, as in `refusal`; the lock orders those who write.
            self.limit.store(sum.limit, Relaxed);
            self.full.store(sum.full, Relaxed);
            self.until.store(until, Relaxed);
        }
    }

    /// Forgets the note, because something is about to change.
    pub(super) fn forget(&self, _all: &MutexGuard<'_, Quota>) {
        // ORDERING: Relaxed, as in `refusal`.
        self.until.store(0, Relaxed);
    }
}
