//! Breakers, hedges and self-throttling against the failures they are made for; `playbooks.rs` has
//! retries.

use std::time::Duration;
use tollgate::{Breaker, Clock, Tick, hedge::HedgePolicy, self_throttle::SelfThrottle};
use tollgate_simulator::{Client, Report, Server, ServiceTime, Simulation, Workload};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// While the server hangs, a breaker saves callers the wait, and saves the server a backlog that no
/// client waits for any more.
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
    // 850 calls a second wait for 200 ms each; the breaker opens when these are half of its window
    // of 10 s.
    assert!(plain.waiting(16..20) > 150.0, "{}", plain.waiting(16..20));
    assert!(broken.waiting(16..20) < 1.0, "{}", broken.waiting(16..20));
    // The first trials, after 5 s, meet the backlog of 5 s; the next, after 10 s, do not.
    assert!(broken.served(32..60) > 0.99, "{broken}");
    assert!(plain.served(32..60) < 0.1, "late work keeps the server busy: {plain}");
}

/// Of a hundred calls, 97 take about 20 ms and three ten times as long. A hedge at the 95th percentile
/// cuts the 99th from 219 to 58 ms for 5 % more calls; a delay inside the slow tail does nothing.
/// The percentile settles within two windows of a minute: a hedge that wins hides how slow the first
/// attempt was.
#[test]
fn a_hedge_cuts_the_tail_for_a_few_percent_more_calls() {
    let service =
        ServiceTime::LongTail { mean: ms(20), sigma: 0.3, slow_share: 0.03, factor: 10.0 };
    let run = |percentile: Option<f64>| {
        let workload = Workload::new().poisson(500.0, ms(240_000));
        let clients = move |clock: &Clock, _| {
            let policy = |percent| HedgePolicy::at_percentile(percent).clock(clock.clone()).build();
            vec![match percentile {
                Some(percent) => Client::new().hedge(policy(percent).unwrap()),
                None => Client::new(),
            }]
        };
        let simulation = Simulation::new(workload, Server::new(10_000, service)).deadline(ms(5000));
        let report = simulation.clients(clients).run_unlimited(1);
        let p99 = report.latency(120..240, 99.0).unwrap().as_secs_f64() * 1000.0;
        (p99, 100.0 * (report.load(120..240) - 1.0))
    };
    // percentile, its p99 in ms, percent more calls
    for (percentile, p99, more) in [
        (None, 219.0, 0.0),
        (Some(90.0), 52.0, 9.9),
        (Some(95.0), 58.0, 5.0),
        (Some(99.0), 217.0, 1.0),
    ] {
        let (p99_now, more_now) = run(percentile);
        assert!((p99_now / p99 - 1.0).abs() < 0.1, "{percentile:?}: p99 {p99_now} ms");
        assert!((more_now - more).abs() <= more / 10.0, "{percentile:?}: {more_now} % more");
    }
}

/// 1000 calls a second for a server that takes 250 at first, and all of them from 60 s on.
fn throttled(k: f64, workers: usize, window: Duration) -> Report {
    let server = Server::new(workers, ServiceTime::Constant(ms(20)))
        .max_queue(40)
        .workers_at(Tick::from_secs(60), 50);
    let clients = move |clock: &Clock, seed| {
        let throttle = SelfThrottle::builder().k(k).window(window).clock(clock.clone()).seed(seed);
        vec![Client::new().gate(throttle.build().unwrap())]
    };
    let workload = Workload::new().constant(1000.0, ms(160_000));
    Simulation::new(workload, server).clients(clients).run_unlimited(7)
}

/// The server gets k times what it accepts: of a load of l times its capacity, 1 - k / l is refused
/// by the client itself. When the server is back, less than 1 % is refused after a window, whatever k is.
#[test]
fn a_client_throttles_itself_to_k_times_what_is_accepted_and_recovers() {
    let window = Duration::from_secs(10);
    for (k, workers, expected, recovered_at) in
        [(2.0, 10, 0.0, 60), (2.0, 5, 0.5, 70), (1.1, 5, 0.725, 70)]
    {
        let report = throttled(k, workers, window);
        let share = |seconds: std::ops::Range<usize>| {
            let sum: u64 = report.seconds()[seconds.clone()].iter().map(|it| it.not_sent).sum();
            sum as f64 / (1000 * seconds.len()) as f64
        };
        let steady = share(20..60);
        assert!((steady - expected).abs() <= 0.01, "k {k}, {workers} workers: {steady}");
        let later = share(recovered_at..160);
        assert!(later < 0.01, "k {k}, {workers} workers: {later}");
    }
}
