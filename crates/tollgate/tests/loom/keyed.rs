//! Interleavings of the tables of keys, and of several limits in one decision, by loom, with at most
//! two or three preemptions: a look-up has dozens of atomic steps.

use crate::explore;
use loom::thread;
use tollgate::{
    Clock, KeyedLimiter, Limits, Quota, Tick,
    store::{Demand, MemoryStore, Policy},
};

const NOW: Tick = Tick::from_secs(1);

/// Two shards; a bucket has two slots, and the second key of a shard makes it grow.
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

/// A denied key is read without a lock; the reader sees a concurrent refund whole or not at all.
#[test]
fn a_denial_without_a_lock_is_a_denial_of_a_moment() {
    explore(3, || {
        let mine = keyed(true, Quota::per_minute(2));
        let _ = mine.try_acquire_at(&7, NOW, 2);
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

/// The keys are already there, in two shards or in one.
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

/// An idle key leaves, and another takes its slot, while a thread takes from it again.
#[test]
fn a_take_beside_eviction_charges_its_own_key() {
    explore(3, || {
        let (clock, _hand) = Clock::manual();
        let builder = KeyedLimiter::builder(Quota::per_second(3)).clock(clock).max_keys(1);
        let mine = builder.build().unwrap();
        let later = Tick::from_secs(60);
        let _ = mine.try_acquire_at(&7, NOW, 1);
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.try_acquire_at(&8, later, 1).is_allowed());
        assert!(mine.try_acquire_at(&7, later, 1).is_allowed());
        assert!(other.join().unwrap());
        let left = [7, 8].map(|key| mine.available_at(&key, later));
        // Each was charged once. One has left, unless its slot was in use; then the next new key
        // corrects that.
        assert!([[2, 3], [3, 2], [2, 2]].contains(&left), "{left:?}");
        assert_eq!(mine.len(), left.iter().filter(|left| **left == 2).count());
    });
}

#[test]
fn a_take_beside_a_reset_charges_the_old_entry_or_the_new() {
    explore(3, || {
        let mine = keyed(false, Quota::per_minute(5));
        let _ = mine.try_acquire_at(&7, NOW, 2);
        let theirs = mine.clone();
        let other = thread::spawn(move || {
            theirs.reset(&7);
            let _ = theirs.try_acquire_at(&7, NOW, 1);
        });
        assert!(mine.try_acquire_at(&7, NOW, 1).is_allowed());
        other.join().unwrap();
        let left = mine.available_at(&7, NOW);
        assert!((3..=4).contains(&left), "{left}");
    });
}

/// The word of the new entry equals that of the old one, whose key is about to be charged.
#[test]
fn a_take_never_charges_the_next_key_of_a_slot() {
    explore(3, || {
        let mine = keyed(false, Quota::per_minute(5));
        let _ = mine.try_acquire_at(&7, NOW, 2);
        let theirs = mine.clone();
        let other = thread::spawn(move || {
            theirs.reset(&7);
            for key in [8, 9] {
                let _ = theirs.try_acquire_at(&key, NOW, 2);
            }
        });
        assert!(mine.try_acquire_at(&7, NOW, 1).is_allowed());
        other.join().unwrap();
        let left = [8, 9].map(|key| mine.available_at(&key, NOW));
        assert_eq!(left, [3, 3], "nobody else took from them");
        assert!((4..=5).contains(&mine.available_at(&7, NOW)));
    });
}

#[test]
fn a_denial_beside_a_reset_and_other_keys_is_one_of_a_moment() {
    explore(3, || {
        let mine = keyed(false, Quota::per_minute(2));
        let _ = mine.try_acquire_at(&7, NOW, 2);
        let theirs = mine.clone();
        let other = thread::spawn(move || {
            theirs.reset(&7);
            let _ = theirs.try_acquire_at(&8, NOW, 2);
        });
        let passed = u64::from(mine.try_acquire_at(&7, NOW, 1).is_allowed());
        other.join().unwrap();
        assert_eq!(mine.available_at(&7, NOW), 2 - passed);
        assert_eq!(mine.available_at(&8, NOW), 0);
    });
}

#[test]
fn a_take_beside_growth_loses_nothing() {
    explore(3, || {
        let mine = keyed(false, Quota::per_minute(5));
        let _ = mine.try_acquire_at(&7, NOW, 1);
        let theirs = mine.clone();
        let other = thread::spawn(move || {
            for key in [8, 9] {
                let _ = theirs.try_acquire_at(&key, NOW, 1);
            }
        });
        assert!(mine.try_acquire_at(&7, NOW, 1).is_allowed());
        other.join().unwrap();
        let left = [7, 8, 9].map(|key| mine.available_at(&key, NOW));
        assert_eq!((left, mine.len()), ([3, 4, 4], 3));
    });
}

#[test]
fn a_denial_beside_growth_is_a_denial() {
    explore(3, || {
        let mine = keyed(false, Quota::per_minute(2));
        let _ = mine.try_acquire_at(&7, NOW, 2);
        let theirs = mine.clone();
        let other = thread::spawn(move || {
            for key in [8, 9] {
                let _ = theirs.try_acquire_at(&key, NOW, 1);
            }
        });
        assert!(mine.try_acquire_at(&7, NOW, 1).is_denied());
        other.join().unwrap();
        assert_eq!(mine.available_at(&7, NOW), 0);
    });
}

/// One key of a set exists and the other is new, while a third key makes its shard grow or moves a
/// neighbour.
#[test]
fn a_set_beside_growth_is_charged_once() {
    explore(2, || {
        let mine = keyed(false, Quota::per_minute(5));
        let _ = mine.try_acquire_at(&7, NOW, 1);
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.try_acquire_at(&9, NOW, 1).is_allowed());
        let charges = [mine.charge(&7, 1), mine.charge(&8, 1)];
        assert!(Limits::new(&charges).unwrap().try_acquire_at(NOW).is_allowed());
        assert!(other.join().unwrap());
        let left = [7, 8, 9].map(|key| mine.available_at(&key, NOW));
        assert_eq!((left, mine.len()), ([3, 4, 4], 3));
    });
}

/// A take that changes the hint with the word: the quota of the word is another after it.
#[test]
fn a_denial_beside_a_change_of_quota_reads_word_and_hint_together() {
    explore(3, || {
        let mine = keyed(false, Quota::per_hour(2));
        let _ = mine.try_acquire_at(&7, NOW, 2);
        let later = Tick::from_secs(2);
        mine.set_quota_at(later, Quota::per_minute(2)).unwrap();
        // The remaining use of the longer quota counts as one minute from the change on.
        let (at, theirs) = (Tick::from_secs(40), mine.clone());
        let other = thread::spawn(move || theirs.try_acquire_at(&7, at, 1).is_allowed());
        let first = mine.try_acquire_at(&7, at, 1).is_allowed();
        assert!(first ^ other.join().unwrap(), "one permit has come back");
        assert_eq!(mine.available_at(&7, at), 0);
    });
}
