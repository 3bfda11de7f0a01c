//! The bounded table: memory for a number of keys that is fixed when it is made.
//!
//! A key has two buckets of four slots. It lives in the first if there is room, else in the second;
//! if there is none either, a neighbour moves to its other bucket. An idle slot is room. If all of
//! this fails, the table is *saturated* for this key, and its owner has declared what happens then.
//!
//! With buckets for 1.5 times the keys (24 bytes a key) that happens to fewer than one key in ten
//! thousand (`tests::the_share_of_keys_without_room`).
//!
//! The two buckets of a tag add up to a number that the tag alone gives, so either can be found from
//! the other without the fingerprint.

mod visit;

use super::{
    Base, Full, Room, Who,
    bucket::{Bucket, Held, SLOTS, Stripe},
    slots::{HINT_BITS, Slot},
};
use crate::{
    Decision, Tick,
    algorithm::{Entry, Gcra, Rule, word_time},
    limiter::backoff::Backoff,
    sync::{
        Arc, AtomicU64, Mutex,
        Ordering::{Relaxed, SeqCst},
        fence,
    },
};

/// Slots for each key that the table is made for.
const SPARE: (u64, u64) = (3, 2);

/// Stripes at most, a power of two: 32 KiB, which stay in the caches.
#[cfg(not(tollgate_loom))]
const STRIPES_MAX: usize = 4096;
#[cfg(tollgate_loom)]
const STRIPES_MAX: usize = 2;

#[derive(Debug)]
pub(crate) struct Bounded {
    base: Arc<Base>,
    buckets: Box<[Bucket]>,
    stripes: Box<[Stripe]>,
    /// How many are visiting all slots, and what moves meanwhile: it may move behind their backs.
    visitors: AtomicU64,
    moved: Mutex<Vec<(usize, u64)>>,
}

/// Where a key may live.
#[derive(Clone, Copy, Debug)]
struct Place {
    tag: u64,
    first: usize,
    second: usize,
}

/// A slot of a bucket.
#[derive(Clone, Copy, Debug)]
struct Found {
    bucket: usize,
    index: usize,
    slot: Slot,
}

impl Bounded {
    pub(super) fn new(base: Arc<Base>, keys: u64) -> Self {
        let count = (keys.saturating_mul(SPARE.0) / SPARE.1).div_ceil(SLOTS as u64).max(1) as usize;
        let stripes = count.next_power_of_two().min(STRIPES_MAX);
        let buckets = std::iter::repeat_with(Bucket::default).take(count).collect();
        let stripes = std::iter::repeat_with(Stripe::default).take(stripes).collect();
        Self { base, buckets, stripes, visitors: AtomicU64::new(0), moved: Mutex::default() }
    }

    /// OVERFLOW: the product's upper half is below the number of buckets.
    #[inline]
    fn scaled(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize
    }

    #[inline]
    fn place(&self, fingerprint: u64) -> Place {
        // The upper bits choose the bucket; the lower 56 are the tag, which leaves room for the
        // hint.
        let tag = (fingerprint << HINT_BITS).max(1 << HINT_BITS);
        let first = self.scaled(fingerprint);
        Place { tag, first, second: self.other(tag, first) }
    }

    /// Returns the other bucket of a tag that has one in `bucket`.
    #[inline]
    fn other(&self, tag: u64, bucket: usize) -> usize {
        let sum = self.scaled(tag.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if sum >= bucket { sum - bucket } else { sum + self.buckets.len() - bucket }
    }

    #[inline]
    fn stripe(&self, bucket: usize) -> &Stripe {
        &self.stripes[bucket & (self.stripes.len() - 1)]
    }

    /// The locks of a key, for whoever locks several keys at once.
    pub(crate) fn stripes_of(&self, fingerprint: u64) -> [&Stripe; 2] {
        let Place { first, second, .. } = self.place(fingerprint);
        [self.stripe(first), self.stripe(second)]
    }

    #[inline]
    fn find_in(&self, bucket: usize, tag: u64) -> Option<Found> {
        self.buckets[bucket].find(tag).map(|(index, slot)| Found { bucket, index, slot })
    }

    /// Returns where a key is; both locks are held, or nobody minds.
    #[inline]
    fn find(&self, place: Place) -> Option<Found> {
        self.find_in(place.first, place.tag).or_else(|| self.find_in(place.second, place.tag))
    }

    /// Returns a key's slot, as of one moment; nothing if it is not there.
    #[inline]
    fn copy(&self, place: Place) -> Option<Slot> {
        let (first, second) = (self.stripe(place.first), self.stripe(place.second));
        let mut backoff = Backoff::new();
        loop {
            let versions = (first.version(), second.version());
            let slot = self.find(place).map(|found| found.slot);
            if first.is_still(versions.0) && second.is_still(versions.1) {
                return slot;
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
        rule: &Rule,
        mut step: impl FnMut(&mut Entry<'_>) -> R,
    ) -> Result<R, Full> {
        let place = self.place(who.fingerprint);
        let stripe = self.stripe(place.first);
        if stripe.was_unchanged()
            && let Some(slot) = self.copy(place)
            && let (result, None) = who.step(rule, slot.state(), &mut step)
        {
            return Ok(result);
        }
        // The lock of the bucket that has the slot is enough to change it.
        for bucket in [place.first, place.second] {
            let mut held = self.stripe(bucket).lock();
            if let Some(found) = self.find_in(bucket, place.tag) {
                return Ok(self.apply((who, rule), found, &mut held, step));
            }
        }
        // To put it into either, both are needed.
        let (mut low, mut high) = self.lock_both(place);
        match &mut high {
            Some(high) => self.update_both((who, rule), (&mut low, high), step),
            None => self.update_held(who, rule, &mut low, step),
        }
    }

    /// The short way of a take: the key is there, and nobody is in the way. Inlined into the caller,
    /// so that only what is asked of the decision is ever worked out.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    pub(super) fn take(
        &self,
        (fingerprint, now): (u64, Tick),
        gcra: &Gcra,
        cost: u64,
    ) -> Option<Decision> {
        let Place { tag, first, second } = self.place(fingerprint);
        let mut bucket = first;
        loop {
            let stripe = self.stripe(bucket);
            if stripe.was_unchanged() {
                return None;
            }
            let mut held = stripe.try_lock()?;
            let Some((index, mut slot)) = self.buckets[bucket].find(tag) else {
                drop(held);
                // The lock of the bucket that has the slot is enough to change it.
                if bucket == second {
                    return None;
                }
                bucket = second;
                continue;
            };
            let word = slot.word_of(gcra)?;
            let (decision, next) = gcra.decide_at(word, now, gcra.position(now), cost);
            if next != word {
                slot.put(next);
                self.buckets[bucket].put(index, slot);
                held.changed();
            } else {
                held.unchanged();
            }
            return Some(decision);
        }
    }

    /// Applies `step` to a slot, whose lock is held.
    #[inline]
    fn apply<R>(
        &self,
        (who, rule): (&Who, &Rule),
        found: Found,
        held: &mut Held<'_>,
        step: impl FnMut(&mut Entry<'_>) -> R,
    ) -> R {
        let (result, next) = who.step(rule, found.slot.state(), step);
        if let Some(word) = next {
            let slot = who.slot(rule, found.slot.tag(), word);
            self.buckets[found.bucket].put(found.index, slot);
            held.changed();
        } else {
            held.unchanged();
        }
        result
    }

    /// [`update_held`](Self::update_held) with two locks.
    fn update_both<R>(
        &self,
        (who, rule): (&Who, &Rule),
        (one, other): (&mut Held<'_>, &mut Held<'_>),
        step: impl FnMut(&mut Entry<'_>) -> R,
    ) -> Result<R, Full> {
        let result = self.update_held(who, rule, one, step);
        // Which of the two holds the slot that changed does not matter to readers of both.
        other.changed();
        one.changed();
        result
    }

    /// [`update`](Self::update) with both locks of the key held. The caller notes on all of them
    /// that something changed; here it is noted on one.
    pub(crate) fn update_held<R>(
        &self,
        who: &Who,
        rule: &Rule,
        held: &mut Held<'_>,
        step: impl FnMut(&mut Entry<'_>) -> R,
    ) -> Result<R, Full> {
        let place = self.place(who.fingerprint);
        if let Some(found) = self.find(place) {
            return Ok(self.apply((who, rule), found, held, step));
        }
        let room = self.make_room(place, who.now);
        if room.is_none() && *rule != Rule::Unlimited && self.base.room != Room::Evict {
            return Err(Full);
        }
        let (result, next) = who.step(rule, Slot::default().state(), step);
        held.changed();
        if let Some(word) = next.filter(|word| !word_time::is_idle(*word, who.now)) {
            if room.is_some_and(|(bucket, index)| !self.buckets[bucket].slot(index).is_empty()) {
                self.base.tally.forgot(1);
            }
            let (bucket, index) = room.unwrap_or_else(|| self.lightest(place, who.now));
            self.buckets[bucket].put(index, who.slot(rule, place.tag, word));
        }
        Ok(result)
    }

    /// Returns the slot of a key; an empty one if it is not there.
    pub(super) fn read(&self, fingerprint: u64) -> Slot {
        self.copy(self.place(fingerprint)).unwrap_or_default()
    }

    /// Locks both stripes of a key, in the order of their addresses; they may be one.
    fn lock_both(&self, place: Place) -> (Held<'_>, Option<Held<'_>>) {
        let mask = self.stripes.len() - 1;
        let (first, second) = (place.first & mask, place.second & mask);
        let low = self.stripes[first.min(second)].lock();
        (low, (first != second).then(|| self.stripes[first.max(second)].lock()))
    }

    /// Returns a slot of a bucket that is empty or idle.
    fn free_in(&self, bucket: usize, now: Tick) -> Option<usize> {
        let slots = || (0..SLOTS).map(|index| (index, self.buckets[bucket].slot(index)));
        let empty = slots().find(|(_, slot)| slot.is_empty());
        let idle = |(_, slot): &(usize, Slot)| slot.is_idle(now);
        empty.or_else(|| slots().find(idle)).map(|(index, _)| index)
    }

    /// Finds or makes room in one of two buckets, whose locks are held.
    fn make_room(&self, place: Place, now: Tick) -> Option<(usize, usize)> {
        let buckets = [place.first, place.second];
        let found = |bucket: &usize| self.free_in(*bucket, now).map(|index| (*bucket, index));
        if let Some(room) = buckets.iter().find_map(found) {
            return Some(room);
        }
        // Both are full of live keys: one of those may have room in its other bucket.
        let mask = self.stripes.len() - 1;
        for bucket in buckets {
            for index in 0..SLOTS {
                let slot = self.buckets[bucket].slot(index);
                let other = self.other(slot.tag(), bucket);
                // Only tried: its lock may be held by somebody who waits for ours, or by ourselves.
                let ours = [place.first, place.second].iter().any(|it| it & mask == other & mask);
                let held = if ours { None } else { self.stripe(other).try_lock() };
                if held.is_none() && !ours {
                    continue;
                }
                // ORDERING: SeqCst, here and in `visit`: either this sees the visitor, or the
                // visitor sees the lock and waits for the move to be over.
                fence(SeqCst);
                let is_visited = self.visitors.load(Relaxed) > 0;
                if let Some(free) = self.free_in(other, now) {
                    if is_visited && !self.note_moved(other, slot.tag()) {
                        return None;
                    }
                    self.buckets[other].put(free, slot);
                    self.buckets[bucket].put(index, Slot::default());
                    if let Some(mut held) = held {
                        held.changed();
                    }
                    return Some((bucket, index));
                }
            }
        }
        None
    }

    /// Returns the entry nearest to full of two buckets.
    fn lightest(&self, place: Place, now: Tick) -> (usize, usize) {
        self.base.tally.evicted();
        let all = [place.first, place.second].into_iter();
        let slots = all.flat_map(|bucket| (0..SLOTS).map(move |index| (bucket, index)));
        let weight =
            |(bucket, index): &(usize, usize)| self.buckets[*bucket].slot(*index).burden(now);
        slots.min_by_key(weight).unwrap_or((place.first, 0))
    }

    /// Forgets a key.
    pub(super) fn remove(&self, fingerprint: u64) {
        let place = self.place(fingerprint);
        let (mut low, mut high) = self.lock_both(place);
        if let Some(Found { bucket, index, .. }) = self.find(place) {
            self.buckets[bucket].put(index, Slot::default());
            low.changed();
            if let Some(high) = &mut high {
                high.changed();
            }
        }
    }

    /// Replaces every used slot by what `change` makes of it; one lock at a time.
    fn each(&self, mut change: impl FnMut(&Slot) -> Slot) {
        for (number, bucket) in self.buckets.iter().enumerate() {
            // Empty ones too: somebody may be about to put a slot there that needs the change.
            let mut held = self.stripe(number).lock();
            for (index, slot) in bucket.used() {
                let next = change(&slot);
                if next != slot {
                    bucket.put(index, next);
                    held.changed();
                }
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.buckets.iter().map(|bucket| bucket.used().count()).sum()
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets) + size_of_val(&*self.stripes)
    }

    pub(super) fn clear(&self) {
        self.each(|_| Slot::default());
    }

    /// Empties idle slots. The memory stays.
    pub(super) fn shrink(&self, now: Tick) {
        self.each(|slot| {
            if slot.is_idle(now) {
                self.base.tally.forgot(1);
                Slot::default()
            } else {
                *slot
            }
        });
    }
}
