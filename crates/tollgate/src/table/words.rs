//! The table of words: sixteen bytes a key, and no mutex for a key that is there.
//!
//! A key has two homes: buckets of four slots, each a cache line. It lives in the first if there is room, else in the
//! second; if there is none either, a neighbour moves to its other home, and as a last resort it goes to the overflow
//! bucket of its shard, which has eight slots. The upper bits of the fingerprint choose one of 256 shards, which grow one bucket at a time
//! (linear hashing): bucket `n - 2^k` is split into itself and bucket `n`.
//!
//! | call | takes |
//! |---|---|
//! | a denial | nothing: reads the shard's version, tag, word, and both again |
//! | an admission | the lock bit of the word: one exchange and one store |
//! | a new key, eviction, growth, reset | the mutex of the shard, and the lock bit of each entry that leaves its slot |
//!
//! An entry that is idle equals an absent one, so it may leave at any time: a new key frees all idle slots of its bucket.
//! No thread sweeps the whole table.
//!
//! Memory is allocated in segments of rows (a row is a bucket for each shard) and never freed while the table lives,
//! because readers hold no reference to it. A segment is at most a 32nd of the table.

mod eviction;
mod held;
#[cfg(tollgate_loom)]
#[path = "words/tests/loom_model.rs"]
pub mod loom_model;
mod multi_take;
mod shard;

pub(crate) use held::HeldKey;
pub(crate) use multi_take::ReadKey;
pub(crate) use shard::Writer;

use super::{
    Eviction, Full, Hint, KeyRef,
    slot::{Bucket, Content, HINT_BITS, Head, NAME, SLOTS, Slot},
};
use crate::{
    Decision, Tick,
    algorithm::{Entry, Gcra, Judged, Rule, word_time},
    clock::Reading,
    sync::{Arc, AtomicU64, Mutex, lock},
};
use std::{hint::select_unpredictable, sync::OnceLock};

/// The upper bits of a fingerprint, which choose the shard. A tag has no room for them.
#[cfg(not(tollgate_loom))]
const SHARD_BITS: u32 = HINT_BITS;
#[cfg(tollgate_loom)]
const SHARD_BITS: u32 = 1;
const SHARDS: usize = 1 << SHARD_BITS;

/// Segments in which the rows double.
#[cfg(not(tollgate_loom))]
const STEPS: usize = 32;
#[cfg(tollgate_loom)]
const STEPS: usize = 1;

/// The most rows: four billion slots, 64 GiB.
#[cfg(not(tollgate_loom))]
const ROWS_MAX: usize = 1 << 22;
#[cfg(tollgate_loom)]
const ROWS_MAX: usize = 4;
const SEGMENTS: usize = segment(ROWS_MAX - 1).0 + 1;

/// Sixteenths of the slots that are used before a shard grows. More would send more keys to their second home. With nine,
/// look-ups in a million take 5 to 10 % less, but a key of a small table takes up to 35 bytes.
const LOAD: usize = 11;
/// The same of a table whose memory is allocated at once. Its shards grow only if a key finds no room.
const LOAD_RESERVED: usize = 12;

#[derive(Debug)]
pub(crate) struct WordTable {
    eviction: Arc<Eviction>,
    segments: Box<[OnceLock<Box<[Bucket]>>; SEGMENTS]>,
    /// Apart from the mutexes, which every new key writes to, and close together, because every call reads one.
    heads: Box<[Head; SHARDS]>,
    shards: Box<[Shard; SHARDS]>,
    cap: Option<u64>,
    is_reserved: bool,
    /// Entries; counted only if there is a cap.
    len: AtomicU64,
    /// Where the search for room in other shards goes on.
    hand: AtomicU64,
}

#[derive(Debug)]
struct Shard {
    writer: Mutex<Writer>,
    overflow: Bucket<{ 2 * SLOTS }>,
}

/// Where a key belongs.
#[derive(Clone, Copy, Debug)]
struct Place {
    shard: usize,
    name: u64,
}

impl Place {
    #[inline]
    const fn of(fingerprint: u64) -> Self {
        let name = fingerprint << HINT_BITS;
        // OVERFLOW: eight bits.
        let shard = (fingerprint >> (u64::BITS - SHARD_BITS)) as usize;
        // A name of zero is nobody's.
        Self { shard, name: if name == 0 { 1 << HINT_BITS } else { name } }
    }

    const fn fingerprint(self) -> u64 {
        (self.shard as u64) << (u64::BITS - SHARD_BITS) | self.name >> HINT_BITS
    }
}

/// Returns the row of a hash in a shard of so many rows.
#[inline]
const fn row(hash: usize, rows: usize) -> usize {
    // The largest of `rows` that are a power of two or more; of one row as of two, so that it takes no branch.
    let mask = usize::MAX >> (rows.wrapping_sub(1) | 1).leading_zeros();
    // No branch: which case it is cannot be predicted.
    let is_beyond = (hash & mask >= rows) as u32;
    hash & (mask >> is_beyond)
}

/// Returns the two homes of a key.
#[inline]
const fn homes(name: u64, rows: usize) -> [usize; 2] {
    [row((name >> HINT_BITS) as usize, rows), row((name >> 36) as usize, rows)]
}

/// Returns segment and place in it of a row. The first segments have one row each.
#[inline]
const fn segment(row: usize) -> (usize, usize) {
    let double = (row | STEPS).ilog2() - STEPS.ilog2();
    ((row >> double) + double as usize * STEPS, row & ((1 << double) - 1))
}

impl WordTable {
    /// Returns a table for as many keys as there are, or at most `cap`. Memory for `reserved` keys is allocated at once.
    pub(super) fn new(eviction: Arc<Eviction>, cap: Option<u64>, reserved: u64) -> Self {
        // One row more, because the shards of a small table have rather different numbers of keys.
        let rows = reserved.saturating_mul(16) / (SHARDS * SLOTS * LOAD_RESERVED) as u64;
        let rows = (rows as usize + 1 + usize::from(reserved > 0)).min(ROWS_MAX);
        let shard = |_| Shard { writer: Mutex::default(), overflow: Bucket::new() };
        let table = Self {
            eviction,
            segments: Box::new([const { OnceLock::new() }; SEGMENTS]),
            heads: Box::new(std::array::from_fn(|_| Head::new(rows as u64))),
            shards: Box::new(std::array::from_fn(shard)),
            cap,
            is_reserved: reserved > 0,
            len: AtomicU64::new(0),
            hand: AtomicU64::new(0),
        };
        // A shard may get so many keys that it has to grow. There is memory for that from the start.
        (0..rows + usize::from(reserved > 0)).for_each(|row| table.allocate(row));
        table
    }

    /// Allocates the segment of a row.
    fn allocate(&self, row: usize) {
        let (number, _) = segment(row);
        self.segments[number].get_or_init(|| {
            let rows = 1 << (number / STEPS).saturating_sub(1);
            std::iter::repeat_with(Bucket::new).take(rows * SHARDS).collect()
        });
    }

    #[inline(always)]
    fn bucket(&self, shard: usize, row: usize) -> Option<&Bucket> {
        let (number, offset) = segment(row);
        self.segments.get(number)?.get()?.get(offset << SHARD_BITS | shard)
    }

    /// Returns the slot of one of the homes of a key that has this tag under `mask`. The entry may be gone the next
    /// moment; `None` means that the mutex has to be taken to be certain.
    #[inline(always)]
    fn find(&self, shard: usize, head: u64, tag: u64, mask: u64) -> Option<&Slot> {
        let [first, second] = homes(tag, Head::rows(head));
        let (first, second) = (self.bucket(shard, first)?, self.bucket(shard, second)?);
        let (in_first, in_second) = (first.find(tag, mask), second.find(tag, mask));
        select_unpredictable(in_first.is_some(), in_first, in_second)
    }

    /// The fast path of a take by GCRA from a key that is there; `None` if anything is unusual. Decides by `reading`, or
    /// by the exact time if that is early and the outcome depends on it. Inlined into the caller, so that only what is
    /// read of the decision is computed; so there is one place to leave it with a decision.
    #[inline(always)]
    pub(crate) fn take(
        &self,
        (fingerprint, mut reading): (u64, Reading),
        exact: impl FnOnce() -> Tick,
        gcra: &Gcra,
        cost: u64,
    ) -> Option<Decision> {
        let Place { shard: index, name } = Place::of(fingerprint);
        let (shard_head, tag) = (self.heads.get(index)?, name | gcra.hint().bits());
        let head = shard_head.load();
        // With its hint: a word that a quota like this one wrote means what it says.
        let slot = self.find(index, head, tag, u64::MAX)?;
        let seen = slot.load();
        let word = seen.state();
        if seen.tag != tag || word >= word_time::OWED {
            return None;
        }
        let (before, mut position) = (gcra.place(word), gcra.position(reading.now));
        let mut judged = gcra.judge(before, position, reading.is_early, cost);
        if judged == Judged::Open {
            reading = Reading::exact(exact());
            position = gcra.position(reading.now);
            judged = gcra.judge(before, position, false, cost);
        }
        let after = match judged {
            Judged::Allowed(next) if cost > 0 => {
                let after = (next, gcra.word(next));
                if !slot.try_lock(seen) {
                    return None;
                }
                slot.store(seen, Content { tag, word: after.1 });
                Some(after)
            }
            _ if !(slot.is_still(seen) && shard_head.is_still(head)) => return None,
            // A cost of nothing leaves an idle word as it is.
            Judged::Allowed(next) => Some((next, word)),
            _ => None,
        };
        Some(gcra.answer((before, word), after, (reading.now, position), cost))
    }

    /// [`take`](Self::take) as of `now`, also from a key that is not there: first of all, because the caller has mostly
    /// tried the other.
    #[inline(never)]
    pub(crate) fn take_at(
        &self,
        (fingerprint, now): (u64, Tick),
        gcra: &Gcra,
        cost: u64,
    ) -> Option<Decision> {
        let take = || self.take((fingerprint, Reading::exact(now)), || now, gcra, cost);
        self.take_new((fingerprint, now), gcra, cost).or_else(take)
    }

    /// [`take`](Self::take) from a key that is not there, and so is idle. `None` if it is there after all, or if the
    /// table is full.
    fn take_new(
        &self,
        (fingerprint, now): (u64, Tick),
        gcra: &Gcra,
        cost: u64,
    ) -> Option<Decision> {
        let place = Place::of(fingerprint);
        // A key that another quota wrote may be denied without a mutex.
        if self.find(place.shard, self.heads[place.shard].load(), place.name, NAME).is_some() {
            return None;
        }
        let writer = &mut *lock(&self.shards[place.shard].writer);
        if self.find_locked(place, writer).is_some() {
            return None;
        }
        let (decision, word) = gcra.decide_at(0, now, gcra.position(now), cost);
        if !word_time::is_idle(word, now) {
            if !self.cap.is_none_or(|cap| self.count_one(cap)) {
                return None;
            }
            let content = Content::new(place.name, Rule::Gcra(*gcra).hint(word, now), word);
            self.locked(place.shard, writer, now).insert(content, true);
        }
        Some(decision)
    }

    /// Applies `step` to the state of a key, atomically. A key that is not there is idle. The step may run several
    /// times; the last run counts.
    #[inline]
    pub(super) fn update<R>(
        &self,
        key: &KeyRef,
        rule: &Rule,
        mut step: impl FnMut(&mut Entry<'_>) -> R,
    ) -> Result<R, Full> {
        let place = Place::of(key.fingerprint);
        let shard_head = &self.heads[place.shard];
        let head = shard_head.load();
        if let Some(slot) = self.find(place.shard, head, place.name, NAME)
            && let Some(result) = slot.apply(
                place.name,
                || shard_head.is_still(head),
                |content| key.step(rule, content, &mut step),
            )
        {
            return Ok(result);
        }
        let writer = &mut *lock(&self.shards[place.shard].writer);
        while let Some(slot) = self.find_locked(place, writer) {
            let step = |content| key.step(rule, content, &mut step);
            if let Some(result) = slot.apply(place.name, || true, step) {
                return Ok(result);
            }
        }
        let mut shard = self.locked(place.shard, writer, key.now);
        let has_room = shard.make_room();
        if !has_room && *rule != Rule::Unlimited && !self.eviction.evicts_live {
            return Err(Full);
        }
        let (result, next) =
            key.step(rule, Content { tag: place.name, ..Content::default() }, step);
        match next.filter(|next| !next.is_idle(key.now)) {
            None => self.give_up(u64::from(has_room)),
            Some(next) => shard.insert(next, has_room),
        }
        Ok(result)
    }

    /// Returns the slot of a key; the caller holds the mutex of its shard.
    fn find_locked(&self, Place { shard, name }: Place, writer: &Writer) -> Option<&Slot> {
        let slot = self.find(shard, self.heads[shard].load(), name, NAME);
        if writer.overflowing == 0 {
            return slot;
        }
        slot.or_else(|| self.shards[shard].overflow.find(name, NAME))
    }

    /// Returns hint and word of a key; those of a fresh one if it is not there.
    pub(super) fn read(&self, fingerprint: u64) -> Content {
        let place = Place::of(fingerprint);
        let shard_head = &self.heads[place.shard];
        let head = shard_head.load();
        let copy = |content| (content, None);
        if let Some(slot) = self.find(place.shard, head, place.name, NAME)
            && let Some(content) = slot.apply(place.name, || shard_head.is_still(head), copy)
        {
            return content;
        }
        let slot = self.find_locked(place, &lock(&self.shards[place.shard].writer));
        slot.and_then(|slot| slot.apply(place.name, || true, copy)).unwrap_or_default()
    }

    /// Puts a word back. Tells whether there was room.
    pub(crate) fn put_back(&self, fingerprint: u64, (hint, word): (Hint, u64), now: Tick) -> bool {
        let place = Place::of(fingerprint);
        let writer = &mut *lock(&self.shards[place.shard].writer);
        let content = Content::new(place.name, hint, word);
        if let Some(slot) = self.find_locked(place, writer) {
            return slot.apply(place.name, || true, |_| ((), Some(content))).is_some();
        }
        let mut shard = self.locked(place.shard, writer, now);
        let has_room = shard.make_room();
        let is_taken_in = has_room || self.eviction.evicts_live;
        if is_taken_in {
            shard.insert(content, has_room);
        }
        is_taken_in
    }

    /// Forgets a key.
    pub(super) fn remove(&self, fingerprint: u64) {
        let place = Place::of(fingerprint);
        let writer = &mut *lock(&self.shards[place.shard].writer);
        if let Some(slot) = self.find_locked(place, writer)
            && slot.lock(place.name).is_some()
        {
            self.free(place.shard, writer, slot);
            self.give_up(1);
        }
    }

    /// Calls `visit` with each shard in turn, its mutex held.
    fn each(&self, mut visit: impl FnMut(usize, &mut Writer)) {
        for (index, shard) in self.shards.iter().enumerate() {
            visit(index, &mut lock(&shard.writer));
        }
    }

    pub(super) fn len(&self) -> usize {
        let mut len = 0;
        self.each(|_, writer| len += writer.len);
        len
    }

    /// Returns the memory of the table, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let segments = self.segments.iter().filter_map(OnceLock::get);
        let segments = segments.map(|segment| size_of_val(&**segment)).sum::<usize>();
        segments + size_of_val(&*self.heads) + size_of_val(&*self.shards)
    }

    /// Frees all slots. The memory stays.
    pub(super) fn clear(&self) {
        self.leave_if(|_| true);
    }

    /// Frees idle slots. The memory stays.
    pub(super) fn shrink(&self, now: Tick) {
        let left = self.leave_if(|content| content.is_idle(now));
        self.eviction.count_idle(left);
    }

    /// Frees the slots of entries that `leaves` says. Returns how many.
    fn leave_if(&self, leaves: impl Fn(&Content) -> bool) -> u64 {
        let mut left = 0;
        self.each(|index, writer| {
            for slot in self.slots(index) {
                let seen = slot.load();
                if seen.tag != 0 && leaves(&seen) && slot.lock(seen.name()).is_some() {
                    self.free(index, writer, slot);
                    left += 1;
                }
            }
        });
        self.give_up(left);
        left
    }

    /// Calls `visit` with fingerprint, hint and word of every entry, a shard at a time. No mutex is held while `visit`
    /// runs, and none longer than it takes to copy a shard; meanwhile only new keys of that shard wait.
    pub(crate) fn visit(&self, mut visit: impl FnMut(u64, Hint, u64)) {
        let mut copied = Vec::new();
        for shard in 0..SHARDS {
            let writer = lock(&self.shards[shard].writer);
            copied.reserve(writer.len);
            for slot in self.slots(shard) {
                let name = slot.load().name();
                if name != 0 {
                    copied.extend(slot.apply(name, || true, |content| (content, None)));
                }
            }
            drop(writer);
            for content in copied.drain(..) {
                let place = Place { shard, name: content.name() };
                visit(place.fingerprint(), content.hint(), content.word);
            }
        }
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests;
