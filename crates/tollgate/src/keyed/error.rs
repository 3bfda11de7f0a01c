//! What can be wrong with a keyed limiter.

use crate::{Initial, QuotaError};
use std::{fmt, time::Duration};

/// Why a keyed limiter cannot be built, or not be changed. Each text names the value, the rule and
/// a way out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyedError {
    /// The quota makes no sense, or not for this algorithm.
    Quota(QuotaError),
    /// A fresh key would not be full, so a key that was forgotten would be told from one at rest.
    InitialNotFull(Initial),
    /// A table was made for no keys, or for more than memory can hold.
    Capacity {
        /// The keys asked for.
        keys: u64,
        /// The most there can be.
        most: u64,
    },
    /// Both a fixed and a growing table were asked for.
    TwoTables,
    /// No tier has this name.
    UnknownTier(String),
    /// Two tiers have one name.
    TierTwice(String),
    /// All notes (overrides, lists, blocks) are in use.
    TooManyNotes {
        /// The most there can be.
        most: u64,
    },
    /// A key may have more open reservations than its policy, or a policy more than all together.
    Reservations {
        /// The bound that cannot be reached.
        own: usize,
        /// The bound that is reached before.
        most: usize,
    },
    /// A ban without refusals, without length, or shorter than its first.
    Escalation {
        /// Refusals that lead to a ban.
        refusals: u32,
        /// The first ban.
        first: Duration,
        /// The longest ban.
        most: Duration,
    },
}

impl fmt::Display for KeyedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota(error) => error.fmt(f),
            Self::InitialNotFull(initial) => write!(
                f,
                "a fresh key with an initial fill of {initial:?} differs from an idle one, whose \
                 slot is reused; start keys full, or set how long to keep them with max_idle"
            ),
            Self::Capacity { keys, most } => write!(
                f,
                "a table for {keys} keys cannot be created; use 1 to {most}, or a growing table"
            ),
            Self::TwoTables => f.write_str(
                "bounded and max_keys exclude each other: a bounded table has a fixed size; \
                 remove one of them",
            ),
            Self::UnknownTier(name) => {
                write!(f, "there is no tier \"{name}\"; add it to the builder")
            }
            Self::TierTwice(name) => {
                write!(f, "there are two tiers \"{name}\"; give each a name of its own")
            }
            Self::TooManyNotes { most } => write!(
                f,
                "{most} keys already have an override, a block or a list entry; remove some, let \
                 them expire, or raise max_notes"
            ),
            Self::Reservations { own, most } => write!(
                f,
                "a bound of {own} open reservations is above {most}, which is reached first; keep \
                 max_reservations_per_key <= max_reservations_per_policy <= max_reservations"
            ),
            Self::Escalation { refusals, first, most } => write!(
                f,
                "a ban of {first:?} up to {most:?} after {refusals} denials is not valid; use at \
                 least one denial, a first ban above zero, and a longest ban not below it"
            ),
        }
    }
}

impl std::error::Error for KeyedError {}

impl From<QuotaError> for KeyedError {
    fn from(error: QuotaError) -> Self {
        Self::Quota(error)
    }
}
