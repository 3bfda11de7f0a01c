//! What kind of limit a part is about, and how its refusal counts.

use super::{AdHocLimit, Code};
use crate::{
    config::Unit,
    plan::{AdaptiveRule, Kind},
};
use std::time::Duration;

/// What a part's limit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartKind {
    /// Nothing is counted.
    Unlimited,
    /// A configured count in a time.
    Of { count: u64, per: Duration, unit: Option<Unit> },
    /// A limit that came with the request.
    AdHoc(AdHocLimit),
}

impl PartKind {
    pub(super) const fn of(kind: &Kind) -> Self {
        match (kind.count(), kind.per()) {
            (Some(count), Some(per)) => Self::Of { count, per, unit: kind.unit() },
            _ => Self::Unlimited,
        }
    }

    /// Returns the limit at the rate in force.
    pub(super) fn moved(self, adaptive: Option<&AdaptiveRule>) -> Self {
        match (self, adaptive) {
            (Self::Of { per, unit, .. }, Some(adaptive)) => {
                Self::Of { count: adaptive.count(per), per, unit }
            }
            _ => self,
        }
    }
}

/// By which policy a part is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// That of its rule.
    Rule,
    /// One of the answer's list.
    Listed(usize),
    /// None: the store is not asked.
    Nothing,
}

/// What a refusal of a part means.
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
    /// Returns a refusal as it counts in this mode.
    pub(super) const fn refused(self, code: Code) -> Code {
        match self {
            Self::Shadow => Code::Shadowed,
            Self::Enforced | Self::Quota => code,
        }
    }
}
