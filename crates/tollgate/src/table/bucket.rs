//! One cache line of a bounded table, and the locks that keep a table's lines whole.
//!
//! # Where the lock is
//!
//! A bucket is four slots and nothing else. Its lock is one of a few thousand *stripes*, which stay
//! in the processor's caches while the buckets do not. An exchange on a line that must come from
//! memory first would hold up everything behind it; an exchange on a stripe does not, and the next
//! look-up is under way while this one waits for its bucket (`docs/benchmarks/keyed.md`).
//!
//! # Reading and writing
//!
//! | bits of a stripe | what |
//! |---|---|
//! | 0 | lock |
//! | 1 | hint: the last one under this lock changed nothing |
//! | 2..=63 | version: counts the changes of its buckets |
//!
//! A writer locks the stripe, changes slots and unlocks with the next version. A reader copies slots
//! between two looks at the stripe: if both are equal and unlocked, the copies are of one moment. So
//! whoever changes nothing needs to write nothing. A denied key is asked for again and again, so after
//! a call that changed nothing (the hint) the next one reads first.

use super::slots::Slot;
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
const UNCHANGED: u64 = 2;
const VERSION: u64 = 4;

/// Four slots in one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Bucket {
    words: [AtomicU64; 2 * SLOTS],
}

impl Bucket {
    /// Reads a slot: under the stripe's lock, or between two looks at its version.
    #[inline]
    pub(super) fn slot(&self, index: usize) -> Slot {
        // ORDERING: Relaxed, here and below. The stripe orders all accesses.
        Slot::from_words(
            self.words[2 * index].load(Relaxed),
            self.words[2 * index + 1].load(Relaxed),
        )
    }

    /// Writes a slot, under the stripe's lock.
    #[inline]
    pub(super) fn put(&self, index: usize, slot: Slot) {
        let (tag, word) = slot.to_words();
        self.words[2 * index].store(tag, Relaxed);
        self.words[2 * index + 1].store(word, Relaxed);
    }

    /// Returns the slot of a tag.
    #[inline]
    pub(super) fn find(&self, tag: u64) -> Option<(usize, Slot)> {
        // Without a branch for each slot: which of them it is, nobody can predict, and a wrong
        // guess would wait for the bucket's line before anything else can begin.
        let is_same = |index: usize| u32::from(self.slot(index).tag() == tag) << index;
        let found = is_same(0) | is_same(1) | is_same(2) | is_same(3);
        let index = found.trailing_zeros() as usize;
        (found != 0).then(|| (index, self.slot(index)))
    }

    /// Returns the slots that are not empty.
    pub(super) fn used(&self) -> impl Iterator<Item = (usize, Slot)> {
        let slots = (0..SLOTS).map(|index| (index, self.slot(index)));
        slots.filter(|(_, slot)| !slot.is_empty())
    }
}

/// The lock of some buckets.
#[derive(Debug, Default)]
pub(crate) struct Stripe {
    word: AtomicU64,
}

/// A version of a stripe: what was read since is of one moment if it [still](Stripe::is_still)
/// holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version(u64);

impl Stripe {
    /// Returns the version, once nobody holds the lock.
    #[inline]
    pub(super) fn version(&self) -> Version {
        let mut backoff = Backoff::new();
        loop {
            // ORDERING: Acquire pairs with the Release that unlocks: an unlocked version comes with
            // the slots that were written before it, or later ones.
            let word = self.word.load(Acquire);
            if word & LOCK == 0 {
                return Version(word);
            }
            backoff.wait();
        }
    }

    /// Tells whether nothing has changed since the version was read.
    #[inline]
    pub(super) fn is_still(&self, Version(seen): Version) -> bool {
        // ORDERING: the fence keeps the loads of slots from moving below the second look. It pairs
        // with the one in `try_lock`: whoever saw a word of a change sees the lock, or later.
        fence(Acquire);
        (self.word.load(Relaxed) ^ seen) & !UNCHANGED == 0
    }

    /// Tells whether the last one under this lock changed nothing.
    #[inline]
    pub(super) fn was_unchanged(&self) -> bool {
        // ORDERING: Relaxed. A hint.
        self.word.load(Relaxed) & UNCHANGED != 0
    }

    /// Takes the lock if it is free at once.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<Held<'_>> {
        // ORDERING: Relaxed. The exchange decides.
        let word = self.word.load(Relaxed);
        if word & LOCK != 0 {
            return None;
        }
        // ORDERING: Acquire, so that what is read and written under the lock stays below it.
        self.word.compare_exchange(word, word | LOCK, Acquire, Relaxed).ok()?;
        // ORDERING: the fence makes the lock visible before any word that is written under it.
        fence(Release);
        Some(Held { stripe: self, next: word & !UNCHANGED })
    }

    /// Takes the lock, once it is free.
    #[inline]
    pub(crate) fn lock(&self) -> Held<'_> {
        match self.try_lock() {
            Some(held) => held,
            None => self.wait(),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) -> Held<'_> {
        let mut backoff = Backoff::new();
        loop {
            if let Some(held) = self.try_lock() {
                return held;
            }
            backoff.wait();
        }
    }
}

/// A locked stripe, unlocked when dropped.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    stripe: &'a Stripe,
    /// What unlocks it.
    next: u64,
}

impl Held<'_> {
    /// Notes that a slot was written.
    #[inline]
    pub(crate) const fn changed(&mut self) {
        // OVERFLOW: 62 bits of version outlast any number of changes.
        self.next = (self.next & !UNCHANGED) + VERSION;
    }

    /// Notes that somebody was answered without a slot being written.
    #[inline]
    pub(super) const fn unchanged(&mut self) {
        self.next |= UNCHANGED;
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING: Release publishes the slots with the new version.
        self.stripe.word.store(self.next, Release);
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::{
        super::{hint::Hint, slots::HINT_BITS},
        *,
    };

    #[test]
    fn a_bucket_is_a_cache_line_and_keeps_its_slots_apart() {
        assert_eq!((size_of::<Bucket>(), align_of::<Bucket>()), (64, 64));
        let bucket = Bucket::default();
        assert_eq!(bucket.used().count(), 0);
        for index in 0..SLOTS {
            let slot = Slot::new((index as u64 + 1) << HINT_BITS, Hint::of_refill(1 << index), 7);
            bucket.put(index, slot);
            assert_eq!(bucket.find(slot.tag()), Some((index, slot)));
        }
        assert_eq!(bucket.used().count(), SLOTS);
    }

    #[test]
    fn a_version_holds_until_something_changes() {
        let stripe = Stripe::default();
        let version = stripe.version();
        let held = stripe.lock();
        assert!(stripe.try_lock().is_none() && !stripe.is_still(version), "it is locked");
        drop(held);
        assert!(stripe.is_still(version) && !stripe.was_unchanged(), "looking changes nothing");
        stripe.lock().unchanged();
        assert!(stripe.is_still(version) && stripe.was_unchanged(), "nor does answering");
        stripe.lock().changed();
        assert!(!stripe.is_still(version) && !stripe.was_unchanged());
    }
}
