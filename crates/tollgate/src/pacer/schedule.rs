//! The times of the slots: exact arithmetic, no state but a beginning and a number.
//!
//! The idea: while the queue is never empty, slot `k` lies `k` intervals after the
//! beginning. An interval is `period / count`, which need not be a whole number of nanoseconds, so
//! it is never added up: each slot is computed from the beginning, and rounded up.
//!
//! ```text
//! slot(k) = begin + ceil(k x period / count)
//! ```
//!
//! So a slot is never early and at most 1 ns late, also after years. When the next slot lies in the
//! past the queue was empty: a new beginning is made, now.

use crate::{Quota, Tick};
use std::time::Duration;

/// The slots that were given out, and the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    /// INVARIANT: it has a rate, of at most one slot each nanosecond. Only count and period matter.
    pub(super) quota: Quota,
    begin: Tick,
    /// The number of the next slot.
    next: u64,
}

impl Schedule {
    pub(super) const fn new(quota: Quota) -> Self {
        Self { quota, begin: Tick::ZERO, next: 0 }
    }

    /// Returns the time that so many slots take, rounded up.
    pub(super) const fn nanos(&self, slots: u64) -> u128 {
        // OVERFLOW: slots < 2^64, and a period is at most 366 days, below 2^55.
        (slots as u128 * self.quota.period_ns() as u128).div_ceil(self.quota.count() as u128)
    }

    /// Returns the time that so many slots take, rounded up, at most 584 years.
    pub(super) fn span(&self, slots: u64) -> Duration {
        Duration::from_nanos(u64::try_from(self.nanos(slots)).unwrap_or(u64::MAX))
    }

    /// Returns when slot `number` is; `None` if that is after the end of time.
    fn slot(&self, number: u64) -> Option<Tick> {
        let after = u64::try_from(self.nanos(number)).ok()?;
        self.begin.as_nanos().checked_add(after).map(Tick::from_nanos)
    }

    /// Returns the schedule as it is at `now`: with a new beginning if the next slot was missed.
    fn at(self, now: Tick) -> Self {
        // A slot that is due at this very tick continues the sequence, so that nothing is rounded twice.
        match self.slot(self.next) {
            Some(next) if next < now => Self { begin: now, next: 0, ..self },
            _ => self,
        }
    }

    /// Returns the schedule after `cost` more slots, with the first and the last of them; `None` if
    /// time ends before.
    pub(super) fn book(&self, now: Tick, cost: u64) -> Option<(Self, Tick, Tick)> {
        let schedule = self.at(now);
        let next = schedule.next.checked_add(cost)?;
        let (first, last) = (schedule.slot(schedule.next)?, schedule.slot(next.checked_sub(1)?)?);
        Some((Self { next, ..schedule }, first, last))
    }

    /// Gives back the last `cost` slots, the first of which is `at`.
    pub(super) fn give_back(&mut self, at: Tick, cost: u64) {
        match self.next.checked_sub(cost) {
            // The sequence goes on exactly where it was.
            Some(number) if self.slot(number) == Some(at) => self.next = number,
            // It was given out at another rate.
            _ => (self.begin, self.next) = (at, 0),
        }
    }

    /// Changes the rate: the next slot lies `cost` new intervals after `last`, the last slot that
    /// was given out.
    pub(super) fn set_rate(&mut self, quota: Quota, last: Option<(Tick, u64)>) {
        let (begin, next) = match last {
            Some((at, cost)) => (at, cost),
            // All was given back: the next slot stays where it is.
            None => (self.slot(self.next).unwrap_or(Tick::MAX), 0),
        };
        *self = Self { quota, begin, next };
    }
}
