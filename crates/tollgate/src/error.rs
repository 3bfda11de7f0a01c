//! What can be wrong with a configuration.

use crate::{Algorithm, NoRuntime, Quota};
use std::{fmt, ops::RangeInclusive, time::Duration};

/// Why a quota cannot be used. Each text names the value, the rule and a way out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuotaError {
    /// The period is zero.
    PeriodZero {
        /// Permits per period.
        count: u64,
    },
    /// The period is longer than [`Quota::PERIOD_MAX`].
    PeriodTooLong {
        /// The period.
        period: Duration,
    },
    /// The rate is above [`Quota::RATE_MAX_PER_SECOND`].
    RateTooHigh {
        /// Permits per period.
        count: u64,
        /// The period.
        period: Duration,
    },
    /// The burst is above [`Quota::BURST_MAX`].
    BurstTooLarge {
        /// The burst.
        burst: u64,
    },
    /// A fresh limiter would hold more than its burst.
    InitialAboveBurst {
        /// What it would hold.
        initial: u64,
        /// The burst.
        burst: u64,
    },
    /// An unlimited quota was given a burst or an initial fill.
    UnlimitedWithMore,
    /// An algorithm was asked to count an unlimited quota. Limiters answer it without one.
    NothingToCount,
    /// A window algorithm was given a burst other than its limit.
    BurstOnWindow {
        /// The burst.
        burst: u64,
        /// The limit.
        limit: u64,
        /// The algorithm.
        algorithm: Algorithm,
    },
    /// A running sliding counter was given a limit that its word cannot hold.
    Outgrown {
        /// The limit.
        limit: u64,
        /// The largest one it can be given.
        most: u64,
    },
    /// A quota that comes with a call has no rate.
    RateZero {
        /// Its burst.
        burst: u64,
    },
    /// A quota that comes with a call says what a fresh key holds.
    InitialPerCall,
    /// A quota that comes with a call has a burst that takes too long to refill.
    RefillTooLong {
        /// The burst.
        burst: u64,
        /// Permits per period.
        count: u64,
        /// The period.
        period: Duration,
    },
    /// A quota that comes with a call has another period than the windows of its policy.
    OtherWindow {
        /// The quota's period.
        period: Duration,
        /// The windows of the policy.
        window: Duration,
    },
    /// A quota came with a call, but the policy has one of its own.
    NotAdHoc,
    /// The limit is more than the algorithm can count.
    LimitTooLarge {
        /// The limit.
        limit: u64,
        /// The largest one this algorithm can count in this window.
        most: u64,
        /// The algorithm.
        algorithm: Algorithm,
    },
}

impl fmt::Display for QuotaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeriodZero { count } => write!(
                f,
                "{count} permits per zero time is not a rate; give a period of at least 1 ns, or \
                 use unlimited"
            ),
            Self::PeriodTooLong { period } => write!(
                f,
                "the period {period:?} is longer than 366 days; use a shorter period, or a rate of \
                 zero with a burst for a budget that never refills"
            ),
            Self::RateTooHigh { count, period } => write!(
                f,
                "{count} permits per {period:?} is above {} per second; lower the count, or count \
                 in larger units",
                Quota::RATE_MAX_PER_SECOND
            ),
            Self::BurstTooLarge { burst } => write!(
                f,
                "burst {burst} is above {}; lower it, or count in larger units",
                Quota::BURST_MAX
            ),
            Self::InitialAboveBurst { initial, burst } => write!(
                f,
                "initial {initial} is above {burst}, the maximum; lower it, or raise the burst or \
                 limit"
            ),
            Self::UnlimitedWithMore => f.write_str(
                "an unlimited quota has no burst and no initial fill; remove them, or give a rate",
            ),
            Self::NothingToCount => f.write_str(
                "an unlimited quota leaves an algorithm nothing to count; use a limiter, or give a \
                 rate",
            ),
            Self::BurstOnWindow { burst, limit, algorithm } => write!(
                f,
                "burst {burst} has no effect with {algorithm}, which admits its limit of {limit} \
                 at once; remove the burst, or use gcra"
            ),
            Self::Outgrown { limit, most } => write!(
                f,
                "limit {limit} is above {most}, the maximum for this running sliding-counter in \
                 this window; build a new limiter for it"
            ),
            Self::LimitTooLarge { limit, most, algorithm } => write!(
                f,
                "limit {limit} is more than {algorithm} can count in this window ({most}); use a \
                 longer window, count in larger units, or use gcra"
            ),
            other => other.fmt_per_call(f),
        }
    }
}

impl QuotaError {
    /// Writes the errors of quotas that come with a call.
    fn fmt_per_call(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RateZero { burst } => write!(
                f,
                "a burst of {burst} that never refills cannot come with a call; give a count of at \
                 least 1, or use a policy with a quota of its own"
            ),
            Self::InitialPerCall => f.write_str(
                "a quota that comes with a call has no initial fill, because fresh keys are full; \
                 remove it, or use a policy with a quota of its own",
            ),
            Self::RefillTooLong { burst, count, period } => write!(
                f,
                "burst {burst} at {count} per {period:?} takes more than 4.5 years to refill; lower \
                 the burst, or raise the rate"
            ),
            Self::OtherWindow { period, window } => write!(
                f,
                "a limit per {period:?} does not fit a policy with windows of {window:?}; give it \
                 per {window:?}, or make a policy for that window"
            ),
            Self::NotAdHoc => f.write_str(
                "the policy has a quota of its own; use Demand::new, or make it with Policy::ad_hoc",
            ),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for QuotaError {}

/// Why something cannot be built or changed: its text names the value, the rule and a way out.
///
/// # Examples
///
/// ```
/// let error = tollgate::Breaker::builder().trials(0).build().unwrap_err();
/// assert_eq!(error.to_string(), "trials 0 is out of range; use 1 to 1000");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError(String);

impl ConfigError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Says which of several named parts an error is about.
    pub(crate) fn of_part(name: &str, error: impl fmt::Display) -> Self {
        Self(format!("\"{name}\": {error}"))
    }

    /// Checks that a setting is in its range. NaN is in no range.
    pub(crate) fn check_range<T: Copy + PartialOrd + fmt::Display>(
        setting: &str,
        value: T,
        range: RangeInclusive<T>,
    ) -> Result<(), Self> {
        match range.contains(&value) {
            true => Ok(()),
            false => Err(Self(format!(
                "{setting} {value} is out of range; use {} to {}",
                range.start(),
                range.end()
            ))),
        }
    }

    /// Checks that a time over which something is counted is neither too short nor too long.
    pub(crate) fn check_window(setting: &str, length: Duration) -> Result<(), Self> {
        match (Duration::from_millis(1)..=Duration::from_secs(86_400)).contains(&length) {
            true => Ok(()),
            false => Err(Self(format!("{setting} {length:?} is out of range; use 1 ms to a day"))),
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl From<QuotaError> for ConfigError {
    fn from(error: QuotaError) -> Self {
        Self::new(error.to_string())
    }
}

impl From<NoRuntime> for ConfigError {
    fn from(error: NoRuntime) -> Self {
        Self::new(error.to_string())
    }
}
