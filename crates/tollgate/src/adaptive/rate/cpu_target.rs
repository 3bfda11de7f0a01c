//! A rate that keeps the processors at a target.
//!
//! Idea: the rate moves by the ratio of the target to the load, a mean that forgets.
//!
//! ```text
//! ema  = ema + (1 - e^(-length / 1.5 s)) x (cpu - ema)
//! |ema - target| <= 0.05:   unchanged
//! else:                     rate = rate x clamp(target / ema, 0.9, 1.05)
//! ```
//!
//! Source: the CPU-driven limiter of Go tutorials, whose steps of 0.8 and 1.1 are settings here.
//! Departures: (1) the rate has bounds; (2) the step is in proportion to the error, and slower
//! upwards, so that it settles; (3) the burst follows the rate: with a fixed burst each cut would
//! free a burst.
//!
//! How it fails: other work on the host raises the load too, and the rate pays for it, down to the
//! minimum.

use super::{
    super::{
        LimitReason,
        law::{BoundedLimit, LawError},
    },
    Measures, Period, RateLaw, RateReport,
    law::{RateBounds, initial_setter, shown_rate},
};
use std::{ops::RangeInclusive, time::Duration};

/// Keeps the processors at a target, between 0 (idle) and 1 (all busy).
///
/// The load comes from a [`Health`](super::Health) source, such as [`CpuLoad`](super::CpuLoad). A
/// period of 250 ms suits it.
///
/// # Examples
///
/// ```
/// use tollgate::adaptive::rate::{CpuRate, Period, RateLaw};
///
/// let mut law = CpuRate::builder(10.0..=1000.0).target(0.6).build()?;
/// let busy = Period { cpu: Some(0.9), ..Period::default() };
/// assert_eq!(law.decide(&busy), 900.0);
/// # Ok::<(), tollgate::adaptive::law::LawError>(())
/// ```
#[derive(Clone, Debug)]
pub struct CpuRate {
    rate: BoundedLimit,
    target: f64,
    dead_band: f64,
    lowest_factor: f64,
    highest_factor: f64,
    smoothing: Duration,
    ema: Option<f64>,
}

impl CpuRate {
    /// Starts a law that keeps the rate within `bounds`, in permits per second.
    pub fn builder(bounds: RangeInclusive<f64>) -> CpuRateBuilder {
        CpuRateBuilder {
            bounds: RateBounds::new(bounds),
            target: 0.7,
            dead_band: 0.05,
            lowest_factor: 0.9,
            highest_factor: 1.05,
            smoothing: Duration::from_millis(1500),
        }
    }
}

impl RateLaw for CpuRate {
    fn decide(&mut self, period: &Period) -> f64 {
        // A load of nothing would divide by zero, and no source may say more than all of them.
        let Some(cpu) = period.cpu.filter(|cpu| cpu.is_finite()) else {
            self.rate.reason = LimitReason::Holding;
            return self.rate.value;
        };
        let cpu = cpu.clamp(0.001, 1.0);
        let weight = -(-period.length.as_secs_f64() / self.smoothing.as_secs_f64()).exp_m1();
        let ema = self.ema.map_or(cpu, |ema| ema + weight * (cpu - ema));
        self.ema = Some(ema);
        let factor = (self.target / ema).clamp(self.lowest_factor, self.highest_factor);
        // A hair more, because 0.55 - 0.5 is a hair above 0.05.
        if (ema - self.target).abs() <= self.dead_band + 1e-9 {
            self.rate.reason = LimitReason::Holding;
        } else if factor < 1.0 {
            self.rate.move_to(self.rate.value * factor, LimitReason::Overload);
        } else if period.is_application_limited() {
            self.rate.reason = LimitReason::ApplicationLimited;
        } else {
            self.rate.move_to(self.rate.value * factor, LimitReason::Growing);
        }
        self.rate.value
    }

    fn measures(&self) -> Measures {
        Measures { min_calls: 0, ..Measures::default() }
    }

    shown_rate!("cpu");
}

/// Builds a [`CpuRate`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct CpuRateBuilder {
    bounds: RateBounds,
    target: f64,
    dead_band: f64,
    lowest_factor: f64,
    highest_factor: f64,
    smoothing: Duration,
}

impl CpuRateBuilder {
    initial_setter!();

    /// Sets the load to keep, by default 0.7. Between 0.05 and 0.95.
    pub fn target(mut self, load: f64) -> Self {
        self.target = load;
        self
    }

    /// Sets how far the load may be from the target before the rate moves, by default 0.05. At most
    /// 0.5.
    pub fn dead_band(mut self, load: f64) -> Self {
        self.dead_band = load;
        self
    }

    /// Sets how much of the rate one period leaves at least, by default 0.9. At least 0.1 and below
    /// 1.
    pub fn lowest_factor(mut self, factor: f64) -> Self {
        self.lowest_factor = factor;
        self
    }

    /// Sets by how much one period multiplies the rate at most, by default 1.05. Above 1 and at most
    /// 2.
    pub fn highest_factor(mut self, factor: f64) -> Self {
        self.highest_factor = factor;
        self
    }

    /// Sets over how long the load is averaged, by default 1.5 s: the time in which the mean follows
    /// a change by 63 %.
    pub fn smoothing(mut self, time: Duration) -> Self {
        self.smoothing = time;
        self
    }

    /// Builds the law.
    ///
    /// # Errors
    ///
    /// When a setting is outside its range, or `0 < min <= initial <= max` does not hold.
    pub fn build(self) -> Result<CpuRate, LawError> {
        let target = "is not between 0.05 and 0.95; 0.7 is a good start";
        let dead_band = "is not between 0 and 0.5; 0.05 is a good start";
        let lowest = "is not at least 0.1 and below 1; 0.9 cuts by a tenth";
        let highest = "is not between 1.001 and 2; 1.05 is a good start";
        let highest = LawError::check("highest_factor", self.highest_factor, 1.001..=2.0, highest);
        Ok(CpuRate {
            rate: self.bounds.build()?,
            target: LawError::check("target", self.target, 0.05..=0.95, target)?,
            dead_band: LawError::check("dead_band", self.dead_band, 0.0..=0.5, dead_band)?,
            lowest_factor: LawError::check("lowest_factor", self.lowest_factor, 0.1..1.0, lowest)?,
            highest_factor: highest?,
            smoothing: LawError::check_duration("smoothing", self.smoothing)?,
            ema: None,
        })
    }
}
