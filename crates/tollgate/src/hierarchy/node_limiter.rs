//! What limits a node of a tree.

use crate::{Charge, ConfigError, Inherit, KeyedError, KeyedLimiter, Limiter, Quota};

/// The limiter of a single node, or those of all nodes of a keyed level.
pub(super) enum NodeLimiter {
    One(Limiter),
    Keyed(KeyedLimiter<[u8]>),
}

impl NodeLimiter {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::One(limiter) => limiter.name(),
            Self::Keyed(limiter) => limiter.name(),
        }
    }

    /// Returns the charge of the node with this key. A single node has none.
    pub(super) fn charge(&self, key: &[u8], cost: u64) -> Charge<'_> {
        match self {
            Self::One(limiter) => limiter.charge(cost),
            Self::Keyed(limiter) => limiter.charge(key, cost),
        }
    }

    pub(super) fn set_quota(&self, quota: Quota) -> Result<(), ConfigError> {
        let set = match self {
            Self::One(limiter) => limiter.set_quota(quota, Inherit::Additive).map_err(Into::into),
            Self::Keyed(limiter) => limiter.set_quota(quota),
        };
        set.map_err(|error: KeyedError| ConfigError::of_part(self.name(), error))
    }

    /// Returns how many nodes are in use.
    pub(super) fn nodes(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Keyed(limiter) => limiter.len(),
        }
    }

    /// Returns how many bytes the table takes.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::One(_) => 0,
            Self::Keyed(limiter) => limiter.bytes(),
        }
    }
}
