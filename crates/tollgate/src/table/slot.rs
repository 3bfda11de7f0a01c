//! A key's slot: two words that any thread reads, and changes, without a mutex.
//!
//! | tag | word | the slot is | who may change it |
//! |---|---|---|---|
//! | 0 | 0 | unused | the writer |
//! | A with hint | w | the entry of A | any thread that sets the lock bit |
//! | A with hint | w + lock | the entry of A, locked | the thread that set the lock bit |
//! | 0 | w + lock | free | the writer |
//!
//! The *writer* is the thread that holds the mutex of the shard. Only the writer makes a slot another key's, and
//! only while it holds the slot's lock bit. A thread that holds a lock bit waits for no mutex, so the writer may
//! wait for a lock bit.
//!
//! | | bits | what |
//! |---|---|---|
//! | tag | 8..=63 | fingerprint, without the bits that chose the shard |
//! | | 0..=7 | [`Hint`] |
//! | word | 63 | lock |
//! | | 62 | owed |
//! | | 0..=61 | time |

use super::hint::Hint;
use crate::{
    Tick,
    algorithm::word_time,
    limiter::backoff::Backoff,
    sync::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
        fence,
    },
};
use std::hint::select_unpredictable;

/// Bits of a tag that hold the hint.
pub(super) const HINT_BITS: u32 = 8;
/// The bits of a tag that name the key.
pub(super) const NAME: u64 = u64::MAX << HINT_BITS;
const LOCK: u64 = 1 << 63;

/// Slots of a bucket: a cache line.
#[cfg(not(tollgate_loom))]
pub(super) const SLOTS: usize = 4;
#[cfg(tollgate_loom)]
pub(super) const SLOTS: usize = 2;

/// What a slot holds. The word has no lock bit, unless it was just read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) tag: u64,
    pub(super) word: u64,
}

impl Content {
    pub(super) const fn new(name: u64, hint: Hint, word: u64) -> Self {
        debug_assert!(name & !NAME == 0, "the name leaves room for the hint");
        Self { tag: name | hint.bits(), word }
    }

    pub(super) const fn hint(&self) -> Hint {
        Hint::from_bits(self.tag)
    }

    pub(super) const fn name(&self) -> u64 {
        self.tag & NAME
    }

    pub(super) const fn is_locked(&self) -> bool {
        self.word & LOCK != 0
    }

    /// Returns the word without its lock bit: what it was when the bit was set.
    #[inline]
    pub(super) const fn state(&self) -> u64 {
        self.word & !LOCK
    }

    pub(super) const fn is_idle(&self, now: Tick) -> bool {
        word_time::is_idle(self.state(), now)
    }

    pub(super) fn burden(&self, now: Tick) -> u64 {
        self.hint().burden(self.state(), now)
    }
}

#[derive(Debug)]
pub(super) struct Slot {
    tag: AtomicU64,
    word: AtomicU64,
}

impl Slot {
    fn new() -> Self {
        Self { tag: AtomicU64::new(0), word: AtomicU64::new(0) }
    }

    #[inline(always)]
    pub(super) fn load(&self) -> Content {
        // ORDERING: Acquire on the word: its tag is at least as new. Acquire on the tag: a tag that is newer than
        // the word read before makes `is_still` see that the word has changed.
        let word = self.word.load(Acquire);
        Content { tag: self.tag.load(Acquire), word }
    }

    /// Tells whether tag and word, which were read one after the other, belong together.
    #[inline(always)]
    pub(super) fn is_still(&self, seen: Content) -> bool {
        // ORDERING: Relaxed, behind the Acquire of the tag; see `store`.
        self.word.load(Relaxed) == seen.word
    }

    /// Sets the lock bit if the slot still holds `seen`.
    #[inline(always)]
    pub(super) fn try_lock(&self, seen: Content) -> bool {
        // ORDERING: Acquire. Each store that clears a lock bit is a Release, so threads that hold it one after the
        // other see what the earlier ones stored.
        if seen.is_locked()
            || self.word.compare_exchange(seen.word, seen.word | LOCK, Acquire, Relaxed).is_err()
        {
            return false;
        }
        // ORDERING: Relaxed. The tag cannot change while the lock bit is set. It may have changed before, if the
        // slot was freed and the word of its new entry happens to be the same.
        let is_same = self.tag.load(Relaxed) == seen.tag;
        if !is_same {
            self.unlock(seen);
        }
        is_same
    }

    /// Waits for the lock bit of a key's entry, and sets it. `None` if the entry has left.
    pub(super) fn lock(&self, name: u64) -> Option<Content> {
        let mut backoff = Backoff::new();
        loop {
            let seen = self.load();
            if seen.name() != name {
                return None;
            }
            if self.try_lock(seen) {
                return Some(seen);
            }
            backoff.wait();
        }
    }

    /// Clears the lock bit and leaves all as it was.
    #[inline(always)]
    pub(super) fn unlock(&self, seen: Content) {
        // ORDERING: Release, see `try_lock`.
        self.word.store(seen.word, Release);
    }

    /// Replaces the content of a locked slot, which held `seen`, and clears the lock bit.
    #[inline(always)]
    pub(super) fn store(&self, seen: Content, next: Content) {
        debug_assert!(next.word & LOCK == 0, "the lock bit is the slot's");
        if next.tag != seen.tag {
            // ORDERING: Release throughout. A thread that reads the new word finds the tag unsettled or new, and
            // one that reads the new tag finds the word changed: nobody takes the old one for the new one's.
            self.tag.store(next.name() | Hint::UNSETTLED.bits(), Release);
            self.word.store(next.word | LOCK, Release);
            self.tag.store(next.tag, Release);
        }
        // ORDERING: Release, see `try_lock`.
        self.word.store(next.word, Release);
    }

    /// Frees a locked slot. It stays locked. Of the writer.
    pub(super) fn free(&self) {
        // ORDERING: Release, so that the lock bit is seen by each thread that sees the tag.
        self.tag.store(0, Release);
    }

    /// Makes a free slot the entry of a key. Of the writer.
    pub(super) fn publish(&self, content: Content) {
        // ORDERING: Relaxed. The tag publishes the lock bit.
        self.word.store(content.word | LOCK, Relaxed);
        self.store(Content { tag: 0, word: 0 }, content);
    }

    /// Applies `step` to the entry of a key and stores what it returns. `None` if the entry has left, or if that is
    /// not certain (`is_settled`) of one that stays as it is. A step may run several times; the last run counts.
    ///
    /// An entry that stays as it is was not locked, and a lock bit that another thread holds does not matter: the
    /// answer is that of the moment before.
    #[inline]
    pub(super) fn apply<R>(
        &self,
        name: u64,
        is_settled: impl Fn() -> bool,
        mut step: impl FnMut(Content) -> (R, Option<Content>),
    ) -> Option<R> {
        let mut backoff = Backoff::new();
        loop {
            let seen = self.load();
            if seen.name() != name {
                return None;
            }
            if seen.hint() != Hint::UNSETTLED {
                match step(Content { word: seen.state(), ..seen }) {
                    (result, None) if self.is_still(seen) => return is_settled().then_some(result),
                    (result, Some(next)) if self.try_lock(seen) => {
                        self.store(seen, next);
                        return Some(result);
                    }
                    _ => {}
                }
            }
            backoff.wait();
        }
    }
}

#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Bucket<const N: usize = SLOTS>(pub(super) [Slot; N]);

impl<const N: usize> Bucket<N> {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| Slot::new()))
    }

    /// Returns the slot whose tag is `tag` under `mask`. There is no branch for each slot: which one it is cannot be
    /// predicted.
    #[inline(always)]
    pub(super) fn find(&self, tag: u64, mask: u64) -> Option<&Slot> {
        let mut found = None;
        for slot in &self.0 {
            // ORDERING: Relaxed. The caller loads the slot again.
            let is_found = slot.tag.load(Relaxed) & mask == tag;
            found = select_unpredictable(is_found, Some(slot), found);
        }
        found
    }
}

/// The version of a shard, which is odd while entries leave their slots, and how many rows it has.
///
/// | bits | what |
/// |---|---|
/// | 32..=63 | version |
/// | 0..=31 | rows |
#[derive(Debug)]
pub(super) struct Head(AtomicU64);

const VERSION: u64 = 1 << 32;

impl Head {
    pub(super) fn new(rows: u64) -> Self {
        Self(AtomicU64::new(rows))
    }

    #[inline(always)]
    pub(super) fn load(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release of `settle`: rows come with what is in them.
        self.0.load(Acquire)
    }

    /// Returns the rows of what [`load`](Self::load) returned.
    #[inline(always)]
    pub(super) const fn rows(head: u64) -> usize {
        // OVERFLOW: 32 bits.
        (head & (VERSION - 1)) as usize
    }

    /// Tells whether no entry has left its slot since `head` was read.
    #[inline(always)]
    pub(super) fn is_still(&self, head: u64) -> bool {
        // ORDERING: the fence keeps the reads of slots above from moving below. It pairs with the one in
        // `unsettle`: a thread that saw a slot change sees the odd version.
        fence(Acquire);
        head & VERSION == 0 && self.0.load(Relaxed) == head
    }

    /// Begins to move or free entries. Of the writer.
    pub(super) fn unsettle(&self) {
        // ORDERING: Relaxed; there is one writer. The fence makes the odd version visible before any slot.
        let head = self.0.load(Relaxed);
        debug_assert_eq!(head & VERSION, 0, "one change at a time");
        self.0.store(head.wrapping_add(VERSION), Relaxed);
        fence(Release);
    }

    /// Ends what [`unsettle`](Self::unsettle) began, with `more` rows.
    pub(super) fn settle(&self, more: u64) {
        // ORDERING: Relaxed; there is one writer. Release publishes slots and rows with the even version.
        let head = self.0.load(Relaxed);
        // OVERFLOW: the version wraps. A reader would have to sleep through 2^31 changes to be misled.
        self.0.store(head.wrapping_add(VERSION) + more, Release);
    }
}
