//! Full, half or a quarter of a limit, by error rate and p99 latency.
//!
//! Idea: two pairs of thresholds divide health into three levels, and each level has its share of
//! the full limit.
//!
//! ```text
//! errors > 5 % or p99 > 2 s:       a quarter
//! errors > 1 % or p99 > 0.5 s:     half
//! else:                            full
//! ```
//!
//! Alone, that swings: the cut cures the cause, the cure lifts the cut, in step with the window. So a
//! worse level counts at once, a better one only after three periods in a row below 0.7 of the
//! thresholds, one level at a time, and the rate climbs by at most a tenth per period.
//!
//! State: the level, clean periods in a row, the rate. A quarter of a small limit is no zero: rates
//! have fractions, and a minimum.

use super::{
    super::{
        LimitReason,
        law::{BoundedLimit, LawError},
    },
    Measures, Period, RateLaw, RateReport,
    law::{RateBounds, initial_setter, shown_rate},
};
use std::{ops::RangeInclusive, time::Duration};

/// Clean periods in a row before the next better level.
const CLEAN_PERIODS: u32 = 3;
/// A period is clean below this share of the thresholds.
const CLEAN_SHARE: f64 = 0.7;
/// The most that one period raises the rate.
const RAMP: f64 = 1.1;

/// Cuts the full limit to a half or a quarter by error rate and p99 latency.
///
/// The full limit is the maximum of the bounds. The values are those of the calls reported, or of a
/// [`Health`](super::Health) source.
///
/// # Examples
///
/// ```
/// use tollgate::adaptive::rate::{Period, RateLaw, StepRate};
///
/// let mut law = StepRate::builder(10.0..=1000.0).build()?;
/// let health = |share| Period { error_rate: Some(share), ..Period::default() };
/// assert_eq!(law.decide(&health(0.02)), 500.0);
/// assert_eq!(law.decide(&health(0.06)), 250.0);
/// # Ok::<(), tollgate::adaptive::law::LawError>(())
/// ```
#[derive(Clone, Debug)]
pub struct StepRate {
    rate: BoundedLimit,
    half: Bad,
    quarter: Bad,
    level: Level,
    clean: u32,
    min_calls: u64,
}

/// What a period must exceed, in one value or the other, to be bad.
#[derive(Clone, Copy, Debug)]
struct Bad {
    error_rate: f64,
    p99: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Full,
    Half,
    Quarter,
}

impl Level {
    const fn share(self) -> f64 {
        match self {
            Self::Full => 1.0,
            Self::Half => 0.5,
            Self::Quarter => 0.25,
        }
    }

    const fn better(self) -> Self {
        match self {
            Self::Quarter => Self::Half,
            Self::Half | Self::Full => Self::Full,
        }
    }
}

impl Bad {
    /// Returns why `period` exceeds these thresholds; `None` if it does not.
    fn reason(&self, period: &Period) -> Option<LimitReason> {
        if period.error_rate.is_some_and(|share| share > self.error_rate) {
            Some(LimitReason::Overload)
        } else if period.latency.is_some_and(|p99| p99 > self.p99) {
            Some(LimitReason::Queueing)
        } else {
            None
        }
    }

    fn scaled(&self, by: f64) -> Self {
        Self { error_rate: self.error_rate * by, p99: self.p99.mul_f64(by) }
    }
}

impl StepRate {
    /// Starts a law that keeps the rate within `bounds`, in permits per second. The upper one is the
    /// full limit.
    pub fn builder(bounds: RangeInclusive<f64>) -> StepRateBuilder {
        StepRateBuilder {
            bounds: RateBounds::new(bounds),
            half: Bad { error_rate: 0.01, p99: Duration::from_millis(500) },
            quarter: Bad { error_rate: 0.05, p99: Duration::from_secs(2) },
            min_calls: Measures::default().min_calls,
        }
    }

    /// Moves the level, and returns why it got worse, if it did.
    fn judge(&mut self, period: &Period) -> Option<LimitReason> {
        let (level, reason) = match (self.quarter.reason(period), self.half.reason(period)) {
            (Some(reason), _) => (Level::Quarter, Some(reason)),
            (None, Some(reason)) => (Level::Half, Some(reason)),
            (None, None) => (Level::Full, None),
        };
        if level > self.level {
            (self.level, self.clean) = (level, 0);
            return reason;
        }
        // The thresholds of the level that is in force.
        let thresholds = match self.level {
            Level::Full => return None,
            Level::Half => self.half,
            Level::Quarter => self.quarter,
        };
        match thresholds.scaled(CLEAN_SHARE).reason(period) {
            Some(_) => self.clean = 0,
            None => self.clean += 1,
        }
        if self.clean >= CLEAN_PERIODS {
            (self.level, self.clean) = (self.level.better(), 0);
        }
        None
    }
}

impl RateLaw for StepRate {
    fn decide(&mut self, period: &Period) -> f64 {
        if period.error_rate.is_none() && period.latency.is_none() {
            self.rate.reason = LimitReason::Holding;
            return self.rate.value;
        }
        let worse = self.judge(period);
        let (rate, aim) = (self.rate.value, self.rate.max * self.level.share());
        if let Some(reason) = worse {
            // A rate that is still climbing may be below the aim already.
            self.rate.move_to(rate.min(aim), reason);
        } else if rate < aim {
            self.rate.move_to((rate * RAMP).min(aim), LimitReason::Growing);
        } else {
            self.rate.reason = LimitReason::Holding;
        }
        self.rate.value
    }

    fn measures(&self) -> Measures {
        Measures { min_calls: self.min_calls, ..Measures::default() }
    }

    shown_rate!("steps");
}

/// Builds a [`StepRate`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct StepRateBuilder {
    bounds: RateBounds,
    half: Bad,
    quarter: Bad,
    min_calls: u64,
}

impl StepRateBuilder {
    initial_setter!();

    /// Sets above which error rate or p99 latency the limit is halved, by default 1 % and 500 ms.
    pub fn half_above(mut self, error_rate: f64, p99: Duration) -> Self {
        self.half = Bad { error_rate, p99 };
        self
    }

    /// Sets above which error rate or p99 latency a quarter is left, by default 5 % and 2 s.
    pub fn quarter_above(mut self, error_rate: f64, p99: Duration) -> Self {
        self.quarter = Bad { error_rate, p99 };
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
    pub fn build(self) -> Result<StepRate, LawError> {
        let (half, quarter) = (self.half, self.quarter);
        let rule = "is not between 0 and 1; 0.01 is one call of a hundred";
        LawError::check("half_above", half.error_rate, 0.0..=1.0, rule)?;
        LawError::check_duration("half_above", half.p99)?;
        let rule = "is not between that of half_above and 1";
        LawError::check("quarter_above", quarter.error_rate, half.error_rate..=1.0, rule)?;
        LawError::check_duration("quarter_above", quarter.p99)?;
        if quarter.p99 < half.p99 {
            let (value, rule) = (quarter.p99.as_secs_f64(), "is below the p99 of half_above");
            return Err(LawError::OutOfRange { setting: "quarter_above", value, rule });
        }
        Ok(StepRate {
            rate: self.bounds.build()?,
            half,
            quarter,
            level: Level::Full,
            clean: 0,
            min_calls: LawError::check_count("min_calls", self.min_calls)?,
        })
    }
}
