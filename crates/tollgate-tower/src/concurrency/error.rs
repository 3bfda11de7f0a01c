//! Errors of settings.

use crate::{answer::LabelError, coded::coded, key::KeyError};
use std::fmt;

/// An invalid setting of a [`ConcurrencyLayer`](super::ConcurrencyLayer) or an
/// [`AdaptiveLayer`](crate::AdaptiveLayer).
#[derive(Debug)]
#[non_exhaustive]
pub enum ConcurrencyLayerError {
    /// `max_wait` is set, but the limit has no queue.
    NoQueue,
    /// `max_wait` is zero.
    ZeroWait,
    /// The refusal says that a client may never pass.
    Forbidden,
    /// The key, or the trust in peers, cannot be used.
    Key(KeyError),
    /// The name cannot be sent to clients.
    Label(LabelError),
    /// A number of a [`Shedding`](crate::Shedding) is invalid.
    Shedding {
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// Requests are shed by the delay of a queue that does not exist.
    ShedNoQueue,
    /// `max_wait` is set, but partitions have no queue.
    PartitionsWait,
}

coded!(ConcurrencyLayerError, "TG-R01");

impl ConcurrencyLayerError {
    const fn code_and_docs(&self) -> (&'static str, &'static str) {
        match self {
            Self::NoQueue => ("TG-R01", docs!("http.md#tg-r01")),
            Self::ZeroWait => ("TG-R02", docs!("http.md#tg-r02")),
            Self::Forbidden => ("TG-R03", docs!("http.md#tg-r03")),
            Self::Key(error) => (error.code(), error.docs()),
            Self::Label(_) => ("TG-R04", docs!("http.md#tg-r04")),
            Self::Shedding { .. } => ("TG-R05", docs!("http.md#tg-r05")),
            Self::ShedNoQueue => ("TG-R06", docs!("http.md#tg-r06")),
            Self::PartitionsWait => ("TG-R07", docs!("http.md#tg-r07")),
        }
    }
}

impl fmt::Display for ConcurrencyLayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoQueue => f.write_str(
                "`max_wait` is set, but `max_waiting` of the limit is 0, so no request can wait; \
                 raise `max_waiting`, or leave out `max_wait`",
            )?,
            Self::ZeroWait => {
                f.write_str("`max_wait` is 0 s; leave it out to deny requests at once")?
            }
            Self::Forbidden => f.write_str(
                "the refusal `Forbidden` says that a client may never pass, but slots become free; \
                 use `ReducedCapacity` or `QuotaExceeded`",
            )?,
            Self::Key(error) => return error.fmt(f),
            Self::Label(error) => error.say(f)?,
            Self::Shedding { rule } => write!(f, "the settings of `shed` contradict: {rule}")?,
            Self::ShedNoQueue => f.write_str(
                "`shed` looks at the delay of the queue, but no request can wait; set `max_wait`, \
                 or shed by load",
            )?,
            Self::PartitionsWait => f.write_str(
                "`max_wait` is set, but requests of partitions never wait; leave it out",
            )?,
        }
        write!(f, " ({}, see {})", self.code(), self.docs())
    }
}

impl std::error::Error for ConcurrencyLayerError {}
