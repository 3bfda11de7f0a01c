//! How a store in memory is built.

use super::{
    MemoryStore, Shared,
    reservations::{Bounds, OpenReservations},
};
use crate::{
    Clock, KeyedBuilder, KeyedError, KeyedLimiter, Quota, Seed, WhenFull,
    store::permits::Flights,
    sync::{Arc, Mutex},
};
use std::time::Duration;

/// Builds a [`MemoryStore`]. Nothing is judged before [`build`](Self::build).
#[must_use = "a builder does nothing until `build`"]
#[derive(Debug)]
pub struct MemoryStoreBuilder {
    table: KeyedBuilder<[u8]>,
    max_reservations: Option<usize>,
    max_reservations_per_policy: Option<usize>,
    max_reservations_per_key: Option<usize>,
    max_permits: u64,
}

impl MemoryStoreBuilder {
    /// How many reservations can be open in all, unless [said](Self::max_reservations).
    pub const MAX_RESERVATIONS: usize = 1 << 17;
    /// How many of one policy, unless [said](Self::max_reservations_per_policy).
    pub const MAX_RESERVATIONS_PER_POLICY: usize = 1 << 16;
    /// How many of one key, unless [said](Self::max_reservations_per_key).
    pub const MAX_RESERVATIONS_PER_KEY: usize = 1 << 10;

    pub(super) fn new() -> Self {
        Self {
            table: KeyedLimiter::builder(Quota::unlimited()),
            max_reservations: None,
            max_reservations_per_policy: None,
            max_reservations_per_key: None,
            max_permits: 1 << 20,
        }
    }

    /// Sets the clock, by default [`Clock::monotonic`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.table = self.table.clock(clock);
        self
    }

    /// Holds at most so many keys of all policies together, and allocates the memory for them at once: 22 bytes
    /// each, and 100 KiB. By default the table grows.
    pub fn bounded(mut self, keys: u64) -> Self {
        self.table = self.table.bounded(keys);
        self
    }

    /// Lets the growing table hold at most so many keys. By default there is no such bound.
    pub fn max_keys(mut self, keys: u64) -> Self {
        self.table = self.table.max_keys(keys);
        self
    }

    /// Says what happens to a new key when all entries are live, by default [`WhenFull::Evict`].
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.table = self.table.when_full(when_full);
        self
    }

    /// Forgets keys of sliding logs, and of quotas whose fresh keys are not full, that nobody asked
    /// for during `max_idle`.
    pub fn max_idle(mut self, max_idle: Duration) -> Self {
        self.table = self.table.max_idle(max_idle);
        self
    }

    /// Sets how many reservations and leases can be open in all, by default 131072: some 170 MB if
    /// each has a key of its own. A reservation of several limits counts once for each, and one of
    /// zero permits like any other. Above the bound a `reserve` or `lease` is refused without a charge,
    /// with an error that [is full](crate::store::StoreError::is_full).
    pub fn max_reservations(mut self, most: usize) -> Self {
        self.max_reservations = Some(most);
        self
    }

    /// Sets how many of them can be of one policy, so that it leaves room for others: by default
    /// 65536, or [`max_reservations`](Self::max_reservations) if that is less.
    pub fn max_reservations_per_policy(mut self, most: usize) -> Self {
        self.max_reservations_per_policy = Some(most);
        self
    }

    /// Sets how many of them can be of one key, by default 1024, or the bound of a policy if that is
    /// less. The time of a cancel grows in proportion: 2 ms at a million.
    pub fn max_reservations_per_key(mut self, most: usize) -> Self {
        self.max_reservations_per_key = Some(most);
        self
    }

    /// Sets how many permits can be in flight, by default 1048576.
    pub fn max_permits(mut self, most: u64) -> Self {
        self.max_permits = most;
        self
    }

    /// Sets the secret that fingerprints depend on: one that outlives the process, for
    /// [`save`](MemoryStore::save) and [`restore`](MemoryStore::restore).
    pub fn seed(mut self, seed: Seed) -> Self {
        self.table = self.table.seed(seed);
        self
    }

    /// Builds the store.
    ///
    /// # Errors
    ///
    /// When the sizes make no sense, or one key or policy may have more reservations than all.
    pub fn build(self) -> Result<MemoryStore, KeyedError> {
        let bounds = self.bounds()?;
        let shared = Shared {
            core: self.table.build()?.core,
            flights: Flights::new(self.max_permits),
            reserved: Mutex::new(OpenReservations::new(bounds)),
        };
        Ok(MemoryStore { shared: Arc::new(shared) })
    }

    fn bounds(&self) -> Result<Bounds, KeyedError> {
        let total = self.max_reservations.unwrap_or(Self::MAX_RESERVATIONS);
        let within = |own: Option<usize>, default: usize, most: usize| match own {
            Some(own) if own > most => Err(KeyedError::Reservations { own, most }),
            Some(own) => Ok(own),
            None => Ok(default.min(most)),
        };
        let (per_policy, per_key) =
            (self.max_reservations_per_policy, self.max_reservations_per_key);
        let per_policy = within(per_policy, Self::MAX_RESERVATIONS_PER_POLICY, total)?;
        let per_key = within(per_key, Self::MAX_RESERVATIONS_PER_KEY, per_policy)?;
        Ok(Bounds { total, per_policy, per_key })
    }
}
