//! Errors of settings.

use crate::coded::coded;
use std::{fmt, time::Duration};

/// A contradiction between the parts of a [`ClientStack`](super::ClientStack) or a
/// [`ServerStack`](super::ServerStack).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StackError {
    /// `TG-S01`: the stack has no name.
    NoName,
    /// `TG-S02`: the stack has no part.
    NoPart,
    /// `TG-S03`: a timeout layer lacks the bound that its place requires.
    Unbounded {
        /// The part: `total timeout` or `attempt timeout`.
        part: &'static str,
        /// The settings, of which one is required.
        setting: &'static str,
    },
    /// `TG-S04`: an attempt may take longer than the whole call.
    Inverted {
        /// How long an attempt may take.
        attempt: Duration,
        /// How long the call may take.
        total: Duration,
    },
    /// `TG-S05`: retries and hedges have different budgets.
    TwoBudgets,
}

coded!(StackError, "TG-S01");

impl StackError {
    const fn code_and_docs(&self) -> (&'static str, &'static str) {
        match self {
            Self::NoName => ("TG-S01", docs!("resilience.md#tg-s01")),
            Self::NoPart => ("TG-S02", docs!("resilience.md#tg-s02")),
            Self::Unbounded { .. } => ("TG-S03", docs!("resilience.md#tg-s03")),
            Self::Inverted { .. } => ("TG-S04", docs!("resilience.md#tg-s04")),
            Self::TwoBudgets => ("TG-S05", docs!("resilience.md#tg-s05")),
        }
    }
}

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoName => f.write_str(
                "the name of the stack is empty, and it is the label of its metrics; name the \
                 dependency or the service",
            )?,
            Self::NoPart => {
                f.write_str("the stack has no part and protects nothing; add at least one layer")?;
            }
            Self::Unbounded { part, setting } => write!(
                f,
                "the layer given as {part} sets none of {setting}; set one, or leave the layer out"
            )?,
            Self::Inverted { attempt, total } => write!(
                f,
                "one attempt may take {attempt:?}, and the whole call only {total:?}; lower the \
                 first or raise the second"
            )?,
            Self::TwoBudgets => f.write_str(
                "retry and hedge have different budgets, so together they may add twice the load; \
                 give both clones of one `RetryBudget`",
            )?,
        }
        write!(f, " ({}, see {})", self.code(), self.docs())
    }
}

impl std::error::Error for StackError {}
