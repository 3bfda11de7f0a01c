//! Several demands of one store in one decision: the fast path gives the same answers as the
//! general path of [`Limits`], and all demands are charged or none (G6).

use crate::support::*;
use proptest::prelude::*;
use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};
use tollgate::{
    Algorithm, Clock, Decision, KeyedLimiter, Limits, Quota, Tick,
    store::{Demand, MemoryStore, Policy},
};

const KEYS: [&[u8]; 3] = [b"one", b"two", b"three"];

fn policies() -> [Policy; 7] {
    let of = |name, quota: &str, algorithm| {
        Policy::with_algorithm(name, quota.parse().unwrap(), algorithm).unwrap()
    };
    [
        of("address", "10/s burst 4", Algorithm::Gcra),
        of("user", "3/s burst 9", Algorithm::Gcra),
        of("global", "20/s", Algorithm::Gcra),
        of("window", "5/s", Algorithm::FixedWindow),
        of("anchored", "7/s", Algorithm::AnchoredWindow),
        of("sliding", "9/s", Algorithm::SlidingCounter),
        of("log", "6/s", Algorithm::SlidingLog),
    ]
}

fn stores() -> (MemoryStore, MemoryStore) {
    let (clock, _) = Clock::manual();
    let builder = || MemoryStore::builder().clock(clock.clone());
    (builder().build().unwrap(), builder().bounded(1000).build().unwrap())
}

/// The same policies as keyed limiters, which have only the general path for several keys.
fn limiters(policies: &[Policy]) -> Vec<KeyedLimiter<[u8]>> {
    let (clock, _) = Clock::manual();
    let limiter = |policy: &Policy| {
        let builder = KeyedLimiter::builder(policy.quota()).algorithm(policy.algorithm());
        builder.clock(clock.clone()).build().unwrap()
    };
    policies.iter().map(limiter).collect()
}

/// Does the same as [`ask`] by the general path.
fn ask_limiters(
    limiters: &[KeyedLimiter<[u8]>],
    now: Tick,
    wanted: &[(usize, usize, u64)],
) -> (Decision, Vec<Decision>) {
    let charge =
        |(policy, key, cost): &(usize, usize, u64)| limiters[*policy].charge(KEYS[*key], *cost);
    let (charges, mut each): (Vec<_>, _) = (wanted.iter().map(charge).collect(), Vec::new());
    let limits = Limits::new(&charges).unwrap();
    let decision = limits.try_acquire_each_at(now, |_, own| each.push(*own));
    (decision, each)
}

/// Returns the decision over all demands, and that of each demand.
fn ask(store: &MemoryStore, now: Tick, demands: &[Demand<'_>]) -> (Decision, Vec<Decision>) {
    let mut demands = demands.to_vec();
    let decision = store.acquire_at(now, &mut demands).unwrap();
    (decision, demands.iter().map(|demand| demand.decision().unwrap()).collect())
}

/// Which policy, key and cost; the last policy, which has no fast path, less often.
fn demand() -> impl Strategy<Value = (usize, usize, u64)> {
    (prop_oneof![9 => 0..6_usize, 1 => Just(6)], 0..KEYS.len(), 0..6_u64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_fast_path_says_what_the_general_path_says(
        steps in prop::collection::vec(
            (prop::collection::vec(demand(), 2..6), 0..400_u64), 1..60,
        ),
    ) {
        let (policies, (store, bounded), mut now) = (policies(), stores(), ms(0));
        let limiters = limiters(&policies);
        // The table has room for all keys of all policies, and no more: no key is counted twice.
        let room = policies.len() * KEYS.len();
        let capped = MemoryStore::builder().clock(Clock::manual().0).max_keys(room as u64);
        let capped = capped.build().unwrap();
        for (row, (wanted, pause_ms)) in steps.iter().enumerate() {
            now = now.saturating_add(Duration::from_millis(*pause_ms));
            let demands: Vec<_> = wanted
                .iter()
                .map(|(policy, key, cost)| Demand::new(&policies[*policy], KEYS[*key], *cost))
                .collect();
            let expected = ask_limiters(&limiters, now, wanted);
            prop_assert_eq!(ask(&store, now, &demands), expected.clone(), "row {}", row);
            prop_assert_eq!(ask(&bounded, now, &demands), expected.clone(), "row {}, bounded", row);
            prop_assert_eq!(ask(&capped, now, &demands), expected, "row {}, capped", row);
        }
    }
}

#[test]
fn a_refusal_charges_nothing_and_names_all_that_refused() {
    let (policies, (short, long)) = (policies(), stores());
    let demands: Vec<_> = policies[..3].iter().map(|it| Demand::new(it, KEYS[0], 2)).collect();
    for store in [&short, &long] {
        assert!((0..2).all(|_| ask(store, ms(0), &demands).0.is_allowed()));
        for _ in 0..3 {
            let (joined, each) = ask(store, ms(0), &demands);
            assert_eq!(joined.refusing().collect::<Vec<_>>(), [0]);
            assert_eq!(joined.retry_after(ms(0)), Some(Duration::from_millis(200)));
            assert_eq!((joined.limit(), joined.remaining()), (4, 0));
            let told: Vec<_> = each.iter().map(|it| (it.is_allowed(), it.remaining())).collect();
            assert_eq!(told, [(false, 0), (true, 5), (true, 16)], "levels as they are");
        }
        // A demand that can never pass is refused with the others.
        let (first, second) = (Demand::new(&policies[0], KEYS[0], 5), demands[1]);
        let (joined, _) = ask(store, ms(0), &[first, second]);
        assert!(joined.is_never() && joined.is_refused_by(0) && !joined.is_refused_by(1));
    }
}

#[test]
fn a_change_of_quota_is_seen_on_the_fast_path() {
    let (policies, (store, _)) = (policies(), stores());
    let demands = [Demand::new(&policies[0], KEYS[0], 1), Demand::new(&policies[1], KEYS[1], 1)];
    let left = |demands| ask(&store, ms(0), demands).1.iter().map(Decision::remaining).sum::<u64>();
    assert_eq!((left(&demands), left(&demands)), (3 + 8, 2 + 7));
    let wider = Policy::new("address", Quota::per_second(10).burst(50)).unwrap();
    let demands = [Demand::new(&wider, KEYS[0], 1), demands[1]];
    assert_eq!(left(&demands), 47 + 6);
}

/// Overlapping sets in any order, and single takers, on few keys: no threads deadlock, and an
/// admission is charged to all of a set or to none.
#[test]
fn sets_in_any_order_under_16_threads() {
    const LIMIT: u64 = 2_000;
    let store = MemoryStore::builder().clock(Clock::manual().0).build().unwrap();
    let policies: Vec<_> = (0..6)
        .map(|number| Policy::new(format!("{number}"), Quota::per_day(LIMIT)).unwrap())
        .collect();
    let debits: Vec<AtomicU64> = policies.iter().map(|_| AtomicU64::new(0)).collect();
    let barrier = Barrier::new(16);
    thread::scope(|scope| {
        for seed in 0..16 {
            let (store, policies, debits, barrier) = (&store, &policies, &debits, &barrier);
            scope.spawn(move || {
                let mut random = Random(seed);
                barrier.wait();
                for _ in 0..400 {
                    let count = 1 + random.below(4) as usize;
                    let set: Vec<_> = (0..count)
                        .map(|_| (random.below(6) as usize, 1 + random.below(2)))
                        .collect();
                    let mut demands: Vec<_> = set
                        .iter()
                        .map(|(policy, cost)| Demand::new(&policies[*policy], b"k", *cost))
                        .collect();
                    if store.acquire_at(ms(0), &mut demands).unwrap().is_allowed() {
                        set.iter().for_each(|(policy, cost)| {
                            debits[*policy].fetch_add(*cost, Relaxed);
                        });
                    }
                }
            });
        }
    });
    for (policy, debits) in policies.iter().zip(&debits) {
        let left = store.peek_at(ms(0), &mut [Demand::new(policy, b"k", 0)]).unwrap().remaining();
        assert_eq!(left, LIMIT - debits.load(Relaxed), "policy {}", policy.name());
    }
    assert!(debits.iter().any(|debits| debits.load(Relaxed) > LIMIT - 3), "the limits were tight");
}
