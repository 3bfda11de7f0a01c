//! AIMD for a rate: additive increase, multiplicative decrease, once per period.
//!
//! Idea: a period in which calls went well raises the rate by a step; a period in which more than a
//! tenth of them failed or were slow cuts it by a factor, once, however many they were.
//!
//! ```text
//! bad = failures + slow
//! bad / calls > 10 %:   rate = max(min, rate x factor)
//! bad / calls < 5 %:    rate = min(max, rate + step)        if at least half of the rate is used
//! between:              unchanged
//! ```
//!
//! A call is slow above a fixed latency, or above a moving one: a percentile of recent calls. The
//! moving one is a mean that forgets: each period weighs 1/10, and 1/100 if it was bad, so that an
//! overload does not soon pass for the usual speed, while a lasting change is learned in minutes.
//!
//! State: the rate, and the threshold. How it fails: with a fixed threshold below what a healthy
//! but slow service needs, it stays at the minimum; with a moving one, an overload of many minutes
//! becomes the usual speed.
//!
//! Source: TCP Reno. Departure: one decision per period, and a range in which nothing moves, so
//! that it does not swing with every failed call.

use super::{
    super::{
        LimitReason,
        law::{BoundedLimit, LawError},
    },
    Measures, Period, RateLaw, RateReport,
    law::{RateBounds, initial_setter, shown_rate},
};
use std::{ops::RangeInclusive, time::Duration};

/// Weight of a good and of a bad period in the moving threshold.
const LEARN_GOOD: f64 = 0.1;
const LEARN_BAD: f64 = 0.01;

/// AIMD: a step up after a good period, a factor down after a bad one.
///
/// # Examples
///
/// ```
/// use tollgate::adaptive::rate::{AimdRate, Period, RateLaw};
///
/// let mut law = AimdRate::builder(10.0..=200.0).initial(100.0).step(5.0).factor(0.5).build()?;
/// let good = Period { successes: 20, ..Period::default() };
/// let bad = Period { failures: 20, ..Period::default() };
/// assert_eq!([law.decide(&good), law.decide(&good)], [105.0, 110.0]);
/// assert_eq!([law.decide(&bad), law.decide(&bad)], [55.0, 27.5]);
/// # Ok::<(), tollgate::adaptive::law::LawError>(())
/// ```
#[derive(Clone, Debug)]
pub struct AimdRate {
    rate: BoundedLimit,
    step: f64,
    factor: f64,
    threshold: Threshold,
    min_calls: u64,
}

/// Above which latency a call is slow.
#[derive(Clone, Copy, Debug)]
enum Threshold {
    None,
    Fixed(Duration),
    /// A percentile of recent calls, in seconds once it is known.
    Moving {
        percentile: f64,
        seconds: Option<f64>,
    },
}

impl AimdRate {
    /// Starts a law that keeps the rate within `bounds`, in permits per second.
    pub fn builder(bounds: RangeInclusive<f64>) -> AimdRateBuilder {
        AimdRateBuilder {
            step: bounds.end() / 20.0,
            bounds: RateBounds::new(bounds),
            factor: 0.9,
            threshold: Threshold::None,
            min_calls: Measures::default().min_calls,
        }
    }

    fn learn(&mut self, period: &Period, is_bad: bool) {
        if let Threshold::Moving { seconds, .. } = &mut self.threshold
            && let Some(latest) = period.latency.map(|latency| latency.as_secs_f64())
        {
            let weight = if is_bad { LEARN_BAD } else { LEARN_GOOD };
            *seconds = Some(seconds.map_or(latest, |known| known + weight * (latest - known)));
        }
    }
}

impl RateLaw for AimdRate {
    fn decide(&mut self, period: &Period) -> f64 {
        let (calls, bad) = (period.calls(), period.slow.saturating_add(period.failures));
        let share = bad as f64 / calls.max(1) as f64;
        let rate = self.rate.value;
        if share > 0.1 {
            let reason = match period.failures >= period.slow {
                true => LimitReason::Overload,
                false => LimitReason::Queueing,
            };
            self.rate.move_to(rate * self.factor, reason);
        } else if calls == 0 || share >= 0.05 {
            self.rate.reason = LimitReason::Holding;
        } else if period.is_application_limited() {
            self.rate.reason = LimitReason::ApplicationLimited;
        } else {
            self.rate.move_to(rate + self.step, LimitReason::Growing);
        }
        self.learn(period, share > 0.1);
        self.rate.value
    }

    fn measures(&self) -> Measures {
        let usual = Measures { min_calls: self.min_calls, ..Measures::default() };
        match self.threshold {
            Threshold::None => usual,
            Threshold::Fixed(slow_above) => Measures { slow_above: Some(slow_above), ..usual },
            Threshold::Moving { percentile, seconds } => Measures {
                percentile,
                // A mean of durations that were given, so it fits one; rounding may not.
                slow_above: seconds.and_then(|it| Duration::try_from_secs_f64(it).ok()),
                ..usual
            },
        }
    }

    shown_rate!("aimd");
}

/// Builds an [`AimdRate`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct AimdRateBuilder {
    bounds: RateBounds,
    step: f64,
    factor: f64,
    threshold: Threshold,
    min_calls: u64,
}

impl AimdRateBuilder {
    initial_setter!();

    /// Sets by how much a good period raises the rate, by default a twentieth of the maximum: back
    /// from nothing in twenty periods.
    pub fn step(mut self, per_second: f64) -> Self {
        self.step = per_second;
        self
    }

    /// Sets by what a bad period multiplies the rate, by default 0.9. At least 0.1 and below 1.
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// Counts calls that take longer than `latency` as bad. A call that takes exactly as long is
    /// good. By default latency does not count.
    pub fn slow_above(mut self, latency: Duration) -> Self {
        self.threshold = Threshold::Fixed(latency);
        self
    }

    /// Counts calls as bad that take longer than `percentile` percent of recent calls: if more than
    /// a tenth of the calls do, the service has become slower.
    ///
    /// At least 96 and below 100; 99 is a good start. Calls of the first period are not judged.
    pub fn slow_above_recent(mut self, percentile: f64) -> Self {
        self.threshold = Threshold::Moving { percentile, seconds: None };
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
    pub fn build(self) -> Result<AimdRate, LawError> {
        match self.threshold {
            Threshold::None => {}
            Threshold::Fixed(latency) => {
                LawError::check_duration("slow_above", latency)?;
            }
            Threshold::Moving { percentile, .. } => {
                let rule = "is not at least 96 and below 100; 99 is a good start";
                LawError::check("slow_above_recent", percentile, 96.0..100.0, rule)?;
            }
        }
        let rate = self.bounds.build()?;
        let rule = "is not above 0 and at most max; give for example a twentieth of max";
        Ok(AimdRate {
            step: LawError::check("step", self.step, f64::MIN_POSITIVE..=rate.max, rule)?,
            rate,
            factor: {
                let rule = "is not at least 0.1 and below 1; 0.9 cuts by a tenth";
                LawError::check("factor", self.factor, 0.1..1.0, rule)?
            },
            threshold: self.threshold,
            min_calls: LawError::check_count("min_calls", self.min_calls)?,
        })
    }
}
