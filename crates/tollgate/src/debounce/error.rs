//! Why a debouncer does not start.

use crate::NoRuntime;
use std::{error::Error, fmt, time::Duration};

/// Why a [`Debouncer`](crate::Debouncer) does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DebounceError {
    /// The delay is zero, so there is no burst.
    ZeroDelay,
    /// The longest wait is over before any burst can end.
    MaxWaitBelowDelay {
        /// The longest wait.
        max_wait: Duration,
        /// The delay.
        delay: Duration,
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
            Self::MaxWaitBelowDelay { max_wait, delay } => write!(
                f,
                "the longest wait {max_wait:?} is shorter than the delay {delay:?}; raise the \
                 first or lower the second"
            ),
            Self::NotAsync => f.write_str(
                "an async action needs a tokio runtime; use `Driver::tokio` or `Driver::on`, or \
                 `start` with an action that is not async",
            ),
            Self::NoRuntime(error) => write!(f, "{error}"),
        }
    }
}

impl Error for DebounceError {}

impl From<NoRuntime> for DebounceError {
    fn from(error: NoRuntime) -> Self {
        Self::NoRuntime(error)
    }
}
