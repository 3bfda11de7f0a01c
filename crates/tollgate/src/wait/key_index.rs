//! Finds the slot of a key by its hash.
//!
//! The keys themselves live in the slots, once. The index knows 32 bits of each hash, so it grows and shrinks
//! without hashing anything again. Of keys whose 32 bits agree, one is in a map and the others are in an ordered
//! set beside it: one pair is expected among 100 000 keys.
//!
//! Hashes have a secret of the process, so an attacker cannot choose keys that collide.
//! Debouncers add and remove keys one by one; a coalescer adds them until all leave at once.

use crate::table::{Ready, shrink};
use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    hash::{BuildHasher, BuildHasherDefault, Hash, RandomState},
    sync::LazyLock,
};

/// A map with room for more keys than these, and for so many in place of each, is far too large.
const SMALL: usize = 256;
const SPARSE: usize = 16;

/// Slots by the hashes of their keys.
#[derive(Debug, Default)]
pub(crate) struct KeyIndex {
    slots: HashMap<u32, u32, BuildHasherDefault<Ready>>,
    /// INVARIANT: each hash in here is in the map, too, with another slot.
    others: BTreeSet<(u32, u32)>,
}

impl KeyIndex {
    /// Returns the hash of a key, for every index of this process.
    pub(crate) fn hash<Q: Hash + ?Sized>(key: &Q) -> u32 {
        static SECRET: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        // The upper half: 32 bits are enough to tell 2^28 keys apart.
        (SECRET.hash_one(key) >> 32) as u32
    }

    /// Returns the slot with this hash for which `is_it` holds.
    pub(crate) fn find(&self, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let first = *self.slots.get(&hash)?;
        if is_it(first) {
            return Some(first);
        }
        self.others_of(hash).find(|slot| is_it(*slot))
    }

    fn others_of(&self, hash: u32) -> impl Iterator<Item = u32> {
        self.others.range((hash, 0)..=(hash, u32::MAX)).map(|(_, slot)| *slot)
    }

    /// Adds a slot, which must not be there.
    pub(crate) fn insert(&mut self, hash: u32, slot: u32) {
        if let Entry::Vacant(free) = self.slots.entry(hash) {
            free.insert(slot);
        } else {
            self.others.insert((hash, slot));
        }
    }

    /// Takes a slot out, which must be there.
    pub(crate) fn remove(&mut self, hash: u32, slot: u32) {
        if !self.others.remove(&(hash, slot)) {
            let next = self.others_of(hash).next();
            match next {
                Some(next) => {
                    self.others.remove(&(hash, next));
                    self.slots.insert(hash, next);
                }
                None => _ = self.slots.remove(&hash),
            }
        }
        shrink(&mut self.slots);
    }

    /// Gives the key of slot `from` the slot `to`.
    pub(crate) fn replace(&mut self, hash: u32, from: u32, to: u32) {
        self.remove(hash, from);
        self.insert(hash, to);
    }

    /// Removes all keys, and keeps the memory for the next ones.
    ///
    /// A map that has become far too large is given up, so that this never costs more than what
    /// was inserted since the last time, nor holds the memory of one big batch for ever.
    pub(crate) fn clear(&mut self) {
        if self.slots.capacity() > SMALL.max(SPARSE * self.slots.len()) {
            *self = Self::default();
        }
        self.slots.clear();
        self.others.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Hashes of two bits, so that many keys share one.
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
        assert!(index.slots.capacity() >= 10_000);
        (0_u32..10_000).for_each(|slot| index.remove(slot.wrapping_mul(0x9e37_79b9), slot));
        assert_eq!((index.slots.len(), index.others.len()), (0, 0));
        assert!(index.slots.capacity() <= 32);
    }

    #[test]
    fn a_big_list_is_not_paid_for_by_the_small_ones_after_it() {
        let mut index = KeyIndex::default();
        (0..10_000).for_each(|slot| index.insert(slot, slot));
        let big = index.slots.capacity();
        assert!(big >= 10_000);
        index.clear();
        assert_eq!(index.slots.capacity(), big, "the next one may be as big");
        (0..5).for_each(|slot| index.insert(slot, slot));
        index.clear();
        assert_eq!(index.slots.capacity(), 0);
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
