//! The growing table: as many keys as there are, or as many as allowed, spread over locked shards.
//!
//! An entry that is idle (full again) equals an absent one, so it may be removed at any time without
//! anybody noticing: each new key looks at a few slots of its shard, and a shard that grows leaves
//! its idle entries behind. Nobody sweeps the whole table.

mod together;

pub(crate) use together::Ask;

use super::{
    Base, Full, Hint, Room, Who,
    slots::{HINT_BITS, Slot, Slots},
};
use crate::{
    Decision, Tick,
    algorithm::{Entry, Gcra, Rule, word_time},
    sync::{
        Arc, AtomicU64, Mutex, MutexGuard,
        Ordering::{AcqRel, Relaxed},
        Padded, lock,
    },
};

/// Shards at most, a power of two. A shard of a table of ten million keys then holds ten thousand,
/// and that is what one rebuild holds up.
#[cfg(not(tollgate_loom))]
const SHARDS_MAX: u64 = 1024;
#[cfg(tollgate_loom)]
const SHARDS_MAX: u64 = 2;

/// Shards at least: their number and the tag must be the whole fingerprint.
#[cfg(not(tollgate_loom))]
const SHARDS_MIN: u64 = 256;
#[cfg(tollgate_loom)]
const SHARDS_MIN: u64 = 2;

/// Keys of a capped table for each of its shards.
const KEYS_PER_SHARD: u64 = 256;

/// Slots that a new key looks at for idle ones. More than one, so that idle entries leave faster
/// than new ones come.
const SWEEP: usize = 4;

/// Slots of a shard that a new key looks at when the table is full, and entries in all, in as many
/// shards as that takes.
const SWEEP_FULL: usize = 16;
const ASKED: usize = 64;

/// Entries from which the one nearest to full is chosen.
const CANDIDATES: usize = 16;

/// Fingerprint bits that a tag does not keep: its eight lowest are the hint.
const SHARD_BITS: u32 = 10;

#[derive(Debug)]
pub(crate) struct Growing {
    base: Arc<Base>,
    shards: Box<[Padded<Mutex<Shard>>]>,
    cap: Option<u64>,
    /// Entries; counted only if there is a cap.
    len: AtomicU64,
    /// Where the search for room in other shards goes on.
    hand: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct Shard {
    slots: Slots,
}

impl Growing {
    pub(super) fn new(base: Arc<Base>, cap: Option<u64>) -> Self {
        let wanted = cap.map_or(SHARDS_MAX, |cap| cap / KEYS_PER_SHARD);
        let count = wanted.clamp(SHARDS_MIN, SHARDS_MAX).next_power_of_two() as usize;
        let shard = || Padded(Mutex::new(Shard::default()));
        let shards = std::iter::repeat_with(shard).take(count).collect();
        Self { base, shards, cap, len: AtomicU64::new(0), hand: AtomicU64::new(0) }
    }

    /// The upper ten bits choose the shard. With the tag, they are the whole fingerprint.
    #[inline]
    fn index(&self, fingerprint: u64) -> usize {
        // OVERFLOW: ten bits.
        (fingerprint >> (u64::BITS - SHARD_BITS)) as usize & (self.shards.len() - 1)
    }

    /// Returns the fingerprint with what chose the shard moved out, and never zero.
    #[inline]
    fn tag(fingerprint: u64) -> u64 {
        // The shard's lowest eight bits make room for the hint.
        let tag = fingerprint.rotate_left(SHARD_BITS) >> HINT_BITS << HINT_BITS;
        tag.max(1 << HINT_BITS)
    }

    /// The shard of a key, for whoever locks several keys at once.
    #[inline]
    pub(crate) fn shard_of(&self, fingerprint: u64) -> &Mutex<Shard> {
        &self.shards[self.index(fingerprint)].0
    }

    /// The short way of a take: the key is there, or there is room for it. Inlined into the caller, so that only what is
    /// asked of the decision is ever worked out.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    pub(super) fn take(
        &self,
        (fingerprint, now): (u64, Tick),
        gcra: &Gcra,
        cost: u64,
    ) -> Option<Decision> {
        let mut shard = lock(self.shard_of(fingerprint));
        let Some(slot) = shard.slots.find_mut(Self::tag(fingerprint)) else {
            return self.take_new(&mut shard, (fingerprint, now), gcra, cost);
        };
        let word = slot.word_of(gcra)?;
        let (decision, next) = gcra.decide_at(word, now, gcra.position(now), cost);
        slot.put(next);
        Some(decision)
    }

    /// [`take`](Self::take) from a key that is not there, so idle. Many are at each request: they come
    /// seldom, and have left meanwhile.
    #[inline(never)]
    fn take_new(
        &self,
        shard: &mut Shard,
        (fingerprint, now): (u64, Tick),
        gcra: &Gcra,
        cost: u64,
    ) -> Option<Decision> {
        let (decision, next) = gcra.decide_at(0, now, gcra.position(now), cost);
        if word_time::is_idle(next, now) {
            return Some(decision);
        }
        let swept = shard.slots.sweep(SWEEP, now);
        // It takes the place of one of them, if there are any.
        if swept > 0 {
            self.base.tally.forgot(swept as u64);
            self.give_up(swept as u64 - 1);
        } else if !self.cap.is_none_or(|cap| self.count_one(cap)) {
            return None;
        }
        let hint = Rule::Gcra(*gcra).hint(next, now);
        let slot = Slot::new(Self::tag(fingerprint), hint, next);
        self.removed(shard.slots.insert(slot, now));
        Some(decision)
    }

    /// Applies `step` to the state of a key, atomically. A key that is not there is idle.
    #[inline]
    pub(super) fn update<R>(
        &self,
        who: &Who,
        rule: &Rule,
        step: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> Result<R, Full> {
        self.update_held(who, rule, &mut lock(self.shard_of(who.fingerprint)), step)
    }

    /// [`update`](Self::update) with the key's shard locked.
    #[inline]
    pub(crate) fn update_held<R>(
        &self,
        who: &Who,
        rule: &Rule,
        shard: &mut Shard,
        step: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> Result<R, Full> {
        let tag = Self::tag(who.fingerprint);
        if let Ok(index) = shard.slots.find(tag) {
            let (result, next) = who.step(rule, shard.slots.get(index).state(), step);
            if let Some(word) = next {
                shard.slots.set(index, who.slot(rule, tag, word));
            }
            return Ok(result);
        }
        let has_room = self.make_room(shard, who.now);
        if !has_room && *rule != Rule::Unlimited && self.base.room != Room::Evict {
            return Err(Full);
        }
        let (result, next) = who.step(rule, Slot::default().state(), step);
        match next.filter(|word| !word_time::is_idle(*word, who.now)) {
            None => self.give_up_room(has_room),
            Some(word) => {
                if !has_room {
                    self.make_up(shard, who.now);
                    self.evict(shard, who.now);
                }
                self.insert(shard, who.slot(rule, tag, word), who.now);
            }
        }
        Ok(result)
    }

    /// Takes in a key that was counted.
    fn insert(&self, shard: &mut Shard, slot: Slot, now: Tick) {
        let swept = shard.slots.sweep(SWEEP, now);
        self.removed(swept + shard.slots.insert(slot, now));
    }

    /// Counts one more entry if the cap allows it, or idle ones can be found to make room.
    fn make_room(&self, shard: &mut Shard, now: Tick) -> bool {
        let Some(cap) = self.cap else { return true };
        if self.count_one(cap) {
            return true;
        }
        let mut asked = shard.slots.len().min(SWEEP_FULL);
        self.removed(shard.slots.sweep(SWEEP_FULL, now));
        for _ in 0..self.shards.len() {
            if self.count_one(cap) {
                return true;
            }
            if asked >= ASKED {
                return false;
            }
            if let Some(mut other) = self.next_shard() {
                asked += other.slots.len().min(SWEEP_FULL);
                self.removed(other.slots.sweep(SWEEP_FULL, now));
            }
        }
        self.count_one(cap)
    }

    fn count_one(&self, cap: u64) -> bool {
        self.count_more(1, cap)
    }

    fn count_more(&self, count: u64, cap: u64) -> bool {
        let more = |len: u64| len.checked_add(count).filter(|len| *len <= cap);
        // ORDERING: Relaxed. A count that guards nothing but itself.
        self.len.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn give_up_room(&self, has_room: bool) {
        self.give_up(u64::from(has_room));
    }

    /// Gives up the room that was counted for so many.
    fn give_up(&self, count: u64) {
        if count > 0 && self.cap.is_some() {
            // ORDERING: Relaxed, as in `count_more`.
            self.len.fetch_sub(count, Relaxed);
        }
    }

    /// Notes that idle entries were removed.
    fn removed(&self, count: usize) {
        if count > 0 {
            self.base.tally.forgot(count as u64);
            if self.cap.is_some() {
                // ORDERING: Relaxed, as in `count_more`.
                self.len.fetch_sub(count as u64, Relaxed);
            }
        }
    }

    /// Locks another shard, if its lock is free: only tried, because its owner may wait for ours.
    fn next_shard(&self) -> Option<MutexGuard<'_, Shard>> {
        // ORDERING: AcqRel is more than a hint needs; it keeps two callers from asking one shard.
        let index = self.hand.fetch_add(1, AcqRel) as usize & (self.shards.len() - 1);
        self.shards[index].0.try_lock().ok()
    }

    /// Removes the entry nearest to full of some, for a new one that takes its place in the count.
    fn evict(&self, shard: &mut Shard, now: Tick) {
        let mut best = shard.slots.lightest(CANDIDATES, now);
        let (mut seen, mut elsewhere) = (best.map_or(0, |best| best.seen), None);
        for _ in 0..2 * self.shards.len() {
            if seen >= CANDIDATES {
                break;
            }
            let Some(mut other) = self.next_shard() else { continue };
            let Some(found) = other.slots.lightest(CANDIDATES - seen, now) else { continue };
            seen += found.seen;
            if best.is_none_or(|best| found.weight < best.weight) {
                (best, elsewhere) = (Some(found), Some(other));
            }
        }
        match best.map_or(0, |best| best.weight) {
            0 => self.base.tally.forgot(1),
            _ => self.base.tally.evicted(),
        }
        match (best, &mut elsewhere) {
            (Some(best), Some(other)) => other.slots.remove(best.index),
            (Some(best), None) => shard.slots.remove(best.index),
            // Nobody to be found: all others are being worked on. The count says what is there, and
            // who comes next makes up for it.
            // ORDERING: Relaxed, as in `count_more`.
            (None, _) => drop(self.len.fetch_add(1, Relaxed)),
        }
    }

    /// Removes one more if the table has more than its cap.
    fn make_up(&self, shard: &mut Shard, now: Tick) {
        let over = |len| self.cap.is_some_and(|cap| len > cap).then(|| len - 1);
        // ORDERING: Relaxed, as in `count_more`.
        if self.len.fetch_update(Relaxed, Relaxed, over).is_ok() {
            self.evict(shard, now);
        }
    }

    /// Returns the slot of a key; an empty one if it is not there.
    pub(super) fn read(&self, fingerprint: u64) -> Slot {
        let shard = lock(self.shard_of(fingerprint));
        let found = shard.slots.find(Self::tag(fingerprint));
        found.map_or_else(|_| Slot::default(), |index| shard.slots.get(index))
    }

    /// Puts a word back. Tells whether there was room.
    pub(super) fn put_back(&self, fingerprint: u64, (hint, word): (Hint, u64), now: Tick) -> bool {
        let (mut shard, tag) = (lock(self.shard_of(fingerprint)), Self::tag(fingerprint));
        let slot = Slot::new(tag, hint, word);
        if let Ok(index) = shard.slots.find(tag) {
            shard.slots.set(index, slot);
            return true;
        }
        let has_room = self.make_room(&mut shard, now);
        if !has_room && self.base.room != Room::Evict {
            return false;
        }
        if !has_room {
            self.evict(&mut shard, now);
        }
        self.insert(&mut shard, slot, now);
        true
    }

    /// Forgets a key.
    pub(super) fn remove(&self, fingerprint: u64) {
        let mut shard = lock(self.shard_of(fingerprint));
        if let Ok(index) = shard.slots.find(Self::tag(fingerprint)) {
            shard.slots.remove(index);
            self.give_up_room(true);
        }
    }

    /// Calls `visit` with each shard in turn; one lock at a time.
    fn each(&self, mut visit: impl FnMut(&mut Shard)) {
        self.shards.iter().for_each(|shard| visit(&mut lock(&shard.0)));
    }

    pub(super) fn len(&self) -> usize {
        let mut len = 0;
        self.each(|shard| len += shard.slots.len());
        len
    }

    /// Returns the memory of the slots, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let mut slots = 0;
        self.each(|shard| slots += shard.slots.capacity());
        slots * size_of::<Slot>()
    }

    pub(super) fn clear(&self) {
        self.each(|shard| {
            let len = std::mem::take(&mut shard.slots).len() as u64;
            if self.cap.is_some() {
                // ORDERING: Relaxed, as in `count_more`.
                self.len.fetch_sub(len, Relaxed);
            }
        });
    }

    pub(super) fn shrink(&self, now: Tick) {
        self.each(|shard| self.removed(shard.slots.shrink(now)));
    }

    /// Calls `visit` with fingerprint and slot of every entry, some at a time: no lock is
    /// held while `visit` runs, nor longer than it takes to copy a few dozen slots.
    pub(super) fn visit(&self, mut visit: impl FnMut(u64, &Slot)) {
        const PART: usize = 64;
        let mut copied = Vec::with_capacity(2 * PART);
        for (index, shard) in self.shards.iter().enumerate() {
            let parts = (lock(&shard.0).slots.capacity() / PART).max(1) as u64;
            // Ranges of tags, not of slots: the shard may be rebuilt between two of them.
            let width = u64::MAX / parts;
            for part in 0..parts {
                let last = if part + 1 == parts { u64::MAX } else { (part + 1) * width - 1 };
                lock(&shard.0).slots.each_of(part * width..=last, |slot| copied.push(*slot));
                for slot in copied.drain(..) {
                    visit(Self::fingerprint(index, &slot), &slot);
                }
            }
        }
    }

    /// The inverse of [`tag`](Self::tag), as far as the table needs it: it leads to this slot.
    fn fingerprint(index: usize, slot: &Slot) -> u64 {
        let whole = slot.tag().rotate_right(SHARD_BITS);
        // The bits that the hint took are the shard's lowest eight.
        let shard = (index as u64) << (u64::BITS - SHARD_BITS);
        whole | shard
    }
}
