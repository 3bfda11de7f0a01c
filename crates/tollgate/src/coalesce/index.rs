//! Finds a key in a list that keeps the order of arrival.
//!
//! The idea: entries lie in a plain list, which becomes the batch as it is. A table of open
//! addressing holds places in that list, by hash. Keys are only ever added until all of them leave,
//! so there are no holes and no tombstones. Hashes are kept, so growing hashes nothing again.
//!
//! Memory: 8 bytes of hash and 8 to 16 bytes of table for each entry.

/// Places of entries by the hash of their keys.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// 0 is free; else the place, plus one. The length is a power of two, or zero.
    slots: Vec<u32>,
    /// The hash of each entry, in the order of the list.
    hashes: Vec<u64>,
}

const MIN_SLOTS: usize = 8;

/// So many slots for each entry are far too many: two to four are usual.
const SPARSE: usize = 16;

impl Index {
    /// Returns the place whose entry has this hash and `is_key` agrees.
    pub(super) fn find(&self, hash: u64, mut is_key: impl FnMut(usize) -> bool) -> Option<usize> {
        for slot in self.probe(hash) {
            let place = self.slots[slot].checked_sub(1)? as usize;
            if self.hashes[place] == hash && is_key(place) {
                return Some(place);
            }
        }
        None
    }

    /// Adds the next place.
    pub(super) fn push(&mut self, hash: u64) {
        self.hashes.push(hash);
        if self.hashes.len() * 2 > self.slots.len() {
            let slots = (self.hashes.len() * 2).next_power_of_two().max(MIN_SLOTS);
            self.slots.clear();
            self.slots.resize(slots, 0);
            (0..self.hashes.len()).for_each(|place| self.set(place));
        } else {
            self.set(self.hashes.len() - 1);
        }
    }

    /// Forgets all, and keeps the memory for the next list.
    ///
    /// A table that has become far too large is given up, so that this never costs more than what
    /// was pushed since the last time, nor holds the memory of one big list for ever.
    pub(super) fn clear(&mut self) {
        if self.slots.len() > SPARSE * self.hashes.len().max(MIN_SLOTS) {
            *self = Self::default();
        }
        self.slots.fill(0);
        self.hashes.clear();
    }

    fn set(&mut self, place: usize) {
        let free = self.probe(self.hashes[place]).find(|&slot| self.slots[slot] == 0);
        // INVARIANT: at least half of the slots are free, and places fit, because a batch has at
        // most 2^24 entries.
        if let (Some(slot), Ok(number)) = (free, u32::try_from(place + 1)) {
            self.slots[slot] = number;
        }
    }

    /// Returns all slots, from where the hash points to.
    fn probe(&self, hash: u64) -> impl Iterator<Item = usize> + use<> {
        let slots = self.slots.len();
        // The low bits choose; which half of a 64-bit hash is lost on a small machine is no matter.
        #[allow(clippy::cast_possible_truncation, reason = "only the low bits are used")]
        let start = hash as usize;
        (0..slots).map(move |step| start.wrapping_add(step) & (slots - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_big_list_is_not_paid_for_by_the_small_ones_after_it() {
        let mut index = Index::default();
        (0..10_000).for_each(|hash| index.push(hash));
        assert_eq!(index.slots.len(), 32_768);
        index.clear();
        assert_eq!(index.slots.len(), 32_768, "the next one may be as big");
        (0..5).for_each(|hash| index.push(hash));
        index.clear();
        assert_eq!((index.slots.len(), index.hashes.capacity()), (0, 0));
        index.push(7);
        assert_eq!(index.find(7, |_| true), Some(0));
    }

    #[test]
    fn finds_what_was_pushed_and_nothing_else() {
        // InlineVec hashes, so that many keys share one.
        for hashes in [1, 2, 7, u64::MAX] {
            let mut index = Index::default();
            let hash = |key: u64| key.wrapping_mul(0x9e37_79b9_7f4a_7c15) % hashes;
            for round in 0..3 {
                for key in 0..200 {
                    assert_eq!(index.find(hash(key), |place| place as u64 == key), None, "{round}");
                    index.push(hash(key));
                    for known in [0, key / 2, key] {
                        let place = index.find(hash(known), |place| place as u64 == known);
                        assert_eq!(place, usize::try_from(known).ok(), "of {key}, round {round}");
                    }
                }
                index.clear();
            }
        }
    }
}
