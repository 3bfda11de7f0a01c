//! Locally admitted permits that are not booked in the store yet.
//!
//! A map of (policy, key) to permits, bounded in entries and in bytes of keys. A spend that does
//! not fit is counted and dropped: the store then admits that many permits too many, once.

#![allow(
    clippy::mutable_key_type,
    reason = "a spender is hashed and compared by its name and key, which never change"
)]

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tollgate::{
    Quota,
    store::{Demand, Policy, StoreError},
};

/// The space for the bytes of keys, per entry.
const KEY_BYTES: usize = 256;

/// The policy and the key of a spend. The map looks it up by name and key.
#[derive(Clone, Debug)]
pub(super) struct Spender {
    policy: Policy,
    key: Box<[u8]>,
    /// The quota that came with the last call, if the policy has none.
    quota: Option<Quota>,
}

impl Spender {
    fn of(demand: &Demand<'_>) -> Self {
        let policy = demand.policy().clone();
        let quota = policy.is_ad_hoc().then(|| demand.quota());
        Self { policy, key: demand.key().into(), quota }
    }

    /// Returns the spend as a demand.
    pub(super) fn demand(&self, cost: u64) -> Result<Demand<'_>, StoreError> {
        Ok(match self.quota {
            Some(quota) => Demand::ad_hoc(&self.policy, &self.key, cost, quota)?,
            None => Demand::new(&self.policy, &self.key, cost),
        })
    }
}

impl PartialEq for Spender {
    fn eq(&self, other: &Self) -> bool {
        (self.policy.name(), &self.key) == (other.policy.name(), &other.key)
    }
}

impl Eq for Spender {}

impl Hash for Spender {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.policy.name(), &self.key).hash(state);
    }
}

/// All spends that are not booked yet.
#[derive(Debug)]
pub(super) struct Spends {
    map: Mutex<Pending>,
    /// Entries in the map, and entries that are being booked.
    pending: AtomicU64,
    dropped: AtomicU64,
    entries_max: usize,
}

#[derive(Debug, Default)]
struct Pending {
    permits: HashMap<Spender, u64>,
    key_bytes: usize,
    /// Entries that were taken out and are not finished.
    away: usize,
}

// ORDERING: Relaxed in this file. The counts are for observers; the lock guards the map, and
// `pending` is set while it is held.
impl Spends {
    pub(super) fn new(entries_max: usize) -> Self {
        let (pending, dropped) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { map: Mutex::default(), pending, dropped, entries_max }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        // Each change of the map is one call, so a panic elsewhere left it intact.
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, map: &Pending) {
        let count = map.permits.len().saturating_add(map.away);
        self.pending.store(count as u64, Relaxed);
    }

    /// Tells whether no spend is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.load(Relaxed) == 0
    }

    pub(super) fn pending(&self) -> u64 {
        self.pending.load(Relaxed)
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    pub(super) fn drop_one(&self) {
        self.dropped.fetch_add(1, Relaxed);
    }

    /// Records permits that were admitted here.
    pub(super) fn note(&self, demand: &Demand<'_>, permits: u64) {
        if permits > 0 {
            self.add(&mut self.lock(), Spender::of(demand), permits);
        }
    }

    fn add(&self, map: &mut Pending, spender: Spender, permits: u64) {
        if let Some(known) = map.permits.get_mut(&spender) {
            *known = known.saturating_add(permits);
            return;
        }
        let key_bytes = map.key_bytes.saturating_add(spender.key.len());
        let count = map.permits.len().saturating_add(map.away);
        if count >= self.entries_max || key_bytes > self.entries_max.saturating_mul(KEY_BYTES) {
            return self.drop_one();
        }
        map.key_bytes = key_bytes;
        map.permits.insert(spender, permits);
        self.publish(map);
    }

    /// Returns one of the pending spends, at random: of several nodes only some may be away.
    pub(super) fn any(&self) -> Option<Spender> {
        let map = self.lock();
        let number = fastrand::usize(..map.permits.len().clamp(1, 64));
        map.permits.keys().nth(number).cloned()
    }

    /// Takes out all pending spends.
    pub(super) fn take_all(&self) -> Taken<'_> {
        let all = {
            let mut map = self.lock();
            map.key_bytes = 0;
            // Waiters for the lock wait no longer than this takes. The new map has another hasher,
            // so spends that cannot be booked do not always come first.
            let all = std::mem::take(&mut map.permits);
            map.away = map.away.saturating_add(all.len());
            self.publish(&map);
            all
        };
        Taken { spends: self, left: all.into_iter().collect(), open: 0 }
    }

    fn put_back(&self, spender: Spender, permits: u64) {
        let mut map = self.lock();
        map.away = map.away.saturating_sub(1);
        self.add(&mut map, spender, permits);
        self.publish(&map);
    }

    /// Forgets the spend of a key.
    pub(super) fn forget(&self, demand: &Demand<'_>) {
        let mut map = self.lock();
        let spender = Spender::of(demand);
        if map.permits.remove(&spender).is_some() {
            map.key_bytes = map.key_bytes.saturating_sub(spender.key.len());
            self.publish(&map);
        }
    }
}

/// Spends that were taken out to be booked. On drop, those without an attempt become pending again.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    spends: &'a Spends,
    left: Vec<(Spender, u64)>,
    /// How many are being booked.
    open: usize,
}

impl Taken<'_> {
    /// Returns up to `most` spends to book. The caller must [finish](Self::done), [put
    /// back](Self::put_back) or [give up](Self::give_up) each of them.
    pub(super) fn next(&mut self, most: usize) -> Vec<(Spender, u64)> {
        let next = self.left.split_off(self.left.len().saturating_sub(most));
        self.open = self.open.saturating_add(next.len());
        next
    }

    /// Removes a spend that is booked, or need not be.
    pub(super) fn done(&mut self) {
        self.open = self.open.saturating_sub(1);
        let mut map = self.spends.lock();
        map.away = map.away.saturating_sub(1);
        self.spends.publish(&map);
    }

    /// Drops a spend that will not be booked, or whose booking has an unknown outcome.
    pub(super) fn give_up(&mut self) {
        self.done();
        self.spends.drop_one();
    }

    /// Makes a spend pending again that was not booked.
    pub(super) fn put_back(&mut self, spender: Spender, permits: u64) {
        self.open = self.open.saturating_sub(1);
        self.spends.put_back(spender, permits);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        for (spender, permits) in std::mem::take(&mut self.left) {
            self.spends.put_back(spender, permits);
        }
        // Interrupted: the outcome of these bookings is unknown, so they are not repeated.
        for _ in 0..self.open {
            self.give_up();
        }
    }
}
