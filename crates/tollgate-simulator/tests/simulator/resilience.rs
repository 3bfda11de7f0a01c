//! Retry budgets and breakers against the overload that they are made for.

use crate::scenario::{Budget, three_retries};
use std::time::Duration;
use tollgate::{Breaker, Clock, RetryBudget, RetryPolicy, Tick};
use tollgate_simulator::{Client, Report, Server, ServiceTime, Simulation, Workload};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// 850 calls a second for a server that can do 1000, and a quarter of that from 10 s to 20 s.
fn brown_out(max_queue: usize) -> Simulation {
    let server = Server::new(20, ServiceTime::LogNormal { mean: ms(20), sigma: 0.3 })
        .max_queue(max_queue)
        .slowdown_at(Tick::from_secs(10), 4.0)
        .slowdown_at(Tick::from_secs(20), 1.0);
    Simulation::new(Workload::new().poisson(850.0, ms(60_000)), server)
}

fn retrying(max_queue: usize, budget: Budget) -> Report {
    let clients =
        move |clock: &_, seed| vec![Client::new().retry(three_retries(budget, clock, seed))];
    brown_out(max_queue).clients(clients).run_unlimited(1)
}

/// The storm that only a retry budget ends: the server is slow for ten seconds, and afterwards
/// four attempts for each call keep its queue full for ever.
#[test]
fn a_retry_storm_never_ends_without_a_budget_and_within_three_seconds_with_one() {
    let none = brown_out(400).run_unlimited(1);
    assert!(none.goodput(23..60) > 0.99 && none.load(10..20) == 1.0, "{none}");
    let storm = retrying(400, Budget::Unlimited);
    assert!(storm.load(10..20) > 3.5 && storm.load(50..60) > 3.9, "{storm}");
    assert!(storm.goodput(20..60) < 0.01, "40 s after the cause: {storm}");
    let budget = retrying(400, Budget::Default);
    assert!(budget.load(10..20) < 1.1, "{budget}");
    assert!(budget.goodput(23..60) > 0.99, "{budget}");
}

/// What gets into a short queue is served in time, so it needs no budget.
#[test]
fn a_short_queue_ends_a_retry_storm_too() {
    let report = retrying(40, Budget::Unlimited);
    assert!(report.load(10..20) > 3.0 && report.goodput(20..60) > 0.99, "{report}");
}

#[test]
fn grpcs_retry_throttling_ends_the_storm_as_well() {
    let clients = |clock: &Clock, seed| {
        let policy = RetryPolicy::builder().max_attempts(4).clock(clock.clone()).seed(seed);
        let policy = policy.budget(RetryBudget::grpc(10, 0.1).unwrap()).build();
        vec![Client::new().retry(policy.unwrap())]
    };
    let report = brown_out(400).clients(clients).run_unlimited(1);
    assert!(report.load(10..20) < 1.1 && report.goodput(23..60) > 0.99, "{report}");
}

/// While the server hangs, a breaker spares callers the wait and the server a backlog that nobody
/// waits for any more.
#[test]
fn a_breaker_frees_its_callers_and_closes_when_the_server_is_back() {
    let hang = Server::new(20, ServiceTime::LogNormal { mean: ms(20), sigma: 0.3 })
        .workers_at(Tick::from_secs(10), 0)
        .workers_at(Tick::from_secs(20), 20);
    let simulation = Simulation::new(Workload::new().poisson(850.0, ms(60_000)), hang);
    let plain = simulation.run_unlimited(1);
    let breaker = |clock: &Clock, seed| {
        let breaker = Breaker::builder().clock(clock.clone()).seed(seed).build();
        vec![Client::new().gate(breaker.unwrap())]
    };
    let broken = simulation.clients(breaker).run_unlimited(1);
    // 850 a second who wait for 200 ms; the breaker opens when they are half of its window of 10 s.
    assert!(plain.waiting(16..20) > 150.0, "{}", plain.waiting(16..20));
    assert!(broken.waiting(16..20) < 1.0, "{}", broken.waiting(16..20));
    // The first trials, after 5 s, meet the backlog of 5 s; the next, after 10 s, do not.
    assert!(broken.served(32..60) > 0.99, "{broken}");
    assert!(plain.served(32..60) < 0.1, "late work keeps the server busy: {plain}");
}
