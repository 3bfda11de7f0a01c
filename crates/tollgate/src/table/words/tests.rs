use super::*;
use crate::sync::Ordering::Relaxed;
use crate::{
    Clock, Quota,
    keyed::Seed,
    store::{Demand, MemoryStore, Policy, Store},
};
use proptest::prelude::*;
use std::{collections::HashMap, time::Duration};

fn table(cap: Option<u64>, reserved: u64) -> WordTable {
    let eviction = Eviction { evicts_live: true, ..Eviction::default() };
    WordTable::new(Arc::new(eviction), cap, reserved)
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
/// grows, each with 17 to 29 bytes.
#[test]
fn keys_find_room_and_memory_follows_them() {
    let seed = Seed::random();
    let fingerprint = |key: u64| seed.fingerprint(&key);
    let cases = [1000, 100_000, 1_000_000].map(|keys| (keys, true));
    for (keys, reserved) in cases.into_iter().chain([(100_000, false), (1_000_000, false)]) {
        let table = table(reserved.then_some(keys), if reserved { keys } else { 0 });
        let before = table.bytes();
        let hint = Hint::of_refill(u64::MAX);
        for key in 0..keys {
            assert!(table.put_back(fingerprint(key), (hint, 100 + key), Tick::ZERO));
        }
        assert_eq!((table.len() as u64, table.eviction.counts()), (keys, (0, 0)));
        let found = |key| table.read(fingerprint(key)).word == 100 + key;
        assert!((0..keys).all(found), "{keys}");
        if reserved {
            assert_eq!(table.bytes(), before, "{keys}: memory is flat");
        } else {
            let per_key = table.bytes() as f64 / keys as f64;
            assert!((17.0..30.0).contains(&per_key), "{keys}: {per_key} bytes a key");
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
    assert_eq!(
        core.take_demands(&mut demands, now, &mut [None; 4]),
        None,
        "the policies are not in force"
    );
    assert!(store.acquire_at(now, &mut demands).expect("sound").is_allowed());
    assert_eq!(core.take_demands(&mut demands, now, &mut [None; 4]), Some(0), "all are there");
    demands[1] = Demand::new(&policies[1], b"key", 8);
    assert_eq!(core.take_demands(&mut demands, now, &mut [None; 4]), Some(2), "one has too little");
    let left = |demand: &Demand<'_>| demand.decision().map(|decision| decision.remaining());
    assert_eq!(demands.each_ref().map(left), [Some(7); 3]);
    assert_eq!(core.take_demands(&mut demands, now, &mut [None; 2]), None, "there are more");
    demands[1] = Demand::new(&policies[0], b"key", 1);
    assert_eq!(core.take_demands(&mut demands, now, &mut [None; 4]), None, "a key is there twice");
}

proptest! {
    /// Decisions from early readings of the clock are those of the exact time, and leave the same words.
    #[test]
    fn an_early_reading_decides_as_the_exact_time_does(
        every_ms in prop::sample::select(vec![1_u64, 3, 7, 10]),
        burst in 1..40_u64,
        calls in prop::collection::vec((0..3_u64, 0..20_000_000_u64, 0..12_000_000_u64, 0..4_u64), 1..200),
    ) {
        let gcra = Gcra::new(&Quota::one_every(Duration::from_millis(every_ms)).burst(burst)).unwrap();
        let early = gcra.with_margin(Tick::from_millis(12));
        let (by_early, by_exact) = (table(None, 0), table(None, 0));
        let mut now = 1 << 40;
        for (key, later, lag, cost) in calls {
            now += later;
            let (fingerprint, now) = (fingerprint(key, true), Tick::from_nanos(now));
            let reading = Reading { now: Tick::from_nanos(now.as_nanos() - lag), is_early: true };
            let found = by_early.take((fingerprint, reading), || now, &early, cost);
            let found = found.or_else(|| by_early.take_at((fingerprint, now), &gcra, cost)).unwrap();
            let exact = by_exact.take_at((fingerprint, now), &gcra, cost).unwrap();
            prop_assert_eq!(found.outcome(), exact.outcome());
            prop_assert_eq!(found.retry_at(), exact.retry_at());
            prop_assert!(found.remaining() <= exact.remaining());
            prop_assert_eq!(by_early.read(fingerprint), by_exact.read(fingerprint));
        }
    }
}
