//! One limit for each of many keys.

mod builder;
pub(crate) mod fingerprint;
mod growing;
mod slots;
mod top;

pub use builder::{KeyedBuilder, KeyedError};
pub use top::{TopKey, TopKeys};

use crate::{
    Algorithm, Clock, Decision, Inherit, Quota, QuotaError, Tick,
    algorithm::{FixedWindow, Gcra, SlidingCounter, Step},
    sync::{Arc, Mutex, lock},
};
use fingerprint::Seed;
use growing::Growing;
use std::{borrow::Borrow, fmt, hash::Hash, marker::PhantomData};

/// One limit for each of many keys: users, addresses, routes; clones share them.
///
/// Every key has the same quota and its own permits. Keys are not stored: a slot is a 64-bit
/// fingerprint and the state word, 16 bytes, whatever the length of the key. `docs/keys.md` has
/// the memory, the odds of a collision, and what a flood of keys does.
///
/// A key that has refilled equals one that was never seen, so its slot is given to others, a few
/// at a time, without a janitor and without anybody noticing (`tests/keyed.rs`:
/// `eviction_is_invisible`).
///
/// # Examples
///
/// ```
/// use tollgate::{KeyedLimiter, Quota};
///
/// let limiter: KeyedLimiter<String> = KeyedLimiter::new(Quota::per_second(10).burst(2))?;
/// assert!(limiter.try_acquire("alice").is_allowed());
/// assert!(limiter.try_acquire("alice").is_allowed());
/// assert!(limiter.try_acquire("alice").is_denied());
/// assert!(limiter.try_acquire("bob").is_allowed());
/// # Ok::<(), tollgate::KeyedError>(())
/// ```
pub struct KeyedLimiter<K: ?Sized> {
    shared: Arc<Shared>,
    keys: PhantomData<fn(&K)>,
}

struct Shared {
    table: Table,
    clock: Clock,
    seed: Seed,
    /// Lock order: quota, then shards.
    quota: Mutex<Quota>,
}

/// The table of each algorithm whose state is one word.
#[derive(Debug)]
enum Table {
    Gcra(Growing<Gcra>),
    FixedWindow(Growing<FixedWindow>),
    AnchoredWindow(Growing<FixedWindow>),
    SlidingCounter(Growing<SlidingCounter>),
}

/// Runs the same code on the table of any algorithm.
macro_rules! on_table {
    ($table:expr, $name:ident => $body:expr) => {
        match $table {
            Table::Gcra($name) => $body,
            Table::FixedWindow($name) => $body,
            Table::AnchoredWindow($name) => $body,
            Table::SlidingCounter($name) => $body,
        }
    };
}

impl<K: ?Sized> KeyedLimiter<K> {
    /// Returns a GCRA limiter (token buckets) on the monotonic clock.
    ///
    /// # Errors
    ///
    /// When the quota makes no sense for keys: the error says why and what to do.
    pub fn new(quota: Quota) -> Result<Self, KeyedError> {
        Self::builder(quota).build()
    }

    /// Starts a limiter with another algorithm or clock.
    pub fn builder(quota: Quota) -> KeyedBuilder<K> {
        KeyedBuilder::new(quota)
    }

    /// Returns the time by this limiter's clock.
    #[must_use]
    pub fn now(&self) -> Tick {
        self.shared.clock.now()
    }

    /// Returns the quota of every key.
    #[must_use]
    pub fn quota(&self) -> Quota {
        *lock(&self.shared.quota)
    }

    /// Returns the algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        match self.shared.table {
            Table::Gcra(_) => Algorithm::Gcra,
            Table::FixedWindow(_) => Algorithm::FixedWindow,
            Table::AnchoredWindow(_) => Algorithm::AnchoredWindow,
            Table::SlidingCounter(_) => Algorithm::SlidingCounter,
        }
    }

    /// Returns how many keys have a slot. Some of them may have refilled meanwhile.
    #[must_use]
    pub fn len(&self) -> usize {
        on_table!(&self.shared.table, table => table.len())
    }

    /// Tells whether no key has a slot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the memory of the slots, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        on_table!(&self.shared.table, table => table.bytes())
    }

    /// Forgets all keys: each is as if never seen.
    pub fn clear(&self) {
        on_table!(&self.shared.table, table => table.clear());
    }

    /// Removes the keys that have refilled and gives memory back. Locks one shard at a time.
    pub fn shrink(&self) {
        let now = self.now();
        on_table!(&self.shared.table, table => table.shrink(now));
    }

    /// Changes the quota of every key, and keeps what each has used as `how` says. Keys at rest
    /// start full, as keys never seen do. Locks one shard at a time.
    ///
    /// # Errors
    ///
    /// When the new quota makes no sense for keys; the old one then stays in force.
    pub fn set_quota(&self, quota: Quota, how: Inherit) -> Result<(), KeyedError> {
        self.set_quota_at(self.now(), quota, how)
    }

    /// [`set_quota`](Self::set_quota) as of `now`.
    ///
    /// # Errors
    ///
    /// As [`set_quota`](Self::set_quota).
    pub fn set_quota_at(&self, now: Tick, quota: Quota, how: Inherit) -> Result<(), KeyedError> {
        let Shared { table, clock, .. } = &*self.shared;
        builder::check(&quota)?;
        let mut current = lock(&self.shared.quota);
        let epoch = clock.wall_offset();
        match table {
            Table::Gcra(table) => table.replace(Gcra::new(&quota)?, now, how),
            Table::FixedWindow(table) => {
                table.replace(FixedWindow::aligned(&quota, epoch)?, now, how);
            }
            Table::AnchoredWindow(table) => table.replace(FixedWindow::anchored(&quota)?, now, how),
            Table::SlidingCounter(table) => {
                table.replace(builder::packed_counter(&quota, epoch)?, now, how);
            }
        }
        *current = quota;
        Ok(())
    }
}

impl<K: ?Sized> KeyedLimiter<K> {
    /// Takes one permit of a key if it is free now. Never waits.
    #[doc(alias = "check_key")]
    pub fn try_acquire<Q>(&self, key: &Q) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.try_acquire_n(key, 1)
    }

    /// Takes `cost` permits of a key if all of them are free now. Never waits.
    #[doc(alias = "check_key_n")]
    pub fn try_acquire_n<Q>(&self, key: &Q, cost: u64) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.try_acquire_at(key, self.now(), cost)
    }

    /// [`try_acquire_n`](Self::try_acquire_n) as of `now`.
    pub fn try_acquire_at<Q>(&self, key: &Q, now: Tick, cost: u64) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        let key = self.shared.seed.fingerprint(key);
        on_table!(&self.shared.table, table => {
            table.update(key, now, |step, state| step.decide(state, now, cost))
        })
    }

    /// Takes as many permits of a key as are free now, at most `most`.
    pub fn up_to<Q>(&self, key: &Q, most: u64) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.up_to_at(key, self.now(), most)
    }

    /// [`up_to`](Self::up_to) as of `now`.
    pub fn up_to_at<Q>(&self, key: &Q, now: Tick, most: u64) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        let key = self.shared.seed.fingerprint(key);
        on_table!(&self.shared.table, table => {
            table.update(key, now, |step, state| step.up_to(state, now, most))
        })
    }

    /// Books `cost` permits of a key even into debt.
    pub fn force<Q>(&self, key: &Q, cost: u64) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.force_at(key, self.now(), cost)
    }

    /// [`force`](Self::force) as of `now`.
    pub fn force_at<Q>(&self, key: &Q, now: Tick, cost: u64) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        let key = self.shared.seed.fingerprint(key);
        on_table!(&self.shared.table, table => {
            table.update(key, now, |step, state| step.force(state, now, cost))
        })
    }

    /// Gives back up to `cost` permits of what a key has outstanding. Returns how many that were.
    #[allow(clippy::must_use_candidate, reason = "giving back is the point")]
    pub fn refund<Q>(&self, key: &Q, cost: u64) -> u64
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.refund_at(key, self.now(), cost)
    }

    /// [`refund`](Self::refund) as of `now`.
    #[allow(clippy::must_use_candidate, reason = "giving back is the point")]
    pub fn refund_at<Q>(&self, key: &Q, now: Tick, cost: u64) -> u64
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        let key = self.shared.seed.fingerprint(key);
        on_table!(&self.shared.table, table => table.update(key, now, |step, state| {
            let units = step.refund(state, now, cost);
            step.whole_permits(units)
        }))
    }

    /// Returns what [`try_acquire_n`](Self::try_acquire_n) would answer, and changes nothing.
    pub fn peek_n<Q>(&self, key: &Q, cost: u64) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.peek_at(key, self.now(), cost)
    }

    /// [`peek_n`](Self::peek_n) as of `now`.
    pub fn peek_at<Q>(&self, key: &Q, now: Tick, cost: u64) -> Decision
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        let key = self.shared.seed.fingerprint(key);
        on_table!(&self.shared.table, table => {
            table.read(key, |step, state| step.peek(state, now, cost))
        })
    }

    /// Returns how many whole permits of a key are free now.
    #[must_use]
    pub fn available<Q>(&self, key: &Q) -> u64
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        self.peek_n(key, 0).remaining()
    }

    /// Forgets a key: it is as if never seen.
    pub fn reset<Q>(&self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Hash + ?Sized,
    {
        let key = self.shared.seed.fingerprint(key);
        on_table!(&self.shared.table, table => table.remove(key));
    }
}

impl<K: ?Sized> Clone for KeyedLimiter<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), keys: PhantomData }
    }
}

impl<K: ?Sized> fmt::Debug for KeyedLimiter<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLimiter")
            .field("algorithm", &self.algorithm())
            .field("quota", &self.quota().to_string())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// Why a builder's or a quota's error is one of keys too.
impl From<QuotaError> for KeyedError {
    fn from(error: QuotaError) -> Self {
        Self::Quota(error)
    }
}
