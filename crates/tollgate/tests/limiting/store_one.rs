//! One demand without a list: `acquire_one_at` gives the same answer as `acquire_at`, and leaves
//! the same state.

use proptest::prelude::*;
use std::time::Duration;
use tollgate::{
    Algorithm, Clock, Quota, WhenFull,
    store::{Demand, MemoryStore, MemoryStoreBuilder, Policy, Store},
};

const TABLES: usize = 5;

/// Every table, and tables so small that keys are refused, or lose their state.
fn table(number: usize) -> MemoryStoreBuilder {
    let full = |builder: MemoryStoreBuilder| builder.when_full(WhenFull::Refuse);
    match number {
        0 => MemoryStore::builder(),
        1 => MemoryStore::builder().bounded(1000),
        2 => full(MemoryStore::builder().max_keys(2)),
        3 => full(MemoryStore::builder().bounded(1)),
        _ => MemoryStore::builder().max_keys(2),
    }
    .max_idle(Duration::from_secs(3600))
}

fn policies() -> Vec<Policy> {
    let quota = Quota::per_second(10);
    let mut all: Vec<_> = Algorithm::ALL
        .into_iter()
        .map(|algorithm| Policy::with_algorithm(algorithm.name(), quota, algorithm).unwrap())
        .collect();
    // One that needs more than a word, one whose fresh keys are not full, and one without a limit.
    let large = Quota::per(1 << 40, Duration::from_secs(86_400));
    all.push(Policy::with_algorithm("large", large, Algorithm::SlidingCounter).unwrap());
    all.push(Policy::new("empty", quota.initial(tollgate::Initial::Empty)).unwrap());
    all.push(Policy::new("unlimited", Quota::unlimited()).unwrap());
    all
}

/// Two stores with one seed: their tables evict the same keys.
fn twins(number: usize) -> [MemoryStore; 2] {
    let seed = tollgate::Seed::random();
    [(), ()].map(|()| {
        let (clock, hand) = Clock::manual();
        hand.advance(Duration::from_secs(1_000_000));
        table(number).clock(clock).seed(seed).build().unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn one_demand_is_decided_as_a_list_of_one(
        number in 0..TABLES,
        steps in prop::collection::vec((0..8_usize, 0..5_usize, 0..14_u64, 0..400_u64), 1..80),
    ) {
        let [plain, short] = twins(number);
        // Each has its own policies: a policy remembers the store that used it last.
        let (theirs, ours) = (policies(), policies());
        let mut now = plain.clock().now();
        for (row, (policy, key, cost, later_ms)) in steps.into_iter().enumerate() {
            now = now.saturating_add(Duration::from_millis(later_ms));
            // Keys of every length that the hash handles differently.
            let key = &b"0123456789abcdefXYZ"[..[0, 3, 7, 8, 19][key]];
            let mut demands = [Demand::new(&theirs[policy], key, cost)];
            let expected = plain.acquire_at(now, &mut demands).unwrap();
            let got = short.acquire_one_at(now, &ours[policy], key, cost).unwrap();
            prop_assert_eq!(got, expected, "row {}, {:?}", row, ours[policy]);
            prop_assert_eq!((plain.len(), plain.table_counts()), (short.len(), short.table_counts()));
        }
        for (policy, other) in ours.iter().zip(&theirs) {
            let left = |store: &MemoryStore, policy| {
                store.peek_at(now, &mut [Demand::new(policy, b"0123456", 0)]).unwrap()
            };
            prop_assert_eq!(left(&short, policy), left(&plain, other));
        }
    }
}

#[test]
fn both_ways_charge_the_same_key() {
    for number in 0..2 {
        let [store, _] = twins(number);
        let now = store.clock().now();
        for policy in policies().iter().filter(|policy| policy.name() != "empty") {
            let quota = policy.quota();
            for taken in 1..=3 {
                let decision = if taken == 2 {
                    store.acquire_at(now, &mut [Demand::new(policy, b"key", 1)])
                } else {
                    store.acquire_one_at(now, policy, b"key", 1)
                };
                let left = if quota.is_unlimited() { u64::MAX } else { quota.count() - taken };
                assert_eq!(decision.unwrap().remaining(), left, "{policy:?}");
            }
        }
    }
}

#[test]
fn a_policy_may_be_asked_for_in_two_stores() {
    let [one, other] = twins(0);
    let now = one.clock().now();
    let policy = Policy::new("p", Quota::per_hour(10)).unwrap();
    for taken in 1..=5 {
        for store in [&one, &other] {
            let decision = store.acquire_one_at(now, &policy, b"key", 1).unwrap();
            assert_eq!(decision.remaining(), 10 - taken);
        }
    }
    // The same name is the same policy, also as another value.
    let again = Policy::new("p", Quota::per_hour(10)).unwrap();
    assert_eq!(other.acquire_one_at(now, &again, b"key", 1).unwrap().remaining(), 4);
    assert_eq!(other.acquire_one_now(&again, b"key", 1).unwrap().remaining(), 3);
}

#[test]
fn two_policies_of_one_name_share_their_keys() {
    for number in 0..2 {
        let [store, _] = twins(number);
        let now = store.clock().now();
        let old = Policy::new("p", Quota::per_hour(10)).unwrap();
        let new = Policy::new("p", Quota::per_hour(100)).unwrap();
        // A permit of the old quota is worth ten of the new one.
        for (policy, cost, left) in [(&old, 4, 6), (&new, 10, 50), (&old, 1, 4), (&new, 40, 0)] {
            let decision = store.acquire_one_at(now, policy, b"key", cost).unwrap();
            assert_eq!(decision.remaining(), left);
        }
        assert!(store.acquire_one_at(now, &old, b"key", 1).unwrap().is_denied());
    }
}

#[test]
fn a_policy_without_a_quota_is_an_error_as_in_a_list() {
    let [store, _] = twins(0);
    let now = store.clock().now();
    let window = Policy::ad_hoc_window("window", Duration::from_secs(60)).unwrap();
    for policy in [Policy::ad_hoc("throttle"), window] {
        // Also if the policy already has a class.
        for round in 0..2 {
            let error = store.acquire_one_at(now, &policy, b"key", 1).unwrap_err();
            let list = store.acquire_at(now, &mut [Demand::new(&policy, b"key", 1)]).unwrap_err();
            assert_eq!(error.to_string(), list.to_string(), "round {round}");
            assert!(error.is_invalid());
            let quota = Quota::per_minute(30);
            let mut demands = [Demand::ad_hoc(&policy, b"key", 1, quota).unwrap()];
            assert!(store.acquire_at(now, &mut demands).unwrap().is_allowed());
        }
    }
}
