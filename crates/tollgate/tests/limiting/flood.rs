//! G8: how a full table behaves, and that a flood of keys does no harm.

use crate::support::*;
use std::{collections::HashSet, time::Duration};
use tollgate::{
    Algorithm, Clock, KeyedBuilder, KeyedLimiter, ManualClock, Quota, Reason, WhenFull,
    store::{MemoryStore, Policy},
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Table {
    Capped,
    Bounded,
}

fn limiter(table: Table, keys: u64, quota: Quota) -> (KeyedBuilder<u64>, ManualClock) {
    let (clock, hand) = Clock::manual();
    let builder = KeyedLimiter::builder(quota).clock(clock);
    let builder = match table {
        Table::Capped => builder.max_keys(keys),
        Table::Bounded => builder.bounded(keys),
    };
    (builder, hand)
}

/// Twenty million fresh keys, one permit each, against a table for one million. Meanwhile an abuser
/// calls all the time, and a thousand honest keys call as often as they may.
#[test]
fn twenty_million_fresh_keys_wash_nobody_out() {
    // Without optimisation 200 000 fresh keys against 20 000 do; `./test long` runs all.
    const CAP: u64 = if cfg!(debug_assertions) { 20_000 } else { 1_000_000 };
    const FLOOD: u64 = if cfg!(debug_assertions) { 10 * CAP } else { 20 * CAP };
    const ABUSER: u64 = u64::MAX;
    for table in [Table::Capped, Table::Bounded] {
        // A key is at rest a minute after it took one permit: longer than the flood lasts.
        let (builder, hand) = limiter(table, CAP, Quota::per_minute(1).burst(10));
        let limiter = builder.build().unwrap();
        let honest = |key: u64| (1 << 60) + key % 1000;
        let full = |key: u64| (0..10).filter(|_| limiter.try_acquire(&key).is_allowed()).count();
        assert_eq!(full(ABUSER), 10);
        let (mut by_abuser, mut refused_honest, mut most_bytes, mut most_keys) = (0, 0, 0, 0);
        for key in 0..FLOOD {
            assert!(limiter.try_acquire(&key).is_allowed(), "a fresh key is full");
            if key % 100 == 0 {
                by_abuser += u64::from(limiter.try_acquire(&ABUSER).is_allowed());
            }
            if key % (FLOOD / 8000) == 0 {
                // 8000 calls of 1000 keys within 40 s: eight each, of ten that they may make.
                let honest = honest(key / (FLOOD / 8000));
                refused_honest += u64::from(limiter.try_acquire(&honest).is_denied());
                hand.advance(Duration::from_millis(5));
            }
            if key % (FLOOD / 20) == 0 {
                most_bytes = most_bytes.max(limiter.bytes());
                most_keys = most_keys.max(limiter.len());
            }
        }
        assert_eq!(by_abuser, 0, "{table:?}: forty seconds earn an abuser nothing");
        assert_eq!(refused_honest, 0, "{table:?}");
        // Without the memory of an empty table.
        let per_key = (most_bytes as u64 - 66 * 1024) / CAP;
        // The shard with the most keys determines the memory of all, and in a small table it has
        // more than others.
        let most = if cfg!(debug_assertions) { 37 } else { 31 };
        assert!(per_key <= most, "{table:?}: {per_key} bytes for each key of the cap");
        assert!(most_keys as u64 <= CAP, "{table:?}: {most_keys} keys");
        let counts = limiter.table_counts();
        assert!(counts.evicted > FLOOD - 2 * CAP, "{table:?}: {counts:?}");
    }
}

/// A flood on a slow quota, whose keys are live for long, does not evict an abuser of a fast one: a
/// full table compares the used share of each quota, not the end of its use. The same holds for
/// windows.
#[test]
fn a_flood_of_another_quota_evicts_no_abuser() {
    const CAP: u64 = 5_000;
    let quotas = [Quota::per_second(10), Quota::per_second(10), Quota::per_hour(10)];
    let algorithms = [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingCounter];
    let (clock, hand) = Clock::manual();
    for (quota, algorithm) in quotas.into_iter().zip(algorithms) {
        for bounded in [false, true] {
            let builder = MemoryStore::builder().clock(clock.clone());
            let builder = if bounded { builder.bounded(CAP) } else { builder.max_keys(CAP) };
            let store = builder.build().unwrap();
            let fast = Policy::with_algorithm("fast", quota, algorithm).unwrap();
            let slow = Policy::new("slow", Quota::per_hour(10)).unwrap();
            let mut by_abuser = store.acquire_one_now(&fast, b"abuser", 10).unwrap().cost();
            for key in 0..20 * CAP {
                let flood = store.acquire_one_now(&slow, &key.to_be_bytes(), 1).unwrap();
                assert!(flood.is_allowed(), "a fresh key is full");
                if key % 50 == 0 {
                    let again = store.acquire_one_now(&fast, b"abuser", 1).unwrap();
                    by_abuser += u64::from(again.is_allowed());
                }
            }
            assert_eq!(by_abuser, 10, "{algorithm}, bounded {bounded}");
            hand.advance(Duration::from_secs(7200));
        }
    }
}

/// The same if one call uses up the quota of each key of the flood: then its entries are as far from full as the
/// abuser's, and those that refill late make room.
#[test]
fn a_flood_of_keys_that_are_used_up_evicts_no_abuser() {
    for algorithm in [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingCounter] {
        for bounded in [false, true] {
            let (clock, hand) = Clock::manual();
            let builder = MemoryStore::builder().clock(clock);
            let builder = if bounded { builder.bounded(2000) } else { builder.max_keys(2000) };
            let store = builder.build().unwrap();
            let of = |name, quota| Policy::with_algorithm(name, quota, algorithm).unwrap();
            let (fast, slow) = (of("fast", Quota::per_second(10)), of("slow", Quota::per_hour(1)));
            let (mut by_abuser, mut key) = (0, 0_u64);
            for _ in 0..2000 {
                for _ in 0..20 {
                    key += 1;
                    let flood = store.acquire_one_now(&slow, &key.to_be_bytes(), 1).unwrap();
                    assert!(flood.is_allowed(), "a fresh key is full");
                }
                while store.acquire_one_now(&fast, b"abuser", 1).unwrap().is_allowed() {
                    by_abuser += 1;
                }
                hand.advance(Duration::from_millis(5));
            }
            assert!(by_abuser <= 110, "{algorithm}, bounded {bounded}: {by_abuser} in ten seconds");
        }
    }
}

#[test]
fn a_capped_table_holds_its_cap_exactly() {
    for keys in [1, 2, 7, 1000] {
        let (builder, hand) = limiter(Table::Capped, keys, Quota::per_minute(1));
        let limiter = builder.build().unwrap();
        for key in 0..3 * keys + 50 {
            assert!(limiter.try_acquire(&key).is_allowed());
            assert_eq!(limiter.len() as u64, (key + 1).min(keys), "cap {keys}, key {key}");
        }
        hand.advance(Duration::from_secs(60));
        // All keys are idle: as many fresh ones find room as the cap says, and no live one is
        // evicted.
        let evicted = limiter.table_counts().evicted;
        (1_000_000..1_000_000 + keys)
            .for_each(|key| assert!(limiter.try_acquire(&key).is_allowed()));
        // Where a fresh key replaced another, an idle one was left over, and may have been swept
        // since.
        let (len, replaced) = (limiter.len() as u64, limiter.table_counts().evicted - evicted);
        assert!(len <= keys && keys - len <= replaced, "{len} of {keys}, {replaced} replaced");
        if keys <= 7 {
            assert_eq!(limiter.table_counts().evicted, evicted, "cap {keys}");
        }
        limiter.clear();
        assert!(limiter.is_empty());
        (0..keys).for_each(|key| assert!(limiter.try_acquire(&key).is_allowed()));
        limiter.reset(&0);
        limiter.shrink();
        assert_eq!(limiter.len() as u64, keys - 1);
    }
}

#[test]
fn a_capped_table_of_logs_holds_its_cap_exactly() {
    for keys in [1, 5, 300] {
        let (builder, _) = limiter(Table::Capped, keys, Quota::per_minute(2));
        let limiter = builder.algorithm(Algorithm::SlidingLog).build().unwrap();
        for key in 0..2 * keys + 20 {
            assert!(limiter.try_acquire(&key).is_allowed());
            assert_eq!(limiter.len() as u64, (key + 1).min(keys), "cap {keys}, key {key}");
        }
    }
}

#[test]
fn the_entry_nearest_to_full_makes_room() {
    for table in [Table::Capped, Table::Bounded] {
        let (builder, _) = limiter(table, 8, Quota::per_hour(10));
        let limiter = builder.build().unwrap();
        let keys: Vec<u64> = (0..20).collect();
        // Heavier and heavier: each new key finds only lighter ones, and the heaviest stay.
        for key in &keys {
            let _ = limiter.try_acquire_n(key, 1 + key % 10);
        }
        let room = limiter.len();
        assert!(room <= 8, "{table:?}: {room}");
        let _ = limiter.force(&100, 50);
        let _ = (200..400).all(|key| limiter.try_acquire(&key).is_allowed());
        assert_eq!(limiter.try_acquire(&100).reason(), Reason::Quota);
        assert!(limiter.try_acquire(&100).is_denied(), "{table:?}: who is in debt stays");
    }
}

#[test]
fn a_full_table_refuses_or_shares_as_declared() {
    for table in [Table::Capped, Table::Bounded] {
        let (builder, hand) = limiter(table, 1, Quota::per_minute(6));
        let refusing = builder.when_full(WhenFull::Refuse).build().unwrap();
        let mut inside = HashSet::new();
        let mut outside = 0;
        for key in 0..200 {
            let decision = refusing.try_acquire(&key);
            match decision.reason() {
                Reason::Saturated => {
                    assert!(decision.is_denied());
                    assert_eq!(decision.retry_after(decision.at()), Some(Duration::from_secs(10)));
                    outside += 1;
                }
                _ => {
                    assert!(decision.is_allowed());
                    inside.insert(key);
                }
            }
        }
        assert_eq!(inside.len(), refusing.len());
        assert_eq!(refusing.table_counts().saturated, outside);
        assert!(inside.iter().all(|key| refusing.available(key) == 5), "nobody lost state");
        hand.advance(Duration::from_secs(10));
        assert!(refusing.try_acquire(&1000).is_allowed(), "there is room when they are at rest");

        let (builder, _) = limiter(table, 1, Quota::per_minute(6));
        let share = WhenFull::Share(Quota::per_minute(3));
        let sharing = builder.when_full(share).build().unwrap();
        let passed = (0..200).filter(|key| sharing.try_acquire(key).is_allowed()).count();
        assert_eq!(passed, sharing.len() + 3, "{table:?}: three for all that found no room");
    }
}

/// Every key up to the bound finds room.
#[test]
fn a_bounded_table_has_room_for_all_its_keys() {
    let mut lost = 0;
    for round in 0..20 {
        let (builder, _) = limiter(Table::Bounded, 50_000, Quota::per_hour(5));
        let limiter = builder.when_full(WhenFull::Refuse).build().unwrap();
        let first = round * 1_000_000;
        lost += (first..first + 50_000).filter(|key| limiter.try_acquire(key).is_denied()).count();
    }
    assert_eq!(lost, 0, "of a million");
}

#[test]
fn keys_of_all_tables_leave_when_they_are_at_rest() {
    let mut random = Random(3);
    for table in [Table::Capped, Table::Bounded] {
        let (builder, hand) = limiter(table, 10_000, Quota::per_second(10).burst(2));
        let limiter = builder.when_full(WhenFull::Refuse).build().unwrap();
        // Each key is idle after 200 ms at most; 40 ms bring a thousand others.
        for _ in 0..300 {
            for _ in 0..1000 {
                let decision = limiter.try_acquire_n(&random.next(), 1 + random.below(2));
                assert!(decision.is_allowed(), "{table:?}: {decision:?}");
            }
            hand.advance(Duration::from_millis(40));
        }
        assert_eq!(limiter.table_counts().saturated, 0, "{table:?}");
        assert_eq!(limiter.table_counts().evicted, 0, "{table:?}");
    }
}
