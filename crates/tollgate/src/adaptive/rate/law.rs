//! The seam between what a period showed and the rate that follows from it.

use super::super::{
    LimitReason,
    law::{BoundedLimit, LawError},
};
use crate::Quota;
use std::{fmt, ops::RangeInclusive, time::Duration};

/// What one period showed.
///
/// # Examples
///
/// ```
/// use tollgate::adaptive::rate::Period;
///
/// let period = Period { successes: 18, failures: 2, ..Period::default() };
/// assert_eq!((period.calls(), period.success_rate()), (20, Some(0.9)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Period {
    /// How long it lasted.
    pub length: Duration,
    /// Calls that succeeded in time.
    pub successes: u64,
    /// Calls that succeeded, but took longer than [`Measures::slow_above`].
    pub slow: u64,
    /// Calls that ended with [`Failure`](crate::CallOutcome::Failure) or
    /// [`Overload`](crate::CallOutcome::Overload).
    pub failures: u64,
    /// The share of calls that failed, between 0 and 1: of the [`Health`](super::Health) source, or
    /// else of the calls reported.
    pub error_rate: Option<f64>,
    /// The latency that [`Measures::percentile`] of the calls do not exceed: of the
    /// [`Health`](super::Health) source, or else of the calls reported.
    pub latency: Option<Duration>,
    /// The shortest latency of a call that succeeded.
    pub least_latency: Option<Duration>,
    /// How busy the processors are, between 0 and 1.
    pub cpu: Option<f64>,
    /// How many calls may be in flight, where a [`Concurrency`](crate::Concurrency) stands beside
    /// the limiter.
    pub in_flight_max: Option<u64>,
    /// The share of the rate that the reported calls used; `None` where it cannot be known: the
    /// rate is one for each of many keys, or no call was reported.
    pub used: Option<f64>,
}

impl Period {
    /// Returns how many calls were reported.
    #[must_use]
    pub const fn calls(&self) -> u64 {
        self.successes.saturating_add(self.slow).saturating_add(self.failures)
    }

    /// Returns the share of calls that succeeded, slow ones too; `None` without calls.
    #[must_use]
    pub fn success_rate(&self) -> Option<f64> {
        let calls = self.calls();
        (calls > 0).then(|| self.successes.saturating_add(self.slow) as f64 / calls as f64)
    }

    /// Tells whether the callers are known to use less than half of the rate: then nothing is known
    /// about more, and a law does not raise it.
    #[must_use]
    pub fn is_application_limited(&self) -> bool {
        self.used.is_some_and(|used| used < 0.5)
    }
}

/// What a [`RateLaw`] wants to be measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measures {
    /// A period stays open until it has so many calls. Without meaning where a
    /// [`Health`](super::Health) source measures.
    pub min_calls: u64,
    /// Which percentile of latencies [`Period::latency`] is.
    pub percentile: f64,
    /// Calls that take longer count as [slow](Period::slow). A call that takes exactly as long
    /// succeeded in time.
    pub slow_above: Option<Duration>,
}

impl Default for Measures {
    /// Ten calls, the 99th percentile, and no call is slow.
    fn default() -> Self {
        Self { min_calls: 10, percentile: 99.0, slow_above: None }
    }
}

/// Turns what a period showed into a rate, in permits per second.
///
/// A rate law is pure: it reads no clock, takes no lock and asks nobody. The same periods in the
/// same order give the same rates, so a test can step it.
///
/// # Examples
///
/// A law of your own: full rate or half of it.
///
/// ```
/// use tollgate::adaptive::{LimitReason, rate::{Period, RateLaw, RateReport}};
///
/// #[derive(Debug)]
/// struct Half(RateReport);
///
/// impl RateLaw for Half {
///     fn decide(&mut self, period: &Period) -> f64 {
///         let is_bad = period.error_rate.is_some_and(|share| share > 0.1);
///         (self.0.rate, self.0.reason) = match is_bad {
///             true => (self.0.min, LimitReason::Overload),
///             false => (self.0.max, LimitReason::Growing),
///         };
///         self.0.rate
///     }
///     fn report(&self) -> RateReport {
///         self.0
///     }
///     fn name(&self) -> &'static str {
///         "half"
///     }
/// }
///
/// let mut law = Half(RateReport::starting(50.0..=100.0, 100.0)?);
/// let bad = Period { error_rate: Some(0.2), ..Period::default() };
/// assert_eq!(law.decide(&bad), 50.0);
/// # Ok::<(), tollgate::adaptive::law::LawError>(())
/// ```
pub trait RateLaw: Send + fmt::Debug {
    /// Takes what a period showed, and returns the rate from now on.
    fn decide(&mut self, period: &Period) -> f64;

    /// Returns the rate in force, its bounds, and why it is what it is.
    fn report(&self) -> RateReport;

    /// Returns the law's name, for metrics and reports.
    fn name(&self) -> &'static str;

    /// Returns what is to be measured in the next period.
    fn measures(&self) -> Measures {
        Measures::default()
    }
}

impl<L: RateLaw + ?Sized> RateLaw for Box<L> {
    fn decide(&mut self, period: &Period) -> f64 {
        (**self).decide(period)
    }

    fn report(&self) -> RateReport {
        (**self).report()
    }

    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn measures(&self) -> Measures {
        (**self).measures()
    }
}

/// A rate, how far it may move, why it is what it is, and what was seen last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateReport {
    /// Permits per second.
    pub rate: f64,
    /// The lowest rate.
    pub min: f64,
    /// The highest rate: the full limit.
    pub max: f64,
    /// Why the rate is what it is.
    pub reason: LimitReason,
    /// What the last period showed; `None` before the first decision, and in a law.
    pub last: Option<Period>,
}

impl RateReport {
    /// Returns a rate that was not moved yet.
    ///
    /// # Errors
    ///
    /// When `min` is not above 0, `max` is above 10^9 per second, or `min <= initial <= max` does not
    /// hold.
    pub fn starting(bounds: RangeInclusive<f64>, initial: f64) -> Result<Self, LawError> {
        let (min, max) = bounds.into_inner();
        let most = Quota::RATE_MAX_PER_SECOND as f64;
        let rule = "is not above 0 and at most 1000000000 per second; give for example 1000";
        LawError::check("max", max, f64::MIN_POSITIVE..=most, rule)?;
        let rule = "is not above 0 and at most max; a rate of 0 could never rise again, because \
                    nothing would be measured any more";
        LawError::check("min", min, f64::MIN_POSITIVE..=max, rule)?;
        let rule = "is not between min and max; leave it out to start with max";
        LawError::check("initial", initial, min..=max, rule)?;
        Ok(Self { rate: initial, min, max, reason: LimitReason::Starting, last: None })
    }
}

impl From<BoundedLimit> for RateReport {
    fn from(BoundedLimit { value, min, max, reason }: BoundedLimit) -> Self {
        Self { rate: value, min, max, reason, last: None }
    }
}

/// The bounds and the start that every rate law is built with.
#[derive(Clone, Debug)]
pub(super) struct RateBounds {
    pub(super) bounds: RangeInclusive<f64>,
    /// By default `max`: the full limit.
    pub(super) initial: Option<f64>,
}

impl RateBounds {
    pub(super) const fn new(bounds: RangeInclusive<f64>) -> Self {
        Self { bounds, initial: None }
    }

    pub(super) fn build(self) -> Result<BoundedLimit, LawError> {
        let initial = self.initial.unwrap_or(*self.bounds.end());
        let RateReport { rate, min, max, reason, .. } = RateReport::starting(self.bounds, initial)?;
        Ok(BoundedLimit { value: rate, min, max, reason })
    }
}

/// The setter of a builder's `bounds`.
macro_rules! initial_setter {
    () => {
        /// Sets the first rate, by default the maximum.
        pub fn initial(mut self, per_second: f64) -> Self {
            self.bounds.initial = Some(per_second);
            self
        }
    };
}
pub(super) use initial_setter;

/// The methods of a [`RateLaw`] that only show its rate.
macro_rules! shown_rate {
    ($name:literal) => {
        fn report(&self) -> RateReport {
            self.rate.into()
        }

        fn name(&self) -> &'static str {
            $name
        }
    };
}
pub(super) use shown_rate;
