//! How the time in a word becomes a place on a scale of permits, and back.
//!
//! Where a permit lasts a whole number of ninths of a nanosecond, a place is the time itself. Elsewhere
//! adding a rounded permit each time would add up: after a minute only 6 of "7 per minute" would be
//! back. So a step goes through places, of which a permit has exactly 2^f:
//!
//! ```text
//! place(t) = floor(t x count x 2^f / (9 x period))
//! time(p)  = ceil (p x 9 x period / (count x 2^f))      the first time whose place is p
//! ```
//!
//! `f` is the largest number that leaves a place at least a ninth wide, so `place(time(p)) = p`:
//! going there and back loses nothing.

use crate::algorithm::word_time::{BUDGET_START, PER_NANO};

/// The most that can be used of such a budget, debt included.
pub(super) const BUDGET_MAX: u64 = (1 << 50) - 1;

/// A scale, laid out as the atomics hold it: a decision would have to convert an enum each time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    /// Ninths of a nanosecond in a period; or [`TIMES`], or [`BUDGET`].
    pub(super) ninths: u64,
    /// Places in such a period.
    pub(super) places: u64,
    /// Places of a permit: 2^f, if places are neither times nor permits.
    pub(super) per_permit: u64,
    /// Reciprocals of both.
    pub(super) by_ninths: u64,
    pub(super) by_places: u64,
}

/// A place is a time. Periods have at least nine ninths, so this is none of them.
const TIMES: u64 = 0;
/// Nothing comes back: a place is a number of permits used.
const BUDGET: u64 = 1;

impl Scale {
    /// Returns the scale for `count` permits in `period_ns`.
    pub(super) const fn new(count: u64, period_ns: u64) -> Self {
        if count == 0 {
            return Self { ninths: BUDGET, per_permit: 1, places: 0, by_ninths: 0, by_places: 0 };
        }
        // OVERFLOW: 9 x 366 days < 2^58 ns.
        let ninths = PER_NANO * period_ns;
        if ninths.is_multiple_of(count) {
            let per_permit = ninths / count;
            return Self { ninths: TIMES, per_permit, places: 0, by_ninths: 0, by_places: 0 };
        }
        let fraction = (ninths / count).ilog2();
        // OVERFLOW: at most `ninths`.
        let (places, ninths) = (Divisor::new(count << fraction), Divisor::new(ninths));
        Self {
            ninths: ninths.value,
            places: places.value,
            per_permit: 1 << fraction,
            by_ninths: ninths.inverse,
            by_places: places.inverse,
        }
    }

    /// Returns permits and nanoseconds: as many permits come back in so long, if any do.
    pub(super) const fn rate(self) -> (u64, u64) {
        match self.ninths {
            BUDGET => (0, 0),
            TIMES if self.per_permit.is_multiple_of(PER_NANO) => (1, self.per_permit / PER_NANO),
            TIMES if self.per_permit.is_multiple_of(3) => (3, self.per_permit / 3),
            TIMES => (PER_NANO, self.per_permit),
            ninths => (self.places / self.per_permit, ninths / PER_NANO),
        }
    }

    /// Returns the scale if a place is a time, as the compiler then knows it.
    #[inline(always)]
    pub(super) fn whole(self) -> Option<Self> {
        let whole = Self { ninths: TIMES, places: 0, by_ninths: 0, by_places: 0, ..self };
        (self.ninths == TIMES).then_some(whole)
    }

    pub(super) const fn is_budget(self) -> bool {
        self.ninths == BUDGET
    }

    /// Returns the place of a word.
    #[inline(always)]
    pub(super) const fn place(self, word: u64) -> u64 {
        if self.ninths == TIMES { word } else { self.place_elsewhere(word) }
    }

    #[inline(always)]
    const fn place_elsewhere(self, word: u64) -> u64 {
        if self.is_budget() {
            return word.saturating_sub(BUDGET_START);
        }
        let ninths = Divisor { value: self.ninths, inverse: self.by_ninths };
        // OVERFLOW: a word is below 2^62, and there are no more places than ninths.
        ninths.divide(word as u128 * self.places as u128).0
    }

    /// Returns the first word whose place is this one.
    #[inline(always)]
    pub(super) const fn word(self, place: u64) -> u64 {
        if self.ninths == TIMES { place } else { self.word_elsewhere(place) }
    }

    #[inline(always)]
    const fn word_elsewhere(self, place: u64) -> u64 {
        if self.is_budget() {
            return if place == 0 { 0 } else { BUDGET_START + place };
        }
        let places = Divisor { value: self.places, inverse: self.by_places };
        // OVERFLOW: a place is narrower than two ninths, so the word is below 2^63.
        let (word, rest) = places.divide(place as u128 * self.ninths as u128);
        if rest == 0 { word } else { word + 1 }
    }
}

/// A divisor with its reciprocal: processors divide 128 bits by 64 slowly, and Rust slower.
///
/// Source: Möller and Granlund, "Improved division by invariant integers", algorithm 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Divisor {
    value: u64,
    /// (2^128 - 1) / (value, shifted to the left until its upper bit is set) - 2^64.
    inverse: u64,
}

impl Divisor {
    /// The `value` is not zero.
    const fn new(value: u64) -> Self {
        let divisor = value << value.leading_zeros();
        // OVERFLOW: the quotient is 2^64 to 2^65, and its upper bit is cut off.
        Self { value, inverse: (u128::MAX / divisor as u128) as u64 }
    }

    /// Returns the quotient, which must be below 2^64, and the rest.
    #[inline(always)]
    const fn divide(self, dividend: u128) -> (u64, u64) {
        let shift = self.value.leading_zeros();
        let (divisor, dividend) = (self.value << shift, dividend << shift);
        let (high, low) = ((dividend >> 64) as u64, dividend as u64);
        // OVERFLOW: below 2^128, because `high` is below the divisor.
        let estimate = (self.inverse as u128 * high as u128).wrapping_add(dividend);
        let mut quotient = ((estimate >> 64) as u64).wrapping_add(1);
        let mut rest = low.wrapping_sub(quotient.wrapping_mul(divisor));
        if rest > estimate as u64 {
            quotient = quotient.wrapping_sub(1);
            rest = rest.wrapping_add(divisor);
        }
        if rest >= divisor {
            quotient += 1;
            rest -= divisor;
        }
        (quotient, rest >> shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn divides_as_wide_integers_do(value in 1..=u64::MAX, shift in 0..64_u32, wide: u128) {
            let value = (value >> shift).max(1);
            let dividend = wide % (u128::from(value) << 64);
            let (quotient, rest) = Divisor::new(value).divide(dividend);
            prop_assert_eq!(u128::from(quotient), dividend / u128::from(value));
            prop_assert_eq!(u128::from(rest), dividend % u128::from(value));
        }

        #[test]
        fn there_and_back_loses_nothing(
            period in 1..31_622_400_000_000_000_u64, count: u64, place in 0..(1_u64 << 61),
        ) {
            let scale = Scale::new(1 + count % period, period);
            prop_assert_eq!(scale.place(scale.word(place)), place);
            if place > 0 {
                prop_assert!(scale.place(scale.word(place) - 1) < place, "the first of its place");
            }
        }
    }

    #[test]
    fn a_permit_is_a_whole_time_where_it_can_be() {
        let second = 1_000_000_000;
        for (count, period, per_permit) in [
            (1, second, 9 * second),
            (3, second, 3 * second),
            (60, second, 150_000_000),
            (1_000_000_000, second, 9),
            (1000, 86_400 * second, 777_600_000_000),
        ] {
            let scale = Scale::new(count, period);
            assert_eq!((scale.ninths, scale.per_permit), (TIMES, per_permit), "{count}");
        }
        for (count, per_permit) in [(7, 1 << 30), (700_000_001, 1 << 3), (11, 1 << 29)] {
            let scale = Scale::new(count, second);
            assert_eq!((scale.ninths, scale.per_permit), (9 * second, per_permit), "{count}");
        }
    }
}
