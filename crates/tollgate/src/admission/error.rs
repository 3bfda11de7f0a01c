//! Why a call is not admitted.

use crate::{Full, Open, Refused, Tick};
use std::{fmt, time::Duration};

/// Why a call is not admitted: the part that refused, and its reason. Every other part is as if the
/// call had never come.
///
/// # Examples
///
/// ```
/// use tollgate::{Admission, Clock, Limiter, Quota};
/// use std::time::Duration;
///
/// let (clock, _hand) = Clock::manual();
/// let rate = Limiter::builder(Quota::per_second(2).burst(1)).clock(clock.clone()).build()?;
/// let admission = Admission::new().rate(&rate);
/// let _first = admission.try_acquire()?;
/// let refused = admission.try_acquire().unwrap_err();
/// assert_eq!(refused.part(), "rate");
/// assert_eq!(refused.retry_after(clock.now()), Some(Duration::from_millis(500)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdmissionError {
    /// The rate limiter refused.
    Rate(Refused),
    /// The breaker is open.
    Breaker(Open),
    /// The concurrency limit refused.
    Concurrency(Full),
}

impl AdmissionError {
    /// Returns the name of the part that refused: `rate`, `breaker` or `concurrency`.
    #[must_use]
    pub const fn part(&self) -> &'static str {
        match self {
            Self::Rate(_) => "rate",
            Self::Breaker(_) => "breaker",
            Self::Concurrency(_) => "concurrency",
        }
    }

    /// Returns the tick at which that part admits the call in an idle system, on its own clock.
    ///
    /// `None` if no time is known: a slot comes free when a call ends, a breaker that an operator
    /// holds open is released by the operator, and a cost above the burst never passes.
    #[must_use]
    pub fn retry_at(&self) -> Option<Tick> {
        match self {
            Self::Rate(refused) => refused.decision().retry_at(),
            Self::Breaker(open) => open.retry_at(),
            Self::Concurrency(_) => None,
        }
    }

    /// Returns how long to wait from `now`; see [`retry_at`](Self::retry_at).
    #[must_use]
    pub fn retry_after(&self, now: Tick) -> Option<Duration> {
        self.retry_at().map(|at| at.since(now))
    }
}

impl From<Refused> for AdmissionError {
    fn from(refused: Refused) -> Self {
        Self::Rate(refused)
    }
}

impl From<Open> for AdmissionError {
    fn from(open: Open) -> Self {
        Self::Breaker(open)
    }
}

impl From<Full> for AdmissionError {
    fn from(full: Full) -> Self {
        Self::Concurrency(full)
    }
}

impl fmt::Display for AdmissionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(refused) => refused.fmt(f),
            Self::Breaker(open) => open.fmt(f),
            Self::Concurrency(full) => full.fmt(f),
        }
    }
}

impl std::error::Error for AdmissionError {}
