//! A rule whose rate moves.
//!
//! The policy in force travels with each call, so a change of the rate is one write here: no key is
//! visited, in this process or in Redis.

use super::agreed::{AgreedLaw, Rates};
use crate::config::{Adaptive, Follow};
use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, OnceLock},
    time::Duration,
};
use tollgate::{
    CallOutcome, Clock,
    adaptive::{
        LimitReason,
        rate::{AdaptiveRate, CurrentPolicy, Health, RateReport},
    },
    store::Policy,
};

/// The rate of a rule, and what moves it. A reload keeps it if the rule's `adaptive` and its limit stay.
#[derive(Debug)]
pub struct AdaptiveRule {
    settings: Adaptive,
    /// The limit of the file.
    full: Policy,
    current: CurrentPolicy,
    /// The first rate.
    initial: f64,
    rates: Arc<Rates>,
    /// The adaptive rate, once an engine has given it a clock.
    rate: OnceLock<AdaptiveRate>,
}

impl AdaptiveRule {
    /// Returns the rate of a rule; that of the rule `before`, if there was one, goes on as far as the
    /// bounds allow.
    pub(super) fn new(
        settings: &Adaptive,
        (full, per_second): (&Policy, f64),
        before: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        if let Some(before) = before
            && before.settings.is_same(settings)
            && before.full == *full
        {
            return Arc::clone(before);
        }
        let rate = before.map_or(per_second, |before| before.own_rate());
        let initial = rate.clamp(settings.min, settings.max);
        Arc::new(Self {
            settings: settings.clone(),
            full: full.clone(),
            current: CurrentPolicy::new(full.clone()),
            initial,
            rates: Rates::new(initial),
            rate: OnceLock::new(),
        })
    }

    /// Starts to move the rate, by this clock; once.
    pub(crate) fn start(&self, clock: &Clock, cpu: impl Health + 'static) {
        if self.rate.get().is_some() {
            return;
        }
        // Each process has its own jitter, so that a fleet does not decide in step.
        let seed = RandomState::new().hash_one(0);
        let built = self.settings.law(self.initial).and_then(|law| {
            let law = AgreedLaw::new(law, &self.rates);
            let rate = AdaptiveRate::of_policy(&self.current, law).period(self.settings.period);
            let rate = rate.clock(clock.clone()).seed(seed);
            match self.settings.follow {
                Follow::Cpu { .. } => rate.health(cpu).build(),
                Follow::Reports { .. } => rate.build(),
            }
        });
        match built {
            Ok(rate) => drop(self.rate.set(rate)),
            // The same function has checked the file.
            Err(error) => tracing::error!(policy = self.full.name(), "the rate is fixed: {error}"),
        }
    }

    /// Returns the policy in force now. Call this for each decision.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.current.get()
    }

    /// Returns how many permits a period of the file's limit brings now, rounded down.
    #[must_use]
    pub fn count(&self, per: Duration) -> u64 {
        // A product such as 2.3 x 10 is a hair below 23.
        (self.report().rate * per.as_secs_f64() * (1.0 + 1e-12)) as u64
    }

    /// Returns the rate, its bounds and why it is what it is.
    #[must_use]
    pub fn report(&self) -> RateReport {
        let Adaptive { min, max, .. } = self.settings;
        let (rate, reason) = (self.initial, LimitReason::Starting);
        let fixed = RateReport { rate, min, max, reason, last: None };
        self.rate.get().map_or(fixed, AdaptiveRate::report)
    }

    /// Returns why the rate is what it is, for people and metrics: `fleet` if another process has a lower one,
    /// and else the reason of the law.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        let report = self.report();
        if report.rate < self.own_rate() { "fleet" } else { report.reason.as_str() }
    }

    /// Returns the rate that this process alone would have: the fleet may have a lower one.
    #[must_use]
    pub fn own_rate(&self) -> f64 {
        self.rates.own()
    }

    /// Notes the lowest rate of the fleet, which applies from the next period on; `None` if it is unknown.
    pub(crate) fn set_fleet_rate(&self, rate: Option<f64>) {
        self.rates.set_fleet(rate);
    }

    /// Returns what the rate follows.
    #[must_use]
    pub const fn follow(&self) -> Follow {
        self.settings.follow
    }

    /// Takes in how calls ended.
    pub(crate) fn observe(&self, outcome: CallOutcome, latency: Option<Duration>, count: u64) {
        let Some(rate) = self.rate.get() else { return };
        for _ in 0..count {
            match (outcome, latency) {
                (_, Some(latency)) => rate.observe(outcome, latency),
                (CallOutcome::Success, None) => rate.success(),
                (_, None) => rate.failure(),
            }
        }
    }

    /// Moves the rate if a period is over.
    pub(crate) fn tick(&self) {
        if let Some(rate) = self.rate.get() {
            rate.tick();
        }
    }
}
