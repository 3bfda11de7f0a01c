//! The keys, and the order in which they are used.

use std::{fmt::Write as _, ops::Range};

/// A small generator of its own, so that every run uses the same keys in the same order.
///
/// `SplitMix64` by Guy Steele, Doug Lea and Christine Flood (OOPSLA 2014).
pub(crate) struct Random(u64);

impl Random {
    /// Starts at a seed.
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`; for the ends used here, the bias is below one in 2^32.
    fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    /// Returns a number in `0.0..1.0`.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// A type of keys: every number has one.
pub(crate) trait Key: Clone + Send + Sync + 'static {
    /// Returns the key of a number.
    fn of(number: usize) -> Self;

    /// Turns this key into the key of another number, in the same memory.
    fn set(&mut self, number: usize);
}

/// Sixteen bytes for all numbers below 10^11.
impl Key for String {
    fn of(number: usize) -> Self {
        let mut key = Self::with_capacity(16);
        key.set(number);
        key
    }

    fn set(&mut self, number: usize) {
        self.clear();
        // Writing to a string cannot fail.
        let _ = write!(self, "user:{number:011}");
    }
}

/// The number itself, like the keys of a table of users.
impl Key for u64 {
    fn of(number: usize) -> Self {
        number as Self
    }

    fn set(&mut self, number: usize) {
        *self = Self::of(number);
    }
}

/// Returns the keys of `numbers`, shuffled, so that neighbours in the array are not neighbours in
/// memory and each is a cache miss of its own.
pub(crate) fn shuffled<K: Key>(numbers: Range<usize>) -> Vec<K> {
    let mut keys: Vec<K> = numbers.map(K::of).collect();
    let mut random = Random::new(1);
    for last in (1..keys.len()).rev() {
        keys.swap(last, random.below(last + 1));
    }
    keys
}

/// How often each key is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// All equally often.
    Uniform,
    /// The n-th most frequent key in proportion to 1/n.
    Zipf,
}

/// How many calls are drawn before they repeat: twice the keys of the tables, 8 MB.
const DRAWN: usize = 1 << 21;

impl Spread {
    /// Draws which of `keys` keys are used, in order.
    pub(crate) fn order(self, keys: usize) -> Vec<u32> {
        let mut random = Random::new(2);
        let index = |index: usize| u32::try_from(index).expect("the keys of a table fit 32 bits");
        match self {
            Self::Uniform => (0..DRAWN).map(|_| index(random.below(keys))).collect(),
            Self::Zipf => {
                let mut total = 0.0;
                let sums: Vec<f64> = (1..=keys)
                    .map(|rank| {
                        total += 1.0 / rank as f64;
                        total
                    })
                    .collect();
                let mut draw = || {
                    let point = random.share() * total;
                    sums.partition_point(|sum| *sum <= point)
                };
                // The array of keys is shuffled, so ranks need not be.
                (0..DRAWN).map(|_| index(draw().min(keys - 1))).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_sixteen_bytes_and_all_different() {
        let mut keys: Vec<String> = shuffled(0..1000);
        assert!(keys.iter().all(|key| key.len() == 16 && key.capacity() == 16));
        assert_ne!(keys[0], "user:00000000000");
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 1000);
    }

    #[test]
    fn the_most_frequent_key_of_zipf_gets_its_share() {
        let count = |order: &[u32]| order.iter().filter(|key| **key == 0).count() as f64;
        // 1 + 1/2 + .. + 1/1000 = 7.485
        let expected = DRAWN as f64 / 7.485;
        let found = count(&Spread::Zipf.order(1000));
        assert!((found / expected - 1.0).abs() < 0.02, "{found}, not {expected}");
        let found = count(&Spread::Uniform.order(1000));
        let expected = DRAWN as f64 / 1000.0;
        assert!((found / expected - 1.0).abs() < 0.1, "{found}, not {expected}");
    }
}
