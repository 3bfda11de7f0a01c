//! The growing table: as many keys as there are, or as many as allowed, spread over locked shards.
//!
//! An entry that is idle (full again) equals an absent one, so it may be removed at any time without
//! anybody noticing: each new key looks at a few slots of its shard, and a shard that grows leaves
//! its idle entries behind. Nobody sweeps the whole table.

mod together;

pub(crate) use together::Ask;

use super::{
    Base, Miss, Room, Who,
    class::{ByGcra, Class},
    slots::{Slot, Slots, TAG_BITS},
};
use crate::{
    Decision, Tick,
    algorithm::{Entry, Idle, Rule},
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

/// Fingerprint bits that a tag does not keep: its eight lowest are the class.
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
        // The shard's lowest eight bits make room for the class.
        let tag = fingerprint.rotate_left(SHARD_BITS) >> TAG_BITS << TAG_BITS;
        tag.max(1 << TAG_BITS)
    }

    /// The shard of a key, for whoever locks several keys at once.
    #[inline]
    pub(crate) fn shard_of(&self, fingerprint: u64) -> &Mutex<Shard> {
        &self.shards[self.index(fingerprint)].0
    }

    fn is_idle(&self, now: Tick) -> impl Fn(&Slot) -> bool {
        move |slot| self.base.is_idle(slot.class(), slot.state(), now)
    }

    /// The short way of a take: the key is there, or there is room for it. Inlined into the caller, so that only what is
    /// asked of the decision is ever worked out.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    pub(super) fn take(&self, who: &Who, class: &ByGcra<'_>, cost: u64) -> Option<Decision> {
        let (tag, gcra) = (Self::tag(who.fingerprint), &class.gcra);
        let mut shard = lock(self.shard_of(who.fingerprint));
        let Some(slot) = shard.slots.find_of(tag, who.class) else {
            return self.take_new(&mut shard, who, class, cost);
        };
        let tat = slot.state_of(who.class)?;
        if !class.is_current(who.stamp) {
            return None;
        }
        let (decision, next) = gcra.decide_at(tat, who.now, gcra.position(who.now), cost);
        slot.put(who.class, next);
        Some(decision)
    }

    /// [`take`](Self::take) from a key that is not there, so idle. Many are at each request: they come
    /// seldom, and have left meanwhile.
    #[inline(never)]
    fn take_new(
        &self,
        shard: &mut Shard,
        who: &Who,
        class: &ByGcra<'_>,
        cost: u64,
    ) -> Option<Decision> {
        let (now, tag, gcra) = (who.now, Self::tag(who.fingerprint), &class.gcra);
        // It may be there with another class.
        if shard.slots.find(tag).is_ok() || !class.is_current(who.stamp) {
            return None;
        }
        let (decision, next) = gcra.decide_at(0, now, gcra.position(now), cost);
        if gcra.is_idle(&next, now) {
            return Some(decision);
        }
        let is_idle = |slot: &Slot| match slot.class() == who.class {
            true => gcra.is_idle(&slot.state(), now),
            false => self.base.is_idle(slot.class(), slot.state(), now),
        };
        let swept = shard.slots.sweep(SWEEP, is_idle);
        // It takes the place of one of them, if there are any.
        if swept > 0 {
            self.base.tally.forgot(swept as u64);
            self.give_up(swept as u64 - 1);
        } else if !self.cap.is_none_or(|cap| self.count_one(cap)) {
            return None;
        }
        self.removed(shard.slots.insert(Slot::new(tag, who.class, next), is_idle));
        Some(decision)
    }

    /// Applies `step` to the state of a key, atomically. A key that is not there is idle.
    #[inline]
    pub(super) fn update<R>(
        &self,
        who: &Who,
        step: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> Result<R, Miss> {
        self.update_held(who, &mut lock(self.shard_of(who.fingerprint)), step)
    }

    /// [`update`](Self::update) with the key's shard locked.
    #[inline]
    pub(crate) fn update_held<R>(
        &self,
        who: &Who,
        shard: &mut Shard,
        step: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> Result<R, Miss> {
        self.base.if_current(who, ())?;
        let tag = Self::tag(who.fingerprint);
        let rule = self.base.classes.rule(who.class);
        if let Ok(index) = shard.slots.find(tag) {
            let slot = shard.slots.get(index);
            let mut word = slot.state();
            if slot.class() != who.class {
                word = self.base.classes.carried((slot.class(), who.class), word, who.class_since);
            }
            let result = step(&mut Entry::Word(&rule, &mut word));
            shard.slots.set(index, Slot::new(tag, who.class, word));
            return Ok(result);
        }
        let has_room = self.make_room(shard, who);
        if !has_room && rule != Rule::Unlimited && self.base.room != Room::Evict {
            return Err(Miss::Full);
        }
        let mut word = 0;
        let result = step(&mut Entry::Word(&rule, &mut word));
        if rule.is_idle(&word, who.now) {
            self.give_up_room(has_room);
        } else {
            if !has_room {
                self.make_up(shard, who);
                self.evict(shard, who);
            }
            self.insert(shard, Slot::new(tag, who.class, word), who.now);
        }
        Ok(result)
    }

    /// Takes in a key that was counted.
    fn insert(&self, shard: &mut Shard, slot: Slot, now: Tick) {
        let is_idle = self.is_idle(now);
        let swept = shard.slots.sweep(SWEEP, &is_idle);
        self.removed(swept + shard.slots.insert(slot, &is_idle));
    }

    /// Counts one more entry if the cap allows it, or idle ones can be found to make room.
    fn make_room(&self, shard: &mut Shard, who: &Who) -> bool {
        let Some(cap) = self.cap else { return true };
        if self.count_one(cap) {
            return true;
        }
        let is_idle = self.is_idle(who.now);
        let mut asked = shard.slots.len().min(SWEEP_FULL);
        self.removed(shard.slots.sweep(SWEEP_FULL, &is_idle));
        for _ in 0..self.shards.len() {
            if self.count_one(cap) {
                return true;
            }
            if asked >= ASKED {
                return false;
            }
            if let Some(mut other) = self.next_shard() {
                asked += other.slots.len().min(SWEEP_FULL);
                self.removed(other.slots.sweep(SWEEP_FULL, &is_idle));
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
    fn evict(&self, shard: &mut Shard, who: &Who) {
        let weight = |slot: &Slot| self.base.burden(slot.class(), slot.state(), who.now);
        let mut best = shard.slots.lightest(CANDIDATES, weight);
        let (mut seen, mut elsewhere) = (best.map_or(0, |best| best.seen), None);
        for _ in 0..2 * self.shards.len() {
            if seen >= CANDIDATES {
                break;
            }
            let Some(mut other) = self.next_shard() else { continue };
            let Some(found) = other.slots.lightest(CANDIDATES - seen, weight) else { continue };
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
    fn make_up(&self, shard: &mut Shard, who: &Who) {
        let over = |len| self.cap.is_some_and(|cap| len > cap).then(|| len - 1);
        // ORDERING: Relaxed, as in `count_more`.
        if self.len.fetch_update(Relaxed, Relaxed, over).is_ok() {
            self.evict(shard, who);
        }
    }

    /// Applies `look` to a copy of the state of a key.
    pub(super) fn read<R>(
        &self,
        who: &Who,
        look: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> Result<R, Miss> {
        self.read_held(who, &lock(self.shard_of(who.fingerprint)), look)
    }

    /// [`read`](Self::read) with the key's shard locked.
    pub(crate) fn read_held<R>(
        &self,
        who: &Who,
        shard: &Shard,
        look: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> Result<R, Miss> {
        self.base.if_current(who, ())?;
        let mut word = shard.slots.find(Self::tag(who.fingerprint)).map_or(0, |index| {
            let slot = shard.slots.get(index);
            self.base.classes.carried((slot.class(), who.class), slot.state(), who.class_since)
        });
        let rule = self.base.classes.rule(who.class);
        Ok(look(&mut Entry::Word(&rule, &mut word)))
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
        self.each(|shard| self.removed(shard.slots.shrink(self.is_idle(now))));
    }

    /// Carries the slots of a retired class over to its heir.
    pub(super) fn carry(&self, old: Class, new: Class, now: Tick) {
        self.each(|shard| {
            shard.slots.map(|slot| match slot.class() {
                class if class == old => {
                    let word = self.base.classes.carried((old, new), slot.state(), now);
                    Slot::new(slot.tag(), new, word)
                }
                _ => *slot,
            });
        });
    }

    /// Calls `visit` with fingerprint, class and state of every entry, some at a time: no lock is
    /// held while `visit` runs, nor longer than it takes to copy a few dozen slots.
    pub(super) fn visit(&self, mut visit: impl FnMut(u64, Class, u64)) {
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
                    visit(Self::fingerprint(index, &slot), slot.class(), slot.state());
                }
            }
        }
    }

    /// The inverse of [`tag`](Self::tag), as far as the table needs it: it leads to this slot.
    fn fingerprint(index: usize, slot: &Slot) -> u64 {
        let whole = slot.tag().rotate_right(SHARD_BITS);
        // The bits that the class took are the shard's lowest eight.
        let shard = (index as u64) << (u64::BITS - SHARD_BITS);
        whole | shard
    }
}
