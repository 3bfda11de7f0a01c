//! A little chance, for jitter: not for secrets.

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
    let nanos = u128::from(HASHER.hash_one(number));
    // OVERFLOW: a duration is below 2^94 ns; those above 2^64 ns, 584 years, count as that.
    let most = most.as_nanos().min(u128::from(u64::MAX));
    Duration::from_nanos(((nanos * (most + 1)) >> 64) as u64)
}

/// Spreads a number over all bits, one to one: the finalizer of SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators").
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the number at a place of the sequence that a seed starts (SplitMix64): at least 0 and below 1.
pub(crate) fn fraction(seed: u64, place: u64) -> f64 {
    let step = place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mix(seed.wrapping_add(step)) >> 11) as f64 / (1_u64 << 53) as f64
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
}
