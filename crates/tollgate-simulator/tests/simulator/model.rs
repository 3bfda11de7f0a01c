//! The model of a server does what queueing theory says, and every run can be repeated.

use std::time::Duration;
use tollgate::{Tick, adaptive::law::DampedAimd};
use tollgate_simulator::{
    FixedLimit, Report, Retries, Server, ServiceTime, Simulation, Workload, limited_by,
};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn unlimited(simulation: &Simulation) -> Report {
    simulation.run(1, |clock| vec![limited_by(FixedLimit::none(), clock)])
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let service = ServiceTime::LogNormal { mean: ms(20), sigma: 1.0 };
    let simulation = Simulation::new(
        Workload::new().poisson(500.0, ms(3000)).ramp(500.0, 3000.0, ms(3000)),
        Server::new(20, service).slowdown_at(Tick::from_secs(4), 2.0),
    )
    .retries(Retries { max: 2, backoff: ms(50), budget: Some(0.2) });
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
        let report = unlimited(&Simulation::new(workload, Server::new(1000, service)));
        let trace = &report.trace()[10..];
        let mean = trace.iter().map(|it| it.1).sum::<u64>() as f64 / trace.len() as f64;
        assert!((19.0..21.0).contains(&mean), "{service:?}: {mean}");
    }
}

/// M/M/1 at half load: the 95th percentile of the time in the system is ln 20 x 2 x service time.
#[test]
fn a_single_worker_queues_as_theory_says() {
    let workload = Workload::new().poisson(50.0, ms(1_000_000));
    let server = Server::new(1, ServiceTime::Exponential(ms(10)));
    let report = unlimited(&Simulation::new(workload, server));
    let p95 = report.latency(0..1000, 95.0).unwrap().as_secs_f64() * 1000.0;
    assert!((57.0..63.0).contains(&p95), "{p95}");
}

#[test]
fn an_outage_stops_the_work_and_late_work_is_done() {
    let server = Server::new(10, ServiceTime::Constant(ms(10)))
        .workers_at(Tick::from_secs(2), 0)
        .workers_at(Tick::from_secs(4), 10);
    let workload = Workload::new().constant(500.0, ms(10_000));
    let report = unlimited(&Simulation::new(workload, server));
    let seconds = report.seconds();
    assert_eq!((seconds[1].good, seconds[3].good + seconds[3].late), (500, 0));
    // The 1000 calls of the outage come first and are late.
    assert!(seconds[4].late >= 900, "{report}");
    assert_eq!(seconds[9].good, 500);
}

#[test]
fn contention_makes_each_call_slower() {
    let server = Server::new(100, ServiceTime::Constant(ms(10))).contention(10, 0.1);
    // Ten at a time are free of it, fifty are not.
    for (limit, latency) in [(10, 10), (50, 50)] {
        let workload = Workload::new().constant(20_000.0, ms(2000));
        let simulation = Simulation::new(workload, server.clone());
        let report = simulation.run(1, |clock| vec![limited_by(FixedLimit(limit), clock)]);
        assert_eq!(report.latency(1..2, 50.0), Some(ms(latency)), "limit {limit}");
    }
}

/// The storm that only a retry budget ends: the server is slow for ten seconds, and afterwards
/// four attempts for each call keep its queue full for ever.
#[test]
fn a_retry_storm_outlives_its_cause_unless_retries_have_a_budget() {
    let good = |retries: Option<Retries>, max_queue| {
        let server = Server::new(20, ServiceTime::LogNormal { mean: ms(20), sigma: 0.3 })
            .max_queue(max_queue)
            .slowdown_at(Tick::from_secs(10), 4.0)
            .slowdown_at(Tick::from_secs(20), 1.0);
        let workload = Workload::new().poisson(850.0, ms(60_000));
        let mut simulation = Simulation::new(workload, server);
        if let Some(retries) = retries {
            simulation = simulation.retries(retries);
        }
        let report = unlimited(&simulation);
        (report.goodput(23..60), report.load(10..20))
    };
    let retries = |budget| Some(Retries { max: 3, backoff: ms(100), budget });
    let (recovered, load) = good(None, 400);
    assert!(recovered > 0.99 && load == 1.0, "{recovered} {load}");
    let (recovered, load) = good(retries(None), 400);
    assert!(recovered < 0.05 && load > 3.5, "{recovered} {load}");
    let (recovered, load) = good(retries(Some(0.2)), 400);
    assert!(recovered > 0.99 && load < 1.1, "{recovered} {load}");
    // A short queue needs no budget: what gets in is served in time.
    let (recovered, _) = good(retries(None), 40);
    assert!(recovered > 0.99, "{recovered}");
}
