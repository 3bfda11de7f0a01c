//! More policies in one store than it has classes: those of one quota share one.
#![cfg(feature = "testing")]

use crate::support::Folder;
use std::time::Duration;
use tollgate::{
    Algorithm, Clock, Inherit, Quota,
    store::{Demand, MemoryStore, MemoryStoreBuilder, Policy, Store},
    testing::block_on,
};

const POLICIES: u64 = 10_000;
const QUOTAS: u64 = 50;

fn quota(number: u64) -> Quota {
    Quota::per_hour(100 + number % QUOTAS)
}

fn policies() -> Vec<Policy> {
    let algorithms = [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::AnchoredWindow];
    let make = |number: u64| {
        let algorithm = algorithms[(number % 3) as usize];
        Policy::with_algorithm(format!("policy {number}"), quota(number), algorithm).unwrap()
    };
    (0..POLICIES).map(make).collect()
}

fn cost(number: u64) -> u64 {
    1 + number % 97
}

fn left(store: &MemoryStore, policy: &Policy) -> u64 {
    block_on(store.peek(&mut [Demand::new(policy, b"key", 0)])).unwrap().remaining()
}

fn fill(store: &MemoryStore, policies: &[Policy]) {
    for (number, policy) in (0..).zip(policies) {
        let decision = store.acquire_now(&mut [Demand::new(policy, b"key", cost(number))]).unwrap();
        assert!(decision.is_allowed());
        assert_eq!(decision.remaining(), quota(number).count() - cost(number), "{number}");
    }
}

fn check(store: &MemoryStore, policies: &[Policy], but: u64) {
    for (number, policy) in (0..).zip(policies).filter(|(number, _)| *number != but) {
        let expected = quota(number).count() - cost(number);
        assert_eq!(left(store, policy), expected, "{number}");
    }
}

fn builders() -> [MemoryStoreBuilder; 2] {
    [MemoryStore::builder(), MemoryStore::builder().bounded(4 * POLICIES)]
}

#[test]
fn ten_thousand_policies_decide_independently_and_change_alone() {
    for builder in builders() {
        let (clock, _hand) = Clock::manual();
        let (store, policies) = (builder.clock(clock).build().unwrap(), policies());
        fill(&store, &policies);
        check(&store, &policies, u64::MAX);

        // The last one shares its class: what is left stays left, of this one only.
        let number = POLICIES - 1;
        let old = &policies[number as usize];
        let change = |new: &Policy, how| block_on(store.change_quota(old, new, how));
        let with = |quota| Policy::with_algorithm(old.name(), quota, old.algorithm()).unwrap();
        let (raised, lowered) = (with(Quota::per_hour(500)), with(Quota::per_hour(5)));
        let before = left(&store, old);
        for how in [Inherit::Reset, Inherit::Proportional, Inherit::Additive] {
            let error = change(&raised, how).unwrap_err();
            assert!(error.is_invalid() && error.to_string().contains("use AsIs"), "{error}");
        }
        change(&raised, Inherit::AsIs).unwrap();
        assert_eq!(left(&store, &raised), before);
        check(&store, &policies, number);
        block_on(store.change_quota(&raised, &lowered, Inherit::AsIs)).unwrap();
        assert_eq!(left(&store, &lowered), before.min(5));
        check(&store, &policies, number);

        // An early one has a class of its own: as ever.
        let early = &policies[0];
        let raised = Policy::new(early.name(), Quota::per_hour(200)).unwrap();
        block_on(store.change_quota(early, &raised, Inherit::Proportional)).unwrap();
        assert_eq!(left(&store, &raised), 198, "99 of 100");
    }
}

#[test]
fn a_reservation_under_a_changed_quota_is_final_and_others_are_not() {
    let (clock, _hand) = Clock::manual();
    let (store, policies) = (MemoryStore::builder().clock(clock).build().unwrap(), policies());
    fill(&store, &policies);
    // Both GCRA, of one quota: 3 x 50 numbers apart.
    let (changed, other) = (&policies[9_000], &policies[9_150]);
    let reserve = |policy: &Policy| {
        let mut demands = [Demand::new(policy, b"reserved", 60)];
        block_on(store.reserve(&mut demands, Duration::from_secs(60))).unwrap().id.unwrap()
    };
    let (first, second) = (reserve(changed), reserve(other));
    let new = Policy::new(changed.name(), Quota::per_hour(500)).unwrap();
    block_on(store.change_quota(changed, &new, Inherit::AsIs)).unwrap();
    let left = |policy: &Policy| {
        let mut demands = [Demand::new(policy, b"reserved", 0)];
        block_on(store.peek(&mut demands)).unwrap().remaining()
    };
    assert_eq!((left(&new), left(other)), (40, 40));
    assert!(block_on(store.settle(first, &[0])).unwrap());
    assert!(block_on(store.settle(second, &[0])).unwrap());
    assert_eq!((left(&new), left(other)), (40, 100));
}

#[test]
fn shared_classes_survive_a_restart() {
    for table in 0..2 {
        let folder = Folder::new();
        let start = || {
            let (clock, hand) = Clock::manual();
            hand.advance(Duration::from_secs(366 * 86_400));
            let [growing, bounded] = builders();
            let builder = if table == 0 { growing } else { bounded };
            builder.clock(clock).seed(folder.seed()).build().unwrap()
        };
        let (before, policies) = (start(), policies());
        fill(&before, &policies);
        assert_eq!(before.save(folder.file("state")).unwrap(), POLICIES);
        let after = start();
        assert_eq!(after.restore(folder.file("state")).unwrap(), POLICIES);
        check(&after, &policies, u64::MAX);
    }
}

#[test]
fn declared_policies_keep_their_quotas_whatever_others_use() {
    let (clock, _hand) = Clock::manual();
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    let policy = |number: u64| Policy::new(format!("{number}"), Quota::per_hour(number)).unwrap();
    let policies: Vec<_> = (1..2_048).map(policy).collect();
    let one_more = policy(2_048);
    // They do not fit, and the error says which one.
    let (refused, error) = store.declare(policies.iter().chain([&one_more])).unwrap_err();
    assert!(refused == &one_more && error.is_full(), "{error}");
    let take = |number: u64| store.acquire_now(&mut [Demand::new(&policy(number), b"key", 1)]);
    // Nothing was kept then: others may have the numbers of what is not in use.
    assert!(take(9_999).unwrap().is_allowed());
    store.declare(&policies[..2_000]).unwrap();
    for number in 10_000..10_046 {
        assert!(take(number).unwrap().is_allowed(), "{number}");
    }
    // No key of a declared policy is live, and nobody gets its number.
    for _ in 0..3 {
        assert!(take(10_046).unwrap_err().is_full());
    }
    assert!(take(2_000).unwrap().is_allowed());
    // What is not declared any more makes room.
    store.declare(&policies[..10]).unwrap();
    assert!(take(10_046).unwrap().is_allowed());
    // Policies that share a quota need one number.
    let same = |number| Policy::new(format!("same {number}"), Quota::per_day(7)).unwrap();
    let same: Vec<_> = (0..5_000).map(same).collect();
    store.declare(&same).unwrap();
}

#[test]
fn distinct_quotas_are_bounded_and_those_at_rest_make_room() {
    let (clock, hand) = Clock::manual();
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    let policy = |number: u64| Policy::new(format!("{number}"), Quota::per_hour(number)).unwrap();
    let take = |number: u64| store.acquire_now(&mut [Demand::new(&policy(number), b"key", 1)]);
    // One class is that of no limit.
    for number in 1..2_048 {
        assert!(take(number).unwrap().is_allowed(), "{number}");
    }
    let error = take(9_999).unwrap_err();
    assert!(error.is_full(), "{error}");
    assert!(take(7).unwrap().is_allowed(), "those that are known go on");
    assert_eq!(left(&store, &policy(2_047)), 2_046);
    hand.advance(Duration::from_secs(3_600));
    assert!(take(9_999).is_err(), "slots of keys at rest still have theirs");
    for number in 1..2_048 {
        store.reset_now(&Demand::new(&policy(number), b"key", 0)).unwrap();
    }
    assert!(take(9_999).unwrap().is_allowed());
}
