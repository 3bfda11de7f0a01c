//! The playbooks of docs/resilience.md: the effect of each remedy, and the tables of the page.

#[path = "../../examples/playbooks/degradation.rs"]
mod degradation;
#[path = "../../examples/playbooks/failure.rs"]
mod failure;
#[path = "../../examples/playbooks/playbook.rs"]
mod playbook;

use crate::{docs, priorities::queue};
use playbook::{PLAYBOOKS, Playbook, SEED};

/// Returns the figures of a playbook, in the order of its rows, and checks that the page has them.
fn figures<const ROWS: usize>(playbook: &Playbook) -> [Vec<f64>; ROWS] {
    let rows = (playbook.run)(SEED).unwrap();
    let of_page = docs::rows("resilience.md", &playbook.head());
    let names: Vec<_> = of_page.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, rows.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    for ((name, figures), (_, of_page)) in rows.iter().zip(&of_page) {
        for ((figure, of_page), (_, decimals)) in figures.iter().zip(of_page).zip(playbook.columns)
        {
            // The last digits depend on the machine's logarithm.
            let least = if *decimals == 0 { 1.0 } else { 0.02 };
            let tolerance = f64::max(of_page.abs() * 0.05, least);
            let is_near = (figure - of_page).abs() <= tolerance;
            assert!(is_near, "{name}: {figure}, in the docs {of_page}");
        }
    }
    rows.into_iter().map(|(_, figures)| figures).collect::<Vec<_>>().try_into().unwrap()
}

/// Fails with the figures of the run if one of these does not hold.
macro_rules! check {
    ($condition:expr, $($figures:expr),+) => {
        assert!($condition, "{:?}", [$(&$figures),+])
    };
}

/// The server is slow for ten seconds; afterwards four attempts for each call keep its queue full.
#[test]
fn a_retry_storm_never_ends_without_a_budget_and_within_three_seconds_with_one() {
    let [none, storm, budget, grpc, short_queue] = figures(&failure::RETRY_STORM);
    check!(storm[0] > 3.5 && storm[2] < 0.01 && storm[3] < 0.01, storm);
    for budget in [&budget, &grpc] {
        check!(budget[0] < 1.1 && budget[3] > 0.99, budget);
    }
    // Calls that enter a short queue are served in time.
    check!(none[3] > 0.99 && short_queue[0] > 3.0 && short_queue[3] > 0.99, none, short_queue);
}

#[test]
fn jitter_as_long_as_the_work_takes_spreads_a_herd() {
    let [fixed, doubling, short, full] = figures(&failure::THUNDERING_HERD);
    for herd in [&fixed, &doubling, &short] {
        check!(herd[0] < 0.7, herd);
    }
    check!(full[0] > 0.99 && full[1] < 2.5, full);
}

#[test]
fn a_breaker_frees_the_callers_of_a_slow_dependency() {
    let [patient, timeout, bulkhead, breaker] = figures(&failure::SLOW_DEPENDENCY);
    check!(patient[0] > 5_000.0 && timeout[0] < 150.0, patient, timeout);
    check!(bulkhead[0] <= 50.0 && breaker[0] < 5.0, bulkhead, breaker);
    for after in [&patient, &timeout, &bulkhead, &breaker] {
        check!(after[3] > 0.99, after);
    }
}

#[test]
fn overload_needs_a_limit_and_chance_needs_enough_calls() {
    let [none, nervous, default, limited, chance, enough] = figures(&failure::BREAKER_FLAPPING);
    check!(none[1] < 0.05, none);
    check!(nervous[0] > 20.0 && nervous[1] < 0.5, nervous);
    check!(default[0] > 5.0 && default[1] < 0.2, default);
    check!(limited[0] < 1.0 && limited[1] > 0.95, limited);
    check!(chance[0] > 20.0 && chance[1] < 0.5, chance);
    check!(enough[0] < 1.0 && enough[1] > 0.95, enough);
}

#[test]
fn two_breakers_that_count_each_other_take_longest() {
    let [library, mesh, both, marked] = figures(&failure::TWO_BREAKERS);
    check!(library[0] < mesh[0] && mesh[0] <= 30.0, library, mesh);
    check!(both[0] > 2.0 * mesh[0], both, mesh);
    check!(marked[0] <= mesh[0] + 1.0, marked, mesh);
}

#[test]
fn a_limit_at_the_edge_spares_the_service_the_refusals() {
    let [service, edge] = figures(&degradation::SHED_AT_THE_EDGE);
    check!(edge[0] > 1.3 * service[0] && edge[1] < service[1] / 2.0, service, edge);
}

#[test]
fn critical_calls_are_served_if_batches_are_dropped() {
    let [equal, by_priority] = figures(&degradation::LOW_PRIORITY);
    check!(equal[0] < 0.6 && by_priority[0] > 0.99, equal, by_priority);
    check!(by_priority[2] < 0.05 && by_priority[3] > 0.98, by_priority);
}

#[test]
fn more_workers_need_a_higher_limit() {
    let [none, fixed, raised, adaptive] = figures(&degradation::SCALE_UP);
    check!(none[1] < 0.05, none);
    check!(fixed[1] < 0.9 && raised[1] > 0.99 && adaptive[1] > 0.99, fixed, raised, adaptive);
}

#[test]
fn a_limit_above_the_capacity_is_none() {
    let [stays, raised, right, too_high, adaptive] = figures(&degradation::RAISE_THE_LIMIT);
    check!(stays[1] < 0.7 && raised[1] > 0.99, stays, raised);
    check!(right[1] > 0.4 && too_high[1] < 0.05, right, too_high);
    check!(adaptive[1] > right[1], adaptive, right);
}

/// A quarter of the capacity is 0.29 of the calls.
#[test]
fn an_adaptive_limit_finds_what_a_cold_server_can_do() {
    let [fixed, short, long, adaptive] = figures(&degradation::COLD_START);
    check!(fixed[0] < 0.05 && short[0] < 0.05 && long[0] < 0.05, fixed, short, long);
    check!(adaptive[0] > 0.25 && adaptive[1] > 0.95 && adaptive[2] > 0.99, adaptive);
    check!(long[2] < 0.7, long);
}

#[test]
fn a_playbook_repeats_with_its_seed() {
    let print = |seed| PLAYBOOKS[1].print(seed).unwrap();
    assert_eq!(print(SEED), print(SEED));
    assert_ne!(print(SEED), print(SEED + 1));
}
