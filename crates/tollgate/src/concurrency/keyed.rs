//! One limit on what is in flight for each of many keys.

use super::{
    Acquire, ConcurrencyCounts, ConcurrencyError, Full, KeyedConcurrencyBuilder, Permit,
    builder::check_limit, permit::Owner, table::Table,
};
use crate::{
    observe::{Collector, Samples, WaitHistogram, WeakCollector, family},
    sync::Arc,
};
use std::{fmt, hash::Hash, marker::PhantomData};

/// One limit on what is in flight for each of many keys: users, hosts, routes; clones share them.
///
/// The verbs are those of [`Concurrency`](super::Concurrency) with the key in front. Every key has
/// its own permits and its own queue, and the same limit unless
/// [`set_key_limit`](Self::set_key_limit) gives it another.
///
/// Keys are not stored, only 64-bit fingerprints; [docs/keys.md] has the odds of a collision. A
/// key with nothing in flight and nobody waiting takes no memory. Everything that callers can make
/// grow has a bound: keys in use, waiters of one key, and waiters of all keys.
///
/// # Concurrency
///
/// `Send + Sync`. A call takes the short lock of one of 64 shards; one on another shard goes on.
/// A change for all keys goes shard by shard, and holds for each key from the moment it gets there;
/// when the call returns it holds for all.
///
/// # Examples
///
/// ```
/// use tollgate::KeyedConcurrency;
///
/// let limit: KeyedConcurrency<str> = KeyedConcurrency::new(2)?;
/// let first = limit.try_acquire("alice")?;
/// let _second = limit.try_acquire("alice")?;
/// assert!(limit.try_acquire("alice").is_err());
/// assert!(limit.try_acquire("bob").is_ok()); // given back at once
/// drop(first);
/// assert_eq!((limit.in_flight("alice"), limit.len()), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [docs/keys.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/keys.md
pub struct KeyedConcurrency<K: ?Sized> {
    pub(super) table: Arc<Table>,
    pub(super) keys: PhantomData<fn(&K)>,
}

impl<K: ?Sized> KeyedConcurrency<K> {
    /// Returns a limit without a queue for each key, and up to a million keys in use.
    ///
    /// # Errors
    ///
    /// When the limit is above [`Concurrency::LIMIT_MAX`](super::Concurrency::LIMIT_MAX).
    pub fn new(limit: u64) -> Result<Self, ConcurrencyError> {
        Self::builder(limit).build()
    }

    /// Starts a limit with queues, a name, counts or other bounds.
    pub fn builder(limit: u64) -> KeyedConcurrencyBuilder<K> {
        KeyedConcurrencyBuilder::new(limit)
    }

    fn owner(&self, key: u64) -> Owner {
        Owner::Key(Arc::clone(&self.table), key)
    }

    /// Returns the name given to the builder; empty by default.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.table.name
    }

    /// Returns how many keys may be in use at once.
    #[must_use]
    pub fn max_keys(&self) -> u64 {
        self.table.bounds.max_keys
    }

    /// Returns the limit of every key that has none of its own.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.table.limit()
    }

    /// Changes the limit of every key that has none of its own, as
    /// [`Concurrency::set_limit`](super::Concurrency::set_limit) does.
    ///
    /// # Errors
    ///
    /// When the limit is above [`Concurrency::LIMIT_MAX`](super::Concurrency::LIMIT_MAX); the old
    /// one then stays in force.
    pub fn set_limit(&self, limit: u64) -> Result<(), ConcurrencyError> {
        self.table.set_limit(&self.owner(0), check_limit(limit)?);
        Ok(())
    }

    /// Refuses all calls from now on, and those that wait. Calls in flight may finish.
    pub fn close(&self) {
        self.table.close(&self.owner(0));
    }

    /// Tells whether the limit is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.table.is_closed()
    }

    /// Returns how many keys are in use: with something in flight, or with an answer that a waiter
    /// has not fetched yet.
    #[must_use]
    pub fn len(&self) -> usize {
        // OVERFLOW: every key has a line in memory.
        self.table.keys.get() as usize
    }

    /// Tells whether no key is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many keys have a limit of their own.
    #[must_use]
    pub fn key_limits(&self) -> usize {
        // OVERFLOW: every one is in memory.
        self.table.overrides.get() as usize
    }

    /// Returns how many permits of all keys are in flight. Looks at one shard after the other.
    #[must_use]
    pub fn total_in_flight(&self) -> u64 {
        self.table.total_in_flight()
    }

    /// Returns how many wait, for all keys.
    #[must_use]
    pub fn total_waiting(&self) -> u64 {
        self.table.waiting.get()
    }

    /// Returns how long calls that passed had to wait in the queue; empty unless built with
    /// [`counted`](KeyedConcurrencyBuilder::counted). Calls that passed at once are not in it.
    #[must_use]
    pub fn waits(&self) -> WaitHistogram {
        self.table.tally.waits()
    }

    /// Returns what happened on all keys; all zero unless built with
    /// [`counted`](KeyedConcurrencyBuilder::counted).
    #[must_use]
    pub fn counts(&self) -> ConcurrencyCounts {
        self.table.tally.sum()
    }
}

impl<K: Hash + ?Sized> KeyedConcurrency<K> {
    fn key(&self, key: &K) -> u64 {
        self.table.seed.fingerprint(key)
    }

    /// Takes one permit of a key if it is free now. Never waits.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_n`](Self::try_acquire_n).
    pub fn try_acquire(&self, key: &K) -> Result<Permit, Full> {
        self.try_acquire_n(key, 1)
    }

    /// Takes `cost` permits of a key if all of them are free now and no call waits for that key.
    /// Never waits.
    ///
    /// # Errors
    ///
    /// [`Full`] says why not. A refusal changes nothing.
    pub fn try_acquire_n(&self, key: &K, cost: u64) -> Result<Permit, Full> {
        let key = self.key(key);
        let answer = self.table.try_enter(key, cost);
        self.table.tally.answer(&answer);
        answer.map(|()| Permit::new(self.owner(key), cost))
    }

    /// Waits for one permit of a key, in turn.
    ///
    /// # Errors
    ///
    /// As [`acquire_n`](Self::acquire_n).
    pub fn acquire(&self, key: &K) -> Acquire {
        self.acquire_n(key, 1)
    }

    /// Waits for `cost` permits of a key, in turn.
    ///
    /// # Errors
    ///
    /// The future gives [`Full`] at once if the cost is above the limit, the queue of the key or
    /// all queues together are full, the key is new and too many are in use, or the limit is
    /// closed; and later if a lower limit or a close ends the wait.
    ///
    /// # Cancel safety
    ///
    /// See [`Acquire`].
    pub fn acquire_n(&self, key: &K, cost: u64) -> Acquire {
        Acquire::new(self.owner(self.key(key)), cost)
    }

    /// Gives a key a limit of its own, in force at once and until it is cleared.
    ///
    /// # Errors
    ///
    /// When the limit is above [`Concurrency::LIMIT_MAX`](super::Concurrency::LIMIT_MAX), or as
    /// many keys have one as may ([`max_key_limits`](KeyedConcurrencyBuilder::max_key_limits)).
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::KeyedConcurrency;
    ///
    /// let limit: KeyedConcurrency<str> = KeyedConcurrency::new(2)?;
    /// limit.set_key_limit("batch", 50)?;
    /// assert_eq!((limit.key_limit("batch"), limit.key_limit("alice")), (50, 2));
    /// limit.clear_key_limit("batch");
    /// assert_eq!(limit.key_limit("batch"), 2);
    /// # Ok::<(), tollgate::ConcurrencyError>(())
    /// ```
    pub fn set_key_limit(&self, key: &K, limit: u64) -> Result<(), ConcurrencyError> {
        let limit = check_limit(limit)?;
        let key = self.key(key);
        match self.table.set_key_limit((&self.owner(key), key), Some(limit)) {
            true => Ok(()),
            false => Err(ConcurrencyError::TooManyKeyLimits {
                max_key_limits: self.table.bounds.max_overrides,
            }),
        }
    }

    /// Takes a key's own limit away: that of all others holds for it at once.
    pub fn clear_key_limit(&self, key: &K) {
        let key = self.key(key);
        self.table.set_key_limit((&self.owner(key), key), None);
    }

    /// Returns the limit in force for a key.
    #[must_use]
    pub fn key_limit(&self, key: &K) -> u64 {
        self.table.look(self.key(key)).0.limit.into()
    }

    /// Returns how many permits of a key are in flight.
    #[must_use]
    pub fn in_flight(&self, key: &K) -> u64 {
        self.table.look(self.key(key)).0.in_flight.into()
    }

    /// Returns how many permits of a key could be taken now, as far as `max_keys` leaves room: 0
    /// while calls wait for it.
    #[must_use]
    pub fn available(&self, key: &K) -> u64 {
        self.table.look(self.key(key)).0.available()
    }

    /// Returns how many wait for a key.
    #[must_use]
    pub fn waiting(&self, key: &K) -> u64 {
        self.table.look(self.key(key)).1
    }
}

impl<K: ?Sized> Clone for KeyedConcurrency<K> {
    fn clone(&self) -> Self {
        Self { table: Arc::clone(&self.table), keys: PhantomData }
    }
}

impl<K: ?Sized> fmt::Debug for KeyedConcurrency<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedConcurrency")
            .field("name", &self.name())
            .field("limit", &self.limit())
            .field("len", &self.len())
            .field("waiting", &self.total_waiting())
            .finish_non_exhaustive()
    }
}

impl<K: ?Sized + 'static> Collector for KeyedConcurrency<K> {
    fn collect(&self, samples: &mut Samples) {
        samples.kind("keyed_concurrency");
        samples.gauge(&family::IN_FLIGHT, self.total_in_flight() as f64);
        samples.gauge(&family::IN_FLIGHT_LIMIT, self.limit() as f64);
        samples.queue(self.total_waiting(), self.table.bounds.max_waiting_total);
        samples.gauge(&family::KEYS, self.len() as f64);
        samples.gauge(&family::KEYS_LIMIT, self.max_keys() as f64);
        if self.is_closed() {
            samples.state("closed");
        }
        self.table.tally.collect(samples);
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.table, |table| Self { table, keys: PhantomData })
    }
}
