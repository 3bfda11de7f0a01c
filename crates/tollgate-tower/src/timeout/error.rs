//! Which phase of a call took too long.

use std::{fmt, time::Duration};

/// A phase of a call that a [`TimeoutLayer`](crate::TimeoutLayer) bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TimeoutPhase {
    /// One attempt, to the end of its body.
    Attempt,
    /// The wait for the head of the response.
    Head,
    /// The wait for one frame of the body.
    BodyIdle,
    /// The whole call with its retries, or the sender's deadline.
    Total,
}

impl TimeoutPhase {
    /// Returns the name of the setting: `attempt`, `head`, `body_idle`, `total`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attempt => "attempt",
            Self::Head => "head",
            Self::BodyIdle => "body_idle",
            Self::Total => "total",
        }
    }
}

/// A call took too long: the error of its body, or a value in the extensions of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeoutError {
    phase: TimeoutPhase,
    limit: Duration,
}

impl TimeoutError {
    pub(super) const fn new(phase: TimeoutPhase, limit: Duration) -> Self {
        Self { phase, limit }
    }

    /// Returns the phase that took too long.
    #[must_use]
    pub const fn phase(&self) -> TimeoutPhase {
        self.phase
    }

    /// Returns how long the phase was allowed to take.
    #[must_use]
    pub const fn limit(&self) -> Duration {
        self.limit
    }
}

impl fmt::Display for TimeoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.phase {
            TimeoutPhase::Attempt => "the attempt did not end",
            TimeoutPhase::Head => "no response arrived",
            TimeoutPhase::BodyIdle => "no data arrived",
            TimeoutPhase::Total => "the call did not end",
        };
        write!(f, "{what} within {:?} (timeout `{}`)", self.limit, self.phase.name())
    }
}

impl std::error::Error for TimeoutError {}
