//! The admissions of a fleet over an outage: never above the stated bound.

use crate::servers::guard_support::{Flaky, Mode, drain, left, policy, take};
use proptest::prelude::*;
use std::time::Duration;
use tollgate::{
    Algorithm, Clock, Quota,
    store::{MemoryStore, Policy},
    testing::block_on,
};
use tollgate_redis::{FailurePolicy, FleetSize, Guarded};

const SECOND: Duration = Duration::from_secs(1);

fn fleet(flaky: &Flaky, nodes: u32, warm: bool) -> Vec<Guarded<Flaky>> {
    let node = |_| {
        let size = FleetSize::fixed(nodes);
        Guarded::builder(flaky.clone()).fleet(size).warm(warm).build().unwrap()
    };
    (0..nodes).map(node).collect()
}

/// Even traffic, and no time passes: the fleet admits exactly the burst, although the store was
/// away for half of it.
#[test]
fn even_traffic_gets_the_quota_and_no_more() {
    block_on(async {
        let (flaky, _hand) = Flaky::new();
        let (nodes, pages) = (fleet(&flaky, 4, true), policy("pages", Quota::per_hour(40)));
        let mut admitted = 0;
        for node in &nodes {
            admitted += drain(node, &pages, 5).await;
        }
        assert_eq!(admitted, 20);
        flaky.set(Mode::Down);
        for node in &nodes {
            admitted += drain(node, &pages, 99).await;
        }
        assert_eq!(admitted, 40);
        flaky.set(Mode::Up);
        for node in &nodes {
            assert_eq!(node.carry_back().await, 5);
        }
        for node in &nodes {
            assert!(take(node, &pages, 1).await.is_denied());
        }
        assert_eq!(left(&flaky, &pages).await, 0);
    });
}

#[test]
fn the_bound_is_stated_in_numbers_and_in_words() {
    let minute = Quota::per_minute(100);
    let window =
        |limit| Policy::with_algorithm("w", Quota::per_minute(limit), Algorithm::FixedWindow);
    // policy, failure -> per window, once, at recovery
    for (row, (policy, failure, expected)) in [
        (policy("p", minute), FailurePolicy::Open, (None, None, Some(100))),
        (policy("p", minute), FailurePolicy::Closed, (Some(0), Some(0), Some(0))),
        (policy("p", minute), FailurePolicy::Local, (Some(100), Some(96), Some(100))),
        (policy("p", minute.burst(3)), FailurePolicy::Local, (Some(100), Some(8), Some(3))),
        (policy("p", Quota::per_hour(1)), FailurePolicy::Local, (Some(1), Some(8), Some(1))),
        // The limit of a window cannot be below one.
        (window(100).unwrap(), FailurePolicy::Local, (Some(96), Some(192), Some(100))),
        (window(3).unwrap(), FailurePolicy::Local, (Some(8), Some(16), Some(3))),
        (policy("p", Quota::unlimited()), FailurePolicy::Local, (None, None, None)),
        (Policy::ad_hoc("p"), FailurePolicy::Local, (None, None, None)),
        (Policy::ad_hoc("p"), FailurePolicy::Closed, (Some(0), Some(0), Some(0))),
    ]
    .into_iter()
    .enumerate()
    {
        let store =
            Guarded::builder(MemoryStore::new()).failure(failure).fleet(FleetSize::fixed(8));
        let bound = store.build().unwrap().bound(&policy).unwrap();
        let got = (bound.while_down_per_window, bound.while_down_once, bound.extra_at_recovery);
        assert_eq!(got, expected, "row {row}: {bound}");
        assert_eq!(bound.to_string(), bound.text);
    }
    let half = Guarded::builder(MemoryStore::new()).fraction(0.5).fleet(FleetSize::fixed(8));
    let bound = half.build().unwrap().bound(&policy("pages", minute)).unwrap();
    assert_eq!(
        bound.text,
        "policy \"pages\" is decided locally while the store cannot be reached: each key passes at \
         most 400 per 60s over 8 processes, plus 400 once; when the store is back, at most 100 too \
         many until the spend is reported to it"
    );
}

/// One step: the delay, the caller, and the cost of a call.
type Step = (u64, usize, u64);

fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec((0_u64..400, any::<usize>(), 1_u64..4), 0..most)
}

/// Returns the most that a policy admits in a time, by its algorithm alone.
fn promised(policy: &Policy, time: Duration) -> f64 {
    let quota = policy.quota();
    let periods = time.as_secs_f64() / quota.period().as_secs_f64();
    let (count, capacity) = (quota.count() as f64, quota.capacity() as f64);
    match policy.algorithm() {
        Algorithm::Gcra => capacity + count * periods,
        Algorithm::SlidingLog => capacity * (periods + 1.0),
        _ => capacity * (periods + 2.0),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_fleet_admits_no_more_than_the_bound(
        nodes in 1_u32..7,
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
        count in 1_u64..60,
        burst in prop_oneof![Just(None), (1_u64..80).prop_map(Some)],
        warm in any::<bool>(),
        carries in any::<bool>(),
        (before, during, after) in (steps(150), steps(300), steps(150)),
    ) {
        let quota = Quota::per(count, 10 * SECOND);
        let quota = match burst {
            Some(burst) if algorithm == Algorithm::Gcra => quota.burst(burst),
            _ => quota,
        };
        let pages = Policy::with_algorithm("pages", quota, algorithm).unwrap();
        let (clock, hand) = Clock::manual();
        let flaky = Flaky::on(clock.clone());
        let nodes = fleet(&flaky, nodes, warm);
        let run = async |steps: &[Step]| {
            let (mut admitted, start) = (0, clock.now());
            for (later_ms, node, cost) in steps {
                hand.advance(Duration::from_millis(*later_ms));
                let decision = take(&nodes[node % nodes.len()], &pages, *cost).await;
                admitted += if decision.is_allowed() { *cost } else { 0 };
            }
            (admitted as f64, clock.now().since(start))
        };
        block_on(async {
            let first = run(&before).await;
            flaky.set(Mode::Down);
            let outage = run(&during).await;
            flaky.set(Mode::Up);
            if carries {
                for node in &nodes {
                    node.carry_back().await;
                }
            }
            let last = run(&after).await;

            let bound = nodes[0].bound(&pages).unwrap();
            let periods = outage.1.as_secs_f64() / quota.period().as_secs_f64();
            let per_window = bound.while_down_per_window.unwrap() as f64;
            let alone = per_window * periods + bound.while_down_once.unwrap() as f64;
            prop_assert!(outage.0 <= alone + 1e-6, "{} alone, and not {alone}: {bound}", outage.0);
            let both = promised(&pages, first.1) + promised(&pages, last.1);
            let total = first.0 + outage.0 + last.0;
            prop_assert!(total <= both + alone + 1e-6, "{total}, and not {both} + {alone}: {bound}");
            Ok(())
        })?;
    }
}
