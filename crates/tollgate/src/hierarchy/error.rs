//! The errors of trees and paths.

use crate::{Decision, Denied, KeyedError, Quota, QuotaError};
use std::fmt;

/// Why a tree cannot be built, or not be changed. Each text names the value, the rule and a way
/// out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HierarchyError {
    /// Two levels or classes have one name.
    NameTwice(String),
    /// No level or class has this name.
    UnknownName(String),
    /// The parent of a class was not declared before it.
    UnknownParent {
        /// The class.
        name: String,
        /// What it calls its parent.
        parent: String,
    },
    /// There are more levels, from the root to a leaf, than a decision can name.
    TooDeep {
        /// The level or class that is one too many.
        name: String,
    },
    /// A quota makes no sense.
    Quota {
        /// The level or class.
        name: String,
        /// The error of the limiter.
        error: QuotaError,
    },
    /// A table cannot be made, or not hold such a quota.
    Table {
        /// The level or class.
        name: String,
        /// The error of the limiter.
        error: KeyedError,
    },
    /// Something that only keyed levels have was asked of a single node.
    NotKeyed {
        /// The level or class.
        name: String,
        /// The setting that needs a keyed level.
        what: &'static str,
    },
    /// A class below a keyed one is not keyed, or has siblings.
    MixedChildren {
        /// The class.
        name: String,
        /// Its parent.
        parent: String,
    },
    /// The classes below one are guaranteed more than it has.
    RatesExceedParent {
        /// The parent.
        parent: String,
        /// What it has.
        rate: Quota,
        /// What its children are guaranteed together.
        sum: String,
    },
    /// A class may reach less than it is guaranteed.
    CeilingBelowRate {
        /// The class.
        name: String,
        /// Its guaranteed rate.
        rate: String,
        /// Its ceiling.
        ceiling: String,
    },
    /// A class may reach more than its parent.
    CeilingAboveParent {
        /// The class.
        name: String,
        /// Its ceiling.
        ceiling: String,
        /// Its parent's ceiling.
        parent: String,
    },
    /// A hard ceiling would refuse what is guaranteed below it.
    HardWithoutHeadroom {
        /// The class.
        name: String,
        /// The burst of its ceiling.
        burst: u64,
        /// The burst of the class and of all below it.
        needed: u128,
    },
    /// A keyed class guarantees something to each node, and does not say how many there are.
    ExpectedMissing {
        /// The class.
        name: String,
        /// What each node is guaranteed.
        rate: Quota,
    },
    /// There is no such priority.
    Priority {
        /// The class.
        name: String,
        /// Its priority.
        priority: u8,
    },
    /// The path leads nowhere.
    Path(PathError),
}

impl fmt::Display for HierarchyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameTwice(name) => {
                write!(f, "\"{name}\" is used twice; give each level or class a name of its own")
            }
            Self::UnknownName(name) => {
                write!(f, "there is no level or class \"{name}\"; use a name given to the builder")
            }
            Self::UnknownParent { name, parent } => write!(
                f,
                "the parent \"{parent}\" of \"{name}\" does not exist; declare it first, or leave \
                 it out for the root"
            ),
            Self::TooDeep { name } => write!(
                f,
                "\"{name}\" would be level 65, and a decision names at most 64; use fewer levels"
            ),
            Self::Quota { name, error } => write!(f, "\"{name}\": {error}"),
            Self::Table { name, error } => write!(f, "\"{name}\": {error}"),
            Self::NotKeyed { name, what } => write!(
                f,
                "\"{name}\" is a single node and has no {what}; remove it, or make the level keyed"
            ),
            Self::MixedChildren { name, parent } => write!(
                f,
                "\"{name}\" cannot be below \"{parent}\": a class has either declared classes or \
                 one keyed level below it, and a keyed one only a keyed level, because a key could \
                 have the name of a class; put a class between them"
            ),
            _ => self.fmt_rates(f),
        }
    }
}

impl HierarchyError {
    /// The rules about numbers.
    fn fmt_rates(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RatesExceedParent { parent, rate, sum } => write!(
                f,
                "the classes below \"{parent}\" are guaranteed {sum} in all, more than its own \
                 {rate}; lower their rates, or raise that of \"{parent}\""
            ),
            Self::CeilingBelowRate { name, rate, ceiling } => write!(
                f,
                "the ceiling {ceiling} of \"{name}\" is below its guaranteed rate {rate}; raise \
                 the ceiling, or lower the rate"
            ),
            Self::CeilingAboveParent { name, ceiling, parent } => write!(
                f,
                "the ceiling {ceiling} of \"{name}\" is above its parent's, {parent}; lower it, or \
                 raise the parent's"
            ),
            Self::HardWithoutHeadroom { name, burst, needed } => write!(
                f,
                "the hard ceiling of \"{name}\" has a burst of {burst}, less than {needed}, the \
                 bursts of its own rate and of all below: borrowers could use it up and starve \
                 what is guaranteed; raise it, lower the burst of the rate, or use soft_ceiling"
            ),
            Self::ExpectedMissing { name, rate } => write!(
                f,
                "each node of \"{name}\" is guaranteed {rate}, but the number of nodes is unknown; \
                 add expected(n), or guarantee nothing with a rate of zero"
            ),
            Self::Priority { name, priority } => {
                write!(f, "\"{name}\" has priority {priority}; use 0 (first) to 7 (last)")
            }
            Self::Path(error) => write!(f, "{error}"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for HierarchyError {}

impl From<PathError> for HierarchyError {
    fn from(error: PathError) -> Self {
        Self::Path(error)
    }
}

/// Why a path leads nowhere. Not a denial: no limiter decided.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathError {
    /// The path has more parts than there are levels below the root.
    TooLong {
        /// Parts of the path.
        parts: usize,
        /// Levels below the root on this path.
        levels: usize,
    },
    /// There is no such class below its parent.
    UnknownClass {
        /// The part of the path, at most 40 characters of it.
        name: String,
        /// Where the path had come to.
        parent: String,
    },
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { parts, levels } => write!(
                f,
                "a path of {parts} parts is longer than the {levels} levels below the root; leave \
                 parts out, or add levels"
            ),
            Self::UnknownClass { name, parent } => write!(
                f,
                "there is no class \"{name}\" below \"{parent}\"; use a declared one, or add a \
                 keyed level"
            ),
        }
    }
}

impl std::error::Error for PathError {}

/// Why nothing was reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unreserved {
    /// Some level refused.
    Denied(Decision),
    /// The path leads nowhere.
    Path(PathError),
}

impl fmt::Display for Unreserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(decision) => Denied(*decision).fmt(f),
            Self::Path(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Unreserved {}

impl From<PathError> for Unreserved {
    fn from(error: PathError) -> Self {
        Self::Path(error)
    }
}
