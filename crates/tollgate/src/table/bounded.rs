//! The bounded table: memory for a number of keys that is fixed when it is made.
//!
//! A key has two buckets of four slots. It lives in the first if there is room, else in the second;
//! if there is none either, a neighbour moves to its other bucket. An idle slot is room. If all of
//! this fails, the table is *saturated* for this key, and its owner has declared what happens then.
//!
//! With buckets for 1.5 times the keys (24 bytes a key) that happens to fewer than one key in a
//! million (`tests::the_share_of_keys_without_room`).
//!
//! The two buckets of a tag add up to a number that the tag alone gives, so either can be found from
//! the other without the fingerprint.

use super::{
    Base, Miss, Room, Who,
    bucket::{Bucket, Held, SLOTS, Seen, TAG},
    class::Class,
};
use crate::{
    Tick,
    algorithm::{Entry, Idle},
    limiter::backoff::Backoff,
    sync::Arc,
};

/// Slots for each key that the table is made for.
const SPARE: (u64, u64) = (3, 2);

#[derive(Debug)]
pub(crate) struct Bounded {
    base: Arc<Base>,
    buckets: Box<[Bucket]>,
}

/// Where a key may live.
#[derive(Clone, Copy, Debug)]
struct Place {
    tag: u64,
    first: usize,
    second: usize,
}

impl Bounded {
    pub(super) fn new(base: Arc<Base>, keys: u64) -> Self {
        let buckets = (keys.saturating_mul(SPARE.0) / SPARE.1).div_ceil(SLOTS as u64).max(1);
        let buckets = std::iter::repeat_with(Bucket::default).take(buckets as usize).collect();
        Self { base, buckets }
    }

    /// OVERFLOW: the product's upper half is below the number of buckets.
    fn scaled(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize
    }

    fn place(&self, fingerprint: u64) -> Place {
        let tag = (fingerprint & TAG).max(1);
        let first = self.scaled(fingerprint);
        Place { tag, first, second: self.other(tag, first) }
    }

    /// Returns the other bucket of a tag that has one in `bucket`.
    fn other(&self, tag: u64, bucket: usize) -> usize {
        let sum = self.scaled(tag.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if sum >= bucket { sum - bucket } else { sum + self.buckets.len() - bucket }
    }

    /// The buckets of a key, for whoever locks several keys at once.
    pub(crate) fn buckets_of(&self, fingerprint: u64) -> [&Bucket; 2] {
        let Place { first, second, .. } = self.place(fingerprint);
        [&self.buckets[first], &self.buckets[second]]
    }

    /// Returns a bucket that has the key, or both without it, as of one moment.
    #[inline]
    fn look(&self, place: Place) -> (Seen, Option<(usize, usize)>) {
        let mut backoff = Backoff::new();
        loop {
            let first = self.buckets[place.first].read();
            if let Some(slot) = first.find(place.tag) {
                return (first, Some((place.first, slot)));
            }
            let second = self.buckets[place.second].read();
            if let Some(slot) = second.find(place.tag) {
                return (second, Some((place.second, slot)));
            }
            // It may have moved from the second to the first in between.
            if self.buckets[place.first].is_still(&first) {
                return (first, None);
            }
            backoff.wait();
        }
    }

    /// Applies `step` to the state of a key, atomically. It may run several times; the last run
    /// counts.
    #[inline]
    pub(super) fn update<R>(
        &self,
        who: &Who,
        mut step: impl FnMut(&mut Entry<'_>) -> R,
    ) -> Result<R, Miss> {
        let place = self.place(who.fingerprint);
        let mut backoff = Backoff::new();
        loop {
            let (seen, Some((index, slot))) = self.look(place) else {
                let mut held = self.lock_both(place);
                return self.update_held(who, held.pair(), step);
            };
            let bucket = &self.buckets[index];
            let (class, before) = (seen.class(slot), seen.state(slot));
            let mut word = before;
            if class != who.class {
                word = self.base.classes.carried((class, who.class), before, who.class_since);
            }
            let rule = self.base.classes.rule(who.class);
            let result = step(&mut Entry::Word(&rule, &mut word));
            if word == before && class == who.class {
                // The rule was read after the copy was made: see that it still belongs to it.
                if bucket.is_still(&seen) {
                    return self.base.if_current(who, result);
                }
            } else if let Some(mut held) = bucket.lock_seen(&seen) {
                let result = self.base.if_current(who, result)?;
                held.put(slot, (place.tag, who.class, word));
                return Ok(result);
            }
            backoff.wait();
        }
    }

    /// Applies `look` to a copy of the state of a key.
    pub(super) fn read<R>(
        &self,
        who: &Who,
        look: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> Result<R, Miss> {
        let (seen, found) = self.look(self.place(who.fingerprint));
        let word = found.map_or(0, |(_, slot)| {
            let (class, state) = (seen.class(slot), seen.state(slot));
            self.base.classes.carried((class, who.class), state, who.class_since)
        });
        let (mut word, rule) = (word, self.base.classes.rule(who.class));
        let result = look(&mut Entry::Word(&rule, &mut word));
        self.base.if_current(who, result)
    }

    /// Locks both buckets of a key, the one with the lower address first.
    fn lock_both(&self, place: Place) -> HeldBoth<'_> {
        let Place { first, second, .. } = place;
        let low = self.buckets[first.min(second)].lock();
        let high = (first != second).then(|| self.buckets[first.max(second)].lock());
        match high {
            Some(high) if second < first => HeldBoth { first: high, second: Some(low) },
            high => HeldBoth { first: low, second: high },
        }
    }

    /// [`update`](Self::update) with the key's buckets locked.
    pub(crate) fn update_held<'a, R>(
        &self,
        who: &Who,
        mut pair: Pair<'_, 'a>,
        mut step: impl FnMut(&mut Entry<'_>) -> R,
    ) -> Result<R, Miss> {
        let Base { classes, .. } = &*self.base;
        let tag = self.place(who.fingerprint).tag;
        self.base.if_current(who, ())?;
        let rule = classes.rule(who.class);
        if let Some((held, slot)) = pair.find(tag) {
            let from = held.seen().class(slot);
            let mut word =
                classes.carried((from, who.class), held.seen().state(slot), who.class_since);
            let result = step(&mut Entry::Word(&rule, &mut word));
            held.put(slot, (tag, who.class, word));
            return Ok(result);
        }
        let room = self.make_room(who, &mut pair);
        if room.is_none() && self.base.room != Room::Evict {
            return Err(Miss::Full);
        }
        let mut word = 0;
        let result = step(&mut Entry::Word(&rule, &mut word));
        if !rule.is_idle(&word, who.now) {
            let (held, slot) = match room {
                Some(Free { in_second, slot }) => (pair.side(in_second), slot),
                None => self.evict(who.now, &mut pair),
            };
            if held.seen().tag(slot) != 0 {
                self.base.tally.forgot(1);
            }
            held.put(slot, (tag, who.class, word));
        }
        Ok(result)
    }

    /// Finds or makes room in one of two locked buckets.
    fn make_room(&self, who: &Who, pair: &mut Pair<'_, '_>) -> Option<Free> {
        let is_idle = |class, state: u64| self.base.is_idle(class, state, who.now);
        let sides = if pair.second.is_some() { [false, true].as_slice() } else { &[false] };
        let free = |pair: &mut Pair<'_, '_>, in_second: bool| {
            let slot = pair.side(in_second).seen().free(is_idle)?;
            Some(Free { in_second, slot })
        };
        if let Some(found) = sides.iter().find_map(|side| free(pair, *side)) {
            return Some(found);
        }
        // Both are full of live keys: one of those may have room in its other bucket.
        for in_second in sides.iter().copied() {
            let held = pair.side(in_second);
            let here = self.index_of(held);
            for slot in 0..SLOTS {
                let (tag, class) = (held.seen().tag(slot), held.seen().class(slot));
                let other = self.other(tag, here);
                // Only tried: its lock may be held by somebody who waits for ours, or by ourselves.
                let Some(mut there) = self.buckets[other].try_lock() else { continue };
                if let Some(free) = there.seen().free(is_idle) {
                    there.put(free, (tag, class, held.seen().state(slot)));
                    held.clear(slot);
                    return Some(Free { in_second, slot });
                }
            }
        }
        None
    }

    fn index_of(&self, held: &Held<'_>) -> usize {
        let base = self.buckets.as_ptr() as usize;
        (held.address() - base) / size_of::<Bucket>()
    }

    /// Chooses the entry nearest to full.
    fn evict<'p, 'a>(&self, now: Tick, pair: &'p mut Pair<'_, 'a>) -> (&'p mut Held<'a>, usize) {
        let lightest = |seen: &Seen| {
            let weight = |slot: &usize| self.base.burden(seen.class(*slot), seen.state(*slot), now);
            (0..SLOTS).map(|slot| (weight(&slot), slot)).min().unwrap_or_default()
        };
        let (weight, slot) = lightest(pair.first.seen());
        let second = pair.second.as_ref().map(|held| lightest(held.seen()));
        self.base.tally.evicted();
        match second.filter(|(other, _)| *other < weight) {
            Some((_, slot)) => (pair.side(true), slot),
            None => (pair.side(false), slot),
        }
    }

    /// Forgets a key.
    pub(super) fn remove(&self, fingerprint: u64) {
        let place = self.place(fingerprint);
        let mut held = self.lock_both(place);
        if let Some((held, slot)) = held.pair().find(place.tag) {
            held.clear(slot);
        }
    }

    /// Calls `visit` with every used slot, locked, one bucket at a time.
    fn each(&self, mut visit: impl FnMut(&mut Held<'_>, usize)) {
        for bucket in &self.buckets {
            // Most buckets of an empty table need no lock.
            if bucket.read().used().next().is_none() {
                continue;
            }
            let mut held = bucket.lock();
            for slot in held.seen().used() {
                visit(&mut held, slot);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.read().used().count()).sum()
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    pub(super) fn clear(&self) {
        self.each(|held, slot| held.clear(slot));
    }

    /// Empties idle slots. The memory stays.
    pub(super) fn shrink(&self, now: Tick) {
        self.each(|held, slot| {
            if self.base.is_idle(held.seen().class(slot), held.seen().state(slot), now) {
                held.clear(slot);
                self.base.tally.forgot(1);
            }
        });
    }

    /// Carries the slots of retired classes over to their heirs.
    pub(super) fn carry(&self, old: Class, new: Class, now: Tick) {
        self.each(|held, slot| {
            let (tag, class) = (held.seen().tag(slot), held.seen().class(slot));
            if class == old {
                let state = held.seen().state(slot);
                let word = self.base.classes.carried((old, new), state, now);
                held.put(slot, (tag, new, word));
            }
        });
    }

    /// Calls `visit` with the class and the state of every used slot; no lock is taken.
    pub(super) fn visit(&self, mut visit: impl FnMut(Stored)) {
        for (index, bucket) in self.buckets.iter().enumerate() {
            let seen = bucket.read();
            for slot in seen.used() {
                let (tag, class, state) = (seen.tag(slot), seen.class(slot), seen.state(slot));
                visit(Stored { tag, index: index as u64, class, state });
            }
        }
    }
}

/// A slot with where it was found.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "snapshots read all of it, and follow")]
pub(super) struct Stored {
    pub(super) tag: u64,
    pub(super) index: u64,
    pub(super) class: Class,
    pub(super) state: u64,
}

/// Room for a key.
#[derive(Clone, Copy, Debug)]
struct Free {
    in_second: bool,
    slot: usize,
}

/// Both buckets of a key, which may be one.
#[derive(Debug)]
struct HeldBoth<'a> {
    first: Held<'a>,
    second: Option<Held<'a>>,
}

impl<'a> HeldBoth<'a> {
    fn pair(&mut self) -> Pair<'_, 'a> {
        Pair { first: &mut self.first, second: self.second.as_mut() }
    }
}

/// The locked buckets of a key, in the order in which it prefers them.
#[derive(Debug)]
pub(crate) struct Pair<'p, 'a> {
    pub(crate) first: &'p mut Held<'a>,
    pub(crate) second: Option<&'p mut Held<'a>>,
}

impl<'p, 'a> Pair<'p, 'a> {
    fn side(&mut self, in_second: bool) -> &mut Held<'a> {
        match &mut self.second {
            Some(second) if in_second => second,
            _ => self.first,
        }
    }

    fn find(&mut self, tag: u64) -> Option<(&mut Held<'a>, usize)> {
        if let Some(slot) = self.first.seen().find(tag) {
            return Some((self.first, slot));
        }
        let second = self.second.as_mut()?;
        let slot = second.seen().find(tag)?;
        Some((second, slot))
    }
}
