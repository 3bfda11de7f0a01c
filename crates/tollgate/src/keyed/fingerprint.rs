//! Keys become 64-bit fingerprints; the keys themselves are never stored.
//!
//! Keys are chosen by strangers, and a collision would let two of them share a budget. So the
//! fingerprint is SipHash-1-3 with a secret seed: whoever does not know the seed cannot search for
//! collisions, and by chance there is one among n keys with a probability of about n^2 / 2^65: one
//! in 37 million for a million keys.

use siphasher::sip::SipHasher13;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

/// The secret that fingerprints depend on.
#[derive(Clone, Copy)]
pub(crate) struct Seed(u64, u64);

impl Seed {
    /// Returns a seed from the system's randomness, as the maps of the standard library take it.
    pub(crate) fn random() -> Self {
        let word = || RandomState::new().hash_one(0_u64);
        Self(word(), word())
    }

    /// Returns the fingerprint of a key; never zero, which marks an empty slot.
    pub(crate) fn fingerprint<Q: Hash + ?Sized>(self, key: &Q) -> u64 {
        let mut hasher = Canonical(SipHasher13::new_with_keys(self.0, self.1));
        key.hash(&mut hasher);
        hasher.finish().max(1)
    }
}

impl std::fmt::Debug for Seed {
    /// Prints no secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed(..)")
    }
}

/// Feeds numbers as little-endian bytes of one width, so that machines agree.
struct Canonical(SipHasher13);

impl Hasher for Canonical {
    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    fn write_u16(&mut self, number: u16) {
        self.write(&number.to_le_bytes());
    }

    fn write_u32(&mut self, number: u32) {
        self.write(&number.to_le_bytes());
    }

    fn write_u64(&mut self, number: u64) {
        self.write(&number.to_le_bytes());
    }

    fn write_u128(&mut self, number: u128) {
        self.write(&number.to_le_bytes());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owned_and_borrowed_keys_have_one_fingerprint_and_seeds_differ() {
        let (seed, other) = (Seed::random(), Seed::random());
        let owned = String::from("user:42");
        assert_eq!(seed.fingerprint(&owned), seed.fingerprint("user:42"));
        assert_ne!(seed.fingerprint("user:42"), other.fingerprint("user:42"));
        assert_ne!(seed.fingerprint(&("a_b", "c")), seed.fingerprint(&("a", "b_c")));
    }

    #[test]
    fn a_seed_is_not_printed() {
        assert_eq!(format!("{:?}", Seed(1, 2)), "Seed(..)");
    }
}
