//! A faster fingerprint, for keys that nobody chooses to harm.
//!
//! Each piece of the key is multiplied with the secret, and both halves of the product are folded
//! together. It spreads as well as a good hash should (`tests::spreads`), and the seed keeps a list
//! of colliding keys from working elsewhere; but an attacker who can watch a limiter closely may
//! learn to make collisions, which SipHash rules out.

use std::hash::Hasher;

/// Folded multiplication under a secret of 128 bits.
#[derive(Clone, Copy)]
pub(super) struct Fold {
    sum: u64,
    secret: u64,
}

/// Returns both halves of the product, folded together.
#[inline(always)]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    (product as u64) ^ (product >> 64) as u64
}

impl Fold {
    #[inline]
    pub(super) const fn new(k0: u64, k1: u64) -> Self {
        // An odd factor loses nothing.
        Self { sum: k0, secret: k1 | 1 }
    }

    #[inline(always)]
    const fn number(&mut self, number: u64) {
        self.sum = fold(self.sum ^ number, self.secret).wrapping_add(self.secret);
    }
}

impl Hasher for Fold {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        // The length first, so that no two keys of different lengths are fed alike.
        let mut sum =
            self.sum.wrapping_add((bytes.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (pairs, rest) = bytes.as_chunks::<16>();
        for pair in pairs {
            let pair = u128::from_le_bytes(*pair);
            sum = fold(sum ^ pair as u64, self.secret ^ (pair >> 64) as u64);
        }
        self.sum = sum;
        match (rest.first_chunk::<8>(), rest.last_chunk::<8>()) {
            (Some(first), Some(last)) => {
                let (first, last) = (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
                self.sum = fold(sum ^ first, self.secret ^ last);
            }
            _ if rest.is_empty() => {}
            _ => self.number(super::sip::short(rest)),
        }
    }

    #[inline]
    fn write_u8(&mut self, number: u8) {
        self.number(u64::from(number));
    }

    #[inline]
    fn write_u16(&mut self, number: u16) {
        self.number(u64::from(number));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        self.number(u64::from(number));
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        self.number(number);
    }

    #[inline]
    fn write_u128(&mut self, number: u128) {
        self.number(number as u64);
        self.number((number >> 64) as u64);
    }

    #[inline]
    fn write_usize(&mut self, number: usize) {
        self.number(number as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        fold(self.sum ^ self.secret, 0x9fb2_1c65_1e98_df25)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::HashSet, hash::Hash};

    fn of(key: impl Hash) -> u64 {
        let mut hasher = Fold::new(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
        key.hash(&mut hasher);
        hasher.finish()
    }

    #[test]
    fn spreads() {
        let keys = (0..200_000_u64).map(|key| of(format!("user-{key:011}")));
        let numbers = (0..200_000_u64).map(of);
        for hashes in [keys.collect::<Vec<_>>(), numbers.collect()] {
            assert_eq!(hashes.iter().collect::<HashSet<_>>().len(), hashes.len());
            // Every byte of the result takes all values about equally often.
            for byte in 0..8 {
                let mut counts = [0_u32; 256];
                hashes.iter().for_each(|hash| counts[(hash >> (8 * byte)) as usize & 0xff] += 1);
                // 781 expected, standard deviation 28.
                assert!(counts.iter().all(|count| (600..1000).contains(count)), "byte {byte}");
            }
        }
    }

    #[test]
    fn every_byte_and_every_length_counts() {
        let mut seen = HashSet::new();
        for length in 0..70 {
            let key = vec![7_u8; length];
            assert!(seen.insert(of(&key)), "length {length}");
            for at in 0..length {
                let mut other = key.clone();
                other[at] ^= 1;
                assert!(seen.insert(of(&other)), "length {length}, byte {at}");
            }
        }
    }
}
