//! The host of many lines: one for each key in use, spread over locked shards.
//!
//! Keys are fingerprints. A line whose last permit has come back, with nobody in the queue, equals
//! an absent one and is removed at once, so memory follows what is in flight. Every bound is
//! counted in one number and checked as it is raised, so it holds exactly.
//!
//! Lock order: terms, then one shard. Wakers are fired when neither is held.

use super::{
    counts::Tally,
    full::{Full, Why},
    line::{Entered, Gauge, Line, Wakes},
};
use crate::{
    keyed::fingerprint::Seed,
    sync::{AtomicU64, Mutex, Ordering::Relaxed, Padded, lock},
};
use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    task::{Poll, Waker},
};

/// Shards, a power of two: many more than threads that meet. One for loom, which explores each.
const SHARDS: usize = if cfg!(tollgate_loom) { 1 } else { 64 };
/// The bits that choose the shard: not the low ones nor the top ones, which the maps use.
const SHARD_SHIFT: u32 = 40;

/// A map this small is not worth shrinking.
const CAPACITY_MIN: usize = 32;

/// All keys of one [`KeyedConcurrency`](super::KeyedConcurrency).
#[derive(Debug)]
pub(super) struct Table {
    shards: Box<[Padded<Mutex<Shard>>]>,
    terms: Mutex<Terms>,
    pub(super) seed: Seed,
    pub(super) name: Box<str>,
    pub(super) bounds: Bounds,
    pub(super) tally: Tally,
    keys: Count,
    waiting: Count,
    overrides: Count,
}

/// What holds for all keys.
#[derive(Clone, Copy, Debug)]
struct Terms {
    limit: u32,
    closed: bool,
}

/// How much there may be of what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) max_waiting: u64,
    pub(super) max_waiting_total: u64,
    pub(super) max_keys: u64,
    pub(super) max_overrides: u64,
}

#[derive(Debug)]
struct Shard {
    /// A copy, so that a key needs one lock.
    terms: Terms,
    lines: Map<Line>,
    overrides: Map<u32>,
    /// The sum over the lines.
    in_flight: u64,
}

impl Table {
    pub(super) fn new(limit: u32, bounds: Bounds, name: Box<str>, tally: Tally) -> Self {
        let terms = Terms { limit, closed: false };
        let shard =
            || Shard { terms, lines: Map::default(), overrides: Map::default(), in_flight: 0 };
        Self {
            shards: std::iter::repeat_with(|| Padded(Mutex::new(shard()))).take(SHARDS).collect(),
            terms: Mutex::new(terms),
            seed: Seed::random(),
            name,
            bounds,
            tally,
            keys: Count::default(),
            waiting: Count::default(),
            overrides: Count::default(),
        }
    }

    fn shard(&self, key: u64) -> &Mutex<Shard> {
        &self.shards[(key >> SHARD_SHIFT) as usize % SHARDS].0
    }

    pub(super) fn try_enter(&self, key: u64, cost: u64) -> Result<(), Full> {
        self.take(&mut lock(self.shard(key)), key, cost)
    }

    pub(super) fn enter(&self, key: u64, cost: u64, waker: &Waker) -> Entered {
        // Cloned before the lock is taken, and dropped after: both may be a stranger's code.
        let mut waker = waker.clone();
        let mut shard = lock(self.shard(key));
        let full = match self.take(&mut shard, key, cost) {
            Ok(()) => return Entered::Passed,
            Err(full) => full,
        };
        match shard.lines.get_mut(&key) {
            Some(line) => line.queue_up(full, &mut waker, |waiting| self.place(waiting)),
            // A key that is not in use refuses only what no wait would help.
            None => Entered::Refused(full),
        }
    }

    pub(super) fn fetch(&self, key: u64, ticket: u64, waker: &Waker) -> Poll<Result<(), Full>> {
        // As in `enter`.
        let mut waker = waker.clone();
        self.on_key(key, |line, _| line.fetch(ticket, &mut waker)).unwrap_or(Poll::Pending)
    }

    pub(super) fn leave(&self, key: u64, ticket: u64) {
        self.on_key(key, |line, wakes| line.leave(ticket, wakes));
    }

    pub(super) fn give_back(&self, key: u64, cost: u64) {
        self.on_key(key, |line, wakes| line.give_back(cost, wakes));
    }

    /// Takes `cost` permits of a key, which gets a line if it has none, or says why not.
    fn take(&self, shard: &mut Shard, key: u64, cost: u64) -> Result<(), Full> {
        let in_flight = match shard.lines.get_mut(&key) {
            Some(line) => {
                line.try_enter(cost)?;
                line.gauge.in_flight
            }
            None => {
                let gauge = shard.fresh(key);
                let mut line = Line::new(gauge);
                line.try_enter(cost)?;
                // A cost of nothing leaves nothing to remember.
                if cost > 0 {
                    let max_keys = self.bounds.max_keys;
                    if !self.keys.raise(max_keys) {
                        return Err(gauge.full(cost, 0, Why::TooManyKeys { max_keys }));
                    }
                    shard.lines.insert(key, line);
                }
                cost as u32 // OVERFLOW: it fitted the limit, a `u32`.
            }
        };
        shard.in_flight += cost; // OVERFLOW: a billion keys of a billion permits are below 2^60.
        self.tally.peak(in_flight);
        Ok(())
    }

    /// Gives a place in the queue of a key in which `waiting` wait, and counts it.
    fn place(&self, waiting: u64) -> Result<(), Why> {
        let Bounds { max_waiting, max_waiting_total, .. } = self.bounds;
        if waiting >= max_waiting {
            return Err(Why::QueueFull { max_waiting });
        }
        match self.waiting.raise(max_waiting_total) {
            true => Ok(()),
            false => Err(Why::QueuesFull { max_waiting_total }),
        }
    }

    /// Changes the line of a key in use; removes it if that left it idle. Then wakes.
    fn on_key<R>(&self, key: u64, change: impl FnOnce(&mut Line, &mut Wakes) -> R) -> Option<R> {
        let mut wakes = Wakes::default();
        let result =
            self.on_shard_key(&mut lock(self.shard(key)), key, |line| change(line, &mut wakes));
        wakes.fire();
        result
    }

    fn on_shard_key<R>(
        &self,
        shard: &mut Shard,
        key: u64,
        change: impl FnOnce(&mut Line) -> R,
    ) -> Option<R> {
        let line = shard.lines.get_mut(&key)?;
        let result = self.on_line(line, &mut shard.in_flight, change);
        if line.is_idle() {
            shard.lines.remove(&key);
            self.keys.lower(1);
            shrink(&mut shard.lines);
        }
        Some(result)
    }

    /// Changes a line, and the sums with it. The change puts nobody into the queue.
    fn on_line<R>(&self, line: &mut Line, sum: &mut u64, change: impl FnOnce(&mut Line) -> R) -> R {
        let (in_flight, waiting) = (line.gauge.in_flight, line.waiting());
        let result = change(line);
        // INVARIANT: the sum includes what this line had in flight; the queue has not grown.
        *sum = *sum - u64::from(in_flight) + u64::from(line.gauge.in_flight);
        self.waiting.lower(waiting - line.waiting());
        self.tally.peak(line.gauge.in_flight);
        result
    }

    /// Changes what holds for all keys, shard by shard, with each line in use. Then wakes.
    fn on_all(
        &self,
        change: impl Fn(&mut Terms),
        change_line: impl Fn(&mut Line, Override, &mut Wakes),
    ) {
        let mut wakes = Wakes::default();
        let mut terms = lock(&self.terms);
        change(&mut terms);
        for shard in &self.shards {
            let Shard { terms: copy, lines, overrides, in_flight } = &mut *lock(&shard.0);
            *copy = *terms;
            let before = lines.len();
            lines.retain(|key, line| {
                let own = if overrides.contains_key(key) { Override::Has } else { Override::None };
                self.on_line(line, in_flight, |line| change_line(line, own, &mut wakes));
                !line.is_idle()
            });
            self.keys.lower((before - lines.len()) as u64);
            shrink(lines);
        }
        drop(terms);
        wakes.fire();
    }

    /// Changes the limit of all keys that have none of their own.
    pub(super) fn set_limit(&self, limit: u32) {
        self.on_all(
            |terms| terms.limit = limit,
            |line, own, wakes| match own {
                Override::None => line.set_limit(limit, wakes),
                Override::Has => {}
            },
        );
    }

    pub(super) fn close(&self) {
        self.on_all(|terms| terms.closed = true, |line, _, wakes| line.close(wakes));
    }

    /// Gives a key a limit of its own. Tells whether there was room for that.
    pub(super) fn set_key_limit(&self, key: u64, limit: u32) -> bool {
        let mut wakes = Wakes::default();
        let mut shard = lock(self.shard(key));
        let known = shard.overrides.contains_key(&key);
        let room = known || self.overrides.raise(self.bounds.max_overrides);
        if room {
            shard.overrides.insert(key, limit);
            self.on_shard_key(&mut shard, key, |line| line.set_limit(limit, &mut wakes));
        }
        drop(shard);
        wakes.fire();
        room
    }

    /// Takes a key's own limit away.
    pub(super) fn clear_key_limit(&self, key: u64) {
        let mut wakes = Wakes::default();
        let mut shard = lock(self.shard(key));
        if shard.overrides.remove(&key).is_some() {
            self.overrides.lower(1);
            shrink(&mut shard.overrides);
            let limit = shard.terms.limit;
            self.on_shard_key(&mut shard, key, |line| line.set_limit(limit, &mut wakes));
        }
        drop(shard);
        wakes.fire();
    }

    /// Returns the gauge of a key, and how many wait for it.
    pub(super) fn look(&self, key: u64) -> (Gauge, u64) {
        let shard = lock(self.shard(key));
        match shard.lines.get(&key) {
            Some(line) => (line.gauge, line.waiting()),
            None => (shard.fresh(key), 0),
        }
    }

    /// Returns the limit of keys that have none of their own.
    pub(super) fn limit(&self) -> u64 {
        lock(&self.terms).limit.into()
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.terms).closed
    }

    pub(super) fn keys(&self) -> u64 {
        self.keys.get()
    }

    pub(super) fn total_waiting(&self) -> u64 {
        self.waiting.get()
    }

    pub(super) fn overrides(&self) -> u64 {
        self.overrides.get()
    }

    pub(super) fn total_in_flight(&self) -> u64 {
        self.shards.iter().map(|shard| lock(&shard.0).in_flight).sum()
    }
}

impl Shard {
    /// Returns the gauge of a key that is not in use.
    fn fresh(&self, key: u64) -> Gauge {
        let limit = self.overrides.get(&key).copied().unwrap_or(self.terms.limit);
        Gauge { closed: self.terms.closed, ..Gauge::new(limit) }
    }
}

/// Whether a key has a limit of its own.
#[derive(Clone, Copy)]
enum Override {
    Has,
    None,
}

/// A number with a bound.
#[derive(Debug)]
struct Count(AtomicU64);

impl Default for Count {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Count {
    /// Adds one, unless `most` is reached; tells whether it did.
    fn raise(&self, most: u64) -> bool {
        let next = |count: u64| (count < most).then_some(count + 1);
        // ORDERING: Relaxed. The number stands for itself, and an exchange never reads a stale one.
        self.0.fetch_update(Relaxed, Relaxed, next).is_ok()
    }

    fn lower(&self, by: u64) {
        if by > 0 {
            // ORDERING: Relaxed, as in `raise`.
            self.0.fetch_sub(by, Relaxed);
        }
    }

    fn get(&self) -> u64 {
        // ORDERING: Relaxed, as in `raise`: a look.
        self.0.load(Relaxed)
    }
}

/// A map by fingerprint, which is a keyed hash already.
type Map<V> = HashMap<u64, V, BuildHasherDefault<Identity>>;

/// Gives memory back when a map has become nearly empty. Rare enough to cost O(1) per removal.
fn shrink<V>(map: &mut Map<V>) {
    if map.capacity() > CAPACITY_MIN && map.len() < map.capacity() / 8 {
        map.shrink_to(map.len() * 2);
    }
}

#[derive(Debug, Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn write(&mut self, _: &[u8]) {
        debug_assert!(false, "fingerprints are hashed as numbers");
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_small() {
        assert_eq!(size_of::<(u64, Line)>(), 32);
    }

    #[test]
    fn memory_follows_the_keys_in_use() {
        let bounds =
            Bounds { max_waiting: 0, max_waiting_total: 0, max_keys: 1 << 20, max_overrides: 0 };
        let table = Table::new(1, bounds, Box::default(), Tally::off());
        let capacity =
            || -> usize { table.shards.iter().map(|shard| lock(&shard.0).lines.capacity()).sum() };
        let keys: Vec<u64> = (0..100_000_u64).map(|key| table.seed.fingerprint(&key)).collect();
        keys.iter().for_each(|&key| assert_eq!(table.try_enter(key, 1), Ok(())));
        assert!(capacity() >= keys.len());
        keys.iter().for_each(|&key| table.give_back(key, 1));
        assert_eq!((table.keys(), table.total_in_flight()), (0, 0));
        assert!(capacity() <= SHARDS * CAPACITY_MIN, "{} slots left", capacity());
    }
}
