//! Pauses at random whose bound doubles: "full jitter".
//!
//! All of a pause is left to chance, not a part of it, because what is to be broken up is a herd: a
//! fixed part would keep it together.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// Pauses between tries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    pub(super) base: Duration,
    pub(super) most: Duration,
}

impl Backoff {
    /// Returns the bound of the pause after so many tries, the first being 1.
    pub(super) fn bound(&self, tries: u32) -> Duration {
        let doublings = 2_u32.saturating_pow(tries.saturating_sub(1));
        self.base.saturating_mul(doublings).min(self.most)
    }

    /// Returns a pause at random, up to the bound.
    pub(super) fn pause(&self, tries: u32) -> Duration {
        let bound = u64::try_from(self.bound(tries).as_nanos()).unwrap_or(u64::MAX);
        // Each of the standard library's random states hashes in another way: chance enough.
        let random = RandomState::new().hash_one(tries);
        // OVERFLOW: the product of two numbers of 64 bits fits 128; its upper half is below the
        // second.
        let nanos = (u128::from(random) * (u128::from(bound) + 1)) >> 64;
        Duration::from_nanos(nanos as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_doubles_up_to_the_most() {
        let backoff = Backoff { base: Duration::from_millis(100), most: Duration::from_secs(1) };
        for (tries, expected_ms) in
            [(0, 100), (1, 100), (2, 200), (3, 400), (4, 800), (5, 1000), (99, 1000)]
        {
            assert_eq!(backoff.bound(tries), Duration::from_millis(expected_ms), "{tries}");
        }
    }

    #[test]
    fn pauses_are_spread_over_all_of_the_bound() {
        let backoff = Backoff { base: Duration::from_millis(100), most: Duration::from_secs(1) };
        let pauses: Vec<_> = (0..400).map(|_| backoff.pause(2)).collect();
        let quarter = |n: u32| {
            let range = Duration::from_millis(50) * n..=Duration::from_millis(50) * (n + 1);
            pauses.iter().filter(|pause| range.contains(pause)).count()
        };
        // 100 are expected in each; fewer than 40 happen once in 10^14 runs.
        assert!((0..4).all(|n| quarter(n) >= 40));
        assert!(pauses.iter().all(|pause| *pause <= Duration::from_millis(200)));
        let never = Backoff { base: Duration::ZERO, most: Duration::ZERO };
        assert_eq!(never.pause(3), Duration::ZERO);
        assert!(Backoff { base: Duration::MAX, most: Duration::MAX }.pause(9) <= Duration::MAX);
    }
}
