//! Permits in flight, each of which expires.

use super::{Entered, PermitId, StoreError};
use crate::{
    Tick,
    sync::{AtomicU64, Count, Mutex, Ordering::Relaxed, lock},
    table::{FingerprintMap, SHARDS},
};
use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// A limit on the permits that a key may have in flight, and how many a call takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permits<'a> {
    /// The name of the limit; limits of different names share nothing.
    pub name: &'a str,
    /// The key whose permits are counted.
    pub key: &'a [u8],
    /// How many may be in flight at once.
    pub limit: u64,
    /// How many a call takes.
    pub cost: u64,
}

impl<'a> Permits<'a> {
    /// Returns a demand for one of `limit` permits.
    #[must_use]
    pub const fn new(name: &'a str, key: &'a [u8], limit: u64) -> Self {
        Self { name, key, limit, cost: 1 }
    }
}

/// All permits of a store in memory.
#[derive(Debug)]
pub(super) struct Flights {
    shards: Box<[Mutex<Shard>]>,
    next_id: AtomicU64,
    count: Count,
    most: u64,
    /// No permit ends before this, in nanoseconds.
    first_end: AtomicU64,
    /// No sweep starts before this, in nanoseconds.
    next_sweep: AtomicU64,
}

/// After a sweep the next one waits so long for each key that was visited. A visit takes some 50 ns, so
/// callers that find the store full can spend a twentieth of a processor on sweeps, not all of it.
const PAUSE_PER_VISIT: Duration = Duration::from_micros(1);

type Shard = FingerprintMap<Flight>;

/// The fingerprints of a limit's name, and of that name with a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlightKey {
    pub(super) name: u64,
    pub(super) key: u64,
}

/// What one key has in flight.
#[derive(Debug, Default)]
struct Flight {
    /// The fingerprint of the limit's name.
    name: u64,
    /// By the time at which they expire.
    permits: BTreeMap<(Tick, u64), u64>,
    /// When each expires.
    ends: BTreeMap<u64, Tick>,
    in_flight: u64,
}

impl Flight {
    /// Removes what has expired. Returns how many permits that were.
    fn expire(&mut self, now: Tick) -> u64 {
        let mut gone = 0;
        while let Some(first) = self.permits.first_entry()
            && first.key().0 <= now
        {
            let (_, id) = *first.key();
            self.in_flight -= first.remove();
            self.ends.remove(&id);
            gone += 1;
        }
        gone
    }

    fn add(&mut self, id: u64, until: Tick, cost: u64) {
        self.permits.insert((until, id), cost);
        self.ends.insert(id, until);
        self.in_flight += cost;
    }

    fn remove(&mut self, id: u64) -> Option<u64> {
        let until = self.ends.remove(&id)?;
        let cost = self.permits.remove(&(until, id))?;
        self.in_flight -= cost;
        Some(cost)
    }

    /// Returns when `cost` more fit if nobody leaves before its time.
    fn room_at(&self, limit: u64, cost: u64) -> Option<Tick> {
        let mut left = self.in_flight;
        let ends = self.permits.iter().find(|(_, held)| {
            left -= **held;
            left.saturating_add(cost) <= limit
        });
        ends.map(|((until, _), _)| *until)
    }
}

impl Flights {
    pub(super) fn new(most: u64) -> Self {
        let shards = std::iter::repeat_with(Mutex::default).take(SHARDS).collect();
        Self {
            shards,
            next_id: AtomicU64::new(1),
            count: Count::default(),
            most,
            first_end: AtomicU64::new(u64::MAX),
            next_sweep: AtomicU64::new(0),
        }
    }

    /// Runs `work` on what a key has in flight, after what has expired is gone.
    fn with<R>(&self, key: u64, now: Tick, work: impl FnOnce(&mut Flight) -> R) -> R {
        let mut shard = lock(&self.shards[(key >> 16) as usize % SHARDS]);
        let flight = shard.entry(key).or_default();
        self.count.lower(flight.expire(now));
        let result = work(flight);
        if flight.permits.is_empty() {
            shard.remove(&key);
        }
        result
    }

    /// Removes what has expired of all keys, if something may have, and if the last sweep was not just
    /// now. So a full store may refuse for as long as the pause after a permit has ended: a second for a
    /// million keys.
    fn sweep(&self, now: Tick) {
        // ORDERING: Relaxed, here and below. Times that guard nothing but themselves.
        let due = self.next_sweep.load(Relaxed);
        if now.as_nanos() < due.max(self.first_end.load(Relaxed)) {
            return;
        }
        if self.next_sweep.compare_exchange(due, u64::MAX, Relaxed, Relaxed).is_err() {
            // Another thread sweeps, and one is enough.
            return;
        }
        // A permit that is added meanwhile is seen below, or lowers this after its shard was visited:
        // the shard's lock orders the two.
        self.first_end.store(u64::MAX, Relaxed);
        let mut visited = 0_u32;
        self.visit_all(now, |flight| {
            visited = visited.saturating_add(1);
            if let Some(((end, _), _)) = flight.permits.first_key_value() {
                self.first_end.fetch_min(end.as_nanos(), Relaxed);
            }
        });
        let pause = PAUSE_PER_VISIT.saturating_mul(visited);
        self.next_sweep.store(now.saturating_add(pause).as_nanos(), Relaxed);
    }

    /// Calls `visit` with what every key has in flight, a shard at a time, after what has expired is gone.
    fn visit_all(&self, now: Tick, mut visit: impl FnMut(&Flight)) {
        for shard in &self.shards {
            lock(shard).retain(|_, flight| {
                self.count.lower(flight.expire(now));
                visit(flight);
                !flight.permits.is_empty()
            });
        }
    }

    /// Returns how many permits of each name, given by its fingerprint, are in flight. Visits every
    /// key that holds a permit, and removes what has expired.
    pub(super) fn in_flight(&self, now: Tick, names: &[u64]) -> Vec<u64> {
        let mut sums: HashMap<u64, u64> = names.iter().map(|name| (*name, 0)).collect();
        self.visit_all(now, |flight| {
            if let Some(sum) = sums.get_mut(&flight.name) {
                *sum = sum.saturating_add(flight.in_flight);
            }
        });
        names.iter().map(|name| sums.get(name).copied().unwrap_or(0)).collect()
    }

    pub(super) fn enter(
        &self,
        FlightKey { name, key }: FlightKey,
        now: Tick,
        (limit, cost): (u64, u64),
        life: Duration,
    ) -> Result<Entered, StoreError> {
        if self.count.get() >= self.most {
            self.sweep(now);
        }
        self.with(key, now, |flight| {
            let in_flight = flight.in_flight;
            if in_flight.checked_add(cost).is_none_or(|sum| sum > limit) {
                let retry_after = flight.room_at(limit, cost).map(|at| at.since(now));
                return Ok(Entered { id: None, in_flight, retry_after, is_degraded: false });
            }
            if !self.count.raise(self.most) {
                return Err(StoreError::full(format!(
                    "{} permits are in flight already; let some end, or raise max_permits",
                    self.most
                )));
            }
            let id = self.next_id.fetch_add(1, Relaxed);
            flight.name = name;
            let end = now.saturating_add(life);
            flight.add(id, end, cost);
            self.first_end.fetch_min(end.as_nanos(), Relaxed);
            let (id, in_flight) = (Some(PermitId(id)), in_flight + cost);
            Ok(Entered { id, in_flight, retry_after: None, is_degraded: false })
        })
    }

    pub(super) fn renew(&self, key: u64, now: Tick, id: PermitId, life: Duration) -> bool {
        self.with(key, now, |flight| {
            let cost = flight.remove(id.0);
            cost.map(|cost| flight.add(id.0, now.saturating_add(life), cost)).is_some()
        })
    }

    pub(super) fn leave(&self, key: u64, now: Tick, PermitId(id): PermitId) -> bool {
        self.with(key, now, |flight| {
            let left = flight.remove(id).is_some();
            self.count.lower(u64::from(left));
            left
        })
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests;
