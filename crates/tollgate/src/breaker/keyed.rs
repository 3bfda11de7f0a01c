//! One breaker for each of many keys.
//!
//! Keys are fingerprints. A missing key is closed, so a closed breaker that nobody uses can go: each
//! new key looks at a few of the oldest in its shard and evicts those that are idle. One that is
//! open, half-open, held, or in use by a call stays. When every place is taken by such a one, a call
//! with a new key passes untracked, and is counted.

use super::{Breaker, BreakerState, Open, Pass, builder::Template};
use crate::{
    Clock, Tick,
    keyed::fingerprint::Seed,
    sync::{Arc, AtomicU64, Mutex, Ordering::Relaxed, Padded, lock},
};
use std::{
    collections::{HashMap, VecDeque},
    fmt,
    hash::Hash,
    marker::PhantomData,
};

/// Shards, a power of two: many more than threads that meet.
const SHARDS: u64 = if cfg!(tollgate_loom) { 1 } else { 16 };
/// Places that a new key looks at, so that its cost is bounded.
const LOOKS: usize = 4;

/// A circuit breaker for each of many keys, such as hosts or endpoints; clones share them.
///
/// A key that fails does not stop calls to the others. A key nobody has called is closed. The number
/// of keys is bounded: a closed breaker that was not used for
/// [`idle_after`](super::BreakerBuilder::idle_after) is evicted, which is the same as a closed one
/// with an empty window. If all keys are in use, calls with a new key pass untracked:
/// [`untracked`](Self::untracked) counts them.
///
/// Keys are not stored, only 64-bit fingerprints; docs/keys.md has the odds of a collision.
///
/// # Examples
///
/// ```
/// use tollgate::{Breaker, CallOutcome, KeyedBreaker, Trip};
///
/// let hosts: KeyedBreaker<str> =
///     Breaker::builder().trip(Trip::consecutive(1)).build_keyed(10_000)?;
/// hosts.try_pass("a")?.end(CallOutcome::Failure);
/// assert!(hosts.try_pass("a").is_err());
/// assert!(hosts.try_pass("b").is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct KeyedBreaker<K: ?Sized> {
    table: Arc<Table>,
    keys: PhantomData<fn(&K)>,
}

#[derive(Debug)]
struct Table {
    template: Template,
    shards: Box<[Padded<Mutex<Shard>>]>,
    seed: Seed,
    max_keys: u64,
    len: AtomicU64,
    untracked: AtomicU64,
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashMap<u64, Entry>,
    /// The keys, in the order in which they were last looked at for eviction.
    order: VecDeque<u64>,
}

#[derive(Debug)]
struct Entry {
    breaker: Breaker,
    used: Tick,
}

impl<K: ?Sized> KeyedBreaker<K> {
    pub(super) fn new(template: Template, max_keys: u64) -> Self {
        let table = Table {
            template,
            shards: (0..SHARDS).map(|_| Padded(Mutex::new(Shard::default()))).collect(),
            seed: Seed::random(),
            max_keys,
            len: AtomicU64::new(0),
            untracked: AtomicU64::new(0),
        };
        Self { table: Arc::new(table), keys: PhantomData }
    }

    /// Returns how many keys have a breaker now.
    #[must_use]
    pub fn len(&self) -> usize {
        // ORDERING: Relaxed. A number for people. OVERFLOW: every one is in memory.
        self.table.len.load(Relaxed) as usize
    }

    /// Tells whether no key has a breaker.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many keys may have a breaker at once.
    #[must_use]
    pub fn max_keys(&self) -> u64 {
        self.table.max_keys
    }

    /// Returns how many calls passed without a breaker, because all places were in use.
    #[must_use]
    pub fn untracked(&self) -> u64 {
        // ORDERING: Relaxed. Statistics.
        self.table.untracked.load(Relaxed)
    }

    /// Returns the name given to the builder; empty by default.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.table.template.name
    }

    /// Returns the clock that all keys go by.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.table.template.clock
    }
}

impl<K: Hash + ?Sized> KeyedBreaker<K> {
    /// Lets a call pass, unless the breaker of its key is open. Never waits.
    ///
    /// # Errors
    ///
    /// [`Open`] says why, and when a retry gets through.
    pub fn try_pass(&self, key: &K) -> Result<Pass<'static>, Open> {
        self.try_pass_at(self.table.template.clock.now(), key)
    }

    /// [`try_pass`](Self::try_pass) at a time of the caller's.
    ///
    /// # Errors
    ///
    /// As [`try_pass`](Self::try_pass).
    pub fn try_pass_at(&self, now: Tick, key: &K) -> Result<Pass<'static>, Open> {
        match self.table.find_or_add(self.table.seed.fingerprint(key), now) {
            Some(breaker) => breaker.try_pass_at(now).map(Pass::into_owned),
            None => {
                // ORDERING: Relaxed. Statistics.
                self.table.untracked.fetch_add(1, Relaxed);
                Ok(Pass::untracked())
            }
        }
    }

    /// Returns the state of a key's breaker; a missing one is closed.
    #[must_use]
    pub fn state(&self, key: &K) -> BreakerState {
        let key = self.table.seed.fingerprint(key);
        let shard = lock(&self.table.shards[self.table.shard(key)].0);
        shard.entries.get(&key).map_or(BreakerState::Closed, |entry| entry.breaker.state())
    }

    /// Returns the breaker of a key, to hold it, to count, or to pass without a lookup. It is not
    /// evicted while somebody has it. `None` if all places are in use.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate::{Breaker, KeyedBreaker};
    /// let hosts: KeyedBreaker<str> = Breaker::builder().build_keyed(10_000)?;
    /// hosts.breaker("a").ok_or("all places are in use")?.hold_open();
    /// assert!(hosts.try_pass("a").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn breaker(&self, key: &K) -> Option<Breaker> {
        let now = self.table.template.clock.now();
        self.table.find_or_add(self.table.seed.fingerprint(key), now)
    }
}

impl Shard {
    fn find(&mut self, key: u64, now: Tick) -> Option<Breaker> {
        let entry = self.entries.get_mut(&key)?;
        entry.used = entry.used.max(now);
        Some(entry.breaker.clone())
    }
}

impl Table {
    fn shard(&self, key: u64) -> usize {
        (key >> 40) as usize % self.shards.len()
    }

    fn find_or_add(&self, key: u64, now: Tick) -> Option<Breaker> {
        let mine = self.shard(key);
        if let Some(breaker) = lock(&self.shards[mine].0).find(key, now) {
            return Some(breaker);
        }
        self.make_room(mine, now);
        let mut shard = lock(&self.shards[mine].0);
        if let Some(breaker) = shard.find(key, now) {
            return Some(breaker);
        }
        // ORDERING: Relaxed. The number is all that is shared; raised first, it never exceeds the
        // bound.
        let is_free = |len: u64| (len < self.max_keys).then_some(len + 1);
        if self.len.fetch_update(Relaxed, Relaxed, is_free).is_err() {
            return None;
        }
        let breaker = self.template.breaker(key, 1);
        shard.entries.insert(key, Entry { breaker: breaker.clone(), used: now });
        shard.order.push_back(key);
        Some(breaker)
    }

    /// Evicts idle breakers: in the shard of the new key, and in the others if there is no place.
    fn make_room(&self, mine: usize, now: Tick) {
        for step in 0..self.shards.len() {
            let mut shard = lock(&self.shards[(mine + step) % self.shards.len()].0);
            let evicted: [_; LOOKS] = std::array::from_fn(|_| self.evict_oldest(&mut shard, now));
            drop(shard);
            drop(evicted);
            // ORDERING: Relaxed; see `find_or_add`.
            if self.len.load(Relaxed) < self.max_keys {
                return;
            }
        }
    }

    /// Evicts the breaker that was looked at the longest time ago, if it is idle.
    fn evict_oldest(&self, shard: &mut Shard, now: Tick) -> Option<Entry> {
        let key = shard.order.pop_front()?;
        let entry = shard.entries.get(&key)?;
        // A call under way, or somebody who keeps the breaker, has another handle.
        let is_held = Arc::strong_count(&entry.breaker.host) > 1;
        let is_recent = now.since(entry.used) < self.template.idle_after;
        if is_held || is_recent || !entry.breaker.host.is_idle(now) {
            shard.order.push_back(key);
            return None;
        }
        // ORDERING: Relaxed; see `find_or_add`.
        self.len.fetch_sub(1, Relaxed);
        shard.entries.remove(&key)
    }
}

impl<K: ?Sized> Clone for KeyedBreaker<K> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table), keys: PhantomData }
    }
}

impl<K: ?Sized> fmt::Debug for KeyedBreaker<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedBreaker")
            .field("name", &self.name())
            .field("len", &self.len())
            .field("max_keys", &self.max_keys())
            .finish_non_exhaustive()
    }
}
