//! Rules whose rate moves: with the CPU load, or with what callers report.
//!
//! The server calls [`Engine::adapt`] ten times a second. It reads the load at times, once for all
//! rules, and lets each rule whose period is over decide. A report may end a period, too.

use super::{Engine, RequestError};
use crate::{
    config::Follow,
    plan::{AdaptiveRule, Plan, RuleIndex},
};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tollgate::{
    CallOutcome, Tick,
    adaptive::rate::{CpuLoad, Health},
};

/// How calls of a policy ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report<'a> {
    /// The policy's name.
    pub policy: &'a str,
    /// How they ended.
    pub outcome: CallOutcome,
    /// How long each took, if that is known. Counts for successes.
    pub latency: Option<Duration>,
    /// How many they were.
    pub count: u64,
}

impl Report<'_> {
    /// The most calls in one report.
    pub const COUNT_MAX: u64 = 1000;

    /// The longest latency.
    pub const LATENCY_MAX: Duration = Duration::from_secs(3600);

    /// The words for outcomes.
    pub const OUTCOMES: [&'static str; 3] = ["success", "failure", "overload"];

    /// Returns the meaning of a word.
    #[must_use]
    pub fn outcome(word: &str) -> Option<CallOutcome> {
        match word {
            "success" => Some(CallOutcome::Success),
            "failure" => Some(CallOutcome::Failure),
            "overload" => Some(CallOutcome::Overload),
            _ => None,
        }
    }

    fn check(&self) -> Result<(), RequestError> {
        if !(1..=Self::COUNT_MAX).contains(&self.count) {
            return Err(RequestError::Limit(format!(
                "count {} is out of range; one report can be about 1 to {} calls",
                self.count,
                Self::COUNT_MAX
            )));
        }
        match self.latency {
            Some(latency) if latency > Self::LATENCY_MAX => Err(RequestError::Limit(format!(
                "a latency of {} ms is out of range; it can be at most {} ms",
                latency.as_millis(),
                Self::LATENCY_MAX.as_millis()
            ))),
            _ => Ok(()),
        }
    }
}

/// The load of the processors, read once for all rules.
#[derive(Debug)]
pub(super) struct CpuGauge {
    /// Where the load comes from, and when it was read last.
    source: Mutex<(Option<CpuLoad>, Tick)>,
    /// The last reading, as the bits of a float; not a number while the load is unknown.
    load: Arc<AtomicU64>,
}

impl Default for CpuGauge {
    fn default() -> Self {
        let load = Arc::new(AtomicU64::new(f64::NAN.to_bits()));
        Self { source: Mutex::new((None, Tick::ZERO)), load }
    }
}

impl CpuGauge {
    fn replace(&self, source: CpuLoad) {
        self.lock().0 = Some(source);
    }

    fn lock(&self) -> MutexGuard<'_, (Option<CpuLoad>, Tick)> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the load, unless it was just read.
    fn sample(&self, now: Tick) {
        let mut source = self.lock();
        if now.since(source.1) < READ_EVERY {
            return;
        }
        source.1 = now;
        let load = source.0.as_mut().and_then(Health::cpu).unwrap_or(f64::NAN);
        // ORDERING: Relaxed, here and below. The number is independent of others.
        self.load.store(load.to_bits(), Relaxed);
    }

    /// Opens the load of this host, unless there is a source already.
    fn open(&self) {
        let mut source = self.lock();
        if source.0.is_none() {
            match CpuLoad::system() {
                Ok(load) => source.0 = Some(load),
                Err(error) => tracing::error!("rates that follow the CPU do not move: {error}"),
            }
        }
    }
}

/// Returns the last reading.
#[derive(Debug)]
struct LastLoad(Arc<AtomicU64>);

impl Health for LastLoad {
    fn cpu(&mut self) -> Option<f64> {
        Some(f64::from_bits(self.0.load(Relaxed))).filter(|load| load.is_finite())
    }
}

impl Engine {
    /// Starts the rates of a plan that are not started yet.
    pub(super) fn start_adaptive(&self, plan: &Plan) {
        for (_, rule) in plan.adaptive_rules() {
            if matches!(rule.follow(), Follow::Cpu { .. }) {
                self.cpu.open();
            }
            rule.start(&self.clock, LastLoad(Arc::clone(&self.cpu.load)));
        }
    }

    /// Takes the CPU load from elsewhere than this host, for tests.
    pub fn set_cpu_source(&self, source: CpuLoad) {
        self.cpu.replace(source);
    }

    /// Moves the rates whose period is over. The server calls it every [`ADAPT_EVERY`].
    pub fn adapt(&self) {
        let plan = self.plan();
        let mut rules = plan.adaptive_rules().peekable();
        if rules.peek().is_some() {
            self.cpu.sample(self.now());
        }
        for (index, rule) in rules {
            rule.tick();
            self.put_rate_in_force(&plan, index, rule);
        }
    }

    /// Agrees on the lowest rate with the processes that share a store. The server calls it every
    /// [`AGREE_EVERY`].
    pub async fn agree_rates(&self) {
        let plan = self.plan_arc();
        let mut is_away = vec![false; self.stores.len()];
        for (index, rule) in plan.adaptive_rules() {
            let (number, id) = (plan.rule(index).store(), plan.rule(index).id());
            let Some(store) = self.stores[number].remote() else { continue };
            // One wait for a store that does not answer is enough.
            let rate = match is_away[number] {
                true => None,
                false => store.lowest_rate(id, rule.own_rate()).await,
            };
            is_away[number] |= rate.is_none();
            rule.set_fleet_rate(rate);
        }
    }

    /// Takes in a report, and returns the rule that it is about.
    ///
    /// # Errors
    ///
    /// When there is no such policy, its rate does not follow reports, or a number is out of range.
    pub fn report<'p>(
        &self,
        plan: &'p Plan,
        report: &Report<'_>,
    ) -> Result<&'p AdaptiveRule, RequestError> {
        let index = plan.named(report.policy)?;
        report.check()?;
        let label = plan.rule(index).label();
        let rule = match plan.rule(index).adaptive() {
            Some(rule) if matches!(rule.follow(), Follow::Reports { .. }) => rule,
            Some(_) => {
                return Err(RequestError::Limit(format!(
                    "the rate of policy \"{label}\" follows the CPU load, not reports; do not \
                     report its calls, or set `follow: reports`"
                )));
            }
            None => {
                return Err(RequestError::Limit(format!(
                    "the rate of policy \"{label}\" is fixed; do not report its calls, or add \
                     `adaptive: {{follow: reports, min: ...}}`"
                )));
            }
        };
        rule.observe(report.outcome, report.latency, report.count);
        self.put_rate_in_force(plan, index, rule);
        Ok(rule)
    }

    /// Puts a rate in force as of now in a store of this process, which would else do so at its first use.
    fn put_rate_in_force(&self, plan: &Plan, index: RuleIndex, rule: &AdaptiveRule) {
        let Some(store) = self.stores[plan.rule(index).store()].memory() else { return };
        if let Err((policy, error)) = store.declare([&rule.policy()]) {
            tracing::error!("policy {}: {error}", policy.name());
        }
    }
}

/// How often the load is read: the kernel counts in steps of 10 ms, so less time would show little.
const READ_EVERY: Duration = Duration::from_millis(250);

/// How often [`Engine::agree_rates`] should be called: one or two requests for each rule.
pub const AGREE_EVERY: Duration = Duration::from_secs(1);

/// How often [`Engine::adapt`] should be called: the shortest period of a rule.
pub const ADAPT_EVERY: Duration = Duration::from_millis(100);
