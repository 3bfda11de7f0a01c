//! Many keys: each is limited as if it had a limiter of its own, whatever the table forgets.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use proptest::prelude::*;
use std::{collections::HashMap, sync::Barrier, thread, time::Duration};
use support::*;
use tollgate::{
    Algorithm, Clock, Inherit, Initial, KeyedError, KeyedLimiter, Limiter, ManualClock, Quota, Tick,
};

/// Algorithms whose state is one word.
const WORDS: [Algorithm; 4] =
    [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::AnchoredWindow, Algorithm::SlidingCounter];

fn keyed(algorithm: Algorithm, quota: &str) -> (KeyedLimiter<String>, ManualClock) {
    let (clock, hand) = Clock::manual();
    let builder = KeyedLimiter::builder(quota.parse().unwrap()).algorithm(algorithm);
    (builder.clock(clock).build().unwrap(), hand)
}

#[test]
fn each_key_has_its_own_permits() {
    for algorithm in WORDS {
        let (limiter, _) = keyed(algorithm, "3/min");
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

    /// A table that forgets keys at rest decides like one limiter per key, which forgets nothing.
    #[test]
    fn eviction_is_invisible(
        which in 0..4_usize,
        steps in prop::collection::vec((0..6_u8, 0..40_u8, 0..13_u64, 0..400_u64), 1..300),
    ) {
        let algorithm = WORDS[which];
        let (table, _) = keyed(algorithm, "10/s");
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
    // A key is at rest after 100 ms; a thousand fresh ones come every 100 ms.
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
    assert_eq!((limiter.len(), limiter.bytes()), (0, 0));
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
    for algorithm in WORDS {
        let (limiter, _) = keyed(algorithm, "100/h");
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
        assert_eq!((passed, limiter.len()), (100, 1), "{algorithm}");
    }
}

#[test]
fn a_new_quota_holds_for_every_key() {
    let (limiter, hand) = keyed(Algorithm::Gcra, "100/h");
    for key in 0..5_000 {
        let _ = limiter.try_acquire_n(&key.to_string(), 60);
    }
    limiter.set_quota(Quota::per_hour(500), Inherit::Proportional).unwrap();
    for key in (0..5_000).step_by(97) {
        assert_eq!(limiter.available(&key.to_string()), 200, "key {key}");
    }
    assert_eq!(limiter.available("never seen"), 500);
    hand.advance(Duration::from_secs(3600));
    // At rest, they start full under the next one.
    limiter.set_quota(Quota::per_hour(7), Inherit::AsIs).unwrap();
    assert_eq!((limiter.available("0"), limiter.quota()), (7, Quota::per_hour(7)));
}

#[test]
fn refuses_what_makes_no_sense_for_keys() {
    let build = |quota: Quota, algorithm| {
        KeyedLimiter::<str>::builder(quota).algorithm(algorithm).build().map(drop).unwrap_err()
    };
    let empty = Quota::per_second(5).initial(Initial::Empty);
    assert_eq!(
        build(empty, Algorithm::Gcra).to_string(),
        "a fresh key with an initial fill of Empty differs from one at rest, whose slot is given \
         away; start keys full"
    );
    assert_eq!(
        build(Quota::per_second(5), Algorithm::SlidingLog),
        KeyedError::NotOneWord(Algorithm::SlidingLog)
    );
    assert!(build(Quota::unlimited(), Algorithm::Gcra).to_string().contains("nothing to count"));
    let (limiter, _) = keyed(Algorithm::Gcra, "5/s");
    assert!(limiter.set_quota(empty, Inherit::AsIs).is_err());
    assert_eq!(limiter.quota(), Quota::per_second(5));
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
