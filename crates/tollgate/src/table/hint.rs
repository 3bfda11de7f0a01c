//! Eight bits beside a word that tell by what quota it was written, as far as a table has to know.
//!
//! | value | meaning |
//! |---|---|
//! | 0..=190 | GCRA: the time that an empty bucket takes to refill; the word says how much of it is left |
//! | 191 | the word is just being replaced |
//! | 192..=255 | a window or a budget: what was used when the word was written, of the limit |
//!
//! Both are floats with two bits of mantissa, rounded down.

use crate::{Tick, algorithm::word_time};

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hint(u8);

const SHARES: u8 = 192;
/// The lowest exponents: refill times below two microseconds, and shares below 2^-14, count as that.
const TIME_MIN: u32 = 14;
const SHARE_MIN: u32 = 6;
/// Shares of an entry without debts that is used up to three quarters or more: the refill time in a hint is rounded down
/// by up to a fifth.
const USED_UP: std::ops::RangeInclusive<u128> = 3 << 18..=5 << 18;

/// Returns the exponent above `least` and two bits of mantissa, at most `most`.
const fn float(number: u64, least: u32, most: u64) -> u8 {
    let number = if number < 1 << least { 1 << least } else { number };
    let exponent = number.ilog2();
    let float = ((exponent - least) as u64) << 2 | (number >> (exponent - 2) & 3);
    // OVERFLOW: `most` is below 256.
    (if float < most { float } else { most }) as u8
}

/// The inverse of [`float`], rounded down.
const fn unfloat(float: u8, least: u32) -> u64 {
    (float as u64 & 3 | 4) << (least - 2 + (float >> 2) as u32)
}

impl Hint {
    /// That of a word that is just being replaced. No refill takes so long.
    pub(super) const UNSETTLED: Self = Self(SHARES - 1);

    pub(crate) const fn of_refill(time: u64) -> Self {
        Self(float(time, TIME_MIN, 190))
    }

    /// Of a share in 2^-20.
    pub(crate) const fn of_share(share: u64) -> Self {
        Self(SHARES + float(share, SHARE_MIN, 63))
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        // OVERFLOW: the lowest eight bits.
        Self(bits as u8)
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0 as u64
    }

    /// Tells whether the word is a time by GCRA, and not the end of a window with counts, or a budget.
    pub(crate) const fn is_time(self) -> bool {
        self.0 < SHARES
    }

    /// Tells whether the word was written by a quota of GCRA that takes longer to refill.
    pub(crate) const fn is_longer_than(self, other: Self) -> bool {
        self.is_time() && other.is_time() && self.0 > other.0
    }

    /// Returns how long the quota takes to refill at most.
    pub(crate) const fn refill_most(self) -> u64 {
        unfloat(self.0 + 1, TIME_MIN)
    }

    /// Returns how much a word weighs against eviction; zero only if it is idle. That is how far from full it is, in
    /// 2^-20 of its limit. Entries that are used up, or nearly, weigh more the sooner they refill: the others would
    /// fill the table for longer, and one call each is enough to use them up.
    pub(super) fn burden(self, word: u64, now: Tick) -> u64 {
        if word_time::is_idle(word, now) {
            return 0;
        }
        // An owed word may name an earlier time by itself.
        let ahead = (word & (word_time::OWED - 1)).saturating_sub(word_time::from_tick(now));
        let share = match self.is_time() {
            true => (u128::from(ahead) << 20) / u128::from(unfloat(self.0, TIME_MIN)),
            false => unfloat(self.0 - SHARES, SHARE_MIN).into(),
        };
        if USED_UP.contains(&share) && !word_time::is_budget(word) {
            // OVERFLOW: at most 190.
            return *USED_UP.start() as u64 + u64::from(190 - Self::of_refill(ahead).0);
        }
        // OVERFLOW: saturates; a debt of 2^44 bursts is far enough from full.
        u64::try_from(share).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_kept_to_a_quarter() {
        let now = Tick::from_secs(1);
        let word = word_time::from_tick(Tick::from_secs(2));
        for share in [64, 65, 100, 1000, 1 << 20, 3 << 20] {
            let hint = Hint::of_share(share);
            let found = hint.burden(word, now);
            assert!(found <= share && share - found <= share / 4, "{share}: {found}");
            assert_eq!(Hint::from_bits(hint.bits()), hint);
            assert_eq!(hint.burden(word, Tick::from_secs(3)), 0, "it is idle");
        }
        assert_eq!(Hint::of_share(u64::MAX).bits(), 255);
    }

    #[test]
    fn half_of_an_hour_weighs_as_much_as_half_of_a_second() {
        let now = Tick::from_secs(1000);
        for refill in [1_u64, 3600] {
            let time = word_time::from_tick(Tick::from_millis(1000 * refill));
            let word = word_time::from_tick(now) + time / 2;
            let burden = Hint::of_refill(time).burden(word, now);
            assert!((1 << 19..5 << 17).contains(&burden), "{refill}: {burden}");
        }
    }

    #[test]
    fn quotas_are_told_apart_if_one_takes_a_quarter_longer() {
        for bits in 14..62 {
            let (time, longer) = (1_u64 << bits, (1_u64 << bits) + (1 << (bits - 2)));
            let (hint, other) = (Hint::of_refill(time), Hint::of_refill(longer));
            assert!(other.is_longer_than(hint) && !hint.is_longer_than(other));
            assert!(hint.is_time() && time < hint.refill_most() && hint.refill_most() <= longer);
        }
        assert!(!Hint::of_share(5).is_longer_than(Hint::of_refill(1)));
    }
}
