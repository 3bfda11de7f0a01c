//! How a word holds the end of a window and what was counted.
//!
//! ```text
//! word = 9 x E + counts
//! ```
//!
//! `E` is the end of the last window that matters, rounded up to a *grain* of wall time, and the counts
//! stay below the ninths of a nanosecond in one grain. So the word is a time like that of GCRA: from
//! that time on nothing is counted any more, and a host can tell so without the rule. The word does not
//! depend on the limit, and it stays valid when the clock's origin moves by any amount.
//!
//! | window | grain | one count below | two counts below |
//! |---|---|---|---|
//! | 1 ms | 200 us | 1.8 million | 1341 |
//! | 1 s | 200 ms | 1.8 x 10^9 | 42 426 |
//! | 1 min | 10 s | 9 x 10^10 | 300 000 |
//! | 1 day | 20 000 s | 1.8 x 10^14 | 13 million |
//!
//! Grains are 1, 2 or 5 x 10^k ns: at most a quarter of the window, so that only one window ends within
//! a grain, and a thousandth of a window that is anchored, which lasts until `E`.

use super::word_time::{self, PER_NANO};
use crate::Tick;
use std::time::Duration;

/// Turns ends and counts into words, and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WindowWord {
    pub(super) grain_ns: u64,
    /// How far into a grain of wall time the clock's origin lies.
    pub(super) shift_ns: u64,
}

impl WindowWord {
    /// For windows of this length and grains of at most `1 / parts` of it; `epoch` is the time from the Unix
    /// epoch to the clock's origin.
    pub(super) fn new(length_ns: u64, parts: u64, epoch: Duration) -> Self {
        let decades = std::iter::successors(Some(1_u64), |decade| decade.checked_mul(10));
        let grains = decades.flat_map(|decade| [1, 2, 5].map(|digit| digit * decade)).take(48);
        let grain_ns = grains.take_while(|grain| *grain <= length_ns / parts).last().unwrap_or(1);
        Self { grain_ns, shift_ns: phase(epoch, grain_ns) }
    }

    /// The counts of a word are below this.
    #[inline]
    pub(super) const fn range(&self) -> u64 {
        self.grain_ns * PER_NANO
    }

    /// Returns the end of the grain in which a window ends.
    #[inline]
    pub(super) const fn round_up(&self, end_ns: u64) -> u64 {
        // OVERFLOW: ends are at most two windows beyond the horizon, below 2^60.
        (end_ns + self.shift_ns).div_ceil(self.grain_ns) * self.grain_ns - self.shift_ns
    }

    /// Returns the word for windows that matter until `end_ns`.
    #[inline]
    pub(super) const fn join(&self, end_ns: u64, counts: u64) -> u64 {
        debug_assert!(counts < self.range(), "counts stay below a grain");
        self.round_up(end_ns) * PER_NANO + counts
    }

    /// Returns the end of the grain, and the counts.
    #[inline]
    pub(super) const fn split(&self, word: u64) -> (u64, u64) {
        // OVERFLOW: the shift is below a grain, and words are below 2^62.
        let since_grain = word + self.shift_ns * PER_NANO;
        let (grains, counts) = (since_grain / self.range(), since_grain % self.range());
        ((grains * self.grain_ns).saturating_sub(self.shift_ns), counts)
    }

    /// Returns a word that counts nothing and is not `word`.
    pub(super) const fn at_rest(&self, word: u64, now: Tick) -> u64 {
        let grain = self.split(word_time::from_tick(now)).0 * PER_NANO;
        let is_at_rest = word <= grain && self.split(word).1 == 0;
        if is_at_rest && word > 0 { word.saturating_sub(self.range()) } else { grain }
    }
}

/// Returns how far into a window of wall time the clock's origin lies.
pub(super) fn phase(epoch: Duration, length_ns: u64) -> u64 {
    // OVERFLOW: the remainder is below `length_ns`.
    (epoch.as_nanos() % u128::from(length_ns)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn grains_are_round_numbers_within_their_part() {
        for (length_ns, parts, grain_ns) in [
            (1, 4, 1),
            (3, 4, 1),
            (8, 4, 2),
            (1_000_000, 4, 200_000),
            (1_000_000_000, 4, 200_000_000),
            (1_000_000_000, 1000, 1_000_000),
            (86_400_000_000_000, 4, 20_000_000_000_000),
        ] {
            assert_eq!(WindowWord::new(length_ns, parts, Duration::ZERO).grain_ns, grain_ns);
        }
    }

    proptest! {
        /// Also in a process whose clock began at another time.
        #[test]
        fn a_word_tells_end_and_counts_and_moves_with_the_origin(
            bits in 2_u32..55, length in any::<u64>(), end in 1_u64..1 << 58, counts in any::<u64>(),
            epoch in 0_u64..1 << 60, later in 0_u64..1 << 57,
        ) {
            let length_ns = 4 + length % (1 << bits);
            let word_of = WindowWord::new(length_ns, 4, Duration::from_nanos(epoch));
            let counts = counts % word_of.range();
            let word = word_of.join(end, counts);
            let (rounded, found) = word_of.split(word);
            prop_assert_eq!(found, counts);
            prop_assert!(end <= rounded && rounded < end + word_of.grain_ns, "{} {}", end, rounded);
            prop_assert!(word >= end * PER_NANO && word < (end + 2 * word_of.grain_ns) * PER_NANO);
            if later < end {
                let there = WindowWord::new(length_ns, 4, Duration::from_nanos(epoch + later));
                let moved = there.split(word - later * PER_NANO);
                prop_assert_eq!(moved, (rounded - later, counts));
            }
        }
    }
}
