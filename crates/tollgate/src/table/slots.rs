//! Sixteen bytes a key: an open-addressing table of fingerprints and state words.
//!
//! Linear probing over one block of memory, so a look-up is one cache line as a rule. A slot's home
//! is `tag x capacity / 2^64`, which works for any capacity: the table grows by half, and a key
//! costs 16 / 0.8 to 16 / 0.53 bytes. Removal shifts the followers back, so there are no graves.

use super::class::Class;

/// A key's slot. All zero if empty.
///
/// | | bits | what |
/// |---|---|---|
/// | `tag` | 9..=63 | fingerprint, without the bits that chose the shard |
/// | | 0..=8 | class, lower bits |
/// | `word` | 62..=63 | class, upper bits |
/// | | 0..=61 | state |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    tag: u64,
    word: u64,
}

const EMPTY: Slot = Slot { tag: 0, word: 0 };

/// Bits of a word that hold the state.
pub(super) const STATE_BITS: u32 = 62;
pub(super) const STATE: u64 = (1 << STATE_BITS) - 1;
/// Bits of a tag that hold the class.
pub(super) const TAG_BITS: u32 = 9;

impl Slot {
    /// The `tag` has its lower nine bits free.
    pub(super) const fn new(tag: u64, class: Class, state: u64) -> Self {
        debug_assert!(
            tag.trailing_zeros() >= TAG_BITS && state <= STATE,
            "tag and state leave room for the class"
        );
        Self { tag: tag | class.low(), word: class.high() << STATE_BITS | state }
    }

    pub(super) const fn class(&self) -> Class {
        Class::new(self.tag, self.word >> STATE_BITS)
    }

    pub(super) const fn state(&self) -> u64 {
        self.word & STATE
    }

    pub(super) const fn tag(&self) -> u64 {
        self.tag >> TAG_BITS << TAG_BITS
    }

    /// Returns the state if it is one of this class, whose lower bits are known to be right.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    pub(super) fn state_of(&self, class: Class) -> Option<u64> {
        let state = self.word ^ class.high() << STATE_BITS;
        (state <= STATE).then_some(state)
    }

    /// Replaces a state of this class.
    #[inline]
    pub(super) const fn put(&mut self, class: Class, state: u64) {
        debug_assert!(state <= STATE, "the state leaves room for the class");
        self.word = class.high() << STATE_BITS | state;
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

    /// Returns the slot of a tag, if it is there and of this class as far as the class's lower bits
    /// say: [`Slot::state_of`] knows the others.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    pub(super) fn find_of(&mut self, tag: u64, class: Class) -> Option<&mut Slot> {
        let (wanted, home) = (tag | class.low(), self.home(tag));
        // An empty table has no slot at all.
        let index = if self.slots.get(home)?.tag == wanted { home } else { self.find(tag).ok()? };
        self.slots.get_mut(index).filter(|slot| slot.tag == wanted)
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
    pub(super) fn insert(&mut self, slot: Slot, is_idle: impl Fn(&Slot) -> bool) -> usize {
        let mut left = 0;
        if (self.len + 1) * 5 > self.slots.len() * 4 {
            let room = (self.slots.len() + self.slots.len() / 2).max(CAPACITY_MIN);
            left = self.rebuild(room, &is_idle);
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
    fn rebuild(&mut self, capacity: usize, is_idle: &impl Fn(&Slot) -> bool) -> usize {
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; capacity].into_boxed_slice());
        let before = std::mem::take(&mut self.len);
        self.hand = 0;
        let live = old.iter().filter(|slot| !slot.is_empty() && !is_idle(slot));
        live.for_each(|slot| self.put(*slot));
        before - self.len
    }

    /// Looks at the next `count` slots and removes the idle ones. Returns how many those were.
    pub(super) fn sweep(&mut self, count: usize, is_idle: impl Fn(&Slot) -> bool) -> usize {
        let mut removed = 0;
        for _ in 0..count.min(self.slots.len()) {
            let slot = self.slots[self.hand];
            if !slot.is_empty() && is_idle(&slot) {
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
    pub(super) fn lightest(
        &mut self,
        count: usize,
        burden: impl Fn(&Slot) -> u64,
    ) -> Option<Light> {
        let (mut found, mut seen): (Option<Light>, _) = (None, 0);
        for _ in 0..self.slots.len() {
            let slot = self.slots[self.hand];
            if !slot.is_empty() {
                let weight = burden(&slot);
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
    pub(super) fn shrink(&mut self, is_idle: impl Fn(&Slot) -> bool) -> usize {
        let before = self.len;
        let live = self.slots.iter().filter(|slot| !slot.is_empty() && !is_idle(slot)).count();
        if live == 0 {
            *self = Self::default();
        } else {
            // With room for some more, or the next new key would build it anew.
            self.rebuild((live * 3 / 2 + 2).max(CAPACITY_MIN), &is_idle);
        }
        before - self.len
    }

    /// Replaces every slot.
    pub(super) fn map(&mut self, change: impl Fn(&Slot) -> Slot) {
        for slot in self.slots.iter_mut().filter(|slot| !slot.is_empty()) {
            *slot = change(slot);
        }
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
        Slot::new(tag, Class::from_index(1234), state)
    }

    #[test]
    fn a_slot_keeps_tag_class_and_state_apart() {
        for class in [0, 1, 255, 256, 2047] {
            let class = Class::from_index(class);
            let slot = Slot::new(u64::MAX << TAG_BITS, class, STATE);
            assert_eq!(
                (slot.tag(), slot.class(), slot.state()),
                (u64::MAX << TAG_BITS, class, STATE)
            );
        }
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(
            steps in prop::collection::vec((0..4_u8, 1..60_u64, 1..4_u64), 1..400), spread: bool,
        ) {
            let (mut slots, mut map) = (Slots::default(), HashMap::new());
            let state = |slots: &Slots, tag| slots.find(tag).map(|index| slots.get(index).state());
            for (verb, key, word) in steps {
                // Tags close together collide; spread ones wrap around the end.
                let tag = if spread { key.wrapping_mul(0x9e37_79b9_7f4a_7c15) } else { u64::MAX - (key << TAG_BITS) };
                let tag = tag >> TAG_BITS << TAG_BITS;
                match (verb, slots.find(tag)) {
                    (0 | 1, Ok(index)) => {
                        slots.set(index, slot(tag, word));
                        map.insert(tag, word);
                    }
                    (0 | 1, Err(_)) => {
                        slots.insert(slot(tag, word), |_| false);
                        map.insert(tag, word);
                    }
                    (2, Ok(index)) => {
                        slots.remove(index);
                        map.remove(&tag);
                    }
                    (2, Err(_)) => prop_assert!(!map.contains_key(&tag)),
                    _ => {
                        slots.sweep(3, |slot| slot.state() == 1);
                        map.retain(|tag, word| *word != 1 || slots.find(*tag).is_ok());
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
                slots.each_of(first..=last, |slot| { met.insert(slot.tag(), slot.state()); });
            }
            prop_assert_eq!(&met, &map);
            slots.shrink(|slot| slot.state() == 2);
            map.retain(|_, word| *word != 2);
            prop_assert_eq!(slots.len(), map.len());
            prop_assert!(map.iter().all(|(tag, word)| state(&slots, *tag) == Ok(*word)));
        }
    }
}
