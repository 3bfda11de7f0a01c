//! Sixteen bytes a key: an open-addressing table of fingerprints and state words.
//!
//! Linear probing over one block of memory, so a look-up is one cache line as a rule. A slot's home
//! is `fingerprint x capacity / 2^64`, which works for any capacity: the table grows by half, and a
//! key costs 16 / 0.8 to 16 / 0.53 bytes. Removal shifts the followers back, so there are no graves.

/// A key's fingerprint and its state word. A fingerprint of zero marks an empty slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) fingerprint: u64,
    pub(super) word: u64,
}

const EMPTY: Slot = Slot { fingerprint: 0, word: 0 };

/// The smallest table that is not empty.
const CAPACITY_MIN: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Box<[Slot]>,
    len: usize,
    /// Where the search for idle slots goes on.
    hand: usize,
}

impl Slots {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// OVERFLOW: the product's upper half is below the capacity.
    fn home(&self, fingerprint: u64) -> usize {
        ((u128::from(fingerprint) * self.slots.len() as u128) >> 64) as usize
    }

    fn after(&self, index: usize) -> usize {
        if index + 1 == self.slots.len() { 0 } else { index + 1 }
    }

    /// Returns where a fingerprint is, or where it would go.
    pub(super) fn find(&self, fingerprint: u64) -> Result<usize, usize> {
        if self.slots.is_empty() {
            return Err(0);
        }
        let mut index = self.home(fingerprint);
        // Ends, because at least a fifth of the slots is empty.
        loop {
            match self.slots[index].fingerprint {
                0 => return Err(index),
                found if found == fingerprint => return Ok(index),
                _ => index = self.after(index),
            }
        }
    }

    pub(super) fn word(&self, index: usize) -> u64 {
        self.slots[index].word
    }

    pub(super) fn set_word(&mut self, index: usize, word: u64) {
        self.slots[index].word = word;
    }

    /// Adds a fingerprint that is not in the table. Idle slots make room before it grows.
    pub(super) fn insert(&mut self, slot: Slot, is_idle: impl Fn(u64) -> bool) {
        if (self.len + 1) * 5 > self.slots.len() * 4 {
            let room = (self.slots.len() + self.slots.len() / 2).max(CAPACITY_MIN);
            self.rebuild(room, &is_idle);
        }
        self.put(slot);
    }

    fn put(&mut self, slot: Slot) {
        if let Err(index) = self.find(slot.fingerprint) {
            self.slots[index] = slot;
            self.len += 1;
        }
    }

    /// Moves what is not idle to a table of `capacity` slots.
    fn rebuild(&mut self, capacity: usize, is_idle: &impl Fn(u64) -> bool) {
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; capacity].into_boxed_slice());
        self.len = 0;
        self.hand = 0;
        let live = old.iter().filter(|slot| slot.fingerprint != 0 && !is_idle(slot.word));
        live.for_each(|slot| self.put(*slot));
    }

    /// Looks at the next `count` slots and removes the idle ones. Returns how many those were.
    pub(super) fn sweep(&mut self, count: usize, is_idle: impl Fn(u64) -> bool) -> usize {
        let mut removed = 0;
        for _ in 0..count.min(self.slots.len()) {
            let slot = self.slots[self.hand];
            if slot.fingerprint != 0 && is_idle(slot.word) {
                // What moves up into this place is looked at next.
                self.remove(self.hand);
                removed += 1;
            } else {
                self.hand = self.after(self.hand);
            }
        }
        removed
    }

    /// Empties a slot and closes the gap.
    pub(super) fn remove(&mut self, index: usize) {
        let (mut gap, mut next) = (index, self.after(index));
        while self.slots[next].fingerprint != 0 {
            let home = self.home(self.slots[next].fingerprint);
            // A slot may move back to the gap unless its home lies behind the gap.
            let stays =
                if gap <= next { gap < home && home <= next } else { gap < home || home <= next };
            if !stays {
                self.slots[gap] = self.slots[next];
                gap = next;
            }
            next = self.after(next);
        }
        self.slots[gap] = EMPTY;
        self.len -= 1;
    }

    /// Removes all idle slots and gives memory back.
    pub(super) fn shrink(&mut self, is_idle: impl Fn(u64) -> bool) {
        let live = self.slots.iter().filter(|s| s.fingerprint != 0 && !is_idle(s.word)).count();
        let capacity = if live == 0 { 0 } else { (live * 5 / 4 + 2).max(CAPACITY_MIN) };
        if capacity == 0 {
            *self = Self::default();
        } else {
            self.rebuild(capacity, &is_idle);
        }
    }

    /// Replaces every word.
    pub(super) fn map(&mut self, change: impl Fn(u64) -> u64) {
        for slot in &mut self.slots {
            if slot.fingerprint != 0 {
                slot.word = change(slot.word);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    proptest! {
        #[test]
        fn behaves_like_a_map(
            steps in prop::collection::vec((0..4_u8, 1..60_u64, 1..4_u64), 1..400), spread: bool,
        ) {
            let (mut slots, mut map) = (Slots::default(), HashMap::new());
            for (verb, key, word) in steps {
                // Fingerprints close together collide; spread ones wrap around the end.
                let fingerprint = if spread { key.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 } else { u64::MAX - key };
                match (verb, slots.find(fingerprint)) {
                    (0 | 1, Ok(index)) => {
                        slots.set_word(index, word);
                        map.insert(fingerprint, word);
                    }
                    (0 | 1, Err(_)) => {
                        slots.insert(Slot { fingerprint, word }, |_| false);
                        map.insert(fingerprint, word);
                    }
                    (2, Ok(index)) => {
                        slots.remove(index);
                        map.remove(&fingerprint);
                    }
                    (2, Err(_)) => prop_assert!(!map.contains_key(&fingerprint)),
                    _ => {
                        slots.sweep(3, |word| word == 1);
                        map.retain(|fingerprint, word| *word != 1 || slots.find(*fingerprint).is_ok());
                    }
                }
                prop_assert_eq!(slots.len(), map.len());
                for (fingerprint, word) in &map {
                    prop_assert_eq!(slots.find(*fingerprint).map(|index| slots.word(index)), Ok(*word));
                }
            }
            slots.shrink(|word| word == 2);
            map.retain(|_, word| *word != 2);
            prop_assert_eq!(slots.len(), map.len());
            prop_assert!(map.iter().all(|(key, word)| slots.find(*key).map(|i| slots.word(i)) == Ok(*word)));
        }
    }
}
