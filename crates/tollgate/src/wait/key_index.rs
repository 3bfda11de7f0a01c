//! Finds the slot of a key: a table of slots, open and probed in a line.
//!
//! The keys themselves live in the slots, once. The table holds 32 bits of each hash beside the
//! slot, so that a probe looks at a key only if those agree, and the table grows and shrinks
//! without hashing anything again. It is at most three quarters full, and at least an eighth.
//!
//! The hasher of the host is keyed at random, so nobody can choose keys that fall together.
//! Debouncers add and remove keys one by one; a coalescer adds them until all leave at once.

use std::hash::{BuildHasher, Hash, RandomState};

/// The smallest table, once there is one.
const BUCKETS_MIN: usize = 16;

/// A table with so many buckets for each key is far too large: two to three are usual.
const SPARSE: usize = 16;

/// Marks a bucket as free.
const FREE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    hash: u32,
    slot: u32,
}

const EMPTY: Bucket = Bucket { hash: 0, slot: FREE };

/// Slots by the hashes of their keys.
#[derive(Debug, Default)]
pub(crate) struct KeyIndex {
    /// None, or a power of two.
    buckets: Vec<Bucket>,
    len: usize,
}

impl KeyIndex {
    pub(crate) fn hash<Q: Hash + ?Sized>(hasher: &RandomState, key: &Q) -> u32 {
        // The upper half: 32 bits are enough to tell 2^28 keys apart.
        (hasher.hash_one(key) >> 32) as u32
    }

    /// Returns the slot with this hash for which `is_it` holds.
    pub(crate) fn find(&self, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let bucket = self.position(hash, is_it)?;
        Some(self.buckets[bucket].slot)
    }

    /// Adds a slot, which must not be there.
    pub(crate) fn insert(&mut self, hash: u32, slot: u32) {
        if (self.len + 1) * 4 > self.buckets.len() * 3 {
            self.resize((self.buckets.len() * 2).max(BUCKETS_MIN));
        }
        self.put(Bucket { hash, slot });
        self.len += 1;
    }

    /// Takes a slot out, which must be there.
    pub(crate) fn remove(&mut self, hash: u32, slot: u32) {
        let Some(mut hole) = self.position(hash, |other| other == slot) else { return };
        // What follows without a gap moves up, unless it would come to lie before its home.
        let mut next = self.after(hole);
        while self.buckets[next].slot != FREE {
            let home = self.home(self.buckets[next].hash);
            if self.distance(home, hole) < self.distance(home, next) {
                self.buckets[hole] = self.buckets[next];
                hole = next;
            }
            next = self.after(next);
        }
        self.buckets[hole] = EMPTY;
        self.len -= 1;
        if self.buckets.len() > BUCKETS_MIN && self.len * 8 < self.buckets.len() {
            self.resize(self.buckets.len() / 2);
        }
    }

    /// Gives the key of slot `from` the slot `to`.
    pub(crate) fn replace(&mut self, hash: u32, from: u32, to: u32) {
        if let Some(bucket) = self.position(hash, |other| other == from) {
            self.buckets[bucket].slot = to;
        }
    }

    /// Removes all keys, and keeps the memory for the next ones.
    ///
    /// A table that has become far too large is given up, so that this never costs more than what
    /// was inserted since the last time, nor holds the memory of one big batch for ever.
    pub(crate) fn clear(&mut self) {
        if self.buckets.len() > SPARSE * self.len.max(BUCKETS_MIN) {
            *self = Self::default();
        }
        self.buckets.fill(EMPTY);
        self.len = 0;
    }

    fn position(&self, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<usize> {
        if self.buckets.is_empty() {
            return None;
        }
        let mut at = self.home(hash);
        // INVARIANT: a quarter of the buckets is free, so this ends.
        loop {
            let bucket = self.buckets[at];
            if bucket.slot == FREE {
                return None;
            }
            if bucket.hash == hash && is_it(bucket.slot) {
                return Some(at);
            }
            at = self.after(at);
        }
    }

    fn put(&mut self, bucket: Bucket) {
        let mut at = self.home(bucket.hash);
        while self.buckets[at].slot != FREE {
            at = self.after(at);
        }
        self.buckets[at] = bucket;
    }

    fn resize(&mut self, buckets: usize) {
        let old = std::mem::replace(&mut self.buckets, vec![EMPTY; buckets]);
        old.into_iter().filter(|bucket| bucket.slot != FREE).for_each(|bucket| self.put(bucket));
    }

    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    fn after(&self, bucket: usize) -> usize {
        (bucket + 1) & (self.buckets.len() - 1)
    }

    /// Returns how far `to` lies behind `from`, around the end.
    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.buckets.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Hashes of two bits in the same place, so that runs are long and wrap around the end.
        #[test]
        fn finds_what_a_map_finds(
            steps in prop::collection::vec((any::<bool>(), 0_u32..60), 1..400)
        ) {
            let hash = |slot: u32| (slot % 4).wrapping_mul(u32::MAX / 3);
            let (mut index, mut model) = (KeyIndex::default(), BTreeMap::new());
            for (adds, slot) in steps {
                match (adds, model.contains_key(&slot)) {
                    (true, false) => {
                        index.insert(hash(slot), slot);
                        model.insert(slot, ());
                    }
                    (false, true) => {
                        index.remove(hash(slot), slot);
                        model.remove(&slot);
                    }
                    _ => {}
                }
                for slot in 0..60 {
                    let found = index.find(hash(slot), |other| other == slot);
                    prop_assert_eq!(found, model.contains_key(&slot).then_some(slot));
                }
            }
        }
    }

    #[test]
    fn shrinks_when_its_keys_have_gone() {
        let mut index = KeyIndex::default();
        (0_u32..10_000).for_each(|slot| index.insert(slot.wrapping_mul(0x9e37_79b9), slot));
        assert_eq!(index.buckets.len(), 16_384);
        (0_u32..10_000).for_each(|slot| index.remove(slot.wrapping_mul(0x9e37_79b9), slot));
        assert_eq!((index.len, index.buckets.len()), (0, BUCKETS_MIN));
    }

    #[test]
    fn a_big_list_is_not_paid_for_by_the_small_ones_after_it() {
        let mut index = KeyIndex::default();
        (0..10_000).for_each(|slot| index.insert(slot, slot));
        assert_eq!(index.buckets.len(), 16_384);
        index.clear();
        assert_eq!(index.buckets.len(), 16_384, "the next one may be as big");
        (0..5).for_each(|slot| index.insert(slot, slot));
        index.clear();
        assert_eq!(index.buckets.capacity(), 0);
        index.insert(7, 0);
        assert_eq!(index.find(7, |_| true), Some(0));
    }

    #[test]
    fn finds_what_was_pushed_and_nothing_else() {
        // Few hashes, so that many keys share one.
        for hashes in [1, 2, 7, u32::MAX] {
            let mut index = KeyIndex::default();
            let hash = |key: u32| key.wrapping_mul(0x9e37_79b9) % hashes;
            for round in 0..3 {
                for key in 0..200 {
                    assert_eq!(index.find(hash(key), |slot| slot == key), None, "{round}");
                    index.insert(hash(key), key);
                    for known in [0, key / 2, key] {
                        let slot = index.find(hash(known), |slot| slot == known);
                        assert_eq!(slot, Some(known), "of {key}, round {round}");
                    }
                }
                index.clear();
            }
        }
    }
}
