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

/// Windows could not hold it and charged nothing; others were in debt for centuries.
#[test]
fn a_refused_hit_uses_up_the_limit_and_not_more() {
    for algorithm in ALGORITHMS {
        let mut bench = Bench::new(&yaml(algorithm, true));
        bench.hand.advance(Duration::from_secs(600));
        assert!(!bench.verb(&[("a=1", Hits::Take(u64::MAX))], Verb::Check));
        assert_eq!(bench.left("a=1"), 0, "{algorithm}");
        bench.hand.advance(Duration::from_secs(120));
        assert_eq!(bench.left("a=1"), 10, "{algorithm}");
    }
}
