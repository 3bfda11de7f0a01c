//! The heaviest keys and the number of keys: the stated errors hold.

use crate::support::Random;
use proptest::prelude::*;
use std::{
    cell::Cell,
    collections::HashMap,
    fmt::{self, Display},
    thread,
};
use tollgate::{Limiter, Outcome, Quota, TopKey, TopKeys};

#[test]
fn types_are_shareable_and_printable() {
    fn shared<T: Send + Sync + fmt::Debug>() {}
    shared::<TopKeys>();
    shared::<TopKey>();
    let top = TopKeys::new(10);
    top.record(&"alice", 1, Outcome::Allowed, 3);
    assert!(format!("{top:?}").contains("total_allowed: 3"), "{top:?}");
    assert_eq!(top.capacity(), 10);
    assert!((1..=8).contains(&top.stripes()));
}

fn names(keys: &[TopKey]) -> Vec<(&str, u64, u64)> {
    keys.iter().map(|key| (key.name.as_str(), key.count, key.error)).collect()
}

#[test]
fn keys_are_ranked_by_allowed_and_by_denied_cost() {
    let top = TopKeys::new(100);
    for (name, outcome, cost) in [
        ("alice", Outcome::Allowed, 5),
        ("bob", Outcome::Allowed, 9),
        ("alice", Outcome::Allowed, 6),
        ("mallory", Outcome::Later, 70),
        ("mallory", Outcome::Never, 7),
        ("bob", Outcome::Later, 2),
        ("carol", Outcome::Later, 2),
        ("idle", Outcome::Allowed, 0),
    ] {
        top.record(&name, top.fingerprint(name), outcome, cost);
    }
    assert_eq!(names(&top.top_allowed(9)), [("alice", 11, 0), ("bob", 9, 0)]);
    assert_eq!(names(&top.top_denied(2)), [("mallory", 77, 0), ("bob", 2, 0)]);
    assert_eq!(names(&top.top_denied(0)), []);
    assert_eq!((top.total_allowed(), top.total_denied(), top.total()), (20, 81, 101));
    assert_eq!(top.distinct(), 5, "a key that cost nothing was seen too");

    top.halve();
    assert_eq!(names(&top.top_allowed(9)), [("alice", 5, 0), ("bob", 4, 0)]);
    assert_eq!((top.total_allowed(), top.total_denied()), (10, 40));
    for _ in 0..7 {
        top.halve();
    }
    assert_eq!(names(&top.top_denied(9)), [], "old keys fade");
    assert_eq!(top.distinct(), 5);

    top.clear();
    assert_eq!((top.total(), top.distinct(), top.top_allowed(9).len()), (0, 0, 0));
}

#[test]
fn a_decision_says_which_ranking() {
    let (limiter, top) = (Limiter::new(Quota::once(5)).unwrap(), TopKeys::new(10));
    for cost in [4, 2, 9, 1] {
        top.record_decision(&"key", 1, &limiter.try_acquire_n(cost));
    }
    assert_eq!(names(&top.top_allowed(1)), [("key", 5, 0)]);
    assert_eq!(names(&top.top_denied(1)), [("key", 11, 0)]);
}

/// Counts how often it is rendered.
struct Rendered<'a>(&'a Cell<u32>);

impl Display for Rendered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.set(self.0.get() + 1);
        f.write_str("name")
    }
}

#[test]
fn a_name_is_rendered_only_when_its_key_enters() {
    let (top, times) = (TopKeys::new(10), Cell::new(0));
    for _ in 0..1_000 {
        top.record(&Rendered(&times), 7, Outcome::Allowed, 1);
    }
    assert_eq!(times.get(), 1);
    top.record(&Rendered(&times), 7, Outcome::Later, 1);
    assert_eq!(times.get(), 2, "the other ranking has its own names");
}

/// A name that records while it is rendered: no lock is held meanwhile.
struct Nested<'a>(&'a TopKeys);

impl Display for Nested<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for fingerprint in 10..20 {
            self.0.record(&"inner", fingerprint, Outcome::Allowed, 1);
        }
        f.write_str("outer")
    }
}

#[test]
fn a_name_may_use_the_sketch_itself() {
    let top = TopKeys::new(100);
    top.record(&Nested(&top), 1, Outcome::Allowed, 5);
    assert_eq!((top.total(), top.top_allowed(1)[0].name.as_str()), (15, "outer"));
}

#[test]
fn long_names_are_cut_and_marked() {
    let top = TopKeys::new(1);
    top.record(&"x".repeat(100_000), 1, Outcome::Allowed, 1);
    assert_eq!(top.top_allowed(1)[0].name, format!("{}…", "x".repeat(128)));
}

#[test]
fn nonsense_capacities_are_refused() {
    for capacity in [0, TopKeys::CAPACITY_MAX + 1, usize::MAX] {
        assert!(std::panic::catch_unwind(|| TopKeys::new(capacity)).is_err(), "{capacity}");
    }
}

#[test]
fn huge_costs_do_not_wrap() {
    let top = TopKeys::new(2);
    for key in [1, 2, 3, 1] {
        top.record(&key, key, Outcome::Allowed, u64::MAX - 1);
    }
    assert_eq!(top.total(), u64::MAX);
    assert!(top.top_allowed(9).iter().all(|key| key.count >= u64::MAX - 1));
}

/// Checks every stated bound of one ranking against the true weights.
fn assert_bounds(top: &TopKeys, exact: &HashMap<u64, u64>, slack: u64) {
    let (keys, total) = (top.top_allowed(usize::MAX), top.total_allowed());
    let most = total / top.capacity() as u64;
    for TopKey { name, count, error, .. } in &keys {
        let truth = exact[&name.parse().unwrap()];
        assert!(count - error <= truth + slack, "{name}: {count} - {error} <= {truth}");
        assert!(truth <= count + slack, "{name}: {truth} <= {count}");
        assert!(*error <= most + slack, "{name}: error {error} <= {total} / capacity");
    }
    assert!(keys.windows(2).all(|pair| pair[0].count >= pair[1].count));
    assert!(keys.len() <= top.capacity() * top.stripes());
    for (key, truth) in exact {
        let is_listed = keys.iter().any(|listed| listed.name == key.to_string());
        assert!(is_listed || *truth <= most + slack, "{key}: {truth} of {total} is not listed");
    }
}

/// A weight for every key, more for small keys: like traffic.
fn events() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let key = prop_oneof![0..4_u64, 0..30_u64, 0..1_000_u64];
    proptest::collection::vec((key, 1..50_u64), 1..400)
}

proptest! {
    #[test]
    fn counts_and_errors_bracket_the_truth(capacity in 1..40_usize, events in events()) {
        let (top, mut exact) = (TopKeys::new(capacity), HashMap::new());
        for (key, cost) in events {
            top.record(&key, key, Outcome::Allowed, cost);
            *exact.entry(key).or_default() += cost;
        }
        prop_assert_eq!(top.total_allowed(), exact.values().sum::<u64>());
        assert_bounds(&top, &exact, 0);
    }

    #[test]
    fn halving_halves_the_truth(
        capacity in 1..40_usize, rounds in proptest::collection::vec(events(), 1..4),
    ) {
        let (top, mut exact) = (TopKeys::new(capacity), HashMap::<u64, u64>::new());
        for events in rounds {
            for (key, cost) in events {
                top.record(&key, key, Outcome::Allowed, cost);
                *exact.entry(key).or_default() += cost;
            }
            top.halve();
            exact.values_mut().for_each(|weight| *weight /= 2);
            // One thread, one stripe: at most one more. The rounding belongs to the exact weights.
            assert_bounds(&top, &exact, 1);
        }
    }
}

/// Threads record the same hot keys and many cold ones; nothing is skipped.
#[test]
fn threads_lose_nothing_and_stay_within_the_bounds() {
    const THREADS: u64 = 8;
    let top = TopKeys::new(50);
    let work = &|seed| {
        let (mut random, mut exact) = (Random(seed), HashMap::new());
        for _ in 0..20_000 {
            let key = match random.below(4) {
                0 => random.below(5),
                1 => random.below(100),
                _ => random.below(100_000),
            };
            let cost = 1 + random.below(9);
            top.record(&key, key, Outcome::Allowed, cost);
            *exact.entry(key).or_default() += cost;
        }
        exact
    };
    let parts: Vec<HashMap<u64, u64>> = thread::scope(|scope| {
        let start = |seed| scope.spawn(move || work(seed));
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut exact = HashMap::new();
    for (key, cost) in parts.into_iter().flatten() {
        *exact.entry(key).or_default() += cost;
    }
    assert_eq!(top.total_allowed(), exact.values().sum::<u64>(), "nothing is skipped");
    assert_bounds(&top, &exact, 0);
    let hot: Vec<_> = top.top_allowed(5).iter().map(|key| key.name.clone()).collect();
    assert!((0..5).all(|key| hot.contains(&format!("{key}"))), "{hot:?}");
}

#[test]
fn a_flood_of_fresh_keys_does_not_wash_out_a_heavy_one() {
    let (top, mut random) = (TopKeys::new(100), Random(9));
    for round in 0..100_000_u64 {
        // 2 % of the traffic, in a sea of keys seen once.
        let key = if round % 50 == 0 { 1 } else { 2 + random.next() / 2 };
        top.record(&key, key, Outcome::Later, 1);
    }
    let heaviest = &top.top_denied(1)[0];
    assert_eq!(heaviest.name, "1");
    assert!(heaviest.at_least() <= 2_000 && heaviest.count >= 2_000, "{heaviest:?}");
    assert!(heaviest.error <= 1_000);
}

/// The standard error is 1.625 %: the mean of many estimates is near, and each within four times.
#[test]
fn the_number_of_keys_is_right_within_the_stated_error() {
    for keys in [100_u64, 1_000, 4_000, 10_000, 12_000, 20_000, 50_000, 300_000] {
        let rounds = if keys > 50_000 { 3 } else { 12 };
        let (mut sum, mut squares) = (0.0, 0.0);
        for seed in 0..rounds {
            let (top, mut random) = (TopKeys::new(1), Random(seed * 7_919 + keys));
            for _ in 0..keys {
                let fingerprint = random.next();
                top.record(&"", fingerprint, Outcome::Allowed, 0);
                top.record(&"", fingerprint, Outcome::Allowed, 0);
            }
            let error = top.distinct() as f64 / keys as f64 - 1.0;
            assert!(error.abs() < 4.0 * 0.01625, "{keys} keys, seed {seed}: off by {error}");
            sum += error;
            squares += error * error;
        }
        let rounds = rounds as f64;
        assert!((sum / rounds).abs() < 0.01625 * 3.0 / rounds.sqrt(), "{keys} keys: biased");
        assert!((squares / rounds).sqrt() < 0.01625 * 1.75, "{keys} keys: {squares}");
    }
}

#[test]
fn fingerprints_may_be_mere_counters() {
    let top = TopKeys::new(10);
    for fingerprint in 0..10_000 {
        top.record(&"", fingerprint, Outcome::Allowed, 1);
    }
    let distinct = top.distinct();
    assert!((9_350..10_650).contains(&distinct), "{distinct}");
    assert_eq!(top.fingerprint("alice"), top.fingerprint(&String::from("alice")));
}
