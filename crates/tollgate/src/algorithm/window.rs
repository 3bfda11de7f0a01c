//! What all window algorithms share: the limit of a window, the answer by what is used of it, and what
//! a change of quota keeps.

use super::{Algorithm, Inherit, inherit::FRACTION, word_time};
use crate::{
    Initial, Quota, QuotaError, Tick,
    decision::{Decision, Level, Outcome},
};
use std::time::Duration;

/// Counts are kept below this, so that no sum overflows.
pub(super) const COUNT_MAX: u64 = 1 << 60;

/// The longest that it may take to pay off what was booked beyond the limit: 4.5 years.
///
/// Some weeks less than [`AHEAD_MAX`](word_time::AHEAD_MAX), so that the end of the last window, rounded up
/// to a grain, and its counts still fit a word.
const DEBT_NS: u64 = 9 * 365 * 86_400 * 1_000_000_000 / 2;

/// A limit per window; a fresh state has `initial` of it left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(super) length_ns: u64,
    pub(super) limit: u64,
    pub(super) initial: u64,
}

impl Window {
    pub(super) fn new(quota: &Quota, algorithm: Algorithm) -> Result<Self, QuotaError> {
        quota.check_countable()?;
        let (limit, length_ns) = (quota.count(), quota.period_ns());
        match quota.explicit_burst() {
            Some(burst) if burst != limit => {
                Err(QuotaError::BurstOnWindow { burst, limit, algorithm })
            }
            _ => Ok(Self { length_ns, limit, initial: quota.initial_permits() }),
        }
    }

    /// Returns the quota, which [`new`](Self::new) turns into the same window.
    pub(super) const fn quota(&self) -> Quota {
        let period = Duration::from_nanos(self.length_ns);
        Quota::per(self.limit, period).initial(Initial::Permits(self.initial))
    }

    /// Tells whether nothing is used in a fresh state.
    pub(crate) const fn starts_empty(&self) -> bool {
        self.initial == self.limit
    }

    /// Returns the most that may be used, what is carried into later windows included; `None` for a limit
    /// of zero, which carries nothing. All of it is paid off within [`DEBT_NS`].
    pub(super) const fn debt_max(&self) -> Option<u64> {
        if self.limit == 0 {
            return None;
        }
        // Windows last a year at most. One less, because the last one begins before it is paid off.
        let debt = self.limit.saturating_mul(DEBT_NS / self.length_ns - 1);
        Some(if debt < COUNT_MAX { debt } else { COUNT_MAX })
    }

    /// Answers a call by what is `used` before it. `full` returns when all is free again after so many
    /// permits were taken, and `retry` when the call passes, both in nanoseconds.
    #[inline(always)]
    pub(super) fn answer(
        &self,
        (now, cost): (Tick, u64),
        used: u64,
        full: impl FnOnce(u64) -> u64,
        retry: impl FnOnce() -> u64,
    ) -> Decision {
        let limit = self.limit;
        // A debt denies even a cost of nothing.
        let passes = used <= limit && cost <= limit - used;
        let taken = if passes { cost } else { 0 };
        let (remaining, full) = (limit.saturating_sub(used + taken), full(taken));
        let level = Level { at: now, limit, remaining, full: word_time::from_nanos(full) };
        let (outcome, retry) = if passes {
            (Outcome::Allowed, 0)
        } else if cost > limit {
            (Outcome::Never, 0)
        } else {
            (Outcome::Later, word_time::from_nanos(retry()))
        };
        // In one place: three of them would be copied into one.
        Decision::new(outcome, level, cost, retry)
    }

    /// Returns how much is used after a change of quota; `None` if the state starts anew.
    pub(super) fn carry(&self, old: &Self, used: u64, how: Inherit) -> Option<u64> {
        let after = how.used_after(u128::from(used) << FRACTION, old.limit, self.limit)?;
        Some(u64::try_from(after.div_ceil(1 << FRACTION)).unwrap_or(u64::MAX))
    }
}
