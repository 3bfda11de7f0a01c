//! Builds an [`AdaptiveRate`].

use super::{
    super::law::LawError, AdaptiveRate, Health, Judge, RateLaw, Shared, State, meter::Meter,
    target::Target, ticker::Ticker,
};
use crate::{
    Clock, Driver, OnDrop,
    sync::{Arc, Mutex},
    wait::{Action, Engine},
};
use std::time::Duration;

/// Builds an [`AdaptiveRate`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct AdaptiveRateBuilder {
    target: Target,
    law: Box<dyn RateLaw>,
    health: Option<Box<dyn Health>>,
    period: Duration,
    clock: Clock,
    driver: Option<Driver>,
    seed: u64,
}

impl AdaptiveRateBuilder {
    pub(super) fn new(target: Target, law: Box<dyn RateLaw>, clock: Clock) -> Self {
        let period = Duration::from_secs(1);
        Self { target, law, health: None, period, clock, driver: None, seed: 0 }
    }

    /// Sets how often the law decides, by default once a second, give or take a tenth.
    ///
    /// Make it longer than a usual call takes: calls that began before a change still show the old
    /// rate.
    pub fn period(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// Takes signals from `source`, beside the calls that are reported. By default there is none.
    pub fn health(mut self, source: impl Health + 'static) -> Self {
        self.health = Some(Box::new(source));
        self
    }

    /// Decides once per period also while no call is reported: a signal such as CPU load comes
    /// without calls. By default a decision is made by the call that reports after the period is
    /// over, and nothing runs in between.
    ///
    /// Periods then follow the driver's clock.
    pub fn driver(mut self, driver: Driver) -> Self {
        self.clock = driver.clock().clone();
        self.driver = Some(driver);
        self
    }

    /// Sets the clock of the periods, by default that of the limiter.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the seed of the jitter, by default 0. Give each instance of a fleet its own.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Puts the law's first rate in force.
    ///
    /// # Errors
    ///
    /// When the period is zero, the limiter has no rate that could move (it is unlimited, a budget,
    /// or its quota comes with each call), or the law's bounds make no sense for it.
    pub fn build(self) -> Result<AdaptiveRate, LawError> {
        let period = LawError::check_duration("period", self.period)?;
        let shape = self.target.shape()?;
        let report = self.law.report();
        shape.check(report.min, report.max)?;
        let quota = shape.quota(report.rate);
        self.target.set_quota(quota)?;
        let mut meter = Meter::new(period, self.seed, self.clock.now());
        meter.measures = self.law.measures();
        let shared = Arc::new(Shared {
            clock: self.clock,
            target: self.target,
            shape,
            name: self.law.name(),
            has_health: self.health.is_some(),
            state: Mutex::new(State { meter, report, quota }),
            judge: Mutex::new(Judge { law: self.law, health: self.health }),
        });
        let ticker = self.driver.map(|driver| {
            let ticked = Arc::clone(&shared);
            // The driver says when a period is over, unless a report has just begun a new one.
            let early = period.mul_f64(0.6);
            let action = Action::Call(Box::new(move |()| ticked.tick(early)));
            let ticker = Ticker::new(period, self.seed);
            let engine = Engine::start(ticker, driver, (action, None), OnDrop::Cancel);
            let _ = engine.event(Ticker::start);
            engine
        });
        Ok(AdaptiveRate { shared, ticker })
    }
}
