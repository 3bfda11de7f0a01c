//! The scenarios in which laws are compared, and the laws.

use std::time::Duration;
use tollgate::{
    Backoff, Clock, RetryBudget, RetryPolicy, Tick,
    adaptive::{
        Law,
        law::{Aimd, DampedAimd, Gradient2, LawError, ProbingGradient, Vegas, Windowed},
    },
};
use tollgate_simulator::{
    Client, FixedLimit, Report, Server, ServiceTime, Simulation, Workload, limited_by,
};

/// Calls have to end within this.
pub(crate) const DEADLINE: Duration = ms(200);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A workload and a server, behind one limit or several.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) simulation: Simulation,
    pub(crate) limits: u64,
    /// The first second of the first overload.
    pub(crate) overload_at: Option<usize>,
    pub(crate) seconds: usize,
}

impl Scenario {
    /// Runs it with one limit or several that follow the law.
    pub(crate) fn run(&self, seed: u64, law: &NamedLaw) -> Result<Report, LawError> {
        let laws: Result<Vec<_>, _> =
            (0..self.limits).map(|number| (law.build)(seed * 100 + number)).collect();
        let laws = laws?;
        let limits = |clock: &Clock| laws.into_iter().map(|law| limited_by(law, clock)).collect();
        Ok(self.simulation.run(seed, limits))
    }
}

/// 60 s each: 0.7 of the capacity, twice the capacity, the same with half of the workers, the same
/// with all of them, 0.7 again.
fn phases(name: &'static str, workers: usize, server: Server, mean: Duration) -> Scenario {
    let capacity = workers as f64 / mean.as_secs_f64();
    let minute = Duration::from_secs(60);
    let workload = Workload::new()
        .poisson(0.7 * capacity, minute)
        .poisson(2.0 * capacity, 3 * minute)
        .poisson(0.7 * capacity, minute);
    let server = server
        .workers_at(Tick::from_secs(120), workers / 2)
        .workers_at(Tick::from_secs(180), workers);
    let simulation = Simulation::new(workload, server).deadline(DEADLINE);
    Scenario { name, simulation, limits: 1, overload_at: Some(60), seconds: 300 }
}

fn twenty_workers(name: &'static str, service: ServiceTime) -> Scenario {
    phases(name, 20, Server::new(20, service), service.mean())
}

/// The five scenarios on which the defaults were chosen.
pub(crate) fn tuned() -> Vec<Scenario> {
    let lognormal = |sigma| ServiceTime::LogNormal { mean: ms(20), sigma };
    let collapsing = Server::new(20, lognormal(0.3)).contention(40, 0.01);
    let dependency = Server::new(1000, lognormal(0.3))
        .slowdown_at(Tick::from_secs(60), 3.0)
        .slowdown_at(Tick::from_secs(120), 1.0);
    let slower = Workload::new().poisson(500.0, Duration::from_secs(180));
    vec![
        twenty_workers("A", ServiceTime::Exponential(ms(20))),
        twenty_workers("A'", lognormal(1.0)),
        twenty_workers("A''", lognormal(0.1)),
        phases("C", 20, collapsing, ms(20)),
        Scenario {
            name: "B",
            simulation: Simulation::new(slower, dependency).deadline(DEADLINE),
            limits: 1,
            overload_at: None,
            seconds: 180,
        },
    ]
}

/// Scenarios on which no setting was chosen.
pub(crate) fn untuned() -> Vec<Scenario> {
    let exponential = ServiceTime::Exponential(ms(20));
    let bimodal = ServiceTime::Bimodal { fast: ms(5), slow: ms(100), slow_share: 0.2 };
    let mut shared = twenty_workers("4 limiters", exponential);
    shared.limits = 4;
    let large = Server::new(200, exponential);
    vec![
        phases("200 workers", 200, large, ms(20)),
        twenty_workers("bimodal", bimodal),
        shared,
        slow_for_a_while("retry storm", 850.0, (10, 20, 4.0), Some(Budget::Unlimited)),
        slow_for_a_while("with budget", 850.0, (10, 20, 4.0), Some(Budget::Default)),
        slow_for_a_while("5x for 30 s", 500.0, (30, 60, 5.0), None),
    ]
}

/// 20 workers of 20 ms (lognormal, 0.3) that are slower from one second to another.
fn slow_for_a_while(
    name: &'static str,
    rate: f64,
    (from, to, factor): (u64, u64, f64),
    retries: Option<Budget>,
) -> Scenario {
    let server = Server::new(20, ServiceTime::LogNormal { mean: ms(20), sigma: 0.3 })
        .slowdown_at(Tick::from_secs(from), factor)
        .slowdown_at(Tick::from_secs(to), 1.0);
    let workload = Workload::new().poisson(rate, Duration::from_secs(to + 40));
    let mut simulation = Simulation::new(workload, server).deadline(DEADLINE);
    if let Some(budget) = retries {
        simulation = simulation.clients(move |clock, seed| {
            vec![Client::new().retry(three_retries(budget, clock, seed))]
        });
    }
    let overload_at = Some(from as usize);
    Scenario { name, simulation, limits: 1, overload_at, seconds: to as usize + 40 }
}

/// The bound on the retries of all calls together.
#[derive(Clone, Copy)]
enum Budget {
    Unlimited,
    /// 20 % of the successes and 10 per second.
    Default,
}

/// Repeats a call up to three times, after random pauses of up to 100, 200 and 400 ms.
fn three_retries(budget: Budget, clock: &Clock, seed: u64) -> RetryPolicy {
    let budget = match budget {
        Budget::Unlimited => Ok(RetryBudget::unlimited()),
        Budget::Default => RetryBudget::builder().clock(clock.clone()).build(),
    };
    let policy = RetryPolicy::builder().max_attempts(4).clock(clock.clone()).seed(seed);
    let policy = policy.backoff(Backoff::full_jitter(ms(100), ms(400)));
    policy.budget(budget.expect("defaults")).build().expect("within all bounds")
}

/// A row of the tables.
pub(crate) struct NamedLaw {
    pub(crate) name: &'static str,
    pub(crate) build: fn(u64) -> Result<Box<dyn Law>, LawError>,
}

pub(crate) const NONE: NamedLaw =
    NamedLaw { name: "no limit", build: |_| Ok(Box::new(FixedLimit::none())) };
pub(crate) const DAMPED: NamedLaw = NamedLaw {
    name: "**damped AIMD**",
    build: |seed| Ok(Box::new(DampedAimd::builder(DEADLINE).seed(seed).build()?)),
};
pub(crate) const PROBING: NamedLaw = NamedLaw {
    name: "**probing gradient**",
    build: |seed| Ok(Box::new(ProbingGradient::builder().seed(seed).build()?)),
};
pub(crate) const AIMD: NamedLaw =
    NamedLaw { name: "AIMD, per sample", build: |_| Ok(Box::new(aimd()?)) };

fn aimd() -> Result<Aimd, LawError> {
    Aimd::builder().min(1).max(1000).timeout(DEADLINE / 2).build()
}

fn vegas(seed: u64) -> Result<Vegas, LawError> {
    Vegas::builder().seed(seed).build()
}

fn gradient2() -> Result<Gradient2, LawError> {
    Gradient2::builder().min(1).max(1000).build()
}

fn windowed<L: Law + 'static>(law: L, ms: u64, seed: u64) -> Result<Box<dyn Law>, LawError> {
    Ok(Box::new(Windowed::builder(law).window(self::ms(ms)).seed(seed).build()?))
}

/// All laws, at their published settings except for a minimum of 1 and a maximum of 1000.
pub(crate) const LAWS: [NamedLaw; 12] = [
    NONE,
    NamedLaw { name: "fixed 30", build: |_| Ok(Box::new(FixedLimit(30))) },
    NamedLaw { name: "fixed 100", build: |_| Ok(Box::new(FixedLimit(100))) },
    NamedLaw { name: "fixed 400", build: |_| Ok(Box::new(FixedLimit(400))) },
    AIMD,
    NamedLaw { name: "AIMD, 100 ms window", build: |seed| windowed(aimd()?, 100, seed) },
    NamedLaw { name: "Vegas, per sample", build: |seed| Ok(Box::new(vegas(seed)?)) },
    NamedLaw { name: "Vegas, 100 ms window", build: |seed| windowed(vegas(seed)?, 100, seed) },
    NamedLaw { name: "Gradient2, per sample", build: |_| Ok(Box::new(gradient2()?)) },
    NamedLaw { name: "Gradient2, 1 s window", build: |seed| windowed(gradient2()?, 1000, seed) },
    DAMPED,
    PROBING,
];
