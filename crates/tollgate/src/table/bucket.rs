//! One cache line of a bounded table: four slots behind a lock that readers do not take.
//!
//! # Layout
//!
//! | word | bits | what |
//! |---|---|---|
//! | 0 | 0 | lock |
//! | | 1..=31 | version: counts the changes of the bucket |
//! | | 32..=63 | classes of the four slots, lower eight bits each |
//! | 1..=3 | 0..=47 | tags of slots 0 to 2 |
//! | | 48..=63 | tag of slot 3, in three parts |
//! | 4..=7 | 61..=63 | class, upper bits |
//! | | 0..=60 | state |
//!
//! A tag of zero marks an empty slot.
//!
//! # Reading and writing
//!
//! A reader copies the line between two looks at word 0: if both are equal and unlocked, the copy is
//! of one moment. A writer that has such a copy takes the lock by exchanging exactly the word 0 that
//! it saw: if that succeeds, the copy still holds, and it writes back what it made of it. So a
//! denial writes nothing, and a take costs one exchange.
//!
//! The version wraps after 2^31 changes. A thread would have to sleep through exactly so many
//! changes of one bucket between its two looks to be deceived: two minutes at 20 million a second.

use super::{
    class::Class,
    slots::{STATE, STATE_BITS},
};
use crate::{
    limiter::backoff::Backoff,
    sync::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
        fence,
    },
};

/// Slots of a bucket.
pub(super) const SLOTS: usize = 4;

const LOCK: u64 = 1;
const VERSION: u64 = 2;
const HEAD: u64 = 0xffff_ffff;
const TAG_BITS: u32 = 48;
/// The largest tag.
pub(super) const TAG: u64 = (1 << TAG_BITS) - 1;

/// Four slots in one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Bucket {
    words: [AtomicU64; 8],
}

/// A copy of a bucket, of one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    head: u64,
    tags: [u64; SLOTS],
    classes: [Class; SLOTS],
    states: [u64; SLOTS],
}

impl Bucket {
    /// Copies the bucket, once nobody holds its lock.
    #[inline]
    pub(super) fn read(&self) -> Seen {
        let mut backoff = Backoff::new();
        loop {
            // ORDERING: Acquire pairs with the Release of `unlock`: an unlocked head comes with
            // the slots that were written before it, or later ones.
            let head = self.words[0].load(Acquire);
            // ORDERING: Relaxed, between the two looks at the head.
            let words: [u64; 7] = std::array::from_fn(|index| self.words[index + 1].load(Relaxed));
            // ORDERING: the fence keeps the loads above from moving below the second look. It
            // pairs with the one in `lock_seen`: whoever saw a word of a change sees the lock.
            fence(Acquire);
            if head & LOCK == 0 && self.words[0].load(Relaxed) == head {
                return Seen::unpack(head, words);
            }
            backoff.wait();
        }
    }

    /// Tells whether the bucket has not changed since it was read.
    #[inline]
    pub(super) fn is_still(&self, seen: &Seen) -> bool {
        // ORDERING: Acquire keeps what follows behind it; the fence keeps what came before ahead.
        fence(Acquire);
        self.words[0].load(Acquire) == seen.head
    }

    /// Takes the lock if the bucket has not changed since it was read.
    #[inline]
    pub(super) fn lock_seen<'a>(&'a self, seen: &Seen) -> Option<Held<'a>> {
        let locked = seen.head | LOCK;
        // ORDERING: Acquire, so that what is read and written under the lock stays below it.
        self.words[0].compare_exchange(seen.head, locked, Acquire, Relaxed).ok()?;
        // ORDERING: the fence makes the lock visible before any word that is written under it.
        fence(Release);
        Some(Held { bucket: self, seen: *seen, is_changed: false })
    }

    /// Takes the lock, once it is free.
    pub(crate) fn lock(&self) -> Held<'_> {
        let mut backoff = Backoff::new();
        loop {
            let seen = self.read();
            if let Some(held) = self.lock_seen(&seen) {
                return held;
            }
            backoff.wait();
        }
    }

    /// Takes the lock if it is free at once.
    pub(super) fn try_lock(&self) -> Option<Held<'_>> {
        // ORDERING: Relaxed. A hint; the exchange in `lock_seen` decides.
        if self.words[0].load(Relaxed) & LOCK != 0 {
            return None;
        }
        self.lock_seen(&self.read())
    }
}

impl Seen {
    #[inline]
    fn unpack(head: u64, words: [u64; 7]) -> Self {
        let [a, b, c, states @ ..] = words;
        let last = a >> TAG_BITS | b >> TAG_BITS << 16 | c >> TAG_BITS << 32;
        Self {
            head,
            tags: [a & TAG, b & TAG, c & TAG, last],
            classes: std::array::from_fn(|slot| {
                Class::new(head >> (32 + 8 * slot), states[slot] >> STATE_BITS)
            }),
            states: states.map(|word| word & STATE),
        }
    }

    #[inline]
    fn pack(&self) -> (u64, [u64; 7]) {
        let [a, b, c, last] = self.tags;
        let part = |index: u32| (last >> (16 * index) & 0xffff) << TAG_BITS;
        let classes = (0..SLOTS).fold(0, |all, slot| all | self.classes[slot].low() << (8 * slot));
        let word = |slot: usize| self.classes[slot].high() << STATE_BITS | self.states[slot];
        let head = self.head & HEAD | classes << 32;
        (head, [a | part(0), b | part(1), c | part(2), word(0), word(1), word(2), word(3)])
    }

    /// Returns the slot of a tag.
    #[inline]
    pub(super) fn find(&self, tag: u64) -> Option<usize> {
        self.tags.iter().position(|found| *found == tag)
    }

    /// Returns the first slot that is empty, or whose content is idle.
    pub(super) fn free(&self, is_idle: impl Fn(Class, u64) -> bool) -> Option<usize> {
        let empty = self.tags.iter().position(|tag| *tag == 0);
        empty.or_else(|| (0..SLOTS).find(|slot| is_idle(self.classes[*slot], self.states[*slot])))
    }

    pub(super) const fn tag(&self, slot: usize) -> u64 {
        self.tags[slot]
    }

    pub(super) const fn class(&self, slot: usize) -> Class {
        self.classes[slot]
    }

    pub(super) const fn state(&self, slot: usize) -> u64 {
        self.states[slot]
    }

    /// Returns the slots that are not empty.
    pub(super) fn used(&self) -> impl Iterator<Item = usize> + use<> {
        let tags = self.tags;
        (0..SLOTS).filter(move |slot| tags[*slot] != 0)
    }
}

/// A locked bucket: what is changed here is written back when it is dropped.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    bucket: &'a Bucket,
    seen: Seen,
    is_changed: bool,
}

impl Held<'_> {
    /// Returns where the bucket lies.
    pub(super) fn address(&self) -> usize {
        std::ptr::from_ref(self.bucket) as usize
    }

    pub(super) const fn seen(&self) -> &Seen {
        &self.seen
    }

    pub(super) fn put(&mut self, slot: usize, (tag, class, state): (u64, Class, u64)) {
        debug_assert!(tag <= TAG && state <= STATE, "tag and state leave room for the class");
        (self.seen.tags[slot], self.seen.classes[slot], self.seen.states[slot]) =
            (tag, class, state);
        self.is_changed = true;
    }

    pub(super) fn clear(&mut self, slot: usize) {
        self.put(slot, (0, Class::default(), 0));
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        let (mut head, words) = self.seen.pack();
        if self.is_changed {
            for (atomic, word) in self.bucket.words[1..].iter().zip(words) {
                // ORDERING: Relaxed; the Release below publishes them.
                atomic.store(word, Relaxed);
            }
            head = head & !HEAD | (head & HEAD).wrapping_add(VERSION) & HEAD;
        }
        // ORDERING: Release publishes the slots with the unlocked head.
        self.bucket.words[0].store(head, Release);
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_a_cache_line_and_keeps_its_slots_apart() {
        assert_eq!((size_of::<Bucket>(), align_of::<Bucket>()), (64, 64));
        let bucket = Bucket::default();
        let slots = [(TAG, 2047, STATE), (1, 0, 1), (0x1234_5678_9abc, 255, 7), (TAG - 1, 256, 0)];
        let mut held = bucket.lock();
        for (slot, (tag, class, state)) in slots.into_iter().enumerate() {
            held.put(slot, (tag, Class::from_index(class), state));
        }
        assert!(bucket.try_lock().is_none(), "it is locked");
        drop(held);
        let seen = bucket.read();
        for (slot, (tag, class, state)) in slots.into_iter().enumerate() {
            let found = (seen.tag(slot), seen.class(slot).index(), seen.state(slot));
            assert_eq!(found, (tag, class, state));
            assert_eq!(seen.find(tag), Some(slot));
        }
        assert!(bucket.is_still(&seen));
        drop(bucket.lock());
        assert!(bucket.is_still(&seen), "looking changes nothing");
        bucket.lock().clear(2);
        assert!(!bucket.is_still(&seen));
        assert!(bucket.lock_seen(&seen).is_none());
    }

    #[test]
    fn the_version_wraps_without_touching_the_classes() {
        let bucket = Bucket::default();
        bucket.words[0].store(HEAD & !LOCK, Relaxed);
        bucket.lock().put(0, (5, Class::from_index(9), 1));
        let seen = bucket.read();
        assert_eq!((seen.head & HEAD, seen.class(0).index()), (0, 9));
    }
}
