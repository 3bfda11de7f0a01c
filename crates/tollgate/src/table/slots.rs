//! Sixteen bytes a key: an open-addressing table of fingerprints and state words.
//!
//! Linear probing over one block of memory, so a look-up is one cache line as a rule. A slot's home
//! is `tag x capacity / 2^64`, which works for any capacity: the table grows by half, and a key
//! costs 16 / 0.8 to 16 / 0.53 bytes. Removal shifts the followers back, so there are no graves.

use super::hint::Hint;
use crate::{
    Tick,
    algorithm::{Gcra, word_time},
};

/// A key's slot. All zero if empty.
///
/// | | bits | what |
/// |---|---|---|
/// | `tag` | 8..=63 | fingerprint, without the bits that chose the shard |
/// | | 0..=7 | [`Hint`] |
/// | `word` | 63 | free for a lock |
/// | | 62 | owed |
/// | | 0..=61 | time |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    tag: u64,
    word: u64,
}

const EMPTY: Slot = Slot { tag: 0, word: 0 };

/// Bits of a tag that hold the hint.
pub(super) const HINT_BITS: u32 = 8;

impl Slot {
    /// The `tag` has its lower eight bits free.
    pub(super) const fn new(tag: u64, hint: Hint, word: u64) -> Self {
        debug_assert!(tag.trailing_zeros() >= HINT_BITS, "the tag leaves room for the hint");
        Self { tag: tag | hint.bits(), word }
    }

    pub(super) const fn hint(&self) -> Hint {
        Hint::from_bits(self.tag)
    }

    pub(super) const fn word(&self) -> u64 {
        self.word
    }

    /// Returns the word if a quota like this one wrote it and nothing is owed, so that it means what it says.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    pub(super) fn word_of(&self, gcra: &Gcra) -> Option<u64> {
        (self.hint() == gcra.hint() && self.word < word_time::OWED).then_some(self.word)
    }

    pub(super) const fn state(&self) -> (Hint, u64) {
        (self.hint(), self.word)
    }

    pub(super) const fn tag(&self) -> u64 {
        self.tag >> HINT_BITS << HINT_BITS
    }

    /// Replaces the word by one of the same rule.
    #[inline]
    pub(super) const fn put(&mut self, word: u64) {
        self.word = word;
    }

    /// Tells whether nobody would notice that the slot is gone.
    #[inline]
    pub(super) const fn is_idle(&self, now: Tick) -> bool {
        word_time::is_idle(self.word, now)
    }

    pub(super) fn burden(&self, now: Tick) -> u64 {
        self.hint().burden(self.word, now)
    }

    #[inline]
    pub(super) const fn from_words(tag: u64, word: u64) -> Self {
        Self { tag, word }
    }

    #[inline]
    pub(super) const fn to_words(self) -> (u64, u64) {
        (self.tag, self.word)
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.tag() == 0
    }
}

/// The lightest of some entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Light {
    pub(super) weight: u64,
    pub(super) index: usize,
    /// How many entries there were to choose from.
    pub(super) seen: usize,
}

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
    #[inline]
    fn home(&self, tag: u64) -> usize {
        ((u128::from(tag) * self.slots.len() as u128) >> 64) as usize
    }

    #[inline]
    fn after(&self, index: usize) -> usize {
        if index + 1 == self.slots.len() { 0 } else { index + 1 }
    }

    /// Returns where a tag is, or where it would go.
    #[inline]
    pub(super) fn find(&self, tag: u64) -> Result<usize, usize> {
        if self.slots.is_empty() {
            return Err(0);
        }
        let mut index = self.home(tag);
        // Ends, because at least a fifth of the slots is empty.
        loop {
            match self.slots[index].tag() {
                0 => return Err(index),
                found if found == tag => return Ok(index),
                _ => index = self.after(index),
            }
        }
    }

    /// Returns the slot of a tag, if it is there.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    pub(super) fn find_mut(&mut self, tag: u64) -> Option<&mut Slot> {
        let home = self.home(tag);
        // An empty table has no slot at all.
        let is_there = self.slots.get(home)?.tag() == tag;
        let index = if is_there { home } else { self.find(tag).ok()? };
        self.slots.get_mut(index)
    }

    #[inline]
    pub(super) fn get(&self, index: usize) -> Slot {
        self.slots[index]
    }

    /// Replaces a slot by one of the same tag.
    #[inline]
    pub(super) fn set(&mut self, index: usize, slot: Slot) {
        debug_assert_eq!(self.slots[index].tag(), slot.tag(), "a slot stays with its key");
        self.slots[index] = slot;
    }

    /// Adds a tag that is not in the table. Idle slots make room before it grows. Returns how many
    /// of those left.
    pub(super) fn insert(&mut self, slot: Slot, now: Tick) -> usize {
        let mut left = 0;
        if (self.len + 1) * 5 > self.slots.len() * 4 {
            let room = (self.slots.len() + self.slots.len() / 2).max(CAPACITY_MIN);
            left = self.rebuild(room, now);
        }
        self.put(slot);
        left
    }

    fn put(&mut self, slot: Slot) {
        if let Err(index) = self.find(slot.tag()) {
            self.slots[index] = slot;
            self.len += 1;
        }
    }

    /// Moves what is not idle to a table of `capacity` slots. Returns how many were idle.
    fn rebuild(&mut self, capacity: usize, now: Tick) -> usize {
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; capacity].into_boxed_slice());
        let before = std::mem::take(&mut self.len);
        self.hand = 0;
        let live = old.iter().filter(|slot| !slot.is_empty() && !slot.is_idle(now));
        live.for_each(|slot| self.put(*slot));
        before - self.len
    }

    /// Looks at the next `count` slots and removes the idle ones. Returns how many those were.
    pub(super) fn sweep(&mut self, count: usize, now: Tick) -> usize {
        let mut removed = 0;
        for _ in 0..count.min(self.slots.len()) {
            let slot = self.slots[self.hand];
            if !slot.is_empty() && slot.is_idle(now) {
                // What moves up into this place is looked at next.
                self.remove(self.hand);
                removed += 1;
            } else {
                self.hand = self.after(self.hand);
            }
        }
        removed
    }

    /// Returns the lightest of the next `count` entries.
    pub(super) fn lightest(&mut self, count: usize, now: Tick) -> Option<Light> {
        let (mut found, mut seen): (Option<Light>, _) = (None, 0);
        for _ in 0..self.slots.len() {
            let slot = self.slots[self.hand];
            if !slot.is_empty() {
                let weight = slot.burden(now);
                if found.is_none_or(|lightest| weight < lightest.weight) {
                    found = Some(Light { weight, index: self.hand, seen: 0 });
                }
                seen += 1;
            }
            self.hand = self.after(self.hand);
            if seen == count {
                break;
            }
        }
        found.map(|light| Light { seen, ..light })
    }

    /// Empties a slot and closes the gap.
    pub(super) fn remove(&mut self, index: usize) {
        let (mut gap, mut next) = (index, self.after(index));
        while !self.slots[next].is_empty() {
            let home = self.home(self.slots[next].tag());
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

    /// Removes all idle slots and gives memory back. Returns how many those were.
    pub(super) fn shrink(&mut self, now: Tick) -> usize {
        let before = self.len;
        let live = self.slots.iter().filter(|slot| !slot.is_empty() && !slot.is_idle(now)).count();
        if live == 0 {
            *self = Self::default();
        } else {
            // With room for some more, or the next new key would build it anew.
            self.rebuild((live * 3 / 2 + 2).max(CAPACITY_MIN), now);
        }
        before - self.len
    }

    /// Calls `visit` with all slots whose tag lies in `tags`: as they lie in the order of their
    /// homes, these are neighbours.
    pub(super) fn each_of(
        &self,
        tags: std::ops::RangeInclusive<u64>,
        mut visit: impl FnMut(&Slot),
    ) {
        if self.slots.is_empty() {
            return;
        }
        let (mut index, last) = (self.home(*tags.start()), self.home(*tags.end()));
        let mut steps = 0;
        // What was displaced lies behind its home without a gap, perhaps around the end.
        loop {
            let slot = &self.slots[index];
            let behind = steps > last - self.home(*tags.start());
            if steps == self.slots.len() || (behind && slot.is_empty()) {
                return;
            }
            if !slot.is_empty() && tags.contains(&slot.tag()) {
                visit(slot);
            }
            index = self.after(index);
            steps += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn slot(tag: u64, state: u64) -> Slot {
        Slot::new(tag, Hint::of_refill(1234), state)
    }

    #[test]
    fn a_slot_keeps_tag_hint_and_word_apart() {
        for hint in [Hint::of_refill(u64::MAX), Hint::of_share(u64::MAX)] {
            let slot = Slot::new(u64::MAX << HINT_BITS, hint, u64::MAX);
            let found = (slot.tag(), slot.hint(), slot.word());
            assert_eq!(found, (u64::MAX << HINT_BITS, hint, u64::MAX));
        }
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(
            steps in prop::collection::vec((0..4_u8, 1..60_u64, 1..28_u64), 1..400), spread: bool,
        ) {
            let (mut slots, mut map) = (Slots::default(), HashMap::new());
            let state = |slots: &Slots, tag| slots.find(tag).map(|index| slots.get(index).word());
            for (verb, key, word) in steps {
                // Tags close together collide; spread ones wrap around the end.
                let tag = if spread { key.wrapping_mul(0x9e37_79b9_7f4a_7c15) } else { u64::MAX - (key << HINT_BITS) };
                let tag = tag >> HINT_BITS << HINT_BITS;
                match (verb, slots.find(tag)) {
                    (0 | 1, Ok(index)) => {
                        slots.set(index, slot(tag, word));
                        map.insert(tag, word);
                    }
                    (0 | 1, Err(_)) => {
                        slots.insert(slot(tag, word), Tick::ZERO);
                        map.insert(tag, word);
                    }
                    (2, Ok(index)) => {
                        slots.remove(index);
                        map.remove(&tag);
                    }
                    (2, Err(_)) => prop_assert!(!map.contains_key(&tag)),
                    _ => {
                        slots.sweep(3, Tick::from_nanos(1));
                        map.retain(|tag, word| *word > 9 || slots.find(*tag).is_ok());
                    }
                }
                prop_assert_eq!(slots.len(), map.len());
                for (tag, word) in &map {
                    prop_assert_eq!(state(&slots, *tag), Ok(*word));
                }
            }
            // In ranges, every entry is met once.
            let (mut met, quarter) = (HashMap::new(), u64::MAX / 4);
            for part in 0..4 {
                let (first, last) = (part * quarter, if part == 3 { u64::MAX } else { (part + 1) * quarter - 1 });
                slots.each_of(first..=last, |slot| { met.insert(slot.tag(), slot.word()); });
            }
            prop_assert_eq!(&met, &map);
            slots.shrink(Tick::from_nanos(2));
            map.retain(|_, word| *word > 18);
            prop_assert_eq!(slots.len(), map.len());
            prop_assert!(map.iter().all(|(tag, word)| state(&slots, *tag) == Ok(*word)));
        }
    }
}
