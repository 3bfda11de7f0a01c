//! Fleets of two-tier stores, simulated with the shipped code.
//!
//! The table of the docs:
//! `cargo test -p tollgate-redis --features test-servers --test leases -- --nocapture tier_fleet::table`

use crate::servers::tier::{Outcome, Scenario};
use proptest::prelude::*;
use std::time::Duration;
use tollgate::{Algorithm, Quota};

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Checks the properties of every run.
fn check(name: &str, scenario: &Scenario, outcome: &Outcome) {
    let nodes = scenario.nodes + scenario.joins.len();
    // While a node joins, those before it may still hold what they had when they were fewer.
    let per_node = match scenario.joins.is_empty() {
        true => outcome.lease_max,
        false => scenario.quota.capacity() / (2 * scenario.nodes as u64),
    };
    let held = nodes as u64 * per_node;
    // A fixed window may bring its limit twice around a border, by itself.
    let borders = if scenario.algorithm == Algorithm::Gcra { 0 } else { scenario.quota.capacity() };
    assert!(outcome.above <= (held + borders) as i64, "{name}: {outcome:?}");
    let most = scenario.quota.capacity() + scenario.quota.count() + held;
    assert!(outcome.in_a_second as u64 <= most, "{name}: {outcome:?}");
}

fn row(name: &str, offered: f64, outcome: &Outcome) -> String {
    format!(
        "| {name} | {offered}/s | {:.3} | {:.3} | {} | {:.1} % | {} |\n",
        outcome.calls_per_request(),
        outcome.of_ideal(),
        outcome.in_a_second,
        100.0 * outcome.wasted as f64 / outcome.admitted as f64,
        outcome.ahead,
    )
}

/// A row of the table: the scenario, the most calls per request, the least of the ideal.
fn rows(offered: f64) -> Vec<(&'static str, Scenario, f64, f64)> {
    let usual = || Scenario::usual(offered);
    let crashes = vec![(secs(10), 0), (secs(20), 3)];
    let joins = vec![secs(10), secs(20)];
    // Shorter, because every request has its own task.
    let away = |latency| Scenario { latency, length: secs(10), ..usual() };
    let moves = |stay| Scenario { moves: Some(ms(stay)), ..usual() };
    vec![
        ("every call to the store", Scenario { sync: None, ..usual() }, 1.0, 0.98),
        ("sync 100 ms", usual(), 0.15, 0.98),
        ("sync 20 ms", Scenario { sync: Some(ms(20)), ..usual() }, 0.6, 0.98),
        ("sync 500 ms", Scenario { sync: Some(ms(500)), ..usual() }, 0.10, 0.98),
        ("skew 0.9", Scenario { skew: 0.9, ..usual() }, 0.15, 0.98),
        ("2 ms away, 10 s", away(ms(1)), 0.15, 0.98),
        ("20 ms away, 10 s", away(ms(10)), 0.15, 0.98),
        ("two nodes crash", Scenario { crashes, ..usual() }, 0.15, 0.98),
        ("two nodes join", Scenario { joins, ..usual() }, 0.15, 0.98),
        ("moves every 50 ms", moves(50), 0.30, 0.94),
        ("moves every 200 ms", moves(200), 0.15, 0.94),
        ("moves every second", moves(1000), 0.15, 0.97),
        ("fixed window", Scenario { algorithm: Algorithm::FixedWindow, ..usual() }, 0.15, 0.98),
        // Free permits of a sliding window do not accumulate while there are no calls.
        ("sliding log", Scenario { algorithm: Algorithm::SlidingLog, ..usual() }, 0.15, 0.97),
    ]
}

fn table(offered: f64) {
    let mut table = String::from(
        "\n| 8 nodes, 1000/s | offered | calls per request | of ideal | most in 1 s | wasted | ahead |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for (name, scenario, calls, ideal) in rows(offered) {
        let outcome = scenario.run();
        table += &row(name, offered, &outcome);
        check(name, &scenario, &outcome);
        assert!(outcome.calls_per_request() <= calls, "{name}, {offered}: {outcome:?}");
        assert!(outcome.of_ideal() >= ideal, "{name}, {offered}: {outcome:?}");
        let wasted = outcome.wasted as f64 / outcome.admitted as f64;
        assert!(wasted < 0.06, "{name}, {offered}: {wasted} wasted, {outcome:?}");
    }
    println!("{table}");
}

#[test]
fn table_of_a_fleet_near_its_limit() {
    table(950.0);
}

#[test]
fn table_of_a_fleet_above_its_limit() {
    table(2000.0);
}

#[test]
fn a_small_limit_goes_straight_to_the_store_and_loses_nothing() {
    for offered in [15.0, 40.0] {
        let quota = Quota::per_second(20);
        let scenario = Scenario { quota, ..Scenario::usual(offered) };
        let outcome = scenario.run();
        println!("{}", row("20/s", offered, &outcome));
        assert_eq!(outcome.lease_max, 0);
        assert_eq!(outcome.admitted, outcome.ideal, "{offered}: {outcome:?}");
        assert_eq!(outcome.wasted, 0);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let scenario = Scenario { length: secs(3), latency: ms(3), ..Scenario::usual(1500.0) };
    let (first, second) = (scenario.run(), scenario.run());
    assert_eq!(format!("{first:?}"), format!("{second:?}"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Admitted in every interval is at most burst + rate x interval + what all nodes may hold.
    #[test]
    fn is_never_over_by_more_than_what_is_held(
        seed in any::<u64>(),
        rate in 200_u64..3000,
        burst in 20_u64..3000,
        nodes in 1_usize..12,
        skew in 0.0_f64..1.0,
        load in 0.3_f64..3.0,
        sync in 5_u64..400,
        latency in 0_u64..40,
        crashes in prop::collection::vec((0_u64..1000, 0_usize..100), 0..4),
    ) {
        let scenario = Scenario {
            seed,
            quota: Quota::per_second(rate).burst(burst),
            algorithm: Algorithm::Gcra,
            nodes,
            skew,
            sync: Some(ms(sync)),
            offered_per_second: rate as f64 * load,
            length: ms(1000),
            latency: ms(latency) / 2,
            crashes: crashes.into_iter().map(|(at, node)| (ms(at), node % nodes)).collect(),
            joins: Vec::new(),
            moves: None,
        };
        let outcome = scenario.run();
        check("random", &scenario, &outcome);
    }
}
