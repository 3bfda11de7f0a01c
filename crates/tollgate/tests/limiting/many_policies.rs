//! A hundred thousand policies in one store, each with a quota of its own.
#![cfg(feature = "testing")]

use crate::support::Folder;
use std::time::Duration;
use tollgate::{
    Algorithm, Clock, Quota,
    store::{Demand, MemoryStore, MemoryStoreBuilder, Policy, Store},
    testing::block_on,
};

const POLICIES: u64 = 100_000;

/// No two policies have the same quota.
fn policy(number: u64, more: u64) -> Policy {
    let algorithm = Algorithm::ALL[(number % 5) as usize];
    let quota = Quota::per_hour(100 + number + more);
    Policy::with_algorithm(format!("policy {number}"), quota, algorithm).unwrap()
}

fn policies() -> Vec<Policy> {
    (0..POLICIES).map(|number| policy(number, 0)).collect()
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
        assert_eq!(decision.remaining(), policy.quota().count() - cost(number), "{number}");
    }
}

fn check(store: &MemoryStore, policies: &[Policy]) {
    for (number, policy) in (0..).zip(policies) {
        assert_eq!(left(store, policy), policy.quota().count() - cost(number), "{number}");
    }
}

fn builders() -> [MemoryStoreBuilder; 2] {
    [MemoryStore::builder(), MemoryStore::builder().bounded(2 * POLICIES)]
}

#[test]
fn a_hundred_thousand_quotas_are_each_enforced_and_reloaded() {
    for builder in builders() {
        let (clock, _hand) = Clock::manual();
        let (store, policies) = (builder.clock(clock).build().unwrap(), policies());
        store.declare(&policies).unwrap();
        fill(&store, &policies);
        check(&store, &policies);
        // A configuration in which every quota has changed.
        for number in 0..POLICIES {
            let reloaded = policy(number, 1);
            let used = match reloaded.algorithm() {
                // The time stays, and with a higher rate that is a part of a permit more.
                Algorithm::Gcra => cost(number) + 1,
                _ => cost(number),
            };
            let limit = reloaded.quota().count();
            assert_eq!(left(&store, &reloaded), limit - used, "{number}");
            let too_much = store.acquire_one_now(&reloaded, b"key", limit - used + 1).unwrap();
            assert!(too_much.is_denied(), "{number}");
        }
        check(&store, &policies);
    }
}

#[test]
fn a_reservation_outlives_a_change_of_quota() {
    let (clock, _hand) = Clock::manual();
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    for number in 0..5 {
        let (old, new) = (policy(number, 0), policy(number, 400));
        let mut demands = [Demand::new(&old, b"key", 60)];
        let reserved = block_on(store.reserve(&mut demands, Duration::from_secs(60))).unwrap();
        assert!(left(&store, &new) < new.quota().count());
        assert!(block_on(store.settle(reserved.id.unwrap(), &[0])).unwrap());
        assert_eq!(left(&store, &new), new.quota().count(), "{number}");
    }
}

#[test]
fn all_of_them_survive_a_restart() {
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
        check(&after, &policies);
    }
}
