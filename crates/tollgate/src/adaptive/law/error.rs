//! Why a law cannot be built.

use crate::{Concurrency, QuotaError, Tick};
use std::{fmt, ops::RangeBounds, time::Duration};

/// Why a law cannot be built.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LawError {
    /// The lowest limit is 0.
    MinIsZero,
    /// The highest limit is above [`Concurrency::LIMIT_MAX`].
    MaxTooLarge {
        /// The highest limit.
        max: u64,
    },
    /// `min <= initial <= max` does not hold.
    OutOfOrder {
        /// The lowest limit.
        min: u64,
        /// The first limit.
        initial: u64,
        /// The highest limit.
        max: u64,
    },
    /// A setting is outside its range.
    OutOfRange {
        /// The name of its setter.
        setting: &'static str,
        /// Its value; a duration in seconds.
        value: f64,
        /// The range, and a value to start from.
        rule: &'static str,
    },
    /// The limiter or the policy cannot have the rates of the law.
    Quota(QuotaError),
}

impl LawError {
    /// Checks that a setting is in its range. NaN is in no range.
    pub(in crate::adaptive) fn check(
        setting: &'static str,
        value: f64,
        range: impl RangeBounds<f64>,
        rule: &'static str,
    ) -> Result<f64, Self> {
        match range.contains(&value) {
            true => Ok(value),
            false => Err(Self::OutOfRange { setting, value, rule }),
        }
    }

    /// Checks that a duration is above zero and can be added to a tick.
    pub(in crate::adaptive) fn check_duration(
        setting: &'static str,
        value: Duration,
    ) -> Result<Duration, Self> {
        let rule = "is not above 0 and at most 584 years; give for example 100 ms";
        match !value.is_zero() && value <= Tick::MAX.since(Tick::ZERO) {
            true => Ok(value),
            false => Err(Self::OutOfRange { setting, value: value.as_secs_f64(), rule }),
        }
    }

    /// Checks that a count is at least 1 and at most a billion.
    pub(in crate::adaptive) fn check_count(setting: &'static str, value: u64) -> Result<u64, Self> {
        let rule = "is not between 1 and 1000000000; give for example 10";
        Self::check(setting, value as f64, 1.0..=1e9, rule).map(|_| value)
    }
}

impl fmt::Display for LawError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MinIsZero => f.write_str(
                "min 0 could stop every call, and then nothing is measured any more; give at \
                 least 1",
            ),
            Self::MaxTooLarge { max } => {
                write!(f, "max {max} is above {} in flight; lower it", Concurrency::LIMIT_MAX)
            }
            Self::OutOfOrder { min, initial, max } => write!(
                f,
                "initial {initial} is not between min {min} and max {max}; set all three so that \
                 min <= initial <= max"
            ),
            Self::OutOfRange { setting, value, rule } => write!(f, "{setting} {value} {rule}"),
            Self::Quota(_) => {
                f.write_str("the limiter cannot have every rate of this law; move min and max")
            }
        }
    }
}

impl std::error::Error for LawError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Quota(error) => Some(error),
            _ => None,
        }
    }
}

impl From<QuotaError> for LawError {
    fn from(error: QuotaError) -> Self {
        Self::Quota(error)
    }
}
