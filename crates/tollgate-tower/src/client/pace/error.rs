//! The errors of pacing.

use crate::client::turn::NoTurn;
use std::{error::Error, fmt, time::Duration};
use tollgate::Refused;

/// Why a paced call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PaceError<E> {
    /// The inner service failed.
    Inner(E),
    /// The client's own quota did not admit the call. It was not sent.
    Quota(Refused),
    /// The server does not accept the call before a time that is too far away. It was not sent.
    TooLong {
        /// How long the call would have to wait, at least.
        wait: Duration,
        /// How long a call may wait in all.
        max_wait: Duration,
    },
    /// The queue for that server is full. The call was not sent.
    QueueFull {
        /// The most that may wait.
        max_waiting: usize,
    },
    /// The call would have to wait, and there is no tokio runtime with timers here. It was not
    /// sent.
    NoTimers,
}

impl<E> PaceError<E> {
    pub(super) const fn of(no: NoTurn, max_wait: Duration) -> Self {
        match no {
            NoTurn::TooLong(wait) => Self::TooLong { wait, max_wait },
            NoTurn::Full(max_waiting) => Self::QueueFull { max_waiting },
            NoTurn::NoTimers => Self::NoTimers,
        }
    }

    /// Returns the error of the inner service, if it is one.
    pub fn into_inner(self) -> Option<E> {
        match self {
            Self::Inner(error) => Some(error),
            _ => None,
        }
    }

    /// Tells whether the call was not sent, so that it is safe to repeat.
    pub const fn is_unsent(&self) -> bool {
        !matches!(self, Self::Inner(_))
    }

    /// Returns how long to wait before another try, if that is known and helps.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Quota(refused) => {
                let decision = refused.decision();
                decision.retry_after(decision.at())
            }
            Self::TooLong { wait, .. } => Some(*wait),
            Self::Inner(_) | Self::QueueFull { .. } | Self::NoTimers => None,
        }
    }
}

impl<E: fmt::Display> fmt::Display for PaceError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inner(_) => f.write_str("the paced call failed"),
            Self::Quota(_) => f.write_str("the client's own quota did not let the call pass"),
            Self::TooLong { wait, max_wait } => write!(
                f,
                "the server asks for no calls for another {wait:?}, longer than {max_wait:?}; try \
                 again later, or allow a longer wait"
            ),
            Self::QueueFull { max_waiting } => write!(
                f,
                "{max_waiting} calls are already waiting for that server, which is the maximum; \
                 call less often, or allow more to wait"
            ),
            Self::NoTimers => f.write_str(
                "the call has to wait, but there is no tokio runtime with timers here; call from \
                 inside one that is built with `enable_time`",
            ),
        }
    }
}

impl<E: Error + 'static> Error for PaceError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Inner(error) => Some(error),
            Self::Quota(refused) => Some(refused),
            _ => None,
        }
    }
}

/// The error for an invalid pacing layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PaceBuildError {
    /// `TG-C01`: there is no quota, and nothing is to be learned.
    NothingToPaceBy,
    /// `TG-C02`: calls have costs, but there is no quota.
    CostWithoutQuota,
    /// `TG-C03`: no server may be remembered.
    NoLanes,
    /// `TG-C04`: no time is plausible.
    NoTime,
    /// `TG-C05`: more than 100 percent of a limit.
    Percent(u8),
}

crate::coded::coded!(PaceBuildError, "TG-C01");

impl PaceBuildError {
    const fn code_and_docs(&self) -> (&'static str, &'static str) {
        match self {
            Self::NothingToPaceBy => ("TG-C01", docs!("clients.md#tg-c01")),
            Self::CostWithoutQuota => ("TG-C02", docs!("clients.md#tg-c02")),
            Self::NoLanes => ("TG-C03", docs!("clients.md#tg-c03")),
            Self::NoTime => ("TG-C04", docs!("clients.md#tg-c04")),
            Self::Percent(_) => ("TG-C05", docs!("clients.md#tg-c05")),
        }
    }
}

impl fmt::Display for PaceBuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingToPaceBy => f.write_str(
                "there is nothing to pace by: no quota is set and learning is off; set a quota, or \
                 turn learning on",
            )?,
            Self::CostWithoutQuota => f.write_str(
                "calls have a cost, but there is no quota to charge it to; set a quota, or leave \
                 the cost out",
            )?,
            Self::NoLanes => f.write_str(
                "max_lanes 0 remembers no server; allow at least 1, or build it without_learning",
            )?,
            Self::NoTime => f.write_str(
                "longest 0 s makes every time implausible; allow more, or build it \
                 without_learning",
            )?,
            Self::Percent(percent) => {
                write!(f, "{percent} % of a limit is more than the whole limit; use at most 100")?;
            }
        }
        write!(f, " ({}, see {})", self.code(), self.docs())
    }
}

impl Error for PaceBuildError {}
