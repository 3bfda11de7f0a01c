//! A rate from a number of calls in flight: Little's law.
//!
//! Idea: a service that works on `n` calls at once, each for `l` seconds, ends `n / l` of them a
//! second. More only wait. The shortest latency of recent periods is the one without a wait.
//!
//! ```text
//! least = shortest latency of the last 10 periods
//! rate  = rate + smoothing x (in flight / least - rate)
//! ```
//!
//! 20 calls of 20 ms are 1000 a second, and 1000 a second of 20 ms each are 20 in flight.
//!
//! State: ten latencies and the rate. How it fails: the shortest call may be an unusual one (an
//! answer from a cache), and then the rate is too high; the in-flight cap holds.

use super::{
    super::{
        LimitReason,
        law::{BoundedLimit, LawError},
    },
    Period, RateLaw, RateReport,
    law::{RateBounds, initial_setter, shown_rate},
};
use std::{ops::RangeInclusive, time::Duration};

/// Periods whose shortest latency counts.
const RECENT: usize = 10;

/// Rate = calls in flight / shortest recent latency.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::adaptive::rate::{LittleRate, Period, RateLaw};
///
/// let mut law = LittleRate::builder(10.0..=5000.0).in_flight(20).smoothing(1.0).build()?;
/// let period = Period { least_latency: Some(Duration::from_millis(20)), ..Period::default() };
/// assert_eq!(law.decide(&period), 1000.0);
/// # Ok::<(), tollgate::adaptive::law::LawError>(())
/// ```
#[doc(alias = "BBR")]
#[derive(Clone, Debug)]
pub struct LittleRate {
    rate: BoundedLimit,
    in_flight: u64,
    smoothing: f64,
    recent: [Duration; RECENT],
    next: usize,
}

impl LittleRate {
    /// Starts a law that keeps the rate within `bounds`, in permits per second.
    pub fn builder(bounds: RangeInclusive<f64>) -> LittleRateBuilder {
        LittleRateBuilder { bounds: RateBounds::new(bounds), in_flight: 20, smoothing: 0.2 }
    }
}

impl RateLaw for LittleRate {
    fn decide(&mut self, period: &Period) -> f64 {
        let Some(latest) = period.least_latency else {
            self.rate.reason = LimitReason::Holding;
            return self.rate.value;
        };
        self.recent[self.next] = latest;
        self.next = (self.next + 1) % RECENT;
        let least = self.recent.iter().fold(latest, |least, it| least.min(*it));
        // At least 1 ns, so that it can divide.
        let least = least.max(Duration::from_nanos(1)).as_secs_f64();
        let in_flight = period.in_flight_max.unwrap_or(self.in_flight) as f64;
        let (rate, aim) = (self.rate.value, in_flight / least);
        let wanted = match (aim - rate).abs() <= rate * 0.001 {
            // Near enough: a mean would come closer for ever.
            true => aim,
            false => rate + self.smoothing * (aim - rate),
        };
        if wanted <= rate {
            self.rate.move_to(wanted, LimitReason::Queueing);
        } else if period.is_application_limited() {
            self.rate.reason = LimitReason::ApplicationLimited;
        } else {
            self.rate.move_to(wanted, LimitReason::Growing);
        }
        if self.rate.value == rate && aim == rate {
            self.rate.reason = LimitReason::Holding;
        }
        self.rate.value
    }

    shown_rate!("little");
}

/// Builds a [`LittleRate`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct LittleRateBuilder {
    bounds: RateBounds,
    in_flight: u64,
    smoothing: f64,
}

impl LittleRateBuilder {
    initial_setter!();

    /// Sets how many calls may be in flight, by default 20. Where a
    /// [`Concurrency`](crate::Concurrency) stands beside the limiter, its limit takes the place of
    /// this.
    pub fn in_flight(mut self, calls: u64) -> Self {
        self.in_flight = calls;
        self
    }

    /// Sets which part of the way one period goes, by default 0.2. Above 0 and at most 1.
    pub fn smoothing(mut self, share: f64) -> Self {
        self.smoothing = share;
        self
    }

    /// Builds the law.
    ///
    /// # Errors
    ///
    /// When a setting is outside its range, or `0 < min <= initial <= max` does not hold.
    pub fn build(self) -> Result<LittleRate, LawError> {
        let rule = "is not between 0.01 and 1; 0.2 is a good start";
        Ok(LittleRate {
            rate: self.bounds.build()?,
            in_flight: LawError::check_count("in_flight", self.in_flight)?,
            smoothing: LawError::check("smoothing", self.smoothing, 0.01..=1.0, rule)?,
            recent: [Duration::MAX; RECENT],
            next: 0,
        })
    }
}
