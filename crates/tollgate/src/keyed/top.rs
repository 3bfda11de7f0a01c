//! Which keys are the heaviest, and how many there are, in bounded memory.
//!
//! # The idea
//!
//! Space-Saving (Metwally, Agrawal and El Abbadi 2005): keep `capacity` keys with a count each. A
//! key that is kept adds its cost to its count. One that is not takes the place of the lightest
//! one, inherits its count, and remembers that as its error. See `top/summary.rs`.
//!
//! Keys that pass and keys that are denied are ranked apart, each in a summary of its own. The
//! number of distinct keys is estimated by a `HyperLogLog` (`top/distinct.rs`).
//!
//! # Threads
//!
//! There are up to 8 stripes, each with its own lock and `capacity` keys. A thread records on its
//! own stripe; if that is locked, on any that is not; if all are, it waits. So nothing is ever
//! skipped. A key may be on several stripes: readers add them up, and for a stripe on which it is
//! not, they add the most it can have had there, as count and as error.
//!
//! # Bounds
//!
//! With T for the total weight of a ranking, T1 .. TS for those of its stripes, and k for the
//! capacity: on stripe s no count is below the lightest one, ms, and there are k of them if
//! anything was ever displaced, so ms <= Ts / k. An error is the ms of some earlier time, and ms
//! never falls. Summed up:
//!
//! - count - error <= true <= count, and error <= T / k;
//! - a key with a true weight above T / k is listed: on some stripe it is above Ts / k, and such a
//!   key cannot have been displaced.
//!
//! Departures from the paper: (1) weights instead of single events, so a binary heap instead of
//! the list of buckets; (2) stripes; (3) halving.

mod distinct;
mod summary;

use super::fingerprint::Seed;
use crate::{
    Decision, Outcome,
    striped::home_of_thread,
    sync::{Mutex, MutexGuard, Padded, lock},
    wait::mix,
};
use distinct::Distinct;
use std::{
    collections::HashMap,
    fmt::{self, Display},
    hash::Hash,
    sync::TryLockError,
    thread,
};
use summary::{ShortName, Summary};

/// The heaviest keys with their names, by allowed and by denied cost, in bounded memory.
///
/// For "who is it?" when a limit is hit: keys are chosen by strangers, so their names can be
/// neither metric labels nor kept in a map. This keeps the heavy ones.
///
/// | bound | with T the total cost of the ranking, k the capacity |
/// |---|---|
/// | a listed key | count - error <= true cost <= count |
/// | error | <= T / k; after [`halve`](Self::halve), up to one more on each stripe |
/// | a key with a true cost above T / k | is listed |
/// | [`distinct`](Self::distinct) | standard error 1.6 % |
/// | memory | below 2 x stripes x k x 350 bytes + 4 KiB, of which 131 are for the name |
/// | a record | O(log k), no allocation if the key is listed on the thread's stripe |
///
/// Stripes are as many as processors, rounded up to a power of two, at most 8. Held by
/// `tests/limiting/top_keys.rs`.
///
/// # Examples
///
/// ```
/// use tollgate::{Clock, KeyedLimiter, Quota, TopKeys};
///
/// let limiter: KeyedLimiter<str> = KeyedLimiter::new(Quota::per_hour(2))?;
/// let top = TopKeys::new(100);
/// for user in ["alice", "mallory", "mallory", "mallory", "mallory", "mallory"] {
///     let decision = limiter.try_acquire(user);
///     top.record_decision(&user, top.fingerprint(user), &decision);
/// }
/// let worst = &top.top_denied(1)[0];
/// assert_eq!((worst.name.as_str(), worst.count, worst.error), ("mallory", 3, 0));
/// assert_eq!(top.distinct(), 2);
/// # Ok::<(), tollgate::KeyedError>(())
/// ```
#[doc(alias = "heavy hitters")]
#[doc(alias = "SpaceSaving")]
#[doc(alias = "HyperLogLog")]
pub struct TopKeys {
    stripes: Box<[Padded<Mutex<Rankings>>]>,
    capacity: usize,
    distinct: Distinct,
    seed: Seed,
}

/// A heavy key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopKey {
    /// The name it was recorded with; beyond 128 bytes cut, and marked with `…`.
    pub name: String,
    /// Its cost at most.
    pub count: u64,
    /// By how much `count` may be too high.
    pub error: u64,
}

impl TopKey {
    /// Returns its cost at least: `count - error`.
    #[must_use]
    pub const fn at_least(&self) -> u64 {
        self.count.saturating_sub(self.error)
    }
}

/// The two rankings of one stripe.
type Rankings = [Summary; 2];
const ALLOWED: usize = 0;
const DENIED: usize = 1;

/// Enough that threads rarely meet; more would only cost memory, as each holds `capacity` keys.
const STRIPES_MAX: usize = 8;

impl TopKeys {
    /// The largest capacity.
    pub const CAPACITY_MAX: usize = 100_000;

    /// Returns an empty sketch that keeps `capacity` keys of each ranking on each stripe.
    ///
    /// 100 finds everything above 1 % of the traffic, 10 000 everything above 0.01 %.
    ///
    /// # Panics
    ///
    /// When the capacity is zero or above [`CAPACITY_MAX`](Self::CAPACITY_MAX).
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        assert!(
            (1..=Self::CAPACITY_MAX).contains(&capacity),
            "a capacity of {capacity} keys is out of range; use 1 to {}, usually 100 to 10000",
            Self::CAPACITY_MAX
        );
        let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let stripes = processors.next_power_of_two().min(STRIPES_MAX);
        let rankings = || [ALLOWED, DENIED].map(|_| Summary::new(capacity));
        Self {
            stripes: (0..stripes).map(|_| Padded(Mutex::new(rankings()))).collect(),
            capacity,
            distinct: Distinct::default(),
            seed: Seed::random(),
        }
    }

    /// Returns how many keys each ranking keeps on each stripe.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns how many stripes there are: locks that threads spread over.
    #[must_use]
    pub const fn stripes(&self) -> usize {
        self.stripes.len()
    }

    /// Returns a fingerprint of a key, for [`record`](Self::record).
    ///
    /// It depends on a secret of this sketch, so that nobody can choose keys that collide.
    #[must_use]
    pub fn fingerprint<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.seed.fingerprint(key)
    }

    /// Adds `cost` to a key, in the ranking that the outcome names.
    ///
    /// `fingerprint` tells keys apart; `name` is only shown, and only rendered when the key enters
    /// a ranking of this thread's stripe. A cost of zero counts for [`distinct`](Self::distinct)
    /// only.
    ///
    /// # Concurrency
    ///
    /// Takes a short lock that few threads share. No lock is held while the name is rendered.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Outcome, TopKeys};
    ///
    /// let top = TopKeys::new(100);
    /// let key = ("GET /search", 42);
    /// let name = format_args!("{} by user {}", key.0, key.1).to_string();
    /// top.record(&name, top.fingerprint(&key), Outcome::Allowed, 7);
    /// assert_eq!(top.top_allowed(10)[0].name, "GET /search by user 42");
    /// ```
    pub fn record(&self, name: &dyn Display, fingerprint: u64, outcome: Outcome, cost: u64) {
        // Fingerprints made elsewhere may be mere counters, and both sketches need every bit to matter.
        let hash = mix(fingerprint);
        self.distinct.add(hash);
        if cost == 0 {
            return;
        }
        let side = match outcome {
            Outcome::Allowed => ALLOWED,
            Outcome::Later | Outcome::Never => DENIED,
        };
        if self.any_stripe()[side].add(hash, cost) {
            return;
        }
        // Rendering is foreign code, so it happens between two locks; the second may be another
        // stripe, and the key may be there already.
        let name = ShortName::of(name);
        self.any_stripe()[side].enter(hash, cost, &name);
    }

    /// [`record`](Self::record) with the outcome and the cost of a decision.
    pub fn record_decision(&self, name: &dyn Display, fingerprint: u64, decision: &Decision) {
        self.record(name, fingerprint, decision.outcome(), decision.cost());
    }

    /// Locks this thread's stripe, or one that is free; waits only if none is.
    fn any_stripe(&self) -> MutexGuard<'_, Rankings> {
        let home = home_of_thread(self.stripes.len());
        let (before, after) = self.stripes.split_at(home);
        for Padded(stripe) in after.iter().chain(before) {
            match stripe.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        lock(&self.stripes[home].0)
    }

    /// Returns the `n` keys with the highest allowed cost, the heaviest first.
    ///
    /// Locks one stripe at a time and copies its names meanwhile; threads record on others.
    #[must_use]
    pub fn top_allowed(&self, n: usize) -> Vec<TopKey> {
        self.top(ALLOWED, n)
    }

    /// Returns the `n` keys with the highest denied cost, the heaviest first.
    ///
    /// As [`top_allowed`](Self::top_allowed).
    #[must_use]
    pub fn top_denied(&self, n: usize) -> Vec<TopKey> {
        self.top(DENIED, n)
    }

    fn top(&self, side: usize, n: usize) -> Vec<TopKey> {
        // For each key, what it has where it is listed, and the floors of those stripes.
        let mut listed: HashMap<u64, (TopKey, u64)> = HashMap::new();
        let mut floors = 0_u64;
        for Padded(stripe) in &self.stripes {
            let summary = &lock(stripe)[side];
            let floor = summary.floor();
            floors = floors.saturating_add(floor);
            for slot in &summary.slots {
                let new = || (TopKey { name: slot.name.clone(), count: 0, error: 0 }, 0);
                let (key, known) = listed.entry(slot.hash).or_insert_with(new);
                key.count = key.count.saturating_add(slot.count);
                key.error = key.error.saturating_add(slot.error);
                *known = known.saturating_add(floor);
            }
        }
        let mut keys: Vec<TopKey> = listed
            .into_values()
            .map(|(TopKey { name, count, error }, known)| {
                // Where it is not listed, it can have had up to the floor.
                let unknown = floors.saturating_sub(known);
                let (count, error) = (count.saturating_add(unknown), error.saturating_add(unknown));
                TopKey { name, count, error }
            })
            .collect();
        // By name among equals, so that the order does not depend on a hash.
        keys.sort_unstable_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
        keys.truncate(n);
        keys
    }

    /// Returns the cost recorded in all, allowed and denied.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total_allowed().saturating_add(self.total_denied())
    }

    /// Returns the allowed cost recorded.
    #[must_use]
    pub fn total_allowed(&self) -> u64 {
        self.total_of(ALLOWED)
    }

    /// Returns the denied cost recorded.
    #[must_use]
    pub fn total_denied(&self) -> u64 {
        self.total_of(DENIED)
    }

    fn total_of(&self, side: usize) -> u64 {
        let total = |Padded(stripe): &Padded<Mutex<Rankings>>| lock(stripe)[side].total;
        self.stripes.iter().map(total).fold(0, u64::saturating_add)
    }

    /// Returns about how many distinct keys were recorded since the sketch was new or cleared.
    ///
    /// The standard error is 1.04 / sqrt(4096) = 1.6 %: about two in three estimates are nearer
    /// than that, nearly all are within three times as much.
    #[must_use]
    pub fn distinct(&self) -> u64 {
        self.distinct.estimate()
    }

    /// Halves all counts, errors and totals, rounded down, so that old heavy keys fade.
    ///
    /// Called every minute, a count is a weight with a half-life of a minute. What a key has on
    /// each stripe is rounded on its own; keys that have nothing left leave. Does not change
    /// [`distinct`](Self::distinct), which cannot forget.
    pub fn halve(&self) {
        for Padded(stripe) in &self.stripes {
            lock(stripe).iter_mut().for_each(Summary::halve);
        }
    }

    /// Forgets everything.
    pub fn clear(&self) {
        for Padded(stripe) in &self.stripes {
            lock(stripe).iter_mut().for_each(Summary::clear);
        }
        self.distinct.clear();
    }
}

impl fmt::Debug for TopKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopKeys")
            .field("capacity", &self.capacity)
            .field("stripes", &self.stripes.len())
            .field("total_allowed", &self.total_allowed())
            .field("total_denied", &self.total_denied())
            .field("distinct", &self.distinct())
            .finish_non_exhaustive()
    }
}
