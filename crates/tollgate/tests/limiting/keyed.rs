//! Many keys: each is limited as if it had a limiter of its own, whatever the table evicts.

use crate::support::*;
use proptest::prelude::*;
use std::{collections::HashMap, sync::Barrier, thread, time::Duration};
use tollgate::{
    Algorithm, Clock, Escalation, Initial, KeyedError, KeyedLimiter, Limiter, ManualClock, Quota,
    Tick,
};

/// Which table the keys live in.
#[derive(Clone, Copy, Debug)]
enum Table {
    Growing,
    Capped,
    Bounded,
}

const TABLES: [Table; 3] = [Table::Growing, Table::Capped, Table::Bounded];

/// Every algorithm in every table.
fn all() -> impl Iterator<Item = (Algorithm, Table)> {
    Algorithm::ALL.into_iter().flat_map(|algorithm| TABLES.map(|table| (algorithm, table)))
}

fn keyed_in(table: Table, algorithm: Algorithm, quota: &str) -> (KeyedLimiter<str>, ManualClock) {
    let (clock, hand) = Clock::manual();
    let builder = KeyedLimiter::builder(quota.parse().unwrap()).algorithm(algorithm).clock(clock);
    let builder = match table {
        Table::Growing => builder,
        Table::Capped => builder.max_keys(100_000),
        Table::Bounded => builder.bounded(100_000),
    };
    (builder.build().unwrap(), hand)
}

fn keyed(algorithm: Algorithm, quota: &str) -> (KeyedLimiter<str>, ManualClock) {
    keyed_in(Table::Growing, algorithm, quota)
}

#[test]
fn each_key_has_its_own_permits() {
    for (algorithm, table) in all() {
        let (limiter, _) = keyed_in(table, algorithm, "3/min");
        for key in ["alice", "bob", ""] {
            let answers: Vec<_> = (0..4).map(|_| limiter.try_acquire(key).is_allowed()).collect();
            assert_eq!(answers, [true, true, true, false], "{algorithm} {key:?}");
        }
        assert_eq!(limiter.len(), 3);
        limiter.reset("bob");
        assert_eq!((limiter.available("bob"), limiter.available("alice")), (3, 0));
        limiter.clear();
        assert!(limiter.is_empty());
        assert_eq!(limiter.available("alice"), 3);
    }
}

#[test]
fn keys_of_any_kind() {
    let limiter: KeyedLimiter<(u32, String)> = KeyedLimiter::new(Quota::per_hour(1)).unwrap();
    assert!(limiter.try_acquire(&(1, "a".to_owned())).is_allowed());
    assert!(limiter.try_acquire(&(1, "a".to_owned())).is_denied());
    assert!(limiter.try_acquire(&(2, "a".to_owned())).is_allowed());
    let addresses: KeyedLimiter<std::net::IpAddr> = KeyedLimiter::new(Quota::per_hour(1)).unwrap();
    assert!(addresses.try_acquire(&"10.0.0.1".parse::<std::net::IpAddr>().unwrap()).is_allowed());
    let bytes: KeyedLimiter<[u8]> = KeyedLimiter::new(Quota::per_hour(1)).unwrap();
    assert!(bytes.try_acquire(&[1_u8, 2, 3][..]).is_allowed());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A table that evicts idle keys decides like one limiter per key, which forgets nothing.
    #[test]
    fn eviction_is_invisible(
        which in 0..5_usize,
        table in 0..4_usize,
        steps in prop::collection::vec((0..6_u8, 0..40_u8, 0..13_u64, 0..400_u64), 1..300),
    ) {
        let algorithm = Algorithm::ALL[which];
        // The last one is a table of two buckets, in which keys move and idle ones are replaced.
        let table = match table {
            3 => KeyedLimiter::<str>::builder("10/s".parse().unwrap())
                .algorithm(algorithm).clock(Clock::manual().0).bounded(40).build().unwrap(),
            table => keyed_in(TABLES[table], algorithm, "10/s").0,
        };
        let mut limiters: HashMap<u8, Limiter> = HashMap::new();
        let mut now_ms = 0;
        for (verb, key, cost, gap_ms) in steps {
            now_ms += if gap_ms < 200 { 0 } else { gap_ms };
            let (now, name) = (ms(now_ms), format!("key {key}"));
            let limiter = limiters.entry(key).or_insert_with(|| manual(algorithm, "10/s").0);
            match verb {
                0..3 => prop_assert_eq!(
                    table.try_acquire_at(&name, now, cost), limiter.try_acquire_at(now, cost)
                ),
                3 => prop_assert_eq!(
                    table.up_to_at(&name, now, cost), limiter.up_to_at(now, cost)
                ),
                4 => prop_assert_eq!(
                    table.force_at(&name, now, cost), limiter.force_at(now, cost)
                ),
                _ => prop_assert_eq!(
                    table.refund_at(&name, now, cost), limiter.refund_at(now, cost)
                ),
            }
            prop_assert_eq!(table.peek_at(&name, now, 1), limiter.peek_at(now, 1));
        }
    }
}

#[test]
fn keys_at_rest_make_room_for_fresh_ones() {
    // A key is idle after 100 ms; a thousand fresh ones come every 100 ms.
    let (limiter, hand) = keyed(Algorithm::Gcra, "10/s burst 1");
    let (mut most, mut bytes) = (0, 0);
    for round in 0..300_u64 {
        for key in 0..1000 {
            assert!(limiter.try_acquire(&format!("{round}/{key}")).is_allowed());
        }
        hand.advance(Duration::from_millis(100));
        (most, bytes) = (most.max(limiter.len()), bytes.max(limiter.bytes()));
    }
    assert!(most <= 8_000, "{most} slots for 1000 live keys, of 300000 seen");
    assert!(bytes <= 400_000, "{bytes} bytes");
    limiter.shrink();
    assert_eq!((limiter.len(), limiter.bytes()), (0, bytes), "the memory stays for the next keys");
    assert_eq!(limiter.table_counts().forgotten, 300_000);
}

#[test]
fn a_key_in_debt_is_never_forgotten() {
    let (limiter, hand) = keyed(Algorithm::Gcra, "1/h");
    assert!(limiter.try_acquire("abuser").is_allowed());
    for key in 0..200_000 {
        assert!(limiter.try_acquire(&key.to_string()).is_allowed());
    }
    hand.advance(Duration::from_secs(3599));
    assert!(limiter.try_acquire("abuser").is_denied());
    limiter.shrink();
    assert!(limiter.try_acquire("abuser").is_denied());
}

#[test]
fn many_threads_create_a_key_once() {
    for (algorithm, table) in all() {
        let (limiter, _) = keyed_in(table, algorithm, "100/h");
        let (barrier, threads) = (Barrier::new(64), 64);
        let passed: usize = thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        (0..20).filter(|_| limiter.try_acquire("new").is_allowed()).count()
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        assert_eq!((passed, limiter.len()), (100, 1), "{algorithm} {table:?}");
    }
}

#[test]
fn a_new_quota_holds_for_every_key() {
    for table in TABLES {
        let (limiter, hand) = keyed_in(table, Algorithm::Gcra, "100/h");
        for key in 0..5_000 {
            let _ = limiter.try_acquire_n(&key.to_string(), 60);
        }
        limiter.set_quota(Quota::per_hour(500)).unwrap();
        for key in (0..5_000).step_by(97) {
            assert_eq!(limiter.available(&key.to_string()), 200, "key {key}");
        }
        assert_eq!(limiter.available("never seen"), 500);
        hand.advance(Duration::from_secs(3600));
        // Idle keys start full under the next quota.
        limiter.set_quota(Quota::per_hour(7)).unwrap();
        assert_eq!((limiter.available("0"), limiter.quota()), (7, Quota::per_hour(7)));
    }
}

#[test]
fn the_quota_can_change_any_number_of_times() {
    for (algorithm, bounded) in
        Algorithm::ALL.into_iter().flat_map(|one| [(one, true), (one, false)])
    {
        let (clock, _) = Clock::manual();
        let builder = KeyedLimiter::<str>::builder(Quota::per_hour(10)).algorithm(algorithm);
        let builder = if bounded { builder.bounded(100) } else { builder.max_keys(100) };
        let limiter = builder.clock(clock).build().unwrap();
        let _ = limiter.try_acquire_n("key", 4);
        for round in 0..2_100 {
            limiter.set_quota(Quota::per_hour(20 + round % 5)).unwrap();
        }
        // Of the last quota, 24 an hour. By GCRA, 24 minutes are used: 9.6 permits.
        let left = if algorithm == Algorithm::Gcra { 14 } else { 20 };
        assert_eq!(limiter.available("key"), left, "{algorithm}, bounded {bounded}");
    }
}

/// G7, also for threads that read the clock at one time and decide a little later.
#[test]
fn a_time_from_before_grants_nothing() {
    for table in TABLES {
        let (limiter, hand) = keyed_in(table, Algorithm::Gcra, "10/s");
        hand.advance(Duration::from_secs(100));
        limiter.set_quota(Quota::per_second(5)).unwrap();
        for at in [Duration::from_secs(10), Duration::from_secs(3600)] {
            let now = limiter.now().saturating_add(at);
            assert_eq!(limiter.up_to_at("key", now, 10).cost(), 5, "{table:?}");
            for earlier in [1, 1_000_000, 5_000_000_000] {
                let then = Tick::from_nanos(now.as_nanos() - earlier);
                assert!(limiter.try_acquire_at("key", then, 1).is_denied(), "{table:?} {earlier}");
            }
            assert!(limiter.try_acquire_at("key", now, 1).is_denied(), "{table:?}");
        }
    }
}

/// A change under load: the admissions before and after it fit both quotas.
#[test]
fn a_change_under_load_neither_loses_nor_grants() {
    for table in [Table::Growing, Table::Bounded] {
        let (limiter, _) = keyed_in(table, Algorithm::Gcra, "1000/h");
        let names: Vec<String> = (0..20).map(|key| key.to_string()).collect();
        let barrier = Barrier::new(9);
        let passed: u64 = thread::scope(|scope| {
            let work = |_| {
                scope.spawn(|| {
                    barrier.wait();
                    let rounds = (0..300).flat_map(|_| &names);
                    rounds.filter(|key| limiter.try_acquire(key).is_allowed()).count() as u64
                })
            };
            let workers: Vec<_> = (0..8).map(work).collect();
            barrier.wait();
            for round in 0..50 {
                limiter.set_quota(Quota::per_hour(1000).burst(1000 + round % 2)).unwrap();
            }
            limiter.set_quota(Quota::per_hour(1000).burst(1500)).unwrap();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        let used: u64 = names.iter().map(|key| 1500 - limiter.available(key)).sum();
        assert_eq!(used, passed, "{table:?}: every permit admitted is charged, and no other");
        assert!(passed <= 1500 * 20);
    }
}

#[test]
fn refuses_what_makes_no_sense_for_keys() {
    let builder = KeyedLimiter::<str>::builder;
    let error = |builder: tollgate::KeyedBuilder<str>| builder.build().map(drop).unwrap_err();
    let quota = Quota::per_second(5);
    let empty = quota.initial(Initial::Empty);
    assert_eq!(
        error(builder(empty)).to_string(),
        "a fresh key with an initial fill of Empty differs from an idle one, whose slot is reused; \
         start keys full, or set how long to keep them with max_idle"
    );
    assert_eq!(error(builder(quota).bounded(9).max_keys(9)), KeyedError::TwoTables);
    assert!(error(builder(quota).bounded(0)).to_string().starts_with("a table for 0 keys"));
    assert!(error(builder(quota).max_keys(0)).to_string().starts_with("a table for 0 keys"));
    let twice = builder(quota).tier("a", quota).tier("a", quota);
    assert_eq!(error(twice), KeyedError::TierTwice("a".into()));
    let bans = Escalation::new(0, Duration::from_secs(1), Duration::from_secs(1));
    assert!(matches!(error(builder(quota).escalate(bans)), KeyedError::Escalation { .. }));
    let (limiter, _) = keyed(Algorithm::Gcra, "5/s");
    assert!(limiter.set_quota(empty).is_err());
    assert_eq!(limiter.quota(), quota);
    assert_eq!(
        limiter.assign("key", "gold", None).unwrap_err().to_string(),
        "there is no tier \"gold\"; add it to the builder"
    );
}

#[test]
fn keys_that_do_not_start_full_are_kept_for_a_declared_time() {
    let (clock, hand) = Clock::manual();
    let quota = Quota::per_second(1).burst(5).initial(Initial::Empty);
    let builder = KeyedLimiter::<str>::builder(quota).clock(clock);
    let limiter = builder.max_idle(Duration::from_secs(60)).build().unwrap();
    assert!(limiter.try_acquire("new").is_denied());
    hand.advance(Duration::from_secs(10));
    assert_eq!(limiter.available("new"), 5, "it has filled since it was first seen");
    limiter.shrink();
    assert_eq!((limiter.available("new"), limiter.len()), (5, 1));
    hand.advance(Duration::from_secs(51));
    limiter.shrink();
    assert_eq!((limiter.available("new"), limiter.len()), (0, 0), "forgotten, as declared");
}

#[test]
fn a_look_at_a_new_key_that_starts_empty_names_the_time_at_which_the_call_passes() {
    for algorithm in Algorithm::ALL {
        for initial in [Initial::Empty, Initial::Permits(1)] {
            let (clock, hand) = Clock::manual();
            let quota = Quota::per_second(2).initial(initial);
            let builder = KeyedLimiter::<str>::builder(quota).algorithm(algorithm).clock(clock);
            let limiter = builder.max_idle(Duration::from_secs(60)).build().unwrap();
            hand.advance(Duration::from_millis(300));
            let looked = limiter.peek_n("new", 2);
            let wait = looked.retry_after(limiter.now()).expect("it names a time");
            hand.advance(wait - Duration::from_nanos(1));
            assert!(limiter.peek_n("new", 2).is_denied(), "{algorithm} {initial:?}");
            hand.advance(Duration::from_nanos(1));
            assert!(limiter.try_acquire_n("new", 2).is_allowed(), "{algorithm} {initial:?}");
        }
    }
}

#[test]
fn nothing_printed_tells_a_key_or_the_seed() {
    let (limiter, _) = keyed(Algorithm::Gcra, "5/s");
    let _ = limiter.try_acquire("secret-key");
    let text = format!("{limiter:?}");
    assert!(!text.contains("secret"), "{text}");
    assert!(text.contains("len: 1"), "{text}");
    assert_eq!(Tick::ZERO, limiter.now());
}
