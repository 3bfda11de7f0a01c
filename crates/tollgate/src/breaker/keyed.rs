//! One breaker for each of many keys.
//!
//! Keys are fingerprints. A missing key is closed, so a closed breaker that nobody uses can go: each
//! new key looks at a few of the oldest in its shard and evicts those that are idle.
//!
//! When the table is full, a new key looks at a few of each shard and takes the place that is missed
//! least: of an open or half-open breaker that nobody has called for a while, else of the closed one
//! with the fewest failures. Open and held breakers stay, so a flood of keys washes nothing out. If
//! all that it looks at must stay, the new key is refused: a bound that is reached refuses, and if
//! that many keys are down, this one most likely is, too.

use super::{Breaker, BreakerState, Open, OpenReason, Pass, builder::Template, host::Loss};
use crate::{
    Clock, Tick,
    keyed::fingerprint::Seed,
    observe::{Collector, Samples, StripedCounters, WeakCollector, family},
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
/// Places of a shard that a new key looks at, so that its cost is bounded.
const LOOKS: usize = 4;

/// A circuit breaker for each of many keys, such as hosts or endpoints; clones share them.
///
/// A key that fails does not stop calls to the others. A key nobody has called is closed. The number
/// of keys is bounded: a closed breaker that was not used for
/// [`idle_after`](super::BreakerBuilder::idle_after) is evicted, which is the same as a closed one
/// with an empty window.
///
/// If the table is full of others, a new key takes the place of a closed one with few failures,
/// which begins anew ([`forgotten`](Self::forgotten)). A breaker that is open, half-open or held by an
/// operator stays; if the new key finds nothing else, it is refused with [`OpenReason::TableFull`]
/// ([`refused`](Self::refused)). An open one is forgotten when its break is over and nobody has called
/// it for `idle_after` since. Raise `max_keys` if either count grows.
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
    /// Taken to add a key.
    adding: Mutex<()>,
    len: AtomicU64,
    forgotten: AtomicU64,
    refused: AtomicU64,
    /// Calls that passed, and that were refused, for whatever key.
    decisions: StripedCounters<2>,
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
    /// Callers may keep it, not only calls under way.
    has_handle: bool,
}

/// The purpose for which a breaker is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Call,
    Handle,
}

/// How much a breaker would be missed; the least goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// Closed, without calls.
    Nothing,
    /// Its break is over, and nobody has called it for a while.
    Abandoned(Tick),
    /// Closed: the calls under way, those that failed or were slow, and when it was last used.
    Calls(bool, u64, Tick),
}

/// Where a new key can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Room {
    Free,
    /// In the place of another: of all that were looked at, it has the least worth.
    Instead {
        worth: Worth,
        index: usize,
        key: u64,
    },
    None,
}

impl<K: ?Sized> KeyedBreaker<K> {
    pub(super) fn new(template: Template, max_keys: u64) -> Self {
        let table = Table {
            template,
            shards: (0..SHARDS).map(|_| Padded(Mutex::new(Shard::default()))).collect(),
            seed: Seed::random(),
            max_keys,
            adding: Mutex::new(()),
            len: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            decisions: StripedCounters::default(),
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

    /// Returns how many breakers lost their calls because the table was full.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        // ORDERING: Relaxed. Statistics.
        self.table.forgotten.load(Relaxed)
    }

    /// Returns how many calls were refused because the table was full of open or held breakers.
    #[must_use]
    pub fn refused(&self) -> u64 {
        // ORDERING: Relaxed. Statistics.
        self.table.refused.load(Relaxed)
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
    /// [`Open`] says why, and when a retry gets through. [`OpenReason::TableFull`]: there is no room
    /// for the key.
    pub fn try_pass(&self, key: &K) -> Result<Pass<'static>, Open> {
        self.try_pass_at(self.table.template.clock.now(), key)
    }

    /// [`try_pass`](Self::try_pass) at a time of the caller's.
    ///
    /// # Errors
    ///
    /// As [`try_pass`](Self::try_pass).
    pub fn try_pass_at(&self, now: Tick, key: &K) -> Result<Pass<'static>, Open> {
        let key = self.table.seed.fingerprint(key);
        let passed = match self.table.find_or_add(key, now, Use::Call) {
            Some(breaker) => breaker.try_pass_at(now).map(Pass::into_owned),
            None => {
                // ORDERING: Relaxed. Statistics.
                self.table.refused.fetch_add(1, Relaxed);
                let (state, why) = (BreakerState::Open, OpenReason::TableFull);
                Err(Open { state, why, retry_at: None })
            }
        };
        self.table.decisions.add(usize::from(passed.is_err()), 1);
        passed
    }

    /// Returns the state of a key's breaker; a missing one is closed.
    #[must_use]
    pub fn state(&self, key: &K) -> BreakerState {
        let key = self.table.seed.fingerprint(key);
        let shard = lock(&self.table.shards[self.table.shard(key)].0);
        shard.entries.get(&key).map_or(BreakerState::Closed, |entry| entry.breaker.state())
    }

    /// Returns the breaker of a key, to hold it, to count, or to pass without a lookup. It is not
    /// evicted while the caller keeps it. `None` if the table is full of open or held ones.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate::{Breaker, KeyedBreaker};
    /// let hosts: KeyedBreaker<str> = Breaker::builder().build_keyed(10_000)?;
    /// hosts.breaker("a").ok_or("no room")?.hold_open();
    /// assert!(hosts.try_pass("a").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn breaker(&self, key: &K) -> Option<Breaker> {
        let now = self.table.template.clock.now();
        self.table.find_or_add(self.table.seed.fingerprint(key), now, Use::Handle)
    }
}

impl Shard {
    fn find(&mut self, key: u64, now: Tick, used_as: Use) -> Option<Breaker> {
        let entry = self.entries.get_mut(&key)?;
        entry.used = entry.used.max(now);
        entry.has_handle |= used_as == Use::Handle;
        Some(entry.breaker.clone())
    }
}

impl Table {
    fn shard(&self, key: u64) -> usize {
        (key >> 40) as usize % self.shards.len()
    }

    fn find_or_add(&self, key: u64, now: Tick, used_as: Use) -> Option<Breaker> {
        let mine = self.shard(key);
        if let Some(breaker) = lock(&self.shards[mine].0).find(key, now, used_as) {
            return Some(breaker);
        }
        // One new key at a time: two would take the place of the same breaker.
        let _adding = lock(&self.adding);
        if let Some(breaker) = lock(&self.shards[mine].0).find(key, now, used_as) {
            return Some(breaker);
        }
        if !self.make_room(mine, now) {
            return None;
        }
        let breaker = self.template.breaker(key, 1);
        let has_handle = used_as == Use::Handle;
        let mut shard = lock(&self.shards[mine].0);
        shard.entries.insert(key, Entry { breaker: breaker.clone(), used: now, has_handle });
        shard.order.push_back(key);
        // ORDERING: Relaxed, here and below. Writers hold the lock `adding`.
        self.len.fetch_add(1, Relaxed);
        Some(breaker)
    }

    /// Tells whether there is a place for a new key, after evicting what can go.
    fn make_room(&self, mine: usize, now: Tick) -> bool {
        loop {
            let (index, key) = match self.evict_idle(mine, now) {
                Room::Free => return true,
                Room::None => return false,
                Room::Instead { index, key, .. } => (index, key),
            };
            let mut shard = lock(&self.shards[index].0);
            // It may have opened, or been handed out, since it was looked at: then look again.
            if shard.entries.get(&key).is_some_and(|entry| self.worth(entry, now).is_some()) {
                self.evict(&mut shard, key);
                self.forgotten.fetch_add(1, Relaxed);
                return true;
            }
        }
    }

    /// Evicts idle breakers: in the shard of the new key, and in the others if there is no place.
    fn evict_idle(&self, mine: usize, now: Tick) -> Room {
        let mut room = Room::None;
        for step in 0..self.shards.len() {
            let index = (mine + step) % self.shards.len();
            let mut shard = lock(&self.shards[index].0);
            for _ in 0..LOOKS {
                let Some(key) = shard.order.pop_front() else { break };
                shard.order.push_back(key);
                match shard.entries.get(&key).and_then(|entry| self.worth(entry, now)) {
                    Some(Worth::Nothing) => self.evict(&mut shard, key),
                    Some(worth) => room = room.min(Room::Instead { worth, index, key }),
                    None => {}
                }
            }
            if self.len.load(Relaxed) < self.max_keys {
                return Room::Free;
            }
        }
        room
    }

    fn evict(&self, shard: &mut Shard, key: u64) {
        shard.entries.remove(&key);
        // It was looked at last, or a few looks ago.
        if let Some(place) = shard.order.iter().rposition(|it| *it == key) {
            shard.order.remove(place);
        }
        self.len.fetch_sub(1, Relaxed);
    }

    /// Returns how much a breaker would be missed; `None` if it must stay.
    fn worth(&self, entry: &Entry, now: Tick) -> Option<Worth> {
        let (idle_for, idle_after) = (now.since(entry.used), self.template.idle_after);
        let is_recent = idle_for < idle_after;
        // A call under way, or a caller who keeps the breaker, has another handle.
        let is_shared = Arc::strong_count(&entry.breaker.host) > 1;
        if is_shared && entry.has_handle {
            return None;
        }
        match entry.breaker.host.loss(now, (idle_for, idle_after))? {
            Loss::Nothing if !is_recent && !is_shared => Some(Worth::Nothing),
            Loss::Nothing => Some(Worth::Calls(is_shared, 0, entry.used)),
            Loss::Calls { bad } => Some(Worth::Calls(is_shared, bad, entry.used)),
            Loss::Break { until } => {
                let is_over = now.since(until) >= idle_after;
                (is_over && !is_recent && !is_shared).then_some(Worth::Abandoned(entry.used))
            }
        }
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

impl<K: ?Sized + 'static> Collector for KeyedBreaker<K> {
    fn collect(&self, samples: &mut Samples) {
        samples.kind("keyed_breaker");
        let mut keys = BreakerState::ALL.map(|state| (state, 0_u32));
        for shard in &self.table.shards {
            for entry in lock(&shard.0).entries.values() {
                let state = entry.breaker.state();
                // OVERFLOW: every key is in memory.
                keys.iter_mut().filter(|(it, _)| *it == state).for_each(|(_, count)| *count += 1);
            }
        }
        for (state, count) in keys {
            samples.gauge_by(&family::BREAKER_STATE, state.name(), count.into());
        }
        let [passed, refused] = self.table.decisions.sum();
        samples.calls(passed, refused);
        samples.gauge(&family::KEYS, self.len() as f64);
        samples.gauge(&family::KEYS_LIMIT, self.max_keys() as f64);
        samples.count_by(&family::TABLE_EVENTS, "evicted", self.forgotten());
        samples.count_by(&family::TABLE_EVENTS, "saturated", self.refused());
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.table, |table| Self { table, keys: PhantomData })
    }
}
