//! One Space-Saving summary: the heaviest keys of a weighted stream.
//!
//! | field | what |
//! |---|---|
//! | slots | the keys, each at a place that stays |
//! | heap | numbers of slots, the lightest first: a binary heap |
//! | index | hash -> number of the slot |
//!
//! Invariants, which the bounds of [`TopKeys`](crate::TopKeys) rest on:
//!
//! 1. the counts add up to at most the total (exactly, until it is halved);
//! 2. count - error <= true <= count for each key here;
//! 3. a key that is not here has at most the [`floor`](Summary::floor).
//!
//! A miss on a full summary gives the lightest slot to the new key: it had at most the floor
//! before (3), so that is its error. With halving every number is rounded down: then (1) and (3)
//! hold as before, and the new error is what keeps (2), at most half the old one rounded up. A key
//! whose count becomes zero leaves; that happens only if the floor becomes zero too, since no count
//! is below it, so (3) holds for it.
//!
//! Cost: a hit is one look-up and a sift that ends at once for a heavy key, whose slot is a leaf.

use crate::table::FingerprintMap;
use std::fmt::{self, Display, Write};

/// Names are cut here: room for most paths and keys, and a bound for the rest.
const NAME_BYTES_MAX: usize = 128;
/// Shows that a name was cut.
const MARK: &str = "…";

#[derive(Debug)]
pub(super) struct Summary {
    capacity: usize,
    pub(super) slots: Vec<Slot>,
    heap: Vec<u32>,
    index: FingerprintMap<u32>,
    pub(super) total: u64,
}

/// One key.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) hash: u64,
    pub(super) count: u64,
    pub(super) error: u64,
    pub(super) name: String,
    /// Where in the heap it is.
    place: u32,
}

impl Summary {
    /// `capacity` is neither zero nor above 2^32; memory comes with the keys.
    pub(super) fn new(capacity: usize) -> Self {
        let (slots, heap, index) = (Vec::new(), Vec::new(), FingerprintMap::default());
        Self { capacity, slots, heap, index, total: 0 }
    }

    /// Returns the most that a key which is not here can have.
    pub(super) fn floor(&self) -> u64 {
        if self.slots.len() < self.capacity { 0 } else { self.count_at(0) }
    }

    /// Adds to a key if it is here. Tells whether it is.
    pub(super) fn add(&mut self, hash: u64, cost: u64) -> bool {
        let Some(&number) = self.index.get(&hash) else {
            return false;
        };
        self.total = self.total.saturating_add(cost);
        let slot = &mut self.slots[number as usize];
        slot.count = slot.count.saturating_add(cost);
        let place = slot.place as usize;
        self.sift_down(place);
        true
    }

    /// Adds to a key; if it is not here, it comes in, and the lightest may have to leave.
    pub(super) fn enter(&mut self, hash: u64, cost: u64, name: &ShortName) {
        if self.add(hash, cost) {
            return;
        }
        self.total = self.total.saturating_add(cost);
        if self.slots.len() < self.capacity {
            // OVERFLOW: a capacity fits in 32 bits.
            let (number, place) = (self.slots.len() as u32, self.heap.len());
            let name = name.as_str().to_owned();
            self.slots.push(Slot { hash, count: cost, error: 0, name, place: number });
            self.heap.push(number);
            self.index.insert(hash, number);
            self.sift_up(place);
            return;
        }
        let number = self.heap[0];
        let slot = &mut self.slots[number as usize];
        self.index.remove(&slot.hash);
        self.index.insert(hash, number);
        (slot.hash, slot.error) = (hash, slot.count);
        slot.count = slot.count.saturating_add(cost);
        name.copy_to(&mut slot.name);
        self.sift_down(0);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.capacity);
    }

    /// Halves everything, rounded down; keys without a count leave.
    pub(super) fn halve(&mut self) {
        self.total /= 2;
        for slot in &mut self.slots {
            let least = slot.count.saturating_sub(slot.error) / 2;
            slot.count /= 2;
            slot.error = slot.count - least;
        }
        self.slots.retain(|slot| slot.count > 0);
        // OVERFLOW: a capacity fits in 32 bits.
        self.heap = (0..self.slots.len() as u32).collect();
        // INVARIANT: what is sorted is a heap.
        self.heap.sort_unstable_by_key(|&number| self.slots[number as usize].count);
        self.index.clear();
        for (place, &number) in self.heap.iter().enumerate() {
            let slot = &mut self.slots[number as usize];
            slot.place = place as u32;
            self.index.insert(slot.hash, number);
        }
    }

    fn count_at(&self, place: usize) -> u64 {
        self.slots[self.heap[place] as usize].count
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for place in [a, b] {
            self.slots[self.heap[place] as usize].place = place as u32;
        }
    }

    fn sift_up(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if self.count_at(parent) <= self.count_at(place) {
                return;
            }
            self.swap(place, parent);
            place = parent;
        }
    }

    fn sift_down(&mut self, mut place: usize) {
        loop {
            let children = 2 * place + 1..(2 * place + 3).min(self.heap.len());
            let Some(lightest) = children.min_by_key(|&child| self.count_at(child)) else {
                return;
            };
            if self.count_at(place) <= self.count_at(lightest) {
                return;
            }
            self.swap(place, lightest);
            place = lightest;
        }
    }
}

/// A rendered name, cut at 128 bytes: on the stack, so that rendering allocates nothing.
pub(super) struct ShortName {
    bytes: [u8; NAME_BYTES_MAX + MARK.len()],
    len: usize,
    is_cut: bool,
}

impl ShortName {
    pub(super) fn of(name: &dyn Display) -> Self {
        let bytes = [0; NAME_BYTES_MAX + MARK.len()];
        let mut short = Self { bytes, len: 0, is_cut: false };
        // An error is the signal of `write_str` below that the rest does not matter, or one of the
        // name's own; what is there by then is shown.
        let _ = write!(short, "{name}");
        if short.is_cut {
            short.append(MARK);
        }
        short
    }

    fn append(&mut self, text: &str) {
        self.bytes[self.len..self.len + text.len()].copy_from_slice(text.as_bytes());
        self.len += text.len();
    }

    fn as_str(&self) -> &str {
        // INVARIANT: only whole strings were appended, or parts cut between characters.
        std::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }

    /// Replaces a name, in its memory if that suffices, and never in more than it needs.
    fn copy_to(&self, name: &mut String) {
        if name.capacity() < self.len {
            *name = self.as_str().to_owned();
        } else {
            name.clear();
            name.push_str(self.as_str());
        }
    }
}

impl Write for ShortName {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.is_cut {
            return Err(fmt::Error);
        }
        let room = NAME_BYTES_MAX - self.len;
        let fits = cut_below(text, room);
        self.append(&text[..fits]);
        self.is_cut = fits < text.len();
        if self.is_cut { Err(fmt::Error) } else { Ok(()) }
    }
}

/// Returns the last border between characters that is not beyond `room` bytes.
fn cut_below(text: &str, room: usize) -> usize {
    (0..=room.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn a_slot_is_as_small_as_the_stated_memory_bound_needs() {
        // 350 bytes: twice a slot and its number (vectors double), 131 of name, and 4.6 entries
        // of 17 bytes of index (a power of two, at most 7/16 full after it grew for tombstones).
        assert!(2 * (size_of::<Slot>() + 4) + 131 + 79 <= 350);
    }

    #[test]
    fn names_are_cut_between_characters_and_marked() {
        let text = |name: &str| ShortName::of(&name).as_str().to_owned();
        assert_eq!(text("alice"), "alice");
        assert_eq!(text(""), "");
        assert_eq!(text(&"x".repeat(128)), "x".repeat(128));
        assert_eq!(text(&"x".repeat(129)), format!("{}…", "x".repeat(128)));
        // 43 characters of three bytes are 129 bytes.
        assert_eq!(text(&"€".repeat(43)), format!("{}…", "€".repeat(42)));
        let in_pieces = ShortName::of(&format_args!("{}{}{}", "x".repeat(127), "€", "y"));
        assert_eq!(in_pieces.as_str(), format!("{}…", "x".repeat(127)));
    }

    #[test]
    fn a_name_keeps_its_memory_where_it_fits() {
        let mut name = "a longer name".to_owned();
        let before = name.as_ptr();
        ShortName::of(&"short").copy_to(&mut name);
        assert_eq!((name.as_str(), name.as_ptr()), ("short", before));
        ShortName::of(&"x".repeat(500)).copy_to(&mut name);
        assert_eq!(name.capacity(), NAME_BYTES_MAX + MARK.len());
    }

    fn check(summary: &Summary) {
        let Summary { slots, heap, index, capacity, total } = summary;
        assert!(slots.len() <= *capacity);
        assert_eq!((heap.len(), index.len()), (slots.len(), slots.len()));
        for (place, &number) in heap.iter().enumerate() {
            let slot = &slots[number as usize];
            assert_eq!((slot.place as usize, index[&slot.hash]), (place, number));
            assert!(slot.error <= slot.count);
            assert!(place == 0 || summary.count_at((place - 1) / 2) <= slot.count);
        }
        let sum: u64 = slots.iter().map(|slot| slot.count).sum();
        assert!(sum <= *total, "invariant 1: {sum} of {total}");
    }

    proptest! {
        /// The three invariants of the module, against an exact map that is halved alike.
        #[test]
        fn the_invariants_hold(
            capacity in 1..12_usize,
            events in proptest::collection::vec((0..40_u64, 0..30_u64), 1..300),
        ) {
            let mut summary = Summary::new(capacity);
            let mut exact: HashMap<u64, u64> = HashMap::new();
            for (key, cost) in events {
                if cost == 0 {
                    summary.halve();
                    exact.values_mut().for_each(|weight| *weight /= 2);
                } else {
                    summary.enter(key, cost, &ShortName::of(&key));
                    *exact.entry(key).or_default() += cost;
                }
                check(&summary);
                for (key, weight) in &exact {
                    match summary.slots.iter().find(|slot| slot.hash == *key) {
                        Some(Slot { count, error, name, .. }) => {
                            prop_assert_eq!(name, &key.to_string());
                            prop_assert!(count - error <= *weight && weight <= count);
                            prop_assert!(*error <= summary.total / capacity as u64 + 1);
                        }
                        None => prop_assert!(*weight <= summary.floor()),
                    }
                }
                prop_assert!(summary.floor() <= summary.total / capacity as u64);
            }
        }
    }
}
