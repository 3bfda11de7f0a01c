//! Interleavings of the tables of keys, and of several limits in one decision, by loom, with at most
//! two or three preemptions: a look-up has dozens of atomic steps.

use crate::explore;
use loom::thread;
use tollgate::{
    Clock, KeyedLimiter, Limits, Quota, Tick,
    store::{Demand, MemoryStore, Policy},
};

const NOW: Tick = Tick::from_secs(1);

/// Two buckets and two locks if bounded, two shards if not.
fn keyed(bounded: bool, quota: Quota) -> KeyedLimiter<u64> {
    let (clock, _hand) = Clock::manual();
    let builder = KeyedLimiter::builder(quota).clock(clock);
    let builder = if bounded { builder.bounded(4) } else { builder };
    builder.build().unwrap()
}

#[test]
fn two_threads_create_a_key_once() {
    for bounded in [false, true] {
        explore(3, move || {
            let mine = keyed(bounded, Quota::per_minute(1));
            let theirs = mine.clone();
            let other = thread::spawn(move || theirs.try_acquire_at(&7, NOW, 1).is_allowed());
            let first = mine.try_acquire_at(&7, NOW, 1).is_allowed();
            assert!(first ^ other.join().unwrap());
            assert_eq!((mine.len(), mine.available_at(&7, NOW)), (1, 0));
        });
    }
}

#[test]
fn a_reader_sees_a_state_that_was_there() {
    explore(3, || {
        let mine = keyed(true, Quota::per_minute(9));
        let _ = mine.try_acquire_at(&7, NOW, 1);
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.try_acquire_at(&7, NOW, 3).is_allowed());
        let left = mine.available_at(&7, NOW);
        assert!(left == 8 || left == 5, "{left}");
        assert!(other.join().unwrap());
        assert_eq!(mine.available_at(&7, NOW), 5);
    });
}

/// A denied key is read without its lock; a refund meanwhile is seen whole or not at all.
#[test]
fn a_denial_without_a_lock_is_a_denial_of_a_moment() {
    explore(3, || {
        let mine = keyed(true, Quota::per_minute(2));
        let _ = mine.try_acquire_at(&7, NOW, 2);
        // Answered without a change: from now on the key is read first.
        assert!(mine.try_acquire_at(&7, NOW, 1).is_denied());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.refund_at(&7, NOW, 1));
        let passed = u64::from(mine.try_acquire_at(&7, NOW, 1).is_allowed());
        assert_eq!(other.join().unwrap(), 1);
        assert_eq!(mine.available_at(&7, NOW), 1 - passed);
    });
}

#[test]
fn a_change_of_quota_beside_a_take_loses_nothing() {
    for bounded in [false, true] {
        explore(2, move || {
            let mine = keyed(bounded, Quota::per_minute(10));
            let _ = mine.try_acquire_at(&7, NOW, 4);
            let theirs = mine.clone();
            let other = thread::spawn(move || theirs.try_acquire_at(&7, NOW, 1).is_allowed());
            mine.set_quota_at(NOW, Quota::per_minute(20)).unwrap();
            assert!(other.join().unwrap());
            // The time until the bucket is full: of four permits by the old quota, and one by either.
            assert!((10..=11).contains(&mine.available_at(&7, NOW)));
        });
    }
}

/// Two sets in opposite order: one order of locks, all or nothing. Both keys live in one table, so
/// that the order of their addresses is the same in every run of the model.
#[test]
fn sets_of_limits_are_charged_all_or_none() {
    explore(2, || {
        let mine = keyed(true, Quota::per_minute(1));
        let theirs = mine.clone();
        let other = thread::spawn(move || {
            let charges = [theirs.charge(&8, 1), theirs.charge(&7, 1)];
            Limits::new(&charges).unwrap().try_acquire_at(NOW).is_allowed()
        });
        let charges = [mine.charge(&7, 1), mine.charge(&8, 1)];
        let first = Limits::new(&charges).unwrap().try_acquire_at(NOW).is_allowed();
        assert!(first ^ other.join().unwrap());
        assert_eq!((mine.available_at(&7, NOW), mine.available_at(&8, NOW)), (0, 0));
    });
}

/// The short way of a store: its keys are there already, in a growing table of two shards.
#[test]
fn sets_of_demands_are_charged_all_or_none() {
    for key in [[0_u8], [1], [2]] {
        explore(2, move || {
            let (clock, _hand) = Clock::manual();
            let mine = MemoryStore::builder().clock(clock).build().unwrap();
            let policies = ["one", "two"].map(|it| Policy::new(it, Quota::per_minute(2)).unwrap());
            for policy in &policies {
                let _ = mine.acquire_at(NOW, &mut [Demand::new(policy, &key, 1)]).unwrap();
            }
            let take = move |store: &MemoryStore, [one, two]: [&Policy; 2]| {
                let mut demands = [Demand::new(one, &key, 1), Demand::new(two, &key, 1)];
                store.acquire_at(NOW, &mut demands).unwrap().is_allowed()
            };
            let (theirs, [one, two]) = (mine.clone(), policies.clone());
            let other = thread::spawn(move || take(&theirs, [&two, &one]));
            let first = take(&mine, [&policies[0], &policies[1]]);
            assert!(first ^ other.join().unwrap());
            for policy in &policies {
                let left = mine.peek_at(NOW, &mut [Demand::new(policy, &key, 0)]).unwrap();
                assert_eq!(left.remaining(), 0);
            }
        });
    }
}

#[test]
fn a_refused_set_leaves_no_trace_for_a_single_taker() {
    explore(2, || {
        let mine = keyed(true, Quota::per_minute(1));
        let _ = mine.try_acquire_at(&8, NOW, 1);
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.try_acquire_at(&7, NOW, 1).is_allowed());
        let charges = [mine.charge(&7, 1), mine.charge(&8, 1)];
        assert!(Limits::new(&charges).unwrap().try_acquire_at(NOW).is_denied());
        assert!(other.join().unwrap(), "nobody else took the permit");
    });
}
