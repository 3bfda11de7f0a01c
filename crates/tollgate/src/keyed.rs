//! One limit for each of many keys.

mod bans;
mod blocking;
mod builder;
pub(crate) mod claims;
pub(crate) mod core;
mod error;
pub(crate) mod fingerprint;
mod fold;
pub(crate) mod overrides;
mod persist;
mod quotas;
pub(crate) mod rule_cell;
mod sip;
mod store_core;
mod top;
mod verbs;
mod waiting;

pub use bans::Bans;
use builder::KeyedOptions;
pub use builder::{KeyedBuilder, WhenFull};
pub use error::KeyedError;
pub use fingerprint::Seed;
pub use overrides::Escalation;
pub use quotas::Assigned;
pub use top::{TopKey, TopKeys};
pub(crate) use waiting::WaitedKey;

use self::core::Core;
use crate::{
    Algorithm, Clock, Outcome, Quota, Tick,
    observe::{Collector, Counts, Health, Samples, WaitHistogram, WeakCollector, family},
    sync::{Arc, Ordering::Relaxed},
};
use std::{fmt, hash::Hash};

/// One limit for each of many keys: users, addresses, routes; clones share them.
///
/// Every key has its own permits. Keys are not stored: a slot is a fingerprint and the state word,
/// 16 bytes, whatever the length of the key. [docs/keys.md] has the memory, the odds of a collision,
/// and what a flood of keys does.
///
/// A key that has refilled equals one that was never seen, so its slot is given to others, a few
/// at a time, without a janitor and without anybody noticing (`tests/limiting/keyed.rs`:
/// `eviction_is_invisible`).
///
/// | I want | use |
/// |---|---|
/// | as many keys as come | [`KeyedLimiter::new`] |
/// | a fixed amount of memory | [`KeyedBuilder::bounded`] |
/// | a growing table with an upper end | [`KeyedBuilder::max_keys`] |
/// | another quota for some keys | [`KeyedBuilder::tier`], [`override_quota`](Self::override_quota) |
/// | to wait my turn | [`acquire`](Self::acquire) |
/// | to punish or exempt a key | [`block`](Self::block), [`penalize`](Self::penalize), [`allow`](Self::allow) |
///
/// The type parameter is what the verbs take by reference: `KeyedLimiter<str>` takes `&str`,
/// `KeyedLimiter<IpAddr>` takes `&IpAddr`. Anything that hashes will do, and nothing is allocated.
///
/// # Examples
///
/// ```
/// use tollgate::{KeyedLimiter, Quota};
///
/// let limiter = KeyedLimiter::<str>::new(Quota::per_second(10).burst(2))?;
/// assert!(limiter.try_acquire("alice").is_allowed());
/// assert!(limiter.try_acquire("alice").is_allowed());
/// assert!(limiter.try_acquire("alice").is_denied());
/// assert!(limiter.try_acquire("bob").is_allowed());
/// # Ok::<(), tollgate::KeyedError>(())
/// ```
///
/// [docs/keys.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/keys.md
pub struct KeyedLimiter<K: ?Sized> {
    pub(crate) core: Arc<Core>,
    typed: Arc<Typed<K>>,
}

/// The parts that know the type of the keys.
struct Typed<K: ?Sized> {
    assign: Option<quotas::Assign<K>>,
    top: Option<Top<K>>,
}

/// The names of heavy keys, and how a key gets there.
struct Top<K: ?Sized> {
    keys: TopKeys,
    note: fn(&TopKeys, &K, u64, (Outcome, u64)),
}

impl<K: Hash + ?Sized> KeyedLimiter<K> {
    /// Returns a GCRA limiter (token buckets) with a growing table on the monotonic clock.
    ///
    /// # Errors
    ///
    /// When the quota makes no sense for keys: the error says why and what to do.
    pub fn new(quota: Quota) -> Result<Self, KeyedError> {
        Self::builder(quota).build()
    }

    /// Starts a limiter with another algorithm, table or clock.
    pub fn builder(quota: Quota) -> KeyedBuilder<K> {
        KeyedBuilder::new(quota, KeyedOptions::default())
    }
}

impl<K: ?Sized> KeyedLimiter<K> {
    /// Returns the time by this limiter's clock.
    #[must_use]
    pub fn now(&self) -> Tick {
        self.core.clock.now()
    }

    /// Returns this limiter's clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.core.clock
    }

    /// Returns the name given to the builder; empty by default.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Returns the quota of keys that have none of their own.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.core.default.quota()
    }

    /// Returns the algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.core.algorithm
    }

    /// Returns how many keys have a slot. Some of them may have refilled meanwhile. Looks at the
    /// whole table, one lock at a time.
    #[must_use]
    pub fn len(&self) -> usize {
        self.core.tables.len()
    }

    /// Tells whether no key has a slot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the memory of the slots, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.core.tables.bytes()
    }

    /// Forgets the states of all keys: each is as if never seen. Open reservations become final.
    /// Lists, blocks and overrides stay.
    pub fn clear(&self) {
        let mut claims = self.core.claims.lock_all();
        self.core.tables.clear();
        claims.clear();
        // Waiting callers are booked again.
        claims.release(&self.core);
    }

    /// Removes the keys that have refilled, so that new ones find room without growth. The memory stays: readers
    /// of the table hold no lock that would tell when it can be freed. A table therefore keeps the largest size
    /// that it ever had; drop the limiter to free it.
    pub fn shrink(&self) {
        self.core.tables.shrink(self.now());
    }

    /// Returns how many decisions went which way; all zero unless the limiter is
    /// [`counted`](KeyedBuilder::counted).
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.core.instruments.as_ref().map(|instruments| instruments.counts()).unwrap_or_default()
    }

    /// Tells whether the limiter denies nearly everything, over all keys: see
    /// [`Limiter::health`](crate::Limiter::health). Always [`Health::Unknown`] unless it is
    /// [`counted`](KeyedBuilder::counted).
    #[must_use]
    pub fn health(&self) -> Health {
        self.core
            .instruments()
            .map_or(Health::Unknown, |instruments| instruments.health(self.now()))
    }

    /// Returns how long reservations and waits of all keys took; empty unless the limiter is
    /// [`counted`](KeyedBuilder::counted).
    #[must_use]
    pub fn waits(&self) -> WaitHistogram {
        self.core.instruments().map(|instruments| instruments.waits.sum()).unwrap_or_default()
    }

    /// Returns the heaviest keys by name, and how many distinct ones there were; `None` unless the
    /// limiter was built with [`top_keys`](KeyedBuilder::top_keys).
    ///
    /// Decisions over several [`Limits`](crate::Limits), of leases and of those who wait are not
    /// among them.
    #[must_use]
    pub fn top_keys(&self) -> Option<&TopKeys> {
        self.typed.top.as_ref().map(|top| &top.keys)
    }

    /// Returns what happened to the table.
    #[must_use]
    pub fn table_counts(&self) -> TableCounts {
        self.core.table_counts()
    }
}

impl core::Core {
    pub(crate) fn table_counts(&self) -> TableCounts {
        let (forgotten, evicted) = self.tables.eviction.counts();
        // ORDERING: Relaxed. Counts for people to look at.
        let saturated = self.saturated.load(Relaxed);
        let unusable_quotas = self.unusable.load(Relaxed);
        TableCounts { forgotten, evicted, saturated, unusable_quotas, notes: self.overrides.len() }
    }
}

/// What happened to the table of a keyed limiter so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableCounts {
    /// Keys at rest whose slot was given away: nobody noticed.
    pub forgotten: u64,
    /// Live keys that lost their state to a new one ([`WhenFull::Evict`]).
    pub evicted: u64,
    /// Calls for keys that could not be taken in ([`WhenFull::Refuse`], [`WhenFull::Share`]).
    pub saturated: u64,
    /// Answers of [`KeyedBuilder::quota_by`] that could not be used; those keys had the default.
    pub unusable_quotas: u64,
    /// Keys with an override, a place on a list, a block, strikes or a cached quota.
    pub notes: u64,
}

impl<K: ?Sized> Clone for KeyedLimiter<K> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core), typed: Arc::clone(&self.typed) }
    }
}

impl<K: ?Sized> fmt::Debug for KeyedLimiter<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLimiter")
            .field("name", &self.name())
            .field("algorithm", &self.algorithm())
            .field("quota", &self.quota().to_string())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl<K: ?Sized> Collector for KeyedLimiter<K> {
    fn collect(&self, samples: &mut Samples) {
        CoreCollector(Arc::clone(&self.core)).collect(samples);
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.core, CoreCollector)
    }
}

/// Reads a keyed limiter without the type of its keys.
struct CoreCollector(Arc<Core>);

impl Collector for CoreCollector {
    fn collect(&self, samples: &mut Samples) {
        let Self(core) = self;
        samples.kind("keyed_limiter");
        samples.quota(core.default.quota());
        samples.gauge(&family::KEYS, core.tables.len() as f64);
        if let Some(most) = core.tables.cap {
            samples.gauge(&family::KEYS_LIMIT, most as f64);
        }
        samples.gauge(&family::TABLE_BYTES, core.tables.bytes() as f64);
        let counts = core.table_counts();
        for (event, count) in [
            ("forgotten", counts.forgotten),
            ("evicted", counts.evicted),
            ("saturated", counts.saturated),
            ("unusable_quota", counts.unusable_quotas),
        ] {
            samples.count_by(&family::TABLE_EVENTS, event, count);
        }
        samples.queue(core.waiting(), core.queue_rules.max_waiting as u64);
        if let Some(instruments) = core.instruments() {
            instruments.collect(samples, core.clock.now());
        }
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.0, Self)
    }
}
