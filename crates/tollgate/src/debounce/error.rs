//! Why a debouncer or throttle does not start.

use crate::{NoRuntime, PaceError, keyed_debounce::KEYS_MAX};
use std::{error::Error, fmt, time::Duration};

/// Why a [`Debouncer`](crate::Debouncer), [`KeyedDebouncer`](crate::KeyedDebouncer) or
/// [`Throttle`](crate::Throttle) does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DebounceError {
    /// The delay is zero, so there is no burst.
    ZeroDelay,
    /// The interval of a throttle is zero, so every trigger would run.
    ZeroInterval,
    /// The longest wait is over before any burst can end.
    MaxWaitBelowDelay {
        /// The longest wait.
        max_wait: Duration,
        /// The delay.
        delay: Duration,
    },
    /// The pace of the runs cannot be set.
    Pace(PaceError),
    /// The bound on the keys is zero or too large.
    MaxKeys {
        /// The bound.
        max_keys: usize,
    },
    /// The action is a future, and the driver has no runtime for it.
    NotAsync,
    /// There is no runtime here to drive an action that is a future.
    NoRuntime(NoRuntime),
}

impl fmt::Display for DebounceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroDelay => f.write_str(
                "a delay of 0 s collapses nothing; give a longer one, or call the action directly",
            ),
            Self::ZeroInterval => f.write_str(
                "an interval of 0 s holds nothing back; give a longer one, or call the action \
                 directly",
            ),
            Self::MaxWaitBelowDelay { max_wait, delay } => write!(
                f,
                "the longest wait {max_wait:?} is shorter than the delay {delay:?}; raise the \
                 first or lower the second"
            ),
            Self::Pace(error) => error.fmt(f),
            Self::MaxKeys { max_keys } => {
                write!(f, "max_keys {max_keys} is out of range; use 1 to {KEYS_MAX}")
            }
            Self::NotAsync => f.write_str(
                "an async action needs a tokio runtime; use `Driver::tokio` or `Driver::on`, or \
                 `start` with an action that is not async",
            ),
            Self::NoRuntime(error) => write!(f, "{error}"),
        }
    }
}

impl Error for DebounceError {}

impl From<PaceError> for DebounceError {
    fn from(error: PaceError) -> Self {
        Self::Pace(error)
    }
}

impl From<NoRuntime> for DebounceError {
    fn from(error: NoRuntime) -> Self {
        Self::NoRuntime(error)
    }
}
