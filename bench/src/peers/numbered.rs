//! Limiters for many keys that are numbers.

use super::keyed::{BASELINE, BOUNDED, GROWING, governor_quota, quota};
use crate::keyed::store::{Loops, Peer, Setup, Store};
use governor::RateLimiter;
use std::{
    hash::RandomState,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};
use tollgate::{Clock, KeyedBuilder, KeyedLimiter};

/// The row of [`SccWords`].
pub(crate) const SCC: &str = "the same words in scc::HashMap 3.8";

impl Store<u64> for KeyedLimiter<u64> {
    #[inline(always)]
    fn take(&self, key: &u64) -> bool {
        self.try_acquire(key).is_allowed()
    }

    fn take_n(&self, key: &u64, cost: u32) -> bool {
        self.try_acquire_n(key, u64::from(cost)).is_allowed()
    }

    fn sweep(&self) {
        self.shrink();
    }

    fn resident(&self) -> Option<usize> {
        Some(self.len())
    }
}

fn tollgate(builder: KeyedBuilder<u64>) -> Box<dyn Loops<u64>> {
    Box::new(builder.build().expect("the quotas of the tables make sense for keys"))
}

/// The smallest GCRA in the best concurrent map available: a word is the time at which the key is
/// full again, in nanoseconds.
///
/// The map's bucket is locked for reading only, also for an admission, which exchanges the word.
/// The hasher is that of the standard library, SipHash-1-3 with a random seed, as in ours and
/// governor's; the clock is ours.
struct SccWords {
    full_at_ns: scc::HashMap<u64, AtomicU64, RandomState>,
    clock: Clock,
    every_ns: u64,
    tolerance_ns: u64,
}

impl SccWords {
    fn new(setup: &Setup, clock: Clock) -> Self {
        let every_ns = setup.every.as_nanos() as u64;
        Self {
            full_at_ns: scc::HashMap::new(),
            clock,
            every_ns,
            // OVERFLOW: the longest in the tables is a million minutes, 6 x 10^16 ns.
            tolerance_ns: every_ns * u64::from(setup.burst),
        }
    }

    /// Takes permits of a word: a denial reads, an admission exchanges.
    #[inline(always)]
    fn step(&self, word: &AtomicU64, now_ns: u64, cost: u32) -> bool {
        // ORDERING: Relaxed is enough, here and below: the word is the whole state.
        let mut seen = word.load(Relaxed);
        loop {
            let next = seen.max(now_ns) + u64::from(cost) * self.every_ns;
            if next > now_ns + self.tolerance_ns {
                return false;
            }
            match word.compare_exchange_weak(seen, next, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(changed) => seen = changed,
            }
        }
    }

    #[inline(never)]
    fn insert(&self, key: u64, now_ns: u64, cost: u32) -> bool {
        let entry = self.full_at_ns.entry_sync(key).or_default();
        self.step(entry.get(), now_ns, cost)
    }
}

impl Store<u64> for SccWords {
    #[inline(always)]
    fn take(&self, key: &u64) -> bool {
        self.take_n(key, 1)
    }

    #[inline(always)]
    fn take_n(&self, key: &u64, cost: u32) -> bool {
        let now_ns = self.clock.now().as_nanos();
        let decided = self.full_at_ns.read_sync(key, |_, word| self.step(word, now_ns, cost));
        decided.unwrap_or_else(|| self.insert(*key, now_ns, cost))
    }

    fn sweep(&self) {
        let now_ns = self.clock.now().as_nanos();
        self.full_at_ns.retain_sync(|_, word| *word.get_mut() > now_ns);
    }

    fn resident(&self) -> Option<usize> {
        Some(self.full_at_ns.len())
    }
}

/// The table that grows.
pub(crate) const fn growing() -> Peer<u64> {
    Peer { name: GROWING, build: |setup| tollgate(KeyedLimiter::builder(quota(setup))) }
}

/// All of them.
pub(crate) const fn all() -> [Peer<u64>; 4] {
    [
        growing(),
        Peer {
            name: BOUNDED,
            build: |setup| tollgate(KeyedLimiter::builder(quota(setup)).bounded(setup.keys as u64)),
        },
        governor(),
        Peer { name: SCC, build: |setup| Box::new(SccWords::new(setup, Clock::monotonic())) },
    ]
}

/// governor with its defaults: a `DashMap` with the hasher of the standard library.
pub(crate) const fn governor() -> Peer<u64> {
    Peer {
        name: BASELINE,
        build: |setup| Box::new(RateLimiter::<u64, _, _>::keyed(governor_quota(setup))),
    }
}

/// Returns the peer of a row.
pub(crate) fn find(name: &str) -> Option<Peer<u64>> {
    all().into_iter().find(|peer| peer.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::keys;
    use std::time::Duration;

    #[test]
    fn every_peer_counts_each_number_for_itself() {
        let setup = Setup { every: Duration::from_secs(3600), burst: 10, keys: 2000 };
        let keys = keys::shuffled::<u64>(0..1000);
        for peer in all() {
            let store = (peer.build)(&setup);
            assert_eq!(store.take_all(&keys), 1000, "{}: fresh", peer.name);
            store.fill(&keys[..500], 9);
            assert_eq!(store.take_all(&keys), 500, "{}: half used up", peer.name);
            assert_eq!(store.resident(), Some(1000), "{}", peer.name);
        }
    }

    #[test]
    fn words_in_scc_come_back_one_by_one() {
        let setup = Setup { every: Duration::from_secs(1), burst: 3, keys: 1 };
        let (clock, hand) = Clock::manual();
        let store: Box<dyn Loops<u64>> = Box::new(SccWords::new(&setup, clock));
        assert_eq!(store.take_all(&[7; 10]), 3);
        hand.advance(setup.every * 2);
        assert_eq!(store.take_all(&[7; 10]), 2);
        hand.advance(setup.every * 3);
        store.sweep();
        assert_eq!(store.resident(), Some(0));
    }
}
