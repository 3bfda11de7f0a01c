//! Faults in full tables, in eviction and in snapshots that a review found: every test here failed
//! once, and its comment describes the fault.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test may panic and wait")]

use crate::support::Folder;
use std::{thread, time::Duration};
use tollgate::{
    Algorithm, Clock, Initial, KeyedBuilder, KeyedLimiter, ManualClock, Quota, Reason, WhenFull,
    store::{MemoryStore, Permits, Store},
    testing::block_on,
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn keyed(quota: Quota) -> (KeyedBuilder<str>, ManualClock) {
    let (clock, hand) = Clock::manual();
    hand.advance(HOUR);
    (KeyedLimiter::builder(quota).clock(clock), hand)
}

fn keys(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}{number}")).collect()
}

// ---- what is full, and what leaves ----

/// The growing table looks for idle entries in 8 of its 256 or more shards, so with a small cap it
/// refuses a new key although every entry is idle.
#[test]
fn keys_at_rest_make_room_in_the_growing_table() {
    let (builder, hand) = keyed(Quota::per_second(1));
    let limiter = builder.max_keys(1).when_full(WhenFull::Refuse).build().unwrap();
    for key in keys("key", 20) {
        assert_ne!(limiter.try_acquire(&key).reason(), Reason::Saturated, "{key}");
        hand.advance(10 * SECOND);
    }
}

/// The boxed table looks only in the shard of the new key.
#[test]
fn keys_at_rest_make_room_in_the_wide_table() {
    let (builder, hand) = keyed(Quota::per_second(1));
    let builder = builder.algorithm(Algorithm::SlidingLog);
    let limiter = builder.max_keys(1).when_full(WhenFull::Refuse).build().unwrap();
    for key in keys("key", 20) {
        assert_ne!(limiter.try_acquire(&key).reason(), Reason::Saturated, "{key}");
        hand.advance(10 * SECOND);
    }
}

/// So do the overrides.
#[test]
fn notes_that_have_expired_make_room() {
    let (builder, hand) = keyed(Quota::per_second(1));
    let limiter = builder.max_notes(1).build().unwrap();
    for key in keys("key", 20) {
        limiter.block(&key, SECOND).unwrap();
        hand.advance(10 * SECOND);
    }
}

/// Permits in flight leave only when a call comes for the same key: the permits of holders that
/// died fill the store for good.
#[test]
fn permits_that_have_expired_make_room() {
    let (clock, hand) = Clock::manual();
    let store = MemoryStore::builder().clock(clock).max_permits(2).build().unwrap();
    for key in keys("key", 20) {
        let permits = Permits::new("jobs", key.as_bytes(), 1);
        assert!(block_on(store.enter(&permits, SECOND)).is_ok(), "{key}");
        hand.advance(10 * SECOND);
    }
}

/// The sum of permits in flight overflows if the limit is `u64::MAX`: the check saturates and the
/// sum does not.
#[test]
fn permits_of_any_cost_are_counted() {
    let store = MemoryStore::new();
    let permits = Permits { name: "jobs", key: b"", limit: u64::MAX, cost: u64::MAX };
    assert!(block_on(store.enter(&permits, SECOND)).unwrap().id.is_some());
    assert!(block_on(store.enter(&permits, SECOND)).unwrap().id.is_none());
}

/// A boxed table evicts only from the shard of the new key, and inserts the key anyway if that
/// shard is empty: up to 64 keys more than allowed.
#[test]
fn the_wide_table_keeps_its_cap() {
    let (builder, _hand) = keyed(Quota::per_hour(10));
    let limiter = builder.algorithm(Algorithm::SlidingLog).max_keys(4).build().unwrap();
    for key in keys("key", 200) {
        let _ = limiter.try_acquire(&key);
    }
    assert!(limiter.len() <= 4, "{} keys", limiter.len());
}

/// If it refuses instead of evicting, it counts and inserts in two steps.
#[test]
fn the_wide_table_keeps_its_cap_among_threads() {
    for _ in 0..200 {
        let (builder, _hand) = keyed(Quota::per_hour(10));
        let builder = builder.algorithm(Algorithm::SlidingLog).when_full(WhenFull::Refuse);
        let limiter = builder.max_keys(50).build().unwrap();
        thread::scope(|scope| {
            for number in 0..4 {
                let limiter = &limiter;
                scope.spawn(move || {
                    for key in keys(&format!("{number}-"), 100) {
                        let _ = limiter.try_acquire(&key);
                    }
                });
            }
        });
        assert!(limiter.len() <= 50, "{} keys", limiter.len());
    }
}

/// If all candidates for eviction are locked, the growing table inserts the key beyond its cap, and
/// stays above it.
#[test]
fn the_growing_table_keeps_its_cap_among_threads() {
    let (builder, _hand) = keyed(Quota::per_hour(10));
    let limiter = builder.max_keys(1).build().unwrap();
    thread::scope(|scope| {
        for number in 0..4 {
            let limiter = &limiter;
            scope.spawn(move || {
                for key in keys(&format!("{number}-"), 5_000) {
                    let _ = limiter.try_acquire(&key);
                }
            });
        }
    });
    // One more for each thread that found every other key locked; the next insert corrects this.
    assert!(limiter.len() <= 4, "{} keys", limiter.len());
    for key in keys("alone", 8) {
        let _ = limiter.try_acquire(&key);
    }
    assert_eq!(limiter.len(), 1);
}

/// A key that needs no slot is refused because there is none.
#[test]
fn a_key_without_a_limit_needs_no_room() {
    let (builder, _hand) = keyed(Quota::per_hour(1));
    let limiter = builder.max_keys(1).when_full(WhenFull::Refuse).build().unwrap();
    let _ = limiter.try_acquire("in");
    limiter.override_quota("vip", Quota::unlimited(), None).unwrap();
    assert!(limiter.try_acquire("vip").is_allowed());
}

/// A refusal for lack of room is not a "never": a wait helps.
#[test]
fn a_wait_helps_a_key_without_room() {
    let (builder, _hand) = keyed(Quota::per_hour(1));
    let builder = builder.algorithm(Algorithm::SlidingLog);
    let limiter = builder.max_keys(1).when_full(WhenFull::Refuse).build().unwrap();
    let _ = limiter.try_acquire("in");
    assert!(!limiter.try_acquire("out").is_never());
}

/// A live key that is evicted from a bounded table is also counted as an idle one.
#[test]
fn an_evicted_key_is_not_one_that_was_at_rest() {
    let (builder, _hand) = keyed(Quota::per_hour(10));
    let limiter = builder.bounded(1).build().unwrap();
    for key in keys("key", 5) {
        let _ = limiter.try_acquire(&key);
    }
    let counts = limiter.table_counts();
    assert_eq!((counts.evicted, counts.forgotten), (4, 0));
}

/// An idle one that is evicted from a growing table is counted as live.
#[test]
fn a_key_at_rest_is_not_one_that_was_evicted() {
    let (builder, hand) = keyed(Quota::per_second(1));
    let limiter = builder.max_keys(1).build().unwrap();
    for key in keys("key", 5) {
        let _ = limiter.try_acquire(&key);
        hand.advance(10 * SECOND);
    }
    assert_eq!(limiter.table_counts().evicted, 0);
}

/// Fresh keys of this quota are not full, so idle ones must be kept; logs (and counters that do not
/// fit a word) are not.
#[test]
fn a_log_at_rest_is_kept_if_fresh_ones_are_not_full() {
    let (builder, hand) = keyed(Quota::per_minute(5).initial(Initial::Empty));
    let builder = builder.algorithm(Algorithm::SlidingLog);
    let limiter = builder.max_idle(10 * HOUR).build().unwrap();
    assert!(limiter.try_acquire("key").is_denied());
    hand.advance(Duration::from_secs(61));
    assert_eq!(limiter.available("key"), 5);
    limiter.shrink();
    assert_eq!(limiter.available("key"), 5);
}

// ---- snapshots ----

/// The same keys are skipped on restore, although they differ from fresh ones.
#[test]
fn a_kept_key_at_rest_comes_back_from_a_file() {
    let folder = Folder::new();
    let (clock, hand) = Clock::manual();
    let build = || {
        KeyedLimiter::<str>::builder(Quota::per_minute(5).initial(Initial::Empty))
            .clock(clock.clone())
            .seed(folder.seed())
            .max_idle(10 * HOUR)
            .build()
            .unwrap()
    };
    let before = build();
    assert!(before.try_acquire("key").is_denied());
    hand.advance(Duration::from_secs(61));
    assert_eq!(before.available("key"), 5);
    before.save(folder.file("state")).unwrap();
    let after = build();
    after.restore(folder.file("state")).unwrap();
    assert_eq!(after.available("key"), 5);
}

/// If the numbers run out while the classes of a file are made, the classes made before have no
/// slot yet, so they are collected and their numbers reused: most states are dropped, and some come
/// back under another quota.
#[test]
fn all_quotas_of_a_file_come_back_or_none_is_mistaken() {
    let folder = Folder::new();
    let (clock, _hand) = Clock::manual();
    let build = |quota: Quota| {
        let builder = KeyedLimiter::<str>::builder(quota).clock(clock.clone());
        builder.seed(folder.seed()).build().unwrap()
    };
    let before = build(Quota::per_day(5));
    let _ = before.try_acquire_n("plain", 5);
    for (number, key) in keys("key", 2047).iter().enumerate() {
        before.override_quota(key, Quota::per_day(1_000_000 + number as u64), None).unwrap();
        let _ = before.try_acquire(key);
    }
    assert_eq!(before.save(folder.file("state")).unwrap(), 2048);
    let after = build(Quota::per_day(6));
    let restored = after.restore(folder.file("state")).unwrap();
    assert_eq!(after.available("plain"), 0, "it had nothing left, and no time has passed");
    assert!(restored >= 2047, "{restored} states of 2048");
}
