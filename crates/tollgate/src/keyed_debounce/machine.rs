//! When the debouncers of many keys fire: one pure state machine.
//!
//! Each key that matters has one slot: the key, its [`Debounce`], and one deadline in the queue of
//! all. The deadline is, in this order,
//!
//! 1. when it fired, while that fire waits for its turn: so fires run in the order they fell due;
//! 2. its timer, while its burst lasts. A further trigger leaves that as it is; when it comes to
//!    the head and the silence is not long enough, it is moved for what is missing;
//! 3. its last trigger plus the delay, once its burst was ended early by a flush or by the longest
//!    wait: until then a trigger prolongs the old burst.
//!
//! After that a key that is forgotten behaves as one that is remembered: every rule asks whether
//! the silence has lasted for the delay, and from then on the answer is yes for both. So the slot is
//! taken away. `tests.rs` holds this against one `Debounce` for each key that is never taken away.
//!
//! A trigger of a key that has a slot and does not fire is O(1), any other event O(log n);
//! `flush_all` and `finish` are O(n log n). Asking for a key also looks through what fires early.

use super::WhenKeysFull;
use crate::{
    Fired, Tick,
    debounce::machine::{Debounce, Rules},
    observe::RunCounts,
    wait::{DeadlineHeap, KeyIndex, Machine, shrink},
};
use std::collections::VecDeque;

/// How many slots are moved or taken away at a time, so that the lock is short: a few microseconds.
const MOVES_MAX: usize = 64;

/// How much is held, and what happens beyond that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// At least 1, at most [`KEYS_MAX`](super::KEYS_MAX).
    pub(super) max_keys: usize,
    pub(super) when_full: WhenKeysFull,
}

impl Bounds {
    pub(crate) const DEFAULT: Self = Self { max_keys: 65_536, when_full: WhenKeysFull::Refuse };
}

#[derive(Debug)]
pub(super) struct KeyedDebounce<K, T> {
    rules: Rules,
    pub(super) bounds: Bounds,
    slots: Vec<Slot<K, T>>,
    index: KeyIndex,
    queue: DeadlineHeap,
    /// Fires that came early to make room; at most `max_keys`.
    early: VecDeque<(K, Fired<T>)>,
    is_finishing: bool,
    /// Keys that have gone without a fire, until the engine takes them to drop them without the lock.
    unused_keys: Vec<K>,
    /// Values that were not used, likewise.
    unused_values: Vec<T>,
    pub(super) counts: RunCounts,
    pub(super) refused: u64,
}

/// A key that matters.
#[derive(Debug)]
pub(super) struct Slot<K, T> {
    key: K,
    hash: u32,
    last_trigger: Tick,
    debounce: Debounce<T>,
}

/// The key and the values that a trigger does not need, to be dropped without a lock.
pub(super) type Unused<K, T> = (Option<K>, [Option<T>; 4]);

/// A key that was forgotten, to be dropped without a lock.
pub(super) type Forgotten<K, T> = (Option<K>, [Option<T>; 2], VecDeque<(K, Fired<T>)>);

/// Everything that was there, to be dropped without a lock.
pub(super) type Everything<K, T> = (Vec<Slot<K, T>>, Vec<[Option<T>; 2]>, VecDeque<(K, Fired<T>)>);

impl<K, T: Send + 'static> KeyedDebounce<K, T> {
    pub(super) fn new(rules: Rules, bounds: Bounds) -> Self {
        Self {
            rules,
            bounds,
            slots: Vec::new(),
            index: KeyIndex::default(),
            queue: DeadlineHeap::default(),
            early: VecDeque::new(),
            is_finishing: false,
            unused_keys: Vec::new(),
            unused_values: Vec::new(),
            counts: RunCounts::default(),
            refused: 0,
        }
    }

    /// Returns how many keys have a slot, or a fire that waits for its turn without one.
    pub(super) fn len(&self) -> usize {
        self.slots.len() + self.early.len()
    }

    /// Tells whether the burst of a key is under way, or a fire of it waits for its turn.
    pub(super) fn is_pending(&self, now: Tick, hash: u32, is_it: impl Fn(&K) -> bool) -> bool {
        let slot = self.find(hash, &is_it);
        slot.is_some_and(|slot| self.slots[slot as usize].debounce.is_pending(now))
            || self.early.iter().any(|(key, _)| is_it(key))
    }

    fn find(&self, hash: u32, is_it: impl Fn(&K) -> bool) -> Option<u32> {
        self.index.find(hash, |slot| is_it(&self.slots[slot as usize].key))
    }

    /// Fires what is pending of a key now. Tells whether something runs for it.
    pub(super) fn flush(
        &mut self,
        now: Tick,
        hash: u32,
        is_it: impl Fn(&K) -> bool,
    ) -> (bool, Option<T>) {
        // An early fire runs as soon as it can anyhow.
        let is_early = self.early.iter().any(|(key, _)| is_it(key));
        let Some(slot) = self.find(hash, &is_it) else { return (is_early, None) };
        let debounce = &mut self.slots[slot as usize].debounce;
        let unused = debounce.flush(now);
        let runs = is_early || debounce.is_ready();
        self.schedule(slot, now);
        (runs, unused)
    }

    /// Fires what is pending of every key now, in the order in which it would have been due.
    /// Returns for how many keys something runs.
    pub(super) fn flush_all(&mut self, now: Tick) -> (usize, Vec<T>) {
        let (mut run, mut unused) = (self.early.len(), Vec::new());
        let (slots, delay) = (&mut self.slots, self.rules.delay);
        self.queue.rearrange(|slot, at| {
            let slot = &mut slots[slot as usize];
            unused.extend(slot.debounce.flush(now));
            run += usize::from(slot.debounce.is_ready());
            slot.due(at, now, delay)
        });
        (run, unused)
    }

    /// Forgets a key. Tells whether something would have run.
    pub(super) fn cancel(
        &mut self,
        hash: u32,
        is_it: impl Fn(&K) -> bool,
    ) -> (bool, Forgotten<K, T>) {
        let waiting = std::mem::take(&mut self.early).into_iter();
        let (early, others): (VecDeque<_>, _) = waiting.partition(|(key, _)| is_it(key));
        self.early = others;
        let slot = self.find(hash, &is_it).map(|slot| self.take(slot));
        let (key, values) = match slot {
            Some(mut slot) => (Some(slot.key), slot.debounce.cancel()),
            None => (None, [None, None]),
        };
        let would_run = !early.is_empty() || values.iter().any(Option::is_some);
        (would_run, (key, values, early))
    }

    /// Forgets every key. Returns of how many something would have run.
    pub(super) fn cancel_all(&mut self) -> (usize, Everything<K, T>) {
        self.index = KeyIndex::default();
        self.queue = DeadlineHeap::default();
        let mut slots = std::mem::take(&mut self.slots);
        let early = std::mem::take(&mut self.early);
        let values = slots.iter_mut().map(|slot| slot.debounce.cancel());
        let values: Vec<_> = values.filter(|pair| pair.iter().any(Option::is_some)).collect();
        (values.len() + early.len(), (slots, values, early))
    }

    /// An event: a trigger of a key that hashes to `hash`. The key and the value come back if there
    /// is no room for them.
    pub(super) fn trigger(
        &mut self,
        now: Tick,
        hash: u32,
        (key, value): (K, T),
    ) -> Result<Unused<K, T>, (K, T)>
    where
        K: Eq,
    {
        let Some(slot) = self.find(hash, |other| *other == key) else {
            return self.begin(now, hash, (key, value));
        };
        let found = &mut self.slots[slot as usize];
        found.last_trigger = now;
        let due = found.debounce.due();
        let values = found.debounce.trigger(now, value);
        // Most triggers move nothing, and so do not even look at the queue.
        if found.debounce.due() != due {
            self.schedule(slot, now);
        }
        self.counts.trigger(&values);
        Ok((Some(key), values))
    }

    /// The first trigger of a key.
    fn begin(
        &mut self,
        now: Tick,
        hash: u32,
        (key, value): (K, T),
    ) -> Result<Unused<K, T>, (K, T)> {
        let mut evicted = (None, None);
        if self.slots.len() >= self.bounds.max_keys {
            if self.bounds.when_full == WhenKeysFull::Refuse
                || self.early.len() >= self.bounds.max_keys
            {
                self.refused += 1; // OVERFLOW: a count of events.
                return Err((key, value));
            }
            evicted = self.evict(now);
        }
        // INVARIANT: there are at most `KEYS_MAX` slots.
        let slot = self.slots.len() as u32;
        let mut debounce = Debounce::new(self.rules);
        // It replaces nothing, so nothing is dropped here.
        let [..] = debounce.trigger(now, value);
        self.slots.push(Slot { key, hash, last_trigger: now, debounce });
        self.index.insert(hash, slot);
        self.queue.push(now);
        self.schedule(slot, now);
        let unused = [evicted.1, None, None, None];
        self.counts.trigger(&unused);
        Ok((evicted.0, unused))
    }

    /// Takes a slot away. The last one gets its number.
    fn take(&mut self, slot: u32) -> Slot<K, T> {
        let taken = self.slots.swap_remove(slot as usize);
        self.index.remove(taken.hash, slot);
        self.queue.swap_remove(slot);
        if let Some(moved) = self.slots.get(slot as usize) {
            self.index.replace(moved.hash, self.slots.len() as u32, slot);
        }
        shrink(&mut self.slots);
        taken
    }

    /// Ends the burst of the key that is due first, to make room. Returns the parts that are not used.
    fn evict(&mut self, now: Tick) -> (Option<K>, Option<T>) {
        let Some((_, slot)) = self.queue.first() else { return (None, None) };
        let Slot { key, mut debounce, .. } = self.take(slot);
        let unused = debounce.flush(now);
        match debounce.take_ready() {
            Some(fired) => {
                self.early.push_back((key, fired));
                (None, unused)
            }
            None => (Some(key), unused),
        }
    }

    /// Sets the deadline of a slot after an event.
    fn schedule(&mut self, slot: u32, now: Tick) {
        let at = self.slots[slot as usize].due(self.queue.at(slot), now, self.rules.delay);
        self.queue.set(slot, at);
    }

    /// Does what is due for a slot since `at`.
    fn work(&mut self, (at, slot): (Tick, u32), now: Tick) -> Option<(K, Fired<T>)>
    where
        K: Clone,
    {
        let found = &mut self.slots[slot as usize];
        let quiet_at = found.quiet_at(self.rules.delay);
        if self.rules.max_wait.is_none()
            && at < quiet_at
            && quiet_at <= now
            && !found.debounce.is_ready()
        {
            // The worker is late, and others may have fallen due before this one.
            self.queue.set(slot, quiet_at);
            return None;
        }
        let (fired, unused) = found.debounce.next(now);
        self.unused_values.extend(unused);
        let is_quiet = self.is_finishing || quiet_at <= now;
        if is_quiet && found.debounce.due().is_none() {
            let Slot { key, .. } = self.take(slot);
            if let Some(fired) = fired {
                return Some((key, fired));
            }
            // A slot that has not fired holds no value.
            if std::mem::needs_drop::<K>() {
                self.unused_keys.push(key);
            }
            return None;
        }
        self.schedule(slot, now);
        let fired = fired?;
        Some((self.slots[slot as usize].key.clone(), fired))
    }

    /// Returns the next fire that is due by `now`.
    fn next_fire(&mut self, now: Tick) -> Option<(K, Fired<T>)>
    where
        K: Clone,
    {
        if let Some(job) = self.early.pop_front() {
            return Some(job);
        }
        for _ in 0..MOVES_MAX {
            let first = self.queue.first().filter(|(at, _)| *at <= now)?;
            let job = self.work(first, now);
            if job.is_some() {
                return job;
            }
        }
        None
    }
}

impl<K, T: Send + 'static> Slot<K, T> {
    /// Returns from when on it does not matter any more that the key was ever triggered.
    fn quiet_at(&self, delay: std::time::Duration) -> Tick {
        self.last_trigger.saturating_add(delay)
    }

    /// Returns the deadline of a slot that had the deadline `old` before an event.
    fn due(&self, old: Tick, now: Tick, delay: std::time::Duration) -> Tick {
        match self.debounce.due() {
            // A fire waits for its turn, since `old` if that is past.
            _ if self.debounce.is_ready() => old.min(now),
            Some(timer) => timer,
            // It may come too early, and is moved then: so a further trigger moves nothing.
            None if old > now => old.min(self.quiet_at(delay)),
            None => self.quiet_at(delay),
        }
    }
}

impl<K: Clone + Send + 'static, T: Send + 'static> Machine for KeyedDebounce<K, T> {
    type Job = (K, Fired<T>);

    fn due(&self) -> Option<Tick> {
        if self.early.is_empty() {
            return self.queue.first().map(|(at, _)| at);
        }
        Some(Tick::ZERO)
    }

    fn next(&mut self, now: Tick) -> Option<(K, Fired<T>)> {
        let job = self.next_fire(now);
        if let Some((_, fired)) = &job {
            self.counts.run(fired.count);
        }
        job
    }

    fn finish(&mut self, now: Tick) {
        self.is_finishing = true;
        let (slots, unused) = (&mut self.slots, &mut self.unused_values);
        self.queue.rearrange(|slot, at| {
            unused.extend(slots[slot as usize].debounce.flush(now));
            at.min(now)
        });
    }

    fn waste(&mut self) -> impl Sized + use<K, T> {
        (std::mem::take(&mut self.unused_keys), std::mem::take(&mut self.unused_values))
    }

    fn clear(&mut self) -> impl Sized + use<K, T> {
        self.index = KeyIndex::default();
        self.queue = DeadlineHeap::default();
        (std::mem::take(&mut self.slots), std::mem::take(&mut self.early))
    }
}
