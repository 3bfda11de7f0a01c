//! Failures that callers cause or make worse, and their remedies.

use super::playbook::{Playbook, Rows};
use std::{cell::RefCell, error::Error, rc::Rc, time::Duration};
use tollgate::{
    Backoff, Breaker, BreakerBuilder, Clock, ConfigError, RetryBudget, RetryPolicy, Tick, Trip,
    adaptive::law::DampedAimd,
};
use tollgate_simulator::{Client, Report, Server, ServiceTime, Simulation, Workload, limited_by};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A server that can finish 1000 calls a second.
pub(crate) fn server() -> Server {
    Server::new(20, ServiceTime::LogNormal { mean: ms(20), sigma: 0.3 })
}

/// Repeats a call as often as the budget allows, up to `max_attempts`.
fn retries(max_attempts: u32, backoff: Backoff, budget: RetryBudget, clock: &Clock) -> RetryPolicy {
    let policy = RetryPolicy::builder().max_attempts(max_attempts).backoff(backoff).budget(budget);
    policy.clock(clock.clone()).seed(1).build().expect("within all bounds")
}

pub(crate) const RETRY_STORM: Playbook = Playbook {
    name: "retry-storm",
    about: "850 calls a second for a server that can do 1000, and a quarter of that from 10 s to 20 s. \
            Clients give up after 200 ms and try up to four times.",
    columns: &[
        ("attempts per call, 10-20 s", 1),
        ("served, 10-20 s", 2),
        ("served, 20-23 s", 2),
        ("served, 23-60 s", 2),
    ],
    run: |seed| {
        let figures = |report: &Report| {
            let served = |seconds| report.served(seconds);
            vec![report.load(10..20), served(10..20), served(20..23), served(23..60)]
        };
        let row = |(name, report): &(_, _)| (*name, figures(report));
        Ok(retry_storms(seed).iter().map(row).collect())
    },
};

pub(crate) fn retry_storms(seed: u64) -> [(&'static str, Report); 5] {
    type Budget = fn(&Clock) -> Result<RetryBudget, ConfigError>;
    let run = |max_queue: usize, budget: Option<Budget>| {
        let server = server()
            .max_queue(max_queue)
            .slowdown_at(Tick::from_secs(10), 4.0)
            .slowdown_at(Tick::from_secs(20), 1.0);
        let client = move |clock: &Clock| match budget {
            Some(budget) => {
                let budget = budget(clock).expect("within all bounds");
                let backoff = Backoff::full_jitter(ms(100), ms(400));
                Client::new().retry(retries(4, backoff, budget, clock))
            }
            None => Client::new(),
        };
        Simulation::new(Workload::new().poisson(850.0, secs(60)), server)
            .clients(move |clock, _| vec![client(clock)])
            .run_unlimited(seed)
    };
    let unlimited: Option<Budget> = Some(|_| Ok(RetryBudget::unlimited()));
    let savings: Option<Budget> = Some(|clock| RetryBudget::builder().clock(clock.clone()).build());
    let grpc: Option<Budget> = Some(|_| RetryBudget::grpc(10, 0.1));
    [
        ("no retries", run(400, None)),
        ("retries without a budget", run(400, unlimited)),
        ("retries with the default budget", run(400, savings)),
        ("retries with gRPC's throttling, 10 tokens and 0.1", run(400, grpc)),
        (
            "without a budget, but 40 instead of 400 places in the server's queue",
            run(40, unlimited),
        ),
    ]
}

pub(crate) const THUNDERING_HERD: Playbook = Playbook {
    name: "thundering-herd",
    about: "1000 callers come at one instant, because something that they all waited for is back. The \
            server does 1000 calls a second and queues 100; the others are refused and try again, up to \
            five times.",
    columns: &[("served", 2), ("attempts per call", 1), ("last answer after s", 0)],
    run: |seed| {
        let run = |backoff: Backoff| {
            let workload = Workload::new().constant(1_000_000.0, ms(1)).silence(ms(29_999));
            let clients = move |clock: &Clock, _| {
                vec![Client::new().retry(retries(5, backoff, RetryBudget::unlimited(), clock))]
            };
            let simulation = Simulation::new(workload, server().max_queue(100)).clients(clients);
            let report = simulation.run_unlimited(seed);
            let last = report.seconds().iter().rposition(|second| second.good > 0).unwrap_or(0);
            vec![report.served(0..30), report.load(0..30), (last + 1) as f64]
        };
        Ok(vec![
            ("all after 1 s, as `Retry-After: 1` says", run(Backoff::fixed(secs(1)))),
            ("all after 1, 2, 4 and 8 s", run(Backoff::exponential(secs(1), secs(8)))),
            ("full jitter of up to 100 ms", run(Backoff::full_jitter(ms(100), ms(100)))),
            ("full jitter of up to 1, 2, 4 and 8 s", run(Backoff::full_jitter(secs(1), secs(8)))),
        ])
    },
};

pub(crate) const SLOW_DEPENDENCY: Playbook = Playbook {
    name: "slow-dependency",
    about: "500 calls a second for a dependency that takes 20 ms, and 2 s from 10 s to 40 s. Each caller \
            that waits holds a thread, a connection and memory.",
    columns: &[
        ("callers waiting, 25-40 s", 0),
        ("served, 25-40 s", 2),
        ("callers waiting, 50-60 s", 0),
        ("served, 50-60 s", 2),
    ],
    run: |seed| {
        let run = |timeout: Duration, client: fn(&Clock, u64) -> Client| {
            let dependency = Server::new(100, ServiceTime::LogNormal { mean: ms(20), sigma: 0.3 })
                .slowdown_at(Tick::from_secs(10), 100.0)
                .slowdown_at(Tick::from_secs(40), 1.0);
            let report = Simulation::new(Workload::new().poisson(500.0, secs(60)), dependency)
                .deadline(timeout)
                .clients(move |clock, seed| vec![client(clock, seed)])
                .run_unlimited(seed);
            let at = |seconds: std::ops::Range<usize>| {
                [report.waiting(seconds.clone()), report.served(seconds)]
            };
            [at(25..40), at(50..60)].concat()
        };
        Ok(vec![
            ("a timeout of 30 s", run(secs(30), |_, _| Client::new())),
            ("a timeout of 200 ms", run(ms(200), |_, _| Client::new())),
            (
                "and at most 50 calls in flight (a bulkhead)",
                run(ms(200), |clock, _| Client::new().gate(bulkhead(clock))),
            ),
            (
                "and a breaker",
                run(ms(200), |clock, seed| {
                    Client::new().gate(build(Breaker::builder(), clock, seed)).gate(bulkhead(clock))
                }),
            ),
        ])
    },
};

fn bulkhead(clock: &Clock) -> tollgate::adaptive::AdaptiveConcurrency {
    limited_by(tollgate_simulator::FixedLimit(50), clock)
}

fn build(breaker: BreakerBuilder, clock: &Clock, seed: u64) -> Breaker {
    breaker.clock(clock.clone()).seed(seed).build().expect("within all bounds")
}

/// Five failures in a row open it for a second, one success closes it.
fn nervous() -> BreakerBuilder {
    Breaker::builder().trip(Trip::consecutive(5)).open_for(secs(1)).growth(1).trials(1)
}

pub(crate) const BREAKER_FLAPPING: Playbook = Playbook {
    name: "breaker-flapping",
    about: "A minute of a dependency that is not down: it gets twice the load that it can take, or it \
            fails every third call.",
    columns: &[("openings", 0), ("served of what it can do", 2)],
    run: |seed| {
        type Build = fn() -> BreakerBuilder;
        let run = |(rate, failing): (f64, f64), breaker: Option<Build>, is_limited| {
            let breakers: Rc<RefCell<Vec<Breaker>>> = Rc::default();
            let seen = Rc::clone(&breakers);
            let clients = move |clock: &Clock, seed| {
                let mut client = Client::new();
                if let Some(breaker) = breaker {
                    let breaker = build(breaker(), clock, seed);
                    seen.borrow_mut().push(breaker.clone());
                    client = client.gate(breaker);
                }
                let law = || DampedAimd::builder(ms(200)).seed(seed).build().expect("an SLO");
                vec![if is_limited { client.gate(limited_by(law(), clock)) } else { client }]
            };
            let server = server().max_queue(400).failing_at(Tick::ZERO, failing);
            let workload = Workload::new().poisson(rate, secs(60));
            let report = Simulation::new(workload, server).clients(clients).run_unlimited(seed);
            let opened = breakers.borrow().iter().map(|it| it.counts().opened).sum::<u64>();
            vec![opened as f64, report.goodput(0..60) / (1.0 - failing)]
        };
        let (overload, failing) = ((2000.0, 0.0), (500.0, 1.0 / 3.0));
        let (nervous, default): (Option<Build>, Option<Build>) =
            (Some(nervous), Some(Breaker::builder));
        Ok(vec![
            ("overload: no breaker", run(overload, None, false)),
            ("overload: 5 failures in a row, 1 s, one trial", run(overload, nervous, false)),
            ("overload: the defaults", run(overload, default, false)),
            ("overload: the defaults and an adaptive limit", run(overload, default, true)),
            ("a third fails: 5 failures in a row, 1 s, one trial", run(failing, nervous, false)),
            ("a third fails: the defaults", run(failing, default, false)),
        ])
    },
};

pub(crate) const TWO_BREAKERS: Playbook = Playbook {
    name: "two-breakers",
    about: "500 calls a second for a dependency that fails all of them from 10 s to 20 s. The library \
            breaks by its defaults, the mesh by Envoy's figures: 5 failures in a row, for 30 s.",
    columns: &[("served again after s", 0), ("served, 20-90 s", 2)],
    run: two_breakers,
};

fn two_breakers(seed: u64) -> Result<Rows, Box<dyn Error>> {
    let mesh = |clock: &Clock, seed| {
        let envoy = Breaker::builder().trip(Trip::consecutive(5)).open_for(secs(30)).trials(1);
        build(envoy, clock, seed)
    };
    let workload = Workload::new().poisson(500.0, secs(90));
    let server = server().failing_at(Tick::from_secs(10), 1.0).failing_at(Tick::from_secs(20), 0.0);
    let plain = Simulation::new(workload, server);
    let library =
        |clock: &Clock, seed| vec![Client::new().gate(build(Breaker::builder(), clock, seed))];
    let marked = move |clock: &Clock, seed| {
        let library = build(Breaker::builder(), clock, seed);
        vec![Client::new().gate(library).gate(mesh(clock, seed))]
    };
    let figures = |report: &Report| {
        let is_served = |second: &usize| report.seconds()[*second].good > 450;
        let served_at = (20..90).find(is_served).unwrap_or(90);
        vec![(served_at - 20) as f64, report.served(20..90)]
    };
    let rows = [
        ("only the library's", plain.clone().clients(library).run_unlimited(seed)),
        ("only the mesh's", plain.run(seed, |clock| vec![mesh(clock, seed)])),
        (
            "both, and the library counts the mesh's refusals as failures",
            plain.clone().clients(library).run(seed, |clock| vec![mesh(clock, seed)]),
        ),
        (
            "both, and the library ignores the mesh's refusals",
            plain.clients(marked).run_unlimited(seed),
        ),
    ];
    Ok(rows.iter().map(|(name, report)| (*name, figures(report))).collect())
}
