//! The lowest rate of a fleet.
//!
//! Each process has its own law. The rate in force is the lower one of the law's rate and the rates
//! of the other processes, which a shared store provides.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tollgate::adaptive::rate::{Measures, Period, RateLaw, RateReport};

/// The rate of this process's law, and that of the fleet.
#[derive(Debug)]
pub(super) struct Rates {
    /// The law's rate, as the bits of a float.
    own: AtomicU64,
    /// The lowest rate of the fleet, as the bits of a float; not a number if it is unknown.
    fleet: AtomicU64,
}

impl Rates {
    pub(super) fn new(own: f64) -> Arc<Self> {
        let (own, fleet) = (AtomicU64::new(own.to_bits()), AtomicU64::new(f64::NAN.to_bits()));
        Arc::new(Self { own, fleet })
    }

    /// Returns the law's rate.
    pub(super) fn own(&self) -> f64 {
        // ORDERING: Relaxed, here and below. Each number is independent of the other.
        f64::from_bits(self.own.load(Relaxed))
    }

    /// Sets the lowest rate of the fleet; `None` if it is unknown.
    pub(super) fn set_fleet(&self, rate: Option<f64>) {
        self.fleet.store(rate.unwrap_or(f64::NAN).to_bits(), Relaxed);
    }

    /// Returns the lower rate; the own one if that of the fleet is unknown.
    fn lower(&self, own: f64) -> f64 {
        self.own.store(own.to_bits(), Relaxed);
        // `min` ignores NaN.
        own.min(f64::from_bits(self.fleet.load(Relaxed)))
    }
}

/// Runs a law, and uses the lower rate of the fleet.
///
/// A period ends on time even without calls, so that a process without reports follows the others.
/// Its calls are added up until there are enough for the law.
#[derive(Debug)]
pub(super) struct AgreedLaw {
    law: Box<dyn RateLaw>,
    rates: Arc<Rates>,
    sum: Period,
}

impl AgreedLaw {
    pub(super) fn new(law: Box<dyn RateLaw>, rates: &Arc<Rates>) -> Self {
        Self { law, rates: Arc::clone(rates), sum: Period::default() }
    }
}

impl RateLaw for AgreedLaw {
    fn decide(&mut self, period: &Period) -> f64 {
        let sum = &self.sum;
        self.sum = Period {
            length: sum.length.saturating_add(period.length),
            successes: sum.successes.saturating_add(period.successes),
            slow: sum.slow.saturating_add(period.slow),
            failures: sum.failures.saturating_add(period.failures),
            ..*period
        };
        if self.sum.calls() >= self.law.measures().min_calls {
            self.law.decide(&std::mem::take(&mut self.sum));
        }
        self.rates.lower(self.law.report().rate)
    }

    fn report(&self) -> RateReport {
        self.law.report()
    }

    fn name(&self) -> &'static str {
        self.law.name()
    }

    fn measures(&self) -> Measures {
        Measures { min_calls: 0, ..self.law.measures() }
    }
}
