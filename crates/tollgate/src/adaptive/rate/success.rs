//! A rate that follows its own success rate.
//!
//! Idea: below the wanted share of successes the rate falls by a tenth, clearly above it the rate
//! rises by a twentieth.
//!
//! ```text
//! s < target:                                       rate = rate x 0.9
//! s > min(target + 0.05, (1 + target) / 2):         rate = rate x 1.05
//! between:                                          unchanged
//! ```
//!
//! Source: the self-tuning token bucket of Go tutorials. Departures: (1) there it rises above target + 0.05 only, which a
//! target of 0.95 or more never lets happen, so the upper mark lies at most half way to 1; (2) the
//! rate has bounds.
//!
//! How it fails: slowly. Halving takes seven periods, so under a sudden overload the in-flight cap
//! beside it does the work.

use super::{
    super::{
        LimitReason,
        law::{BoundedLimit, LawError},
    },
    Measures, Period, RateLaw, RateReport,
    law::{RateBounds, initial_setter, shown_rate},
};
use std::ops::RangeInclusive;

/// Lowers the rate while fewer calls succeed than wanted.
///
/// # Examples
///
/// ```
/// use tollgate::adaptive::rate::{Period, RateLaw, SuccessRate};
///
/// let mut law = SuccessRate::builder(1.0..=100.0).target(0.9).build()?;
/// let poor = Period { successes: 8, failures: 2, ..Period::default() };
/// assert_eq!(law.decide(&poor), 90.0);
/// # Ok::<(), tollgate::adaptive::law::LawError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SuccessRate {
    rate: BoundedLimit,
    target: f64,
    min_calls: u64,
}

impl SuccessRate {
    /// Starts a law that keeps the rate within `bounds`, in permits per second.
    pub fn builder(bounds: RangeInclusive<f64>) -> SuccessRateBuilder {
        SuccessRateBuilder {
            bounds: RateBounds::new(bounds),
            target: 0.95,
            min_calls: Measures::default().min_calls,
        }
    }

    /// Returns the share of successes above which the rate rises: always below 1.
    fn good_above(&self) -> f64 {
        (self.target + 0.05).min(f64::midpoint(1.0, self.target))
    }
}

impl RateLaw for SuccessRate {
    fn decide(&mut self, period: &Period) -> f64 {
        let rate = self.rate.value;
        match period.success_rate() {
            Some(share) if share < self.target => {
                self.rate.move_to(rate * 0.9, LimitReason::Overload);
            }
            Some(share) if share > self.good_above() => match period.is_application_limited() {
                true => self.rate.reason = LimitReason::ApplicationLimited,
                false => self.rate.move_to(rate * 1.05, LimitReason::Growing),
            },
            _ => self.rate.reason = LimitReason::Holding,
        }
        self.rate.value
    }

    fn measures(&self) -> Measures {
        Measures { min_calls: self.min_calls, ..Measures::default() }
    }

    shown_rate!("success_rate");
}

/// Builds a [`SuccessRate`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct SuccessRateBuilder {
    bounds: RateBounds,
    target: f64,
    min_calls: u64,
}

impl SuccessRateBuilder {
    initial_setter!();

    /// Sets the share of calls that should succeed, by default 0.95. Above 0 and below 1: more than
    /// all can never succeed.
    pub fn target(mut self, share: f64) -> Self {
        self.target = share;
        self
    }

    /// Sets how many calls a period needs, by default 10: it stays open until it has them.
    pub fn min_calls(mut self, min_calls: u64) -> Self {
        self.min_calls = min_calls;
        self
    }

    /// Builds the law.
    ///
    /// # Errors
    ///
    /// When a setting is outside its range, or `0 < min <= initial <= max` does not hold.
    pub fn build(self) -> Result<SuccessRate, LawError> {
        // One part in a million below 1, so that the mark above it is a number of its own.
        let rule = "is not between 0.000001 and 0.999999; 0.95 is a good start, and at 1 the rate \
                    could never rise";
        Ok(SuccessRate {
            rate: self.bounds.build()?,
            target: LawError::check("target", self.target, 1e-6..=0.999_999, rule)?,
            min_calls: LawError::check_count("min_calls", self.min_calls)?,
        })
    }
}
