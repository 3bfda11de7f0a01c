//! GCRA for quotas that come with each call: the state is a time, so that it outlives the quota.
//!
//! # The idea
//!
//! As in [`Gcra`](super::Gcra), a limiter is booked up to a theoretical arrival time `tat`. There
//! the word counts permits, whose meaning depends on the rate. Here it is the time itself, so the
//! next call may bring another rate and burst and goes on from the same `tat`, as redis-cell does.
//!
//! ```text
//! tat' = max(tat, now) + cost x T      allowed if  tat' - now <= burst x T      T = period / count
//! ```
//!
//! # State and units
//!
//! One word: `tat` in quarters of a nanosecond since the clock's origin. Zero is the state of a
//! limiter never used; a `tat` in the past is as good, whatever the quota.
//!
//! T is no whole number of quarters as a rule, and adding a rounded T each time would add up: of
//! three per second the third call would be refused, or the rate would be off. So a step places
//! `tat` and `now` on the scale of permits, decides there in whole numbers, and goes back:
//!
//! ```text
//! place(q) = floor(q x count x 2^f / (4 x period))        permits with f fraction bits
//! time(p)  = ceil (p x 4 x period / (count x 2^f))        the first quarter whose place is p
//! ```
//!
//! `f` is the largest number that leaves a place at least a quarter wide, so `place(time(p)) = p`:
//! going there and back loses nothing, and as long as the quota stays, nothing accumulates.
//!
//! # Exact and approximate
//!
//! - With one quota: permits add up exactly, `burst` permits pass at once in whatever pieces, and
//!   the long-run rate is exact. In every interval `w`: cost <= burst + rate x w + 2^(1-f).
//! - A change of quota may round `tat` down to a place: by less than half a nanosecond each time.
//!   At the very tick at which a permit is due, the new quota may see it a tick earlier or later.
//! - `retry` and `full` are exact: the first ticks at which the word says so.
//!
//! # Time
//!
//! As [`Gcra`](super::Gcra). All that is booked ahead is at most 2^57 ns, four years and a half; a
//! burst, half of that.
//!
//! # Cost
//!
//! 8 bytes; two or three divisions of 128 bits by 64.
//!
//! Source: brandur/redis-cell for what carries over. Departure: its T is rounded to a nanosecond.

use super::{
    Idle, Inherit, Packed, Step, Succeed, share,
    timeline::{BURST_SPAN, DEBT_SPAN, Timeline},
};
use crate::{
    Initial, Quota, QuotaError, Tick,
    decision::{Decision, Level},
};
use std::time::Duration;

/// GCRA with the parameters of one call. The state is the word described in the module's source.
///
/// # Examples
///
/// The quota changes between two calls, and what is booked stays booked:
///
/// ```
/// use tollgate::{Quota, Tick, algorithm::{Step, Timed}};
///
/// let (slow, fast) = (Timed::new(&Quota::per_second(1).burst(5))?, Timed::new(&Quota::per_second(10))?);
/// let mut tat = 0;
/// assert_eq!(slow.decide(&mut tat, Tick::ZERO, 2).remaining(), 3);
/// // Two seconds are booked, which is more than ten permits at ten a second.
/// let refused = fast.decide(&mut tat, Tick::ZERO, 1);
/// assert_eq!(refused.retry_at(), Some(Tick::from_millis(1100)));
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    count: u64,
    period_ns: u64,
    burst: u64,
    /// A permit is 2^fraction places.
    fraction: u8,
}

impl Timed {
    /// Returns the algorithm for the quota of a call.
    ///
    /// # Errors
    ///
    /// As [`Quota::check_countable`]; also if the rate is zero, if a fresh limiter would not be
    /// full, or if the burst takes longer to refill than the word can say.
    pub const fn new(quota: &Quota) -> Result<Self, QuotaError> {
        if let Err(error) = quota.check_countable() {
            return Err(error);
        }
        let (count, period_ns, burst) = (quota.count(), quota.period_ns(), quota.capacity());
        if count == 0 {
            return Err(QuotaError::RateZero { burst });
        }
        if !matches!(quota.initial_fill(), Initial::Full) {
            return Err(QuotaError::InitialPerCall);
        }
        // OVERFLOW: 4 x 366 days < 2^57 ns, and count <= period, so the quotient is 4 to 2^57.
        let per_permit = 4 * period_ns / count;
        let timed = Self { count, period_ns, burst, fraction: per_permit.ilog2() as u8 };
        // OVERFLOW: 10^15 < 2^50 permits of 2^57.
        let refill = (burst as u128 * 4 * period_ns as u128).div_ceil(count as u128);
        if refill > BURST_SPAN as u128 {
            return Err(QuotaError::RefillTooLong { burst, count, period: quota.period() });
        }
        Ok(timed)
    }

    /// Returns the place of a time in quarters of a nanosecond.
    #[inline]
    const fn place(&self, quarters: u64) -> u64 {
        // OVERFLOW: quarters < 2^61 and count x 2^f <= 4 x period < 2^57; so the quotient is at
        // most `quarters`.
        let wide = quarters as u128 * ((self.count as u128) << self.fraction);
        (wide / (4 * self.period_ns) as u128) as u64
    }

    /// Returns the first time, in quarters of a nanosecond, whose place is `place`.
    #[inline]
    const fn time(&self, place: u64) -> u64 {
        // OVERFLOW: places are below 2^62, so the product is below 2^119, and a place is narrower
        // than two quarters.
        let wide = place as u128 * (4 * self.period_ns) as u128;
        wide.div_ceil((self.count as u128) << self.fraction) as u64
    }

    /// OVERFLOW: at most [`BURST_SPAN`] for `permits <= burst`, because no place is narrower than a
    /// quarter.
    #[inline]
    const fn span(&self, permits: u64) -> u64 {
        permits << self.fraction
    }

    /// Returns the span of a cost that may exceed the burst, if it fits a debt.
    const fn debt_span(&self, permits: u64) -> Option<u64> {
        if permits > DEBT_SPAN >> self.fraction { None } else { Some(self.span(permits)) }
    }

    /// Returns the places of `now` and of what is booked.
    #[inline]
    fn places(&self, tat: u64, now: Tick) -> (u64, u64) {
        let quarters = Timeline::QUARTERS.position(now);
        let position = self.place(quarters);
        (position, if tat > quarters { self.place(tat) } else { position })
    }

    /// Answers, and returns the word afterwards.
    #[inline]
    fn judge(&self, tat: u64, now: Tick, cost: u64) -> (Decision, u64) {
        let (position, booked) = self.places(tat, now);
        let full = self.span(self.burst);
        // OVERFLOW: what is booked is below 2^61, and both spans are at most 2^58.
        let next = if cost <= self.burst { Some(booked + self.span(cost)) } else { None };
        let passes = next.is_some_and(|next| next <= position + full);
        let (after, word) = match next {
            // A cost of nothing must leave the word as it is.
            Some(next) if passes && cost > 0 => (next, self.time(next)),
            _ => (booked, tat),
        };
        let remaining = full.saturating_sub(after - position) >> self.fraction;
        let level = Level { at: now, limit: self.burst, remaining, full: word };
        let decision = match next {
            Some(_) if passes => Decision::allowed(Timeline::QUARTERS, level, cost),
            None => Decision::never(Timeline::QUARTERS, level, cost),
            // The call passes once booked + cost - now <= burst; it does not yet, so this is
            // positive.
            Some(next) => Decision::later(Timeline::QUARTERS, level, cost, self.time(next - full)),
        };
        (decision, word)
    }

    /// Returns how far ahead of `now` a word is booked, in quarters of a nanosecond.
    pub(crate) fn ahead(tat: u64, now: Tick) -> u64 {
        tat.saturating_sub(Timeline::QUARTERS.position(now))
    }

    /// Returns the word that was booked `ahead` some time ago; zero if that has passed.
    ///
    /// Half a nanosecond is forgiven: with the clock's origin the places have shifted, and a word
    /// that was rounded up to one must not be rounded up again, or a whole permit would be missing.
    pub(crate) fn booked(ahead: u64, elapsed: Duration, now: Tick) -> u64 {
        let passed = Timeline::QUARTERS.position(Tick::ZERO.saturating_add(elapsed));
        match ahead.min(DEBT_SPAN).saturating_sub(passed.saturating_add(2)) {
            0 => 0,
            left => Timeline::QUARTERS.position(now) + left,
        }
    }
}

impl Step for Timed {
    type State = u64;

    fn initial(&self, _now: Tick) -> u64 {
        0
    }

    #[inline]
    fn peek(&self, tat: &u64, now: Tick, cost: u64) -> Decision {
        self.judge(*tat, now, cost).0
    }

    fn available(&self, tat: &u64, now: Tick) -> u64 {
        let (position, booked) = self.places(*tat, now);
        self.span(self.burst).saturating_sub(booked - position) >> self.fraction
    }

    fn charge(&self, tat: &mut u64, now: Tick, cost: u64) -> bool {
        if cost == 0 {
            return true;
        }
        let (_, booked) = self.places(*tat, now);
        let next = self.debt_span(cost).map(|span| self.time(booked + span));
        let fits = next.filter(|next| Self::ahead(*next, now) <= DEBT_SPAN);
        if let Some(next) = fits {
            *tat = next;
        }
        fits.is_some()
    }

    fn chargeable(&self, tat: &u64, now: Tick) -> u64 {
        let (_, booked) = self.places(*tat, now);
        // The last place that begins within the debt. OVERFLOW: as the largest word.
        let last = self.place(Timeline::QUARTERS.position(now) + DEBT_SPAN);
        last.saturating_sub(booked).min(DEBT_SPAN) >> self.fraction
    }

    #[inline]
    fn decide(&self, tat: &mut u64, now: Tick, cost: u64) -> Decision {
        let (decision, word) = self.judge(*tat, now, cost);
        *tat = word;
        decision
    }

    fn mark(&self, tat: &u64, _now: Tick) -> u64 {
        self.place(*tat)
    }

    fn passed(&self, _tat: &u64, now: Tick) -> u64 {
        self.place(Timeline::QUARTERS.position(now))
    }

    /// Gives back `clamp(mark - now, 0, most)`, as [`Gcra`](super::Gcra) does: marks and amounts
    /// are places, and so mean something only to calls with the same quota.
    fn give_back(&self, tat: &mut u64, now: Tick, mark: u64, most: u64) -> u64 {
        let booked = self.place(*tat);
        let amount = mark.saturating_sub(self.passed(tat, now)).min(most).min(booked);
        if amount > 0 {
            *tat = self.time(booked - amount);
        }
        amount
    }

    fn units(&self, permits: u64) -> u64 {
        self.debt_span(permits).unwrap_or(DEBT_SPAN)
    }

    fn whole_permits(&self, units: u64) -> u64 {
        units >> self.fraction
    }
}

impl Packed for Timed {
    #[inline]
    fn pack(&self, tat: &u64) -> u64 {
        *tat
    }

    #[inline]
    fn unpack(&self, word: u64) -> u64 {
        word
    }

    fn to_words(self) -> [u64; 4] {
        [self.count, self.period_ns, self.burst, u64::from(self.fraction)]
    }

    #[inline]
    fn from_words([count, period_ns, burst, fraction]: [u64; 4]) -> Self {
        Self { count, period_ns, burst, fraction: fraction as u8 }
    }
}

impl Idle for Timed {
    /// Needs no parameters, so a table can ask without knowing the quota of the next call.
    #[inline]
    fn is_idle(&self, tat: &u64, now: Tick) -> bool {
        Self::ahead(*tat, now) == 0
    }

    fn burden(&self, tat: &u64, now: Tick) -> u64 {
        share(Self::ahead(*tat, now), self.time(self.span(self.burst)))
    }
}

impl Succeed for Timed {
    /// The time is what it is, whatever the quota.
    fn succeed(&self, _old: &Self, tat: &u64, _now: Tick, how: Inherit) -> u64 {
        if how == Inherit::Reset { 0 } else { *tat }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn there_and_back_loses_nothing(
            period in 1..31_622_400_000_000_000_u64, count: u64, place in 0..(1_u64 << 59),
        ) {
            let quota = Quota::per(1 + count % period, Duration::from_nanos(period)).burst(1);
            let timed = Timed::new(&quota).unwrap();
            prop_assert_eq!(timed.place(timed.time(place)), place);
            if place > 0 {
                prop_assert!(timed.place(timed.time(place) - 1) < place, "the first of its place");
            }
        }
    }

    #[test]
    fn the_largest_word_leaves_the_hosts_bits_free() {
        for (count, period) in [(1_000_000_000, 1), (700_000_001, 1), (1, 31_622_400), (3, 1)] {
            let quota = Quota::per(count, Duration::from_secs(period)).burst(1);
            let timed = Timed::new(&quota).unwrap();
            let mut tat = 0;
            for cost in [1_u64 << 60, 1 << 50, 1 << 40, 1 << 30, 1 << 20, 1 << 10, 1] {
                while timed.charge(&mut tat, Tick::MAX, cost) && tat < 1 << 61 {}
            }
            assert_eq!(timed.chargeable(&tat, Tick::MAX), 0, "{quota}");
            assert!(tat < 1 << (64 - super::super::timeline::HOST_BITS), "{quota}: {tat}");
        }
    }
}
