//! Random numbers for jitter: not for secrets.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// Returns a random duration of at most `most`.
pub(crate) fn random_up_to(most: Duration) -> Duration {
    static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static NEXT: AtomicU64 = AtomicU64::new(0);
    // ORDERING: Relaxed. Each caller takes a number; which one does not matter.
    let number = NEXT.fetch_add(1, Relaxed);
    scale(HASHER.hash_one(number), most)
}

/// Maps a number of 64 random bits to a duration of at most `most`.
fn scale(number: u64, most: Duration) -> Duration {
    // OVERFLOW: durations above 2^64 ns, 584 years, count as that. The product of two numbers of 64
    // bits fits 128; its upper half is at most the second.
    let most = most.as_nanos().min(u128::from(u64::MAX));
    Duration::from_nanos(((u128::from(number) * (most + 1)) >> 64) as u64)
}

/// Spreads a number over all bits, one to one: the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators").
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the fraction at a place of the sequence that a seed starts; see [`Random::fraction`].
pub(crate) fn fraction(seed: u64, place: u64) -> f64 {
    Random { state: seed.wrapping_add(place.wrapping_mul(STEP)) }.fraction()
}

/// What each number adds to the state: 2^64 by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Numbers that look random and follow from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// Returns the next number, at least 0 and below 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a duration of at most `most`.
    pub(crate) fn up_to(&mut self, most: Duration) -> Duration {
        scale(self.next(), most)
    }

    /// Returns `length` give or take a tenth.
    pub(crate) fn around(&mut self, length: Duration) -> Duration {
        length.mul_f64(0.9 + 0.2 * self.fraction())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stays_in_bounds_and_reaches_both_halves() {
        let most = Duration::from_nanos(10);
        let drawn: Vec<_> = (0..200).map(|_| random_up_to(most)).collect();
        assert!(drawn.iter().all(|it| *it <= most));
        assert!(drawn.iter().any(|it| *it < most / 2) && drawn.iter().any(|it| *it > most / 2));
        assert_eq!(random_up_to(Duration::ZERO), Duration::ZERO);
        assert!(random_up_to(Duration::MAX) <= Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn jitter_is_spread_and_repeats_with_its_seed() {
        let (mut one, mut two) = (Random::new(7), Random::new(7));
        let drawn: Vec<f64> = (0..1000).map(|_| one.fraction()).collect();
        assert!(drawn.iter().all(|it| (0.0..1.0).contains(it) && *it == two.fraction()));
        assert!((0..1000).all(|place| drawn[place] == fraction(7, place as u64)));
        let mean = drawn.iter().sum::<f64>() / 1000.0;
        assert!((0.45..0.55).contains(&mean), "{mean}");
    }
}
