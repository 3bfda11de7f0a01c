//! Too much load: ways to do less work, and the right work.

use super::{
    failure::server,
    playbook::Playbook,
    queue::{CLASSES, Queueing, served},
};
use std::time::Duration;
use tollgate::{
    Clock, Inherit, Limiter, Quota, Tick,
    adaptive::{
        Law, LimitReason, Sample,
        law::{DampedAimd, ProbingGradient},
    },
};
use tollgate_simulator::{
    Admission, Client, Ending, FixedLimit, Report, Simulation, Workload, limited_by,
};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// When an operator acts.
const ACT_AT: Tick = Tick::from_secs(30);

fn rate(per_second: u64) -> Quota {
    Quota::per_second(per_second).burst(per_second / 10)
}

fn limiter(per_second: u64, clock: &Clock) -> Limiter {
    Limiter::builder(rate(per_second)).clock(clock.clone()).build().expect("within all bounds")
}

fn adaptive(seed: u64) -> DampedAimd {
    DampedAimd::builder(ms(200)).seed(seed).build().expect("an SLO")
}

fn p99_ms(report: &Report, seconds: std::ops::Range<usize>) -> f64 {
    report.latency(seconds, 99.0).unwrap_or_default().as_secs_f64() * 1000.0
}

pub(crate) const SHED_AT_THE_EDGE: Playbook = Playbook {
    name: "shed-at-the-edge",
    about: "8000 calls a second for a service that can do 1000, with a limit of 900 a second. To refuse \
            a call, the service has to read it and to check who sends it: 2 ms of a worker.",
    columns: &[("served of 1000 a second", 2), ("p99 ms", 0)],
    run: |seed| {
        let service = server().max_queue(400).refusal_time(ms(2));
        let simulation = Simulation::new(Workload::new().poisson(8000.0, secs(30)), service);
        let figures = |report: &Report| vec![report.goodput(5..30), p99_ms(report, 5..30)];
        let in_service = simulation.run(seed, |clock| vec![limiter(900, clock)]);
        let at_edge = |clock: &Clock, _| vec![Client::new().gate(limiter(900, clock))];
        let at_edge = simulation.clients(at_edge).run_unlimited(seed);
        Ok(vec![
            ("the limit in the service", figures(&in_service)),
            ("the same limit at the edge", figures(&at_edge)),
        ])
    },
};

pub(crate) const LOW_PRIORITY: Playbook = Playbook {
    name: "drop-low-priority",
    about: "2000 calls a second for a service that can do 1000: a tenth is critical, half is normal, \
            the rest are batches. 40 places in the queue.",
    columns: &[("critical served", 2), ("normal", 2), ("batch", 2), ("of 1000 a second", 2)],
    run: |seed| {
        let figures = |queueing| {
            let report = served(queueing, 2.0, seed)?;
            let shares = CLASSES.map(|class| report.share(class.0));
            Ok::<_, Box<dyn std::error::Error>>([&shares[..], &[report.goodput()]].concat())
        };
        Ok(vec![
            ("first come, first served", figures(Queueing::Equal)?),
            ("by priority", figures(Queueing::ByPriority)?),
        ])
    },
};

/// A fixed limit that an operator raises.
#[derive(Clone, Copy, Debug)]
struct RaisedLimit {
    limit: u64,
    later: u64,
}

impl Law for RaisedLimit {
    fn observe(&mut self, sample: &Sample) -> u64 {
        if sample.ended >= ACT_AT {
            self.limit = self.later;
        }
        self.limit
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn reason(&self) -> LimitReason {
        LimitReason::Holding
    }

    fn name(&self) -> &'static str {
        "raised"
    }
}

pub(crate) const SCALE_UP: Playbook = Playbook {
    name: "scale-up",
    about: "1800 calls a second for 20 workers that can do 1000; at 30 s there are 40 workers.",
    columns: &[("served, 5-30 s", 2), ("served, 35-60 s", 2), ("p99 ms, 35-60 s", 0)],
    run: |seed| {
        let simulation = Simulation::new(
            Workload::new().poisson(1800.0, secs(60)),
            server().workers_at(ACT_AT, 40),
        );
        let run = |law: Box<dyn Law>| {
            let report = simulation.run(seed, |clock| vec![limited_by(law, clock)]);
            vec![report.served(5..30), report.served(35..60), p99_ms(&report, 35..60)]
        };
        Ok(vec![
            ("no limit", run(Box::new(FixedLimit::none()))),
            ("a limit of 30 calls in flight", run(Box::new(FixedLimit(30)))),
            ("the same, and 60 from 30 s on", run(Box::new(RaisedLimit { limit: 30, later: 60 }))),
            ("an adaptive limit", run(Box::new(adaptive(seed)))),
        ])
    },
};

/// A rate that an operator raises.
struct RaisedRate {
    limiter: Limiter,
    later: Quota,
}

impl Admission for RaisedRate {
    fn try_enter(&mut self) -> Option<Ending> {
        if self.limiter.clock().now() >= ACT_AT && self.limiter.quota() != self.later {
            self.limiter.set_quota(self.later, Inherit::Proportional).expect("a legal quota");
        }
        self.limiter.try_enter()
    }
}

pub(crate) const RAISE_THE_LIMIT: Playbook = Playbook {
    name: "raise-the-limit",
    about: "A limit of 500 a second in front of a server that can do 1000 is raised at 30 s.",
    columns: &[("served, 5-30 s", 2), ("served, 35-60 s", 2), ("p99 ms, 35-60 s", 0)],
    run: |seed| {
        let run = |load: f64, later: u64, is_adaptive: bool| {
            let simulation =
                Simulation::new(Workload::new().poisson(load, secs(60)), server().max_queue(400));
            let edge = move |clock: &Clock, _| {
                let limiter = limiter(500, clock);
                vec![Client::new().gate(RaisedRate { limiter, later: rate(later) })]
            };
            let law: Box<dyn Law> =
                if is_adaptive { Box::new(adaptive(seed)) } else { Box::new(FixedLimit::none()) };
            let report = simulation.clients(edge).run(seed, |clock| vec![limited_by(law, clock)]);
            vec![report.served(5..30), report.served(35..60), p99_ms(&report, 35..60)]
        };
        Ok(vec![
            ("800 calls a second; the limit stays", run(800.0, 500, false)),
            ("800 calls a second; to 900 a second", run(800.0, 900, false)),
            ("2000 calls a second; to 900 a second", run(2000.0, 900, false)),
            ("2000 calls a second; to 1800 a second", run(2000.0, 1800, false)),
            (
                "2000 calls a second; to 1800 a second, and an adaptive limit",
                run(2000.0, 1800, true),
            ),
        ])
    },
};

/// A rate that rises from a third to the full rate in this many seconds, like that of a cold
/// `SmoothWarmingUp` of Guava.
struct WarmingUp {
    limiter: Limiter,
    per_second: u64,
    seconds: u64,
}

impl Admission for WarmingUp {
    fn try_enter(&mut self) -> Option<Ending> {
        let passed = self.limiter.clock().now().since(Tick::ZERO).as_secs().min(self.seconds);
        let quota = rate(self.per_second / 3 + self.per_second * 2 / 3 * passed / self.seconds);
        if self.limiter.quota() != quota {
            self.limiter.set_quota(quota, Inherit::Proportional).expect("a legal quota");
        }
        self.limiter.try_enter()
    }
}

pub(crate) const COLD_START: Playbook = Playbook {
    name: "cold-start",
    about: "850 calls a second for a server that has just started: for 15 s each call takes four times as \
            long, until caches and pools are filled.",
    columns: &[("served, 0-15 s", 2), ("served, 15-20 s", 2), ("served, 20-30 s", 2)],
    run: |seed| {
        let cold = server()
            .max_queue(400)
            .slowdown_at(Tick::ZERO, 4.0)
            .slowdown_at(Tick::from_secs(15), 1.0);
        let simulation = Simulation::new(Workload::new().poisson(850.0, secs(30)), cold);
        let figures = |report: Report| {
            vec![report.served(0..15), report.served(15..20), report.served(20..30)]
        };
        let probing = |clock: &Clock| {
            let law = ProbingGradient::builder().seed(seed).build().expect("defaults");
            vec![limited_by(law, clock)]
        };
        let warming_up = |seconds| {
            let limit = |clock: &Clock| {
                vec![WarmingUp { limiter: limiter(300, clock), per_second: 900, seconds }]
            };
            figures(simulation.run(seed, limit))
        };
        Ok(vec![
            (
                "a limit of 900 a second",
                figures(simulation.run(seed, |clock| vec![limiter(900, clock)])),
            ),
            ("a limit that rises from 300 to 900 a second in 15 s", warming_up(15)),
            ("a limit that rises from 300 to 900 a second in 60 s", warming_up(60)),
            ("an adaptive limit (probing gradient)", figures(simulation.run(seed, probing))),
        ])
    },
};
