//! Where a tick lies on the scale that an algorithm counts in.
//!
//! GCRA counts permits, not nanoseconds: its word says how far the limiter is booked, in permits
//! since the clock's origin, with `f` fraction bits. A *position* is such a number, and the
//! timeline maps ticks to positions: `position(t) = floor(t x rate x 2^f)`. Permits then add up
//! exactly, whatever the rate, and no rounding error can accumulate.
//!
//! The rate is a 64-bit multiplier, so the map is one multiplication:
//!
//! ```text
//! position(t) = ((t << 5) x multiplier) >> (64 + shift)
//! ```
//!
//! The multiplier is rounded up to 64 significant bits: the long-run rate is the quota's to one part
//! in 2^63 (a permit too many in 292 years at 10^9/s). Up, because a permit that is due at a whole
//! tick is then there at that tick, and not one tick late. Source: Granlund and Montgomery,
//! "Division by Invariant Integers using Multiplication", for the method.
//!
//! | what | bound | in human terms |
//! |---|---|---|
//! | positions per nanosecond | <= 4 | a position is at least a quarter of a nanosecond |
//! | position of [`Tick::HORIZON`] | <= 20 x 2^56 | 11.4 years |
//! | burst in positions | <= 4 x 2^56 | |
//! | all that is booked ahead, burst and debt | <= 8 x 2^56 | four years at the finest resolution |
//! | sum, the largest word | <= 28 x 2^56 < 2^61 | leaves three bits for the host |

use crate::clock::Tick;

/// The most positions in one nanosecond.
pub(crate) const PER_NANO_MAX: u128 = 4;
/// The most positions a burst may span.
pub(crate) const BURST_SPAN: u64 = 4 << 56;
/// The most positions a limiter may be booked ahead, burst and debt together.
pub(crate) const DEBT_SPAN: u64 = 8 << 56;
/// Bits that every state word leaves to its host.
pub(crate) const HOST_BITS: u32 = 3;

/// OVERFLOW: ticks are capped at 5 x 2^56 < 2^59, so five more bits fit in a word.
const HEADROOM: u32 = 5;

/// A linear map from ticks to positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeline {
    multiplier: u64,
    shift: u8,
}

impl Timeline {
    /// The timeline of algorithms that count in ticks: a position is a tick.
    pub(crate) const TICKS: Self = Self { multiplier: 1 << (64 - HEADROOM), shift: 0 };

    /// The timeline of algorithms that count in quarters of a tick.
    pub(crate) const QUARTERS: Self = Self { multiplier: 1 << (64 - HEADROOM + 2), shift: 0 };

    /// Returns the timeline on which `count` x 2^`fraction` positions pass in `period_ns`.
    ///
    /// The caller has checked that this is at most [`PER_NANO_MAX`] positions per nanosecond and
    /// that the period is at most 366 days.
    pub(crate) const fn new(count: u64, fraction: u32, period_ns: u64) -> Self {
        if count == 0 {
            return Self { multiplier: 0, shift: 0 };
        }
        // OVERFLOW: count x 2^fraction <= 4 x period < 2^57.
        let positions = (count as u128) << fraction;
        let period = period_ns as u128;
        // Find the shift that gives the quotient 64 significant bits:
        // multiplier = positions / period x 2^(64 - HEADROOM + shift).
        let mut shift = 0;
        loop {
            // OVERFLOW: the numerator stays below 2^64 x period < 2^119, because the loop ends as
            // soon as the quotient reaches 2^63.
            let next = (positions << (64 - HEADROOM + shift + 1)).div_ceil(period);
            if next > u64::MAX as u128 {
                let multiplier = (positions << (64 - HEADROOM + shift)).div_ceil(period);
                return Self { multiplier: multiplier as u64, shift: shift as u8 };
            }
            shift += 1;
        }
    }

    /// Returns the position of a tick; ticks beyond the horizon count as the horizon.
    #[inline(always)]
    pub(crate) const fn position(self, tick: Tick) -> u64 {
        let tick = if tick.as_nanos() < Tick::HORIZON.as_nanos() { tick } else { Tick::HORIZON };
        let wide = ((tick.as_nanos() << HEADROOM) as u128 * self.multiplier as u128) >> 64;
        (wide as u64) >> self.shift
    }

    /// Tells whether the clock reaches a position before its horizon.
    #[inline]
    pub(crate) const fn reaches(self, position: u64) -> bool {
        position <= self.position(Tick::HORIZON)
    }

    /// Returns the first tick at or beyond a position; `None` if the clock never gets there.
    pub(crate) const fn tick(self, position: u64) -> Option<Tick> {
        if position == 0 {
            return Some(Tick::ZERO);
        }
        if !self.reaches(position) {
            return None;
        }
        // position(t) >= p  <=>  (t << 5) x m >= p << (64 + s)  <=>  t >= p << (59 + s) / m, rounded
        // up. The divisor is one word, for which processors have an instruction.
        // OVERFLOW: p is at most the horizon's position, so its inverse image fits.
        let target = (position as u128) << (64 - HEADROOM + self.shift as u32);
        let below = (target / self.multiplier as u128) as u64;
        let is_exact = below as u128 * self.multiplier as u128 == target;
        Some(Tick::from_nanos(if is_exact { below } else { below + 1 }))
    }

    pub(crate) const fn to_words(self) -> (u64, u8) {
        (self.multiplier, self.shift)
    }

    pub(crate) const fn from_words(multiplier: u64, shift: u8) -> Self {
        Self { multiplier, shift }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_position_of_the_tick_timeline_is_a_tick() {
        for ns in [0, 1, 7, 1 << 40, Tick::HORIZON.as_nanos()] {
            let tick = Tick::from_nanos(ns);
            assert_eq!(Timeline::TICKS.position(tick), ns);
            assert_eq!(Timeline::TICKS.tick(ns), Some(tick));
        }
        assert_eq!(Timeline::TICKS.position(Tick::MAX), Tick::HORIZON.as_nanos());
        assert_eq!(Timeline::TICKS.tick(u64::MAX), None);
    }

    #[test]
    fn a_rate_of_zero_stands_still() {
        let still = Timeline::new(0, 8, 1);
        assert_eq!(still.position(Tick::MAX), 0);
        assert_eq!(still.tick(1), None);
    }

    fn rates() -> impl Strategy<Value = (u64, u32, u64)> {
        (1..=u64::MAX / 2, 1..31_622_400_000_000_000_u64, 0..58_u32).prop_map(
            |(count, period, fraction)| {
                let count = 1 + count % period;
                let most = (PER_NANO_MAX * u128::from(period) / u128::from(count)).ilog2();
                (count, fraction.min(most), period)
            },
        )
    }

    proptest! {
        #[test]
        fn the_first_tick_of_a_position_is_exact(
            (count, fraction, period) in rates(), ns in 0..Tick::HORIZON.as_nanos(),
        ) {
            let timeline = Timeline::new(count, fraction, period);
            let position = timeline.position(Tick::from_nanos(ns));
            let first = timeline.tick(position).unwrap();
            prop_assert!(first <= Tick::from_nanos(ns));
            prop_assert_eq!(timeline.position(first), position);
            if let Some(before) = first.as_nanos().checked_sub(1) {
                prop_assert!(timeline.position(Tick::from_nanos(before)) < position);
            }
        }

        #[test]
        fn positions_are_the_exact_ones_or_one_more(
            (count, fraction, period) in rates(), ns in 0..Tick::HORIZON.as_nanos(),
        ) {
            let timeline = Timeline::new(count, fraction, period);
            let got = u128::from(timeline.position(Tick::from_nanos(ns)));
            // OVERFLOW in this oracle: 2^59 x 2^57 < 2^128.
            let exact = u128::from(ns) * (u128::from(count) << fraction) / u128::from(period);
            prop_assert!(got == exact || got == exact + 1, "{got} for {exact}");
        }

        #[test]
        fn a_permit_due_at_a_whole_tick_is_there_at_that_tick(
            every_ns in 1..1_000_000_000_000_u64, start in 0..1_000_000_000_000_000_u64,
        ) {
            let fraction = (PER_NANO_MAX * u128::from(every_ns)).ilog2();
            let timeline = Timeline::new(1, fraction, every_ns);
            let next = timeline.position(Tick::from_nanos(start)) + (1 << fraction);
            prop_assert_eq!(timeline.tick(next), Some(Tick::from_nanos(start + every_ns)));
        }
    }
}
