//! Errors of pacers, and refusals.

use crate::NoRuntime;
use std::{fmt, time::Duration};

/// Why a pacer refused a call, with the numbers of that moment.
///
/// A refusal is an answer, not a fault: it changes nothing. The predicates say what would help.
///
/// | predicate | what it says |
/// |---|---|
/// | [`is_full`](Self::is_full) | the queue is full; [`retry_after`](Self::retry_after) says when it is not |
/// | [`is_never`](Self::is_never) | no wait can help: the cost is zero, or more than a whole queue |
/// | [`is_stopped`](Self::is_stopped) | the pacer is stopped for good |
/// | [`is_no_runtime`](Self::is_no_runtime) | no runtime can run or wake a future |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    pub(super) capacity: u64,
    pub(super) queued: u64,
    pub(super) cost: u64,
    pub(super) kind: OverflowKind,
}

/// The rule that refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OverflowKind {
    Full {
        retry_after: Duration,
    },
    TooLarge,
    Nothing,
    Stopped,
    #[cfg(feature = "tokio")]
    NotAsync,
    NoRuntime,
}

impl Overflow {
    /// Returns how many may be queued.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns how many were queued.
    #[must_use]
    pub const fn queued(&self) -> u64 {
        self.queued
    }

    /// Returns how many slots were asked for.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns how long it takes until the queue has room, if no other call comes first; `None` if no
    /// wait can help.
    ///
    /// Jobs that should have started, but have not, make it an estimate: it then counts one
    /// interval.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.kind {
            OverflowKind::Full { retry_after } => Some(retry_after),
            _ => None,
        }
    }

    /// Tells whether the queue is full.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        matches!(self.kind, OverflowKind::Full { .. })
    }

    /// Tells whether no wait can help, because of the cost.
    #[must_use]
    pub const fn is_never(&self) -> bool {
        matches!(self.kind, OverflowKind::TooLarge | OverflowKind::Nothing)
    }

    /// Tells whether the pacer is stopped.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        matches!(self.kind, OverflowKind::Stopped)
    }

    /// Tells whether a future was to run, or to wait, where no runtime is.
    #[must_use]
    pub const fn is_no_runtime(&self) -> bool {
        match self.kind {
            #[cfg(feature = "tokio")]
            OverflowKind::NotAsync => true,
            kind => matches!(kind, OverflowKind::NoRuntime),
        }
    }
}

impl fmt::Display for Overflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, queued, cost, kind } = self;
        match kind {
            OverflowKind::Full { retry_after } => write!(
                f,
                "{queued} of {capacity} are queued, so cost {cost} does not fit; retry after \
                 {retry_after:?}, or raise the capacity"
            ),
            OverflowKind::TooLarge => write!(
                f,
                "cost {cost} is more than a queue of {capacity} can ever hold; ask for at most {}, \
                 or raise the capacity",
                capacity.saturating_add(1)
            ),
            OverflowKind::Nothing => f.write_str("cost 0 takes no slot; ask for at least 1"),
            OverflowKind::Stopped => f.write_str("the pacer is stopped; start a new one"),
            #[cfg(feature = "tokio")]
            OverflowKind::NotAsync => f.write_str(
                "the driver of this pacer runs no futures; start it with `Driver::tokio`, or `run` \
                 a closure",
            ),
            OverflowKind::NoRuntime => NoRuntime.fmt(f),
        }
    }
}

impl std::error::Error for Overflow {}

/// A job that was not taken, and why.
pub struct Rejected<J> {
    pub(super) job: J,
    pub(super) overflow: Overflow,
}

impl<J> Rejected<J> {
    /// Returns the job, to try again or to do something else with it.
    #[must_use]
    pub fn into_job(self) -> J {
        self.job
    }

    /// Returns why it was not taken.
    #[must_use]
    pub const fn overflow(&self) -> &Overflow {
        &self.overflow
    }
}

impl<J> fmt::Debug for Rejected<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rejected").field("overflow", &self.overflow).finish_non_exhaustive()
    }
}

impl<J> fmt::Display for Rejected<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.overflow.fmt(f)
    }
}

impl<J> std::error::Error for Rejected<J> {}
