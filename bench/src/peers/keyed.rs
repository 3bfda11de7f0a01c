//! Limiters for many keys.

use crate::{
    keyed::store::{Loops, Peer, Setup, Store},
    machine,
};
use governor::{
    RateLimiter,
    clock::DefaultClock,
    state::keyed::{KeyedStateStore, ShrinkableKeyedStateStore},
};
use std::{
    collections::HashMap,
    hash::Hash,
    hint::black_box,
    num::NonZeroU32,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};
use throttlecrab::PeriodicStore;
use tollgate::{KeyedBuilder, KeyedLimiter, Quota};

/// The row that the ratios of the keyed tables refer to.
pub(crate) const BASELINE: &str = "governor 0.10 keyed (dashmap, SipHash)";

/// The row of [`growing`].
pub(crate) const GROWING: &str = "tollgate growing";
/// The row of [`bounded`].
pub(crate) const BOUNDED: &str = "tollgate bounded";

/// Starts the table that grows with its keys: the default.
pub(crate) fn growing(quota: Quota) -> KeyedBuilder<str> {
    KeyedLimiter::builder(quota)
}

/// Starts the table of a fixed size.
pub(crate) fn bounded(quota: Quota, keys: usize) -> KeyedBuilder<str> {
    KeyedLimiter::builder(quota).bounded(keys as u64)
}

fn tollgate(builder: KeyedBuilder<str>) -> Box<dyn Loops> {
    Box::new(builder.build().expect("the quotas of the tables make sense for keys"))
}

pub(crate) const fn quota(setup: &Setup) -> Quota {
    Quota::one_every(setup.every).burst(setup.burst as u64)
}

impl Store for KeyedLimiter<str> {
    #[inline(always)]
    fn take(&self, key: &String) -> bool {
        self.try_acquire(key.as_str()).is_allowed()
    }

    fn take_n(&self, key: &String, cost: u32) -> bool {
        self.try_acquire_n(key.as_str(), u64::from(cost)).is_allowed()
    }

    fn sweep(&self) {
        self.shrink();
    }

    fn resident(&self) -> Option<usize> {
        Some(self.len())
    }
}

/// The tables of tollgate.
pub(crate) const fn ours() -> [Peer; 2] {
    [
        Peer { name: GROWING, build: |setup| tollgate(growing(quota(setup))) },
        Peer { name: BOUNDED, build: |setup| tollgate(bounded(quota(setup), setup.keys)) },
    ]
}

fn nonzero(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).expect("bursts and costs of the tables are not zero")
}

pub(crate) fn governor_quota(setup: &Setup) -> governor::Quota {
    governor::Quota::with_period(setup.every)
        .expect("the periods of the tables are not zero")
        .allow_burst(nonzero(setup.burst))
}

impl<K, S> Store<K> for RateLimiter<K, S, DefaultClock>
where
    K: Clone + Hash + Eq + Send + Sync + 'static,
    S: KeyedStateStore<K> + ShrinkableKeyedStateStore<K> + Send + Sync + 'static,
{
    #[inline(always)]
    fn take(&self, key: &K) -> bool {
        self.check_key(key).is_ok()
    }

    fn take_n(&self, key: &K, cost: u32) -> bool {
        matches!(self.check_key_n(key, nonzero(cost)), Ok(Ok(())))
    }

    fn sweep(&self) {
        self.retain_recent();
    }

    fn resident(&self) -> Option<usize> {
        Some(self.len())
    }
}

/// governor with its defaults: a `DashMap` with the hasher of the standard library.
pub(crate) const fn governor() -> Peer {
    Peer {
        name: BASELINE,
        build: |setup| Box::new(RateLimiter::<String, _, _>::keyed(governor_quota(setup))),
    }
}

fn governor_foldhash(setup: &Setup) -> Box<dyn Loops> {
    let hasher = foldhash::fast::RandomState::default();
    Box::new(RateLimiter::<String, _, _>::dashmap_with_hasher(governor_quota(setup), hasher))
}

/// governor with the map of the standard library in a mutex.
pub(crate) const fn governor_hashmap() -> Peer {
    Peer {
        name: "governor 0.10 keyed (HashMap store)",
        build: |setup| Box::new(RateLimiter::<String, _, _>::hashmap(governor_quota(setup))),
    }
}

/// throttlecrab with its periodic store, sized for the number of keys. Its sweep, which happens
/// inside a caller's call, is due only after a day.
struct Throttlecrab {
    inner: Mutex<throttlecrab::RateLimiter<PeriodicStore>>,
    burst: i64,
    every_s: i64,
}

impl Throttlecrab {
    fn new(setup: &Setup) -> Self {
        let store = PeriodicStore::builder()
            .capacity(setup.keys)
            .cleanup_interval(Duration::from_secs(86_400))
            .build();
        Self {
            inner: Mutex::new(throttlecrab::RateLimiter::new(store)),
            burst: i64::from(setup.burst),
            every_s: i64::try_from(setup.every.as_secs()).expect("periods are short"),
        }
    }
}

impl Store for Throttlecrab {
    #[inline(always)]
    fn take(&self, key: &String) -> bool {
        self.take_n(key, 1)
    }

    #[inline(always)]
    fn take_n(&self, key: &String, cost: u32) -> bool {
        let (now, cost) = (SystemTime::now(), i64::from(cost));
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner
            .rate_limit(key, self.burst, 1, self.every_s, cost, now)
            .is_ok_and(|(allowed, _)| allowed)
    }
}

/// The textbook implementation: a map in a mutex, and for each key the time at which it is full
/// again.
struct Textbook {
    full_at_ns: Mutex<HashMap<String, u64>>,
    start: Instant,
    every_ns: u64,
    burst: u64,
}

impl Textbook {
    fn new(setup: &Setup) -> Self {
        Self {
            full_at_ns: Mutex::default(),
            start: Instant::now(),
            every_ns: setup.every.as_nanos() as u64,
            burst: u64::from(setup.burst),
        }
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

impl Store for Textbook {
    #[inline(always)]
    fn take(&self, key: &String) -> bool {
        self.take_n(key, 1)
    }

    #[inline(always)]
    fn take_n(&self, key: &String, cost: u32) -> bool {
        let (now, mut map) =
            (self.now_ns(), self.full_at_ns.lock().unwrap_or_else(PoisonError::into_inner));
        let seen = map.get_mut(key);
        let base = seen.as_ref().map_or(now, |full_at| now.max(**full_at));
        let next = base + u64::from(cost) * self.every_ns;
        if next > now + self.burst * self.every_ns {
            return false;
        }
        match seen {
            Some(full_at) => *full_at = next,
            None => drop(map.insert(key.clone(), next)),
        }
        true
    }

    fn sweep(&self) {
        let now = self.now_ns();
        let mut map = self.full_at_ns.lock().unwrap_or_else(PoisonError::into_inner);
        map.retain(|_, full_at| *full_at > now);
    }

    fn resident(&self) -> Option<usize> {
        Some(self.full_at_ns.lock().unwrap_or_else(PoisonError::into_inner).len())
    }
}

/// A map in a mutex.
pub(crate) const fn textbook() -> Peer {
    Peer {
        name: "textbook: Mutex<HashMap<String, u64>>",
        build: |setup| Box::new(Textbook::new(setup)),
    }
}

/// Stores nothing: the floor under every other row.
struct Base;

impl Store for Base {
    #[inline(always)]
    fn take(&self, key: &String) -> bool {
        black_box(key.as_bytes().first_chunk::<16>().map(|bytes| u128::from_ne_bytes(*bytes)));
        black_box(machine::counter());
        true
    }

    fn take_n(&self, _key: &String, _cost: u32) -> bool {
        true
    }
}

/// Reads the key and the time, and decides nothing.
pub(crate) const fn base() -> Peer {
    Peer { name: "base: read the key and rdtsc", build: |_| Box::new(Base) }
}

/// All peers that store keys, in the order of the tables.
pub(crate) fn all() -> Vec<Peer> {
    let mut peers = ours().to_vec();
    peers.extend([
        governor(),
        Peer { name: "governor 0.10 keyed (dashmap, foldhash)", build: governor_foldhash },
        governor_hashmap(),
        Peer {
            name: "throttlecrab 0.4 (periodic, presized, in a mutex)",
            build: |setup| Box::new(Throttlecrab::new(setup)),
        },
        textbook(),
    ]);
    peers
}

/// Returns the peer of a row.
pub(crate) fn find(name: &str) -> Option<Peer> {
    all().into_iter().chain([base()]).find(|peer| peer.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::keys;

    #[test]
    fn every_peer_counts_each_key_for_itself() {
        let setup = Setup { every: Duration::from_secs(3600), burst: 10, keys: 2000 };
        let (keys, order) = (keys::shuffled::<String>(0..1000), (0..1000).collect::<Vec<u32>>());
        for peer in all() {
            let store = (peer.build)(&setup);
            assert_eq!(store.take_each(&keys, &order), 1000, "{}: fresh", peer.name);
            store.fill(&keys[..500], 9);
            assert_eq!(store.take_each(&keys, &order), 500, "{}: half used up", peer.name);
            assert!(store.resident().is_none_or(|keys| keys == 1000), "{}", peer.name);
        }
    }
}
