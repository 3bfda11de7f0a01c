//! Thresholds (`warn`): which calls cross one, and when a crossing is reported again.

use super::bench::Bench;
use std::{collections::HashMap, time::Duration};
use tollgate::Algorithm;
use tollgate_server::engine::{Hits, Verb};

const PERCENTS: [u8; 3] = [50, 80, 100];

fn yaml(rate: &str, more: &str) -> String {
    format!(
        "descriptors:\n  - {{key: k, {more} rate_limit: {{name: k, {rate}, warn: [50%, 80%, 100%]}}}}\n"
    )
}

/// Returns how often each threshold was reported.
fn crossed(bench: &Bench) -> [u64; 3] {
    let plan = bench.engine.plan_arc();
    let rule = plan.rule(plan.named("k").unwrap());
    PERCENTS.map(|percent| rule.live().crossed(percent))
}

fn take(bench: &mut Bench, key: &str, cost: u64) -> bool {
    bench.verb(&[(key, Hits::Take(cost))], Verb::Check)
}

#[test]
fn a_call_that_reaches_a_threshold_is_reported_once() {
    for algorithm in Algorithm::ALL {
        let rate = format!("quota: 10/min, algorithm: {}", algorithm.name());
        let mut bench = Bench::new(&yaml(&rate, ""));
        // key, cost, whether it passes, reported so far
        for (row, (key, cost, passes, reported)) in [
            ("k=a", 4, true, [0, 0, 0]),
            ("k=a", 0, true, [0, 0, 0]),
            ("k=a", 1, true, [1, 0, 0]), // exactly half
            ("k=a", 2, true, [1, 0, 0]),
            ("k=a", 4, false, [1, 0, 0]), // a refusal changes nothing, and crosses nothing
            ("k=b", 9, true, [2, 1, 0]),  // over two at once
            ("k=a", 3, true, [2, 2, 1]),
            ("k=a", 1, false, [2, 2, 1]),
            ("k=c", 10, true, [3, 3, 2]),
            ("k=d", 11, false, [3, 3, 2]),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(take(&mut bench, key, cost), passes, "{algorithm:?} row {row}");
            assert_eq!(crossed(&bench), reported, "{algorithm:?} row {row}");
        }
        assert_eq!(bench.engine.unreported_thresholds(), 0);
    }
}

#[test]
fn a_key_that_swings_around_a_threshold_is_reported_once_per_window() {
    // For each algorithm, how long a window is.
    for (rate, window_ms) in [
        ("quota: 10/min burst 20, algorithm: gcra", 120_000),
        ("quota: 20/min, algorithm: fixed-window", 60_000),
        ("quota: 20/min, algorithm: anchored-window", 60_000),
        ("quota: 20/min, algorithm: sliding-counter", 60_000),
        ("quota: 20/min, algorithm: sliding-log", 60_000),
    ] {
        let mut bench = Bench::new(&yaml(rate, ""));
        let mut now_ms = 0;
        for (at_ms, reported) in [
            (0, [1, 0, 0]),
            (1, [1, 0, 0]),
            (window_ms - 1, [1, 0, 0]),
            (window_ms, [2, 0, 0]),
            (2 * window_ms - 1, [2, 0, 0]),
            (2 * window_ms, [3, 0, 0]),
        ] {
            bench.hand.advance(Duration::from_millis(at_ms - now_ms));
            now_ms = at_ms;
            assert!(take(&mut bench, "k=a", 10), "{rate} at {at_ms}");
            assert_eq!(crossed(&bench), reported, "{rate} at {at_ms}");
            assert!(bench.verb(&[("k=a", Hits::Give(10))], Verb::Check));
            assert_eq!(bench.left("k=a"), 20, "{rate} at {at_ms}");
            assert_eq!(crossed(&bench), reported, "what is given back crosses nothing");
        }
    }
}

/// A model that sees only the remaining permits before and after each call.
struct Model {
    algorithm: Algorithm,
    limit: u64,
    window: Duration,
    /// When an anchored window ends.
    anchored_end: Duration,
    /// When a threshold may be reported again, by key and percentage.
    again: HashMap<(u8, u8), Duration>,
    reported: [u64; 3],
}

impl Model {
    fn charge(&mut self, key: u8, now: Duration, (left_before, left_after): (u64, u64)) {
        if left_after == left_before {
            return;
        }
        let end = match self.algorithm {
            Algorithm::FixedWindow => {
                let number = now.as_nanos() / self.window.as_nanos();
                Duration::from_nanos(((number + 1) * self.window.as_nanos()) as u64)
            }
            Algorithm::AnchoredWindow if now < self.anchored_end => self.anchored_end,
            Algorithm::AnchoredWindow => {
                self.anchored_end = now + self.window;
                self.anchored_end
            }
            _ => now + self.window,
        };
        for (index, percent) in PERCENTS.into_iter().enumerate() {
            // The use reaches a percentage if at most the rest remains.
            let rest = u64::from(100 - percent) * self.limit;
            let is_crossed = left_before * 100 > rest && left_after * 100 <= rest;
            let again = self.again.get(&(key, percent)).copied().unwrap_or_default();
            if is_crossed && now >= again {
                self.again.insert((key, percent), end);
                self.reported[index] += 1;
            }
        }
    }
}

#[test]
fn random_calls_report_what_a_model_reports() {
    for (number, algorithm) in Algorithm::ALL.into_iter().enumerate() {
        let mut state = 7 + number as u64;
        let mut dice = |sides: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % sides
        };
        let rate = format!("quota: 13/min, algorithm: {}", algorithm.name());
        let mut bench = Bench::new(&yaml(&rate, ""));
        let window = Duration::from_secs(60);
        let mut models = [0_u8; 3].map(|_| Model {
            algorithm,
            limit: 13,
            window,
            anchored_end: Duration::ZERO,
            again: HashMap::new(),
            reported: [0; 3],
        });
        let mut now = Duration::ZERO;
        for round in 0..3000 {
            let step = Duration::from_millis(dice(9000) * dice(2));
            bench.hand.advance(step);
            now += step;
            let (key, cost) = (dice(3) as u8, dice(6));
            let name = format!("k={key}");
            let before = bench.left(&name);
            let verb = [Verb::Check, Verb::Reserve(Duration::from_secs(1)), Verb::Peek];
            bench.verb(&[(&name, Hits::Take(cost))], verb[dice(3) as usize]);
            let after = bench.left(&name);
            models[usize::from(key)].charge(key, now, (before, after));
            let sum = |index: usize| models.iter().map(|model| model.reported[index]).sum::<u64>();
            assert_eq!(crossed(&bench), [sum(0), sum(1), sum(2)], "{algorithm:?} round {round}");
        }
        assert!(
            crossed(&bench).iter().all(|count| *count > 50),
            "{algorithm:?} {:?}",
            crossed(&bench)
        );
    }
}

#[test]
fn every_charge_counts_whatever_the_mode() {
    const RATE: &str = "unit: hour, requests_per_unit: 10";
    // A refusal that is charged crosses what is between, up to the debt.
    let mut bench = Bench::new(&yaml(RATE, "count_refused: true,"));
    assert!(take(&mut bench, "k=a", 4) && !take(&mut bench, "k=a", 7));
    assert_eq!(crossed(&bench), [1, 1, 1]);
    assert!(!take(&mut bench, "k=a", 7));
    assert_eq!(crossed(&bench), [1, 1, 1]);
    // Shadow mode counts as if it were in force.
    let mut bench = Bench::new(&yaml(RATE, "shadow_mode: true,"));
    assert!(take(&mut bench, "k=a", 8) && take(&mut bench, "k=a", 3));
    assert_eq!(crossed(&bench), [1, 1, 0]);
    // A descriptor twice is charged twice.
    let mut bench = Bench::new(&yaml(RATE, ""));
    assert!(bench.verb(&[("k=a", Hits::Take(4)), ("k=a", Hits::Take(4))], Verb::Check));
    assert_eq!(crossed(&bench), [1, 1, 0]);
    // The limit of a single value is what its percentages are of.
    let own = "overrides: [{value: big, requests_per_unit: 100}],";
    let mut bench = Bench::new(&yaml(RATE, own));
    assert!(take(&mut bench, "k=big", 49));
    assert_eq!(crossed(&bench), [0, 0, 0]);
    assert!(take(&mut bench, "k=big", 1));
    assert_eq!(crossed(&bench), [1, 0, 0]);
}

#[test]
fn a_request_that_another_limit_refuses_crosses_nothing() {
    let mut bench = Bench::new(
        "descriptors:
  - {key: k, rate_limit: {name: k, unit: hour, requests_per_unit: 10, warn: [50%, 80%, 100%]}}
  - {key: closed, rate_limit: {unit: hour, requests_per_unit: 1}}
",
    );
    let both = [("k=a", Hits::Take(9)), ("closed=x", Hits::Take(2))];
    assert!(!bench.verb(&both, Verb::Check) && bench.left("k=a") == 10);
    assert_eq!(crossed(&bench), [0, 0, 0]);
}

/// A reload keeps the counts, and what was reported in this window.
#[test]
fn a_reload_keeps_what_was_reported() {
    const RATE: &str = "unit: hour, requests_per_unit: 10";
    let mut bench = Bench::new(&yaml(RATE, ""));
    assert!(take(&mut bench, "k=a", 5));
    let other = "descriptors:
  - {key: k, ban: {after: 3, within: 1m, for: 1m}, rate_limit: {name: k, unit: hour, requests_per_unit: 20, warn: 50%}}
";
    bench.load(other);
    assert!(take(&mut bench, "k=a", 5) && take(&mut bench, "k=b", 10));
    // Half of 20 is another number, but the key was reported in this window.
    assert_eq!(crossed(&bench), [2, 0, 0]);
    bench.load(&yaml(RATE, ""));
    assert!(take(&mut bench, "k=c", 8));
    assert_eq!(crossed(&bench), [3, 1, 0]);
}

#[test]
fn crossings_beyond_the_bound_are_counted_and_not_reported() {
    const MOST: u64 = 1 << 16;
    let mut bench = Bench::new(&yaml("unit: hour, requests_per_unit: 2", ""));
    for key in 0..MOST + 3 {
        assert!(take(&mut bench, &format!("k={key}"), 1));
    }
    assert_eq!((crossed(&bench), bench.engine.unreported_thresholds()), ([MOST, 0, 0], 3));
    // In the next window there are permits again.
    bench.hand.advance(Duration::from_secs(3600));
    assert!(take(&mut bench, "k=0", 2));
    assert_eq!((crossed(&bench), bench.engine.unreported_thresholds()), ([MOST + 1, 1, 1], 3));
}
