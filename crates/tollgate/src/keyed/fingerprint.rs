//! Keys become 64-bit fingerprints; the keys themselves are never stored.
//!
//! Keys are chosen by strangers, and a collision would let two of them share a budget. So the
//! fingerprint is SipHash-1-3 with a secret seed: an attacker without the seed cannot search for
//! collisions, and by chance there is one among n keys with a probability of about n^2 / 2^65: one
//! in 37 million for a million keys. Numbers are fed as little-endian bytes, a `usize` as eight of
//! them, so that machines agree.

use super::{fold::Fold, sip::Sip13};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

/// The secret that the fingerprints of keys depend on.
///
/// Limiters draw their own unless told otherwise. Two with the same seed give a key the same
/// fingerprint, which is what a snapshot needs. Printing it shows nothing.
#[derive(Clone, Copy)]
pub struct Seed {
    words: (u64, u64),
    is_fast: bool,
}

impl Seed {
    /// Returns a seed from the system's randomness, as the maps of the standard library take it.
    #[must_use]
    pub fn random() -> Self {
        // A model must run the same way each time.
        if cfg!(tollgate_loom) {
            return Self::new((1, 2));
        }
        let word = || RandomState::new().hash_one(0_u64);
        Self::new((word(), word()))
    }

    pub(crate) const fn new(words: (u64, u64)) -> Self {
        Self { words, is_fast: false }
    }

    /// The same secret for the faster fingerprint.
    pub(crate) const fn fast(self) -> Self {
        Self { is_fast: true, ..self }
    }

    pub(crate) const fn words(self) -> (u64, u64) {
        self.words
    }

    /// Returns the name of how keys become fingerprints.
    pub(crate) const fn scheme(self) -> &'static str {
        if self.is_fast { "fold/64 canonical-1" } else { "siphash-1-3/64 canonical-1" }
    }

    /// Returns the fingerprint of a key; never zero, which marks an empty slot.
    #[inline]
    pub(crate) fn fingerprint<Q: Hash + ?Sized>(self, key: &Q) -> u64 {
        let (k0, k1) = self.words;
        if self.is_fast {
            let mut hasher = Fold::new(k0, k1);
            key.hash(&mut hasher);
            return hasher.finish().max(1);
        }
        let mut hasher = Sip13::new(k0, k1);
        key.hash(&mut hasher);
        hasher.finish().max(1)
    }
}

/// Fingerprints of pairs of a number and bytes, of which the number is known: begun with it.
///
/// As secret as the [`Seed`], and printed as little.
#[derive(Clone, Copy)]
pub(crate) struct Started([u64; 4]);

impl Seed {
    /// Begins the fingerprints of pairs with `number`; `None` if that would save nothing.
    pub(crate) fn start(self, number: u64) -> Option<Started> {
        let (k0, k1) = self.words;
        (!self.is_fast).then(|| Started(Sip13::started(k0, k1, number)))
    }
}

impl Started {
    /// Returns what [`Seed::fingerprint`] does for the pair of the number and `bytes`.
    #[inline(always)]
    pub(crate) fn fingerprint(&self, bytes: &[u8]) -> u64 {
        Sip13::resumed(self.0, bytes).max(1)
    }
}

impl std::fmt::Debug for Seed {
    /// Prints no secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seed(..)")
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

    /// Snapshots hold fingerprints: what a key's bytes are must not change with the compiler.
    #[test]
    fn fingerprints_are_those_of_the_named_scheme() {
        use siphasher::sip::SipHasher13;
        let of = |bytes: &[u8]| {
            let mut hasher = SipHasher13::new_with_keys(1, 2);
            hasher.write(bytes);
            hasher.finish()
        };
        let seed = Seed::new((1, 2));
        assert_eq!(seed.fingerprint("user:42"), of(b"user:42\xff"));
        assert_eq!(seed.fingerprint(&7_u32), of(&[7, 0, 0, 0]));
        assert_eq!(seed.fingerprint(&b"ab"[..]), of(b"\x02\0\0\0\0\0\0\0ab"));
        assert_eq!(seed.fingerprint(&("a", 1_u8)), of(b"a\xff\x01"));
    }

    /// Of keys of every length that the hash treats in its own way.
    #[test]
    fn a_fingerprint_that_was_begun_is_the_same() {
        let seed = Seed::new((3, 4));
        let bytes: Vec<u8> = (0..40).collect();
        for number in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
            let started = seed.start(number).unwrap();
            for length in 0..bytes.len() {
                let key = &bytes[..length];
                assert_eq!(started.fingerprint(key), seed.fingerprint(&(number, key)), "{length}");
            }
        }
        assert!(seed.fast().start(1).is_none());
    }

    #[test]
    fn a_seed_is_not_printed() {
        assert_eq!(format!("{:?}", Seed::new((1, 2))), "Seed(..)");
    }
}
