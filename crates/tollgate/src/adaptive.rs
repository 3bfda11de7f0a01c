//! Limits that follow what the protected service can do.
//!
//! A fixed limit on calls in flight is right for one speed of the service behind it. When the
//! service slows down, the same limit holds a longer queue; when it gets faster, the limit refuses
//! work for nothing. A [`Law`] reads how long calls took and how they ended, and returns the limit
//! to use next. [`Concurrency::set_limit`](crate::Concurrency::set_limit) enforces it.
//!
//! By Little's law the right limit is throughput x latency: 1000 calls a second of 20 ms each are
//! 20 calls in flight. More only wait.
//!
//! [`rate`] does the same for a rate, in permits per second.
//!
//! Which law to take, what it measures and how it fails: [docs/adaptive.md].
//!
//! [docs/adaptive.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/adaptive.md

mod concurrency;
pub mod law;
mod partitions;
pub mod rate;
pub(crate) mod window;

pub use concurrency::{AcquireMeasured, AdaptiveConcurrency, AdaptiveReport, MeasuredPermit};
pub use partitions::{PartitionPermit, Partitions, PartitionsBuilder};

use crate::{CallOutcome, Tick};
use std::{fmt, time::Duration};

/// One call as a [`Law`] sees it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{CallOutcome, Tick, adaptive::Sample};
///
/// let sample = Sample {
///     began: Tick::from_millis(100),
///     ended: Tick::from_millis(120),
///     in_flight: 3,
///     outcome: CallOutcome::Success,
/// };
/// assert_eq!(sample.rtt(), Duration::from_millis(20));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When the call was let through.
    pub began: Tick,
    /// When it ended.
    pub ended: Tick,
    /// Calls in flight when this one began, itself included.
    pub in_flight: u64,
    /// How it ended.
    pub outcome: CallOutcome,
}

impl Sample {
    /// Returns the round trip: how long the call took. Zero if `ended` lies before `began`.
    #[must_use]
    pub fn rtt(&self) -> Duration {
        self.ended.since(self.began)
    }

    /// Tells whether a law may learn from the call.
    fn is_used(&self) -> bool {
        matches!(self.outcome, CallOutcome::Success | CallOutcome::Overload)
    }

    /// Returns the round trip in nanoseconds, at least 1, so that it can divide.
    fn rtt_ns(&self) -> f64 {
        (self.rtt().as_nanos() as f64).max(1.0)
    }
}

/// Turns samples of calls into a limit on calls in flight.
///
/// A law is pure: it reads no clock, takes no lock and draws no random number that does not follow
/// from its seed. The same samples in the same order give the same limits, so a test can step it.
///
/// No law learns from [`CallOutcome::Failure`] and [`CallOutcome::Ignore`]: they show at most that
/// time passes.
///
/// # Examples
///
/// A law of your own: half of the calls that were in flight when the last overload showed.
///
/// ```
/// use tollgate::{CallOutcome, Tick, adaptive::{Law, LimitReason, Sample}};
///
/// #[derive(Debug)]
/// struct Halve(u64);
///
/// impl Law for Halve {
///     fn observe(&mut self, sample: &Sample) -> u64 {
///         if sample.outcome == CallOutcome::Overload {
///             self.0 = (sample.in_flight / 2).max(1);
///         }
///         self.0
///     }
///     fn limit(&self) -> u64 {
///         self.0
///     }
///     fn reason(&self) -> LimitReason {
///         LimitReason::Holding
///     }
///     fn name(&self) -> &'static str {
///         "halve"
///     }
/// }
///
/// let (began, ended) = (Tick::ZERO, Tick::from_millis(20));
/// let overload = Sample { began, ended, in_flight: 30, outcome: CallOutcome::Overload };
/// assert_eq!(Halve(100).observe(&overload), 15);
/// ```
pub trait Law: Send + fmt::Debug {
    /// Takes one sample and returns the limit from now on.
    ///
    /// Give samples in the order in which calls ended, as far as it is known.
    fn observe(&mut self, sample: &Sample) -> u64;

    /// Returns the limit in force.
    fn limit(&self) -> u64;

    /// Returns why the limit is what it is.
    fn reason(&self) -> LimitReason;

    /// Returns the law's name, for metrics and reports.
    fn name(&self) -> &'static str;
}

impl<L: Law + ?Sized> Law for Box<L> {
    fn observe(&mut self, sample: &Sample) -> u64 {
        (**self).observe(sample)
    }

    fn limit(&self) -> u64 {
        (**self).limit()
    }

    fn reason(&self) -> LimitReason {
        (**self).reason()
    }

    fn name(&self) -> &'static str {
        (**self).name()
    }
}

/// Why a [`Law`] last moved its limit, or left it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LimitReason {
    /// Nothing was decided yet: the initial limit.
    Starting,
    /// Raised: the service kept up at the limit.
    Growing,
    /// Left alone: the signal lies between "raise" and "lower".
    Holding,
    /// Left alone: the callers use less than half of the limit, so nothing is known about the rest.
    ApplicationLimited,
    /// Lowered: calls take longer than they should, so they queue.
    Queueing,
    /// Lowered: calls ended with [`CallOutcome::Overload`].
    Overload,
    /// Lowered for a moment, to measure how fast the service is without a queue.
    Probing,
    /// Would go lower, but stands at the minimum.
    AtMin,
    /// Would go higher, but stands at the maximum.
    AtMax,
}

impl LimitReason {
    /// Returns the reason as one lower-case word, for metrics: `application_limited`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Growing => "growing",
            Self::Holding => "holding",
            Self::ApplicationLimited => "application_limited",
            Self::Queueing => "queueing",
            Self::Overload => "overload",
            Self::Probing => "probing",
            Self::AtMin => "at_min",
            Self::AtMax => "at_max",
        }
    }
}

impl fmt::Display for LimitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
