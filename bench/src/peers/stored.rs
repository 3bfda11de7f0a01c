//! Rows of the store in memory: one demand, and several in one decision.

use super::{DENIED_BURST, PARTLY_USED, tollgate::quota};
use crate::grid::{Ask, Case, Row, repeating};
use std::{
    hash::{BuildHasher, RandomState},
    hint::{black_box, spin_loop},
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};
use tollgate::{
    KeyedLimiter, Tick,
    store::{Demand, MemoryStore, Policy, Store},
};

/// The limits of a typical service, with a key of each.
const LIMITS: [(&str, &[u8]); 3] =
    [("address", b"192.0.2.17"), ("user", b"alice@example.org"), ("global", b"all")];

#[derive(Clone)]
struct Stored {
    store: MemoryStore,
    policies: [Policy; 3],
}

/// Builds a store with its keys in the state of a case.
fn stored(case: Case) -> Option<Stored> {
    let store = MemoryStore::new();
    let policy = |(name, _)| Policy::new(name, quota(case)).expect("the quotas make sense");
    let policies = LIMITS.map(policy);
    let used = match case {
        Case::Partly => PARTLY_USED,
        Case::Denied => DENIED_BURST,
        Case::Full | Case::Half | Case::Hammered => 0,
    };
    for (policy, (_, key)) in policies.iter().zip(LIMITS) {
        let taken = store.acquire_now(&mut [Demand::new(policy, key, used)]);
        assert!(taken.is_ok_and(|decision| decision.is_allowed()), "a fresh key has its burst");
    }
    Some(Stored { store, policies })
}

/// Takes one permit of each of the first `N` limits.
#[derive(Clone, Copy)]
struct Demands<const N: usize>;

impl<const N: usize> Ask<Stored> for Demands<N> {
    #[inline(always)]
    fn ask(self, Stored { store, policies }: &Stored) -> bool {
        let mut demands: [_; N] =
            std::array::from_fn(|index| Demand::new(&policies[index], LIMITS[index].1, 1));
        store.acquire_now(&mut demands).is_ok_and(|decision| decision.is_allowed())
    }
}

/// The rows that show the cost of several limits in one decision.
pub(crate) fn rows() -> Vec<Row> {
    vec![
        Row::handle("tollgate, store in memory", stored, Demands::<1>),
        Row::handle("tollgate, store in memory, 3 demands", stored, Demands::<3>),
    ]
}

/// A word alone on its cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Locks three words one after the other, as a decision about three keys must, and unlocks them.
fn lock_three(words: &Arc<[Line; 3]>) -> bool {
    for Line(word) in &**words {
        while word.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            (0..32).for_each(|_| spin_loop());
        }
    }
    words.iter().for_each(|Line(word)| word.store(0, Release));
    true
}

/// Takes one permit of each limit, in a decision of its own.
#[derive(Clone, Copy)]
struct Apart;

impl Ask<Stored> for Apart {
    #[inline(always)]
    fn ask(self, Stored { store, policies }: &Stored) -> bool {
        let limits = policies.iter().zip(LIMITS);
        let each = limits.map(|(policy, (_, key))| store.acquire_one_now(policy, key, 1));
        each.fold(true, |all, one| all & one.is_ok_and(|decision| decision.is_allowed()))
    }
}

/// The steps of a store's decision, each alone.
pub(crate) fn bounds() -> Vec<Row> {
    let key = LIMITS[0].1;
    let keyed = move |case, is_fast| {
        let builder = KeyedLimiter::<[u8]>::builder(quota(case));
        let builder = if is_fast { builder.fast_fingerprints() } else { builder };
        let used = if case == Case::Denied { DENIED_BURST } else { PARTLY_USED };
        builder.build().ok().filter(|limiter| limiter.try_acquire_n(key, used).is_allowed())
    };
    let take = move |limiter: &KeyedLimiter<[u8]>| limiter.try_acquire(key).is_allowed();
    let hash = move |seed: &RandomState| seed.hash_one((1_u64, black_box(key))) > 0;
    let clock = |store: &MemoryStore| store.clock().now() > Tick::ZERO;
    vec![
        Row::new("the clock alone", move |_| Some(repeating(MemoryStore::new(), clock))),
        Row::new("SipHash-1-3 of a demand's key (std)", move |_| {
            Some(repeating(RandomState::new(), hash))
        }),
        Row::handle(
            "the key of one demand in a KeyedLimiter",
            move |case| keyed(case, false),
            take,
        ),
        Row::handle("the same with fast_fingerprints()", move |case| keyed(case, true), take),
        Row::handle("three demands in three decisions", stored, Apart),
        Row::new("three words locked and unlocked", |_| {
            Some(repeating(Arc::<[Line; 3]>::default(), lock_three))
        }),
    ]
}

/// A store with many policies, of which a decision uses the first ones.
#[derive(Clone)]
struct Wide {
    store: MemoryStore,
    policies: Arc<[Policy]>,
}

fn wide(case: Case) -> Option<Wide> {
    let policy = |number| Policy::new(format!("limit {number}"), quota(case)).ok();
    let policies: Option<Vec<Policy>> = (0..WIDEST).map(policy).collect();
    let (store, policies) = (MemoryStore::new(), policies?);
    for policy in &policies {
        let taken = store.acquire_now(&mut [Demand::new(policy, LIMITS[1].1, PARTLY_USED)]);
        assert!(taken.is_ok_and(|decision| decision.is_allowed()), "a fresh key has its burst");
    }
    Some(Wide { store, policies: policies.into() })
}

/// The most demands of one decision.
const WIDEST: usize = 64;

impl<const N: usize> Ask<Wide> for Demands<N> {
    #[inline(always)]
    fn ask(self, Wide { store, policies }: &Wide) -> bool {
        let mut demands: [_; N] =
            std::array::from_fn(|index| Demand::new(&policies[index], LIMITS[1].1, 1));
        store.acquire_now(&mut demands).is_ok_and(|decision| decision.is_allowed())
    }
}

/// The rows that show how the cost grows with the demands of one decision.
pub(crate) fn widths() -> [Row; 6] {
    [
        Row::handle("1 demand", wide, Demands::<1>),
        Row::handle("2 demands", wide, Demands::<2>),
        Row::handle("4 demands", wide, Demands::<4>),
        Row::handle("8 demands", wide, Demands::<8>),
        Row::handle("16 demands", wide, Demands::<16>),
        Row::handle("64 demands", wide, Demands::<WIDEST>),
    ]
}
