//! The model of a server agrees with queueing theory, and every run is repeatable.

use std::time::Duration;
use tollgate::{RetryPolicy, Tick, adaptive::law::DampedAimd};
use tollgate_simulator::{
    Client, FixedLimit, Server, ServiceTime, Simulation, Workload, limited_by,
};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let service = ServiceTime::LogNormal { mean: ms(20), sigma: 1.0 };
    let simulation = Simulation::new(
        Workload::new().poisson(500.0, ms(3000)).ramp(500.0, 3000.0, ms(3000)),
        Server::new(20, service).slowdown_at(Tick::from_secs(4), 2.0),
    )
    .clients(|clock, seed| {
        let retry = RetryPolicy::builder().clock(clock.clone()).seed(seed).build();
        vec![Client::new().retry(retry.unwrap())]
    });
    let run = |seed| {
        let law = |seed| DampedAimd::builder(ms(200)).seed(seed).build().unwrap();
        let report = simulation
            .run(seed, |clock| vec![limited_by(law(1), clock), limited_by(law(2), clock)]);
        format!("{report}{:?}", report.trace())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

/// 1000 calls a second of 20 ms each are 20 in flight.
#[test]
fn calls_in_flight_follow_littles_law() {
    for service in [
        ServiceTime::Constant(ms(20)),
        ServiceTime::Exponential(ms(20)),
        ServiceTime::LogNormal { mean: ms(20), sigma: 1.0 },
        ServiceTime::Bimodal { fast: ms(5), slow: ms(80), slow_share: 0.2 },
    ] {
        assert_eq!(service.mean(), ms(20));
        let workload = Workload::new().poisson(1000.0, ms(60_000));
        let report = Simulation::new(workload, Server::new(1000, service)).run_unlimited(1);
        let trace = &report.trace()[10..];
        let mean = trace.iter().map(|it| it.in_flight).sum::<u64>() as f64 / trace.len() as f64;
        assert!((19.0..21.0).contains(&mean), "{service:?}: {mean}");
    }
}

/// M/M/1 at half load: the 95th percentile of the time in the system is ln 20 x 2 x service time.
#[test]
fn a_single_worker_queues_as_theory_says() {
    let workload = Workload::new().poisson(50.0, ms(1_000_000));
    let server = Server::new(1, ServiceTime::Exponential(ms(10)));
    let report = Simulation::new(workload, server).run_unlimited(1);
    let p95 = report.latency(0..1000, 95.0).unwrap().as_secs_f64() * 1000.0;
    assert!((57.0..63.0).contains(&p95), "{p95}");
}

#[test]
fn an_outage_stops_the_work_and_late_work_is_done() {
    let server = Server::new(10, ServiceTime::Constant(ms(10)))
        .workers_at(Tick::from_secs(2), 0)
        .workers_at(Tick::from_secs(4), 10);
    let workload = Workload::new().constant(500.0, ms(10_000));
    let report = Simulation::new(workload, server).run_unlimited(1);
    let seconds = report.seconds();
    assert_eq!((seconds[1].good, seconds[3].good + seconds[3].late), (500, 0));
    // The 1000 calls of the outage come first and are late.
    assert!(seconds[4].late >= 900, "{report}");
    assert_eq!(seconds[9].good, 500);
}

#[test]
fn contention_makes_each_call_slower() {
    let server = Server::new(100, ServiceTime::Constant(ms(10))).contention(10, 0.1);
    // Ten calls at a time do not suffer from it, fifty do.
    for (limit, latency) in [(10, 10), (50, 50)] {
        let workload = Workload::new().constant(20_000.0, ms(2000));
        let simulation = Simulation::new(workload, server.clone());
        let report = simulation.run(1, |clock| vec![limited_by(FixedLimit(limit), clock)]);
        assert_eq!(report.latency(1..2, 50.0), Some(ms(latency)), "limit {limit}");
    }
}
