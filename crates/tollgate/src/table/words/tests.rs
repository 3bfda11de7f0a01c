use super::*;
use crate::sync::Ordering::Relaxed;
use crate::{
    Clock, Quota,
    store::{Demand, MemoryStore, Policy, Store},
    table::Tally,
};
use proptest::prelude::*;
use std::collections::HashMap;

fn table(cap: Option<u64>, reserved: u64) -> WordTable {
    let base = Base { tally: Tally::default(), room: Room::Evict };
    WordTable::new(Arc::new(base), cap, reserved)
}

/// Many keys of one shard, which then grows and has full homes; or keys of all shards.
fn fingerprint(key: u64, spread: bool) -> u64 {
    let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    if spread { hash } else { hash >> 8 }
}

#[test]
fn a_place_is_the_whole_fingerprint() {
    for fingerprint in [1, 0xff, 1 << 56, u64::MAX, 0x1234_5678_9abc_def0] {
        assert!(Place::of(fingerprint).name & !NAME == 0);
        if fingerprint << 8 != 0 {
            assert_eq!(Place::of(fingerprint).fingerprint(), fingerprint);
        }
    }
    assert_ne!(Place::of(1 << 56).name, 0, "no key has the name of an unused slot");
}

#[test]
fn rows_follow_each_other_in_segments() {
    let mut expected = (0, 0);
    for row in 0..5000 {
        assert_eq!(segment(row), expected, "row {row}");
        let rows = 1 << (expected.0 / STEPS).saturating_sub(1);
        expected =
            if expected.1 + 1 < rows { (expected.0, expected.1 + 1) } else { (expected.0 + 1, 0) };
    }
    for rows in 1..200 {
        for hash in 0..512 {
            let (before, after) = (row(hash, rows), row(hash, rows + 1));
            assert!(before < rows);
            // A split moves what it moves to the new row, and only out of its parent.
            let parent = rows - (1 << rows.ilog2());
            assert!(after == before || (after == rows && before == parent), "{hash} in {rows}");
        }
    }
}

#[test]
fn a_bucket_is_a_cache_line() {
    assert_eq!((size_of::<Bucket>(), align_of::<Bucket>()), (64, 64));
}

/// As many keys as memory was allocated for find room in it, and no other one leaves. So do a million in a table that
/// grows, each with 17 to 27 bytes.
#[test]
fn keys_find_room_and_memory_follows_them() {
    for (keys, reserved) in [(1000, true), (100_000, true), (100_000, false), (1_000_000, false)] {
        let table = table(reserved.then_some(keys), if reserved { keys } else { 0 });
        let before = table.bytes();
        let hint = Hint::of_refill(u64::MAX);
        for key in 0..keys {
            assert!(table.put_back(fingerprint(key, true), (hint, 100 + key), Tick::ZERO));
        }
        assert_eq!((table.len() as u64, table.base.tally.read()), (keys, (0, 0)));
        let found = |key| table.read(fingerprint(key, true)).word == 100 + key;
        assert!((0..keys).all(found), "{keys}");
        if reserved {
            assert_eq!(table.bytes(), before, "{keys}: memory is flat");
        } else {
            let per_key = table.bytes() as f64 / keys as f64;
            assert!((17.0..28.0).contains(&per_key), "{keys}: {per_key} bytes a key");
        }
    }
}

proptest! {
    #[test]
    fn behaves_like_a_map(
        steps in prop::collection::vec((0..5_u8, 0..300_u64, 1..28_u64), 1..900), spread: bool,
    ) {
        let (table, mut map) = (table(None, 0), HashMap::new());
        let hint = Hint::of_refill(1234);
        // An idle entry may leave at any time; nobody notices.
        let mut now = 0;
        for (verb, key, word) in steps {
            let fingerprint = fingerprint(key + 1, spread);
            match verb {
                0..=2 => {
                    let word = now * word_time::PER_NANO + word;
                    prop_assert!(table.put_back(fingerprint, (hint, word), Tick::from_nanos(now)));
                    map.insert(fingerprint, word);
                }
                3 => {
                    table.remove(fingerprint);
                    map.remove(&fingerprint);
                }
                _ => {
                    now += word / 20;
                    map.retain(|_, word| !word_time::is_idle(*word, Tick::from_nanos(now)));
                }
            }
            let live = |fingerprint| {
                Some(table.read(fingerprint).word).filter(|word| !word_time::is_idle(*word, Tick::from_nanos(now)))
            };
            prop_assert_eq!(live(fingerprint), map.get(&fingerprint).copied());
            prop_assert!(table.len() >= map.len());
        }
        table.shrink(Tick::from_nanos(now));
        let mut met = HashMap::new();
        table.visit(|fingerprint, found, word| {
            assert_eq!(found, hint);
            assert_eq!(met.insert(fingerprint, word), None, "every entry is met once");
        });
        prop_assert_eq!(&met, &map);
        prop_assert_eq!(table.len(), map.len());
        table.clear();
        prop_assert_eq!(table.len(), 0);
    }

    /// What a cap counts is what is there, whichever way keys come and go. Else a store would be
    /// full too early, or never.
    #[test]
    fn entries_are_counted_as_they_are(
        cap in 1_u64..24,
        steps in prop::collection::vec(
            (prop::collection::vec((0_u64..40, 0_u64..4), 1..5), 0_u64..300), 1..120,
        ),
    ) {
        let (clock, hand) = Clock::manual();
        let store = MemoryStore::builder().clock(clock).max_keys(cap).build().expect("sound");
        let policy = Policy::new("p", Quota::per_second(10).burst(3)).expect("sound");
        for (keys, pause_ms) in steps {
            hand.advance(std::time::Duration::from_millis(pause_ms));
            let keys: Vec<_> = keys.iter().map(|(key, cost)| (key.to_be_bytes(), *cost)).collect();
            let mut demands: Vec<_> =
                keys.iter().map(|(key, cost)| Demand::new(&policy, key, *cost)).collect();
            let _ = store.acquire_at(store.clock().now(), &mut demands);
            let table = &store.core().tables.words;
            // ORDERING: Relaxed. There is one thread.
            prop_assert_eq!(table.len.load(Relaxed), table.len() as u64);
        }
    }
}

#[test]
fn several_keys_take_the_fast_path() {
    let (clock, _hand) = Clock::manual();
    let store = MemoryStore::builder().clock(clock).build().expect("sound");
    let policies = ["one", "two", "three"]
        .map(|name| Policy::new(name, Quota::per_minute(1).burst(9)).expect("sound"));
    let mut demands = policies.each_ref().map(|policy| Demand::new(policy, b"key", 1));
    let now = store.clock().now();
    let core = store.core();
    assert_eq!(core.take_demands::<4>(&mut demands, now), None, "the policies are not in force");
    assert!(store.acquire_at(now, &mut demands).expect("sound").is_allowed());
    assert_eq!(core.take_demands::<4>(&mut demands, now), Some(0), "all are there");
    demands[1] = Demand::new(&policies[1], b"key", 8);
    assert_eq!(core.take_demands::<4>(&mut demands, now), Some(2), "one has too little");
    let left = |demand: &Demand<'_>| demand.decision().map(|decision| decision.remaining());
    assert_eq!(demands.each_ref().map(left), [Some(7); 3]);
    assert_eq!(core.take_demands::<2>(&mut demands, now), None, "there are more");
    demands[1] = Demand::new(&policies[0], b"key", 1);
    assert_eq!(core.take_demands::<4>(&mut demands, now), None, "a key is there twice");
}
