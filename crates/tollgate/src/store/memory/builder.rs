//! How a store in memory is built.

use super::{MemoryStore, Shared, Shelf};
use crate::{
    Clock, KeyedError, KeyedLimiter, Quota, Seed, WhenFull,
    store::permits::Flights,
    sync::{Arc, AtomicU64, Mutex},
};
use std::time::Duration;

/// Builds a [`MemoryStore`]. Nothing is judged before [`build`](Self::build).
#[must_use = "a builder does nothing until `build`"]
#[derive(Debug)]
pub struct MemoryStoreBuilder {
    clock: Option<Clock>,
    bounded: Option<u64>,
    max_keys: Option<u64>,
    when_full: WhenFull,
    max_idle: Option<Duration>,
    max_reservations: usize,
    max_permits: u64,
    seed: Option<Seed>,
}

impl MemoryStoreBuilder {
    pub(super) fn new() -> Self {
        Self {
            clock: None,
            bounded: None,
            max_keys: None,
            when_full: WhenFull::default(),
            max_idle: None,
            max_reservations: 1 << 20,
            max_permits: 1 << 20,
            seed: None,
        }
    }

    /// Sets the clock, by default [`Clock::monotonic`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Uses a bounded table with memory for `keys` live keys of all policies together, 24 bytes
    /// each. By default the table grows.
    pub fn bounded(mut self, keys: u64) -> Self {
        self.bounded = Some(keys);
        self
    }

    /// Lets the growing table hold at most so many keys. By default there is no such bound.
    pub fn max_keys(mut self, keys: u64) -> Self {
        self.max_keys = Some(keys);
        self
    }

    /// Says what happens to a new key when all entries are live, by default [`WhenFull::Evict`].
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Forgets keys of sliding logs, and of quotas whose fresh keys are not full, that nobody asked
    /// for during `max_idle`.
    pub fn max_idle(mut self, max_idle: Duration) -> Self {
        self.max_idle = Some(max_idle);
        self
    }

    /// Sets how many reservations and leases can be open, by default 1048576.
    pub fn max_reservations(mut self, most: usize) -> Self {
        self.max_reservations = most;
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
        self.seed = Some(seed);
        self
    }

    /// Builds the store.
    ///
    /// # Errors
    ///
    /// When the sizes make no sense.
    pub fn build(self) -> Result<MemoryStore, KeyedError> {
        let mut builder = KeyedLimiter::<[u8]>::builder(Quota::unlimited());
        builder = builder.when_full(self.when_full);
        if let Some(clock) = self.clock {
            builder = builder.clock(clock);
        }
        if let Some(seed) = self.seed {
            builder = builder.seed(seed);
        }
        if let Some(keys) = self.bounded {
            builder = builder.bounded(keys);
        }
        if let Some(keys) = self.max_keys {
            builder = builder.max_keys(keys);
        }
        if let Some(max_idle) = self.max_idle {
            builder = builder.max_idle(max_idle);
        }
        let shared = Shared {
            core: builder.build()?.core,
            flights: Flights::new(self.max_permits),
            reserved: Mutex::new(Shelf::default()),
            next_id: AtomicU64::new(1),
            max_reservations: self.max_reservations,
        };
        Ok(MemoryStore { shared: Arc::new(shared) })
    }
}
