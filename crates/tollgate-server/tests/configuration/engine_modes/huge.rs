//! The largest numbers that a client can send.

use super::bench::Bench;
use std::time::Duration;
use tollgate::testing::block_on;
use tollgate_server::engine::{Hits, Verb};

const ALGORITHMS: [&str; 5] =
    ["fixed-window", "gcra", "anchored-window", "sliding-counter", "sliding-log"];

fn yaml(algorithm: &str, count_refused: bool) -> String {
    format!(
        "defaults: {{algorithm: {algorithm}, count_refused: {count_refused}}}
descriptors:
  - key: a
    rate_limit: {{name: a, unit: minute, requests_per_unit: 10}}
    descriptors:
      - {{key: b, parents: [a], rate_limit: {{unit: minute, requests_per_unit: 10}}}}
  - {{key: s, shadow_mode: true, rate_limit: {{unit: minute, requests_per_unit: 10}}}}
  - {{key: q, quota_mode: true, rate_limit: {{unit: minute, requests_per_unit: 10}}}}
"
    )
}

#[test]
fn nothing_overflows() {
    let all = Hits::Take(u64::MAX);
    for (algorithm, count_refused) in
        ALGORITHMS.iter().flat_map(|name| [(name, false), (name, true)])
    {
        let mut bench = Bench::new(&yaml(algorithm, count_refused));
        for verb in [Verb::Peek, Verb::Check, Verb::Reserve(Duration::from_secs(60))] {
            let asks = [("a=1|b=1", all), ("a=1|b=1", all), ("a=1", all), ("s=1", all)];
            assert!(!bench.verb(&asks, verb), "{algorithm}");
            assert!(bench.verb(&[("s=1", all)], verb), "{algorithm}");
            assert!(!bench.verb(&[("q=1", all), ("q=2", all)], verb), "{algorithm}");
        }
        assert!(bench.verb(&[("a=1|b=1", Hits::Give(u64::MAX))], Verb::Check), "{algorithm}");
        if !count_refused {
            assert_eq!(bench.left("a=1|b=1"), 10, "{algorithm}");
        }
    }
}

#[test]
fn a_settlement_may_be_huge() {
    for algorithm in ALGORITHMS {
        let mut bench = Bench::new(&yaml(algorithm, false));
        let life = Verb::Reserve(Duration::from_secs(60));
        assert!(bench.verb(&[("a=1|b=1", Hits::Take(3))], life));
        let ticket = bench.answer.ticket().unwrap();
        assert_eq!(block_on(bench.engine.settle(ticket, &[u64::MAX])), Ok(true), "{algorithm}");
        assert!(bench.check(&["s=1"]), "{algorithm}");
    }
}

/// It was cut to the limit, and the next look passed at once.
#[test]
fn a_refused_hit_is_owed_in_full() {
    // 25 of 10 a minute; the remaining permits 60, 120, 180 and 240 s later
    for (algorithm, left) in [
        ("gcra", [0, 5, 10, 10]),
        ("fixed-window", [10; 4]),
        ("anchored-window", [10; 4]),
        ("sliding-counter", [0, 0, 6, 10]),
        ("sliding-log", [0, 5, 10, 10]),
    ] {
        let mut bench = Bench::new(&yaml(algorithm, true));
        bench.hand.advance(Duration::from_secs(600));
        assert!(!bench.verb(&[("a=1", Hits::Take(25))], Verb::Check));
        assert!(!bench.verb(&[("a=1", Hits::Take(0))], Verb::Check), "{algorithm}: a look");
        for (index, left) in left.into_iter().enumerate() {
            bench.hand.advance(Duration::from_secs(60));
            assert_eq!(bench.left("a=1"), left, "{algorithm}, minute {}", index + 1);
        }
    }
}

#[test]
fn fifty_thousand_reported_to_a_thousand_a_minute_last_for_fifty_minutes() {
    for (algorithm, wait_secs) in
        [("gcra", 49 * 60), ("sliding-counter", 50 * 60), ("sliding-log", 50 * 60)]
    {
        let mut bench = Bench::new(&format!(
            "defaults: {{algorithm: {algorithm}, count_refused: true}}
descriptors:
  - {{key: tokens, rate_limit: {{unit: minute, requests_per_unit: 1000}}}}
"
        ));
        bench.hand.advance(Duration::from_secs(600));
        assert!(!bench.verb(&[("tokens=1", Hits::Take(50_000))], Verb::Check), "{algorithm}");
        bench.hand.advance(Duration::from_secs(wait_secs - 1));
        assert!(!bench.check(&["tokens=1"]), "{algorithm}: owed");
        let wait = bench.retry_after().unwrap();
        // The refused hit was charged, too.
        assert!(wait <= Duration::from_secs(62), "{algorithm}: {wait:?}");
        bench.hand.advance(wait);
        assert!(bench.verb(&[("tokens=1", Hits::Take(0))], Verb::Check), "{algorithm}: paid off");
    }
}

#[test]
fn a_refused_hit_above_the_largest_debt_is_not_booked_and_health_says_so() {
    for algorithm in ALGORITHMS {
        let mut bench = Bench::new(&yaml(algorithm, true));
        assert!(!bench.verb(&[("a=1", Hits::Take(u64::MAX))], Verb::Check));
        assert_eq!(bench.left("a=1"), 10, "{algorithm}");
        assert_eq!(bench.engine.health().bounds_reached(), 1, "{algorithm}");
        let (_, text) = bench.engine.health().last_bound().unwrap();
        assert!(text.contains("18446744073709551615 reported to \"d:a\""), "{algorithm}: {text}");
        assert!(text.contains("largest debt"), "{algorithm}: {text}");
    }
}
