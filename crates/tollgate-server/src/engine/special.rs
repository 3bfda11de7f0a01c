//! The limit that a part is about, and how its refusal counts.

use super::Code;
use crate::plan::{AdaptiveRule, Kind};
use std::time::Duration;
use tollgate::{Algorithm, Quota, store::Policy};

/// The numbers of a part's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartLimit {
    /// How many permits come in `per`.
    pub(super) count: u64,
    pub(super) per: Duration,
    /// How many permits can be had at once.
    pub(super) capacity: u64,
    pub(super) algorithm: Algorithm,
}

impl PartLimit {
    /// Returns the rate, without the burst.
    pub(super) const fn rate(&self) -> Quota {
        Quota::per(self.count, self.per)
    }

    /// Returns the numbers of a limit at the rate in force; `None` if nothing is counted.
    pub(super) fn of(kind: &Kind, adaptive: Option<(&AdaptiveRule, &Policy)>) -> Option<Self> {
        let (count, per) = (kind.count()?, kind.per()?);
        let algorithm = kind.algorithm()?;
        Some(match adaptive {
            Some((rule, policy)) => {
                let capacity = policy.quota().capacity();
                Self { count: rule.count(per), per, capacity, algorithm }
            }
            None => {
                let capacity = kind.policy().map_or(count, |policy| policy.quota().capacity());
                Self { count, per, capacity, algorithm }
            }
        })
    }
}

/// By which policy a part is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// That of its rule.
    Rule,
    /// One of the answer's list.
    Listed(usize),
    /// None: the engine does not ask the store.
    Nothing,
}

/// The effect of a part's denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The request is refused.
    Enforced,
    /// It is reported.
    Shadow,
    /// The request is refused if all in this mode refuse.
    Quota,
}

impl Mode {
    /// Returns its name, for people.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Enforced => "enforced",
            Self::Shadow => "shadow",
            Self::Quota => "quota",
        }
    }

    /// Returns a refusal as it counts in this mode.
    pub(super) const fn refused(self, code: Code) -> Code {
        match self {
            Self::Shadow => Code::Shadowed,
            Self::Enforced | Self::Quota => code,
        }
    }
}
