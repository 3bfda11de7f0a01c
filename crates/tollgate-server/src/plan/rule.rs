//! One limit of a node.

use super::{AdaptiveRule, Live, RuleIndex};
use crate::config::{Failure, Lease, Rate, Unit};
use std::{collections::HashMap, fmt, sync::Arc, time::Duration};
use tollgate::{Algorithm, TopKeys, store::Policy};

/// One limit, compiled.
#[derive(Debug)]
pub struct Rule {
    pub(super) id: Box<str>,
    pub(super) name: Option<Box<str>>,
    pub(super) domain: Box<str>,
    pub(super) kind: Kind,
    /// The rate of `kind`, if it adapts.
    pub(super) adaptive: Option<Arc<AdaptiveRule>>,
    /// Limits for single values of the last entry.
    pub(super) overrides: HashMap<Box<str>, Kind>,
    /// The descriptor keys whose values make up the key in the store, in the order of the path.
    pub(super) free_keys: Box<[Box<str>]>,
    pub(super) is_last_free: bool,
    pub(super) shadow: bool,
    pub(super) quota_mode: bool,
    pub(super) count_refused: bool,
    /// Percentages of the limit at which a key is reported, ascending.
    pub(super) warn: Box<[u8]>,
    pub(super) enforce: u8,
    pub(super) failure: Failure,
    pub(super) replaces: Box<[Box<str>]>,
    pub(super) parents: Box<[Parent]>,
    pub(super) metadata: Option<serde_json::Value>,
    pub(super) lease: Lease,
    pub(super) store: usize,
    pub(super) live: Arc<Live>,
    pub(super) place: crate::config::Place,
    /// The range of its node's rates: the first, and the one after the last.
    pub(super) node: (RuleIndex, RuleIndex),
    pub(super) shares_values: bool,
}

/// What a limit does.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Counts by a policy.
    Counted {
        /// The policy.
        policy: Policy,
        /// The configured rate.
        rate: Rate,
    },
    /// Lets everything pass and counts nothing.
    Unlimited,
    /// Denies everything: a count of zero.
    Closed {
        /// The configured rate.
        rate: Rate,
        /// The algorithm that would count: its windows determine when the limit resets.
        algorithm: Algorithm,
    },
    /// Counts by limits that come with the calls: `CL.THROTTLE`, and `limit` of a descriptor.
    PerCall,
    /// Limits how many are in flight at once. Only `enter`, `renew` and `leave` use it.
    Concurrency(Slots),
}

/// How many slots each key has, and how long one is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// How many may be in flight at once.
    pub limit: u64,
    /// How long a slot stays taken if its caller neither renews nor leaves.
    pub lease: Duration,
}

impl fmt::Display for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in flight, lease {:?}", self.limit, self.lease)
    }
}

impl Kind {
    /// Returns how many permits come in [`per`](Self::per): none if unlimited.
    #[must_use]
    pub const fn count(&self) -> Option<u64> {
        match self {
            Self::Counted { rate: Rate::Counted { count, .. }, .. }
            | Self::Closed { rate: Rate::Counted { count, .. }, .. } => Some(*count),
            _ => None,
        }
    }

    /// Returns the time that the count is for.
    #[must_use]
    pub const fn per(&self) -> Option<Duration> {
        match self {
            Self::Counted { rate: Rate::Counted { per, .. }, .. }
            | Self::Closed { rate: Rate::Counted { per, .. }, .. } => Some(*per),
            _ => None,
        }
    }

    /// Returns the unit of time, if the period is one.
    #[must_use]
    pub const fn unit(&self) -> Option<Unit> {
        match self {
            Self::Counted { rate: Rate::Counted { unit, .. }, .. }
            | Self::Closed { rate: Rate::Counted { unit, .. }, .. } => *unit,
            _ => None,
        }
    }

    /// Returns the algorithm; `None` if nothing is counted over time.
    #[must_use]
    pub fn algorithm(&self) -> Option<Algorithm> {
        match self {
            Self::Counted { policy, .. } => Some(policy.algorithm()),
            Self::Closed { algorithm, .. } => Some(*algorithm),
            Self::Unlimited | Self::PerCall | Self::Concurrency(_) => None,
        }
    }

    /// Returns the slots, if it limits the calls in flight.
    #[must_use]
    pub const fn slots(&self) -> Option<Slots> {
        match self {
            Self::Concurrency(slots) => Some(*slots),
            _ => None,
        }
    }

    /// Returns the policy, if it counts by one.
    #[must_use]
    pub const fn policy(&self) -> Option<&Policy> {
        match self {
            Self::Counted { policy, .. } => Some(policy),
            _ => None,
        }
    }
}

/// Another rule that is charged as well.
#[derive(Debug)]
pub struct Parent {
    /// The parent.
    pub rule: RuleIndex,
    /// Where each of its free values comes from.
    pub values: Box<[ValueOf]>,
}

/// Where a parent's value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueOf {
    /// The child's free value with this number.
    Free(usize),
    /// The value that the child's path has.
    Fixed(Box<str>),
}

impl Rule {
    /// Returns its full name, for example `shop:path=/api/*|user`. Ids are unique, and a reload
    /// keeps them.
    #[must_use]
    pub const fn id(&self) -> &str {
        &self.id
    }

    /// Returns the most active and the most denied keys; `None` if they are not tracked, or the
    /// rule has one key only.
    #[must_use]
    pub fn top_keys(&self) -> Option<&TopKeys> {
        if self.free_keys.is_empty() { None } else { self.live.top() }
    }

    /// Returns its name, if it has one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns its name or, if it has none, its id. This is the label in metrics.
    #[must_use]
    pub fn label(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }

    /// Returns its domain.
    #[must_use]
    pub const fn domain(&self) -> &str {
        &self.domain
    }

    /// Returns its limit for most keys.
    #[must_use]
    pub const fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Returns its limit for a key whose last free value is `last`.
    #[must_use]
    pub fn kind_of(&self, last: Option<&str>) -> &Kind {
        if self.overrides.is_empty() || !self.is_last_free {
            return &self.kind;
        }
        last.and_then(|last| self.overrides.get(last)).unwrap_or(&self.kind)
    }

    /// Returns the adaptive rate of its own limit, if it has one. Limits for single values do not
    /// adapt.
    #[must_use]
    pub fn adaptive(&self) -> Option<&AdaptiveRule> {
        self.adaptive.as_deref()
    }

    /// Returns the policy in force now for most keys, if it counts by one.
    #[must_use]
    pub fn policy_now(&self) -> Option<Policy> {
        match self.adaptive() {
            Some(adaptive) => Some(adaptive.policy()),
            None => self.kind.policy().cloned(),
        }
    }

    /// Returns how many permits or slots one key can have at once, as every protocol reports it;
    /// `None` if it has no limit.
    #[must_use]
    pub fn limit_now(&self) -> Option<u64> {
        match &self.kind {
            Kind::Unlimited | Kind::PerCall => None,
            Kind::Closed { .. } => Some(0),
            Kind::Concurrency(slots) => Some(slots.limit),
            Kind::Counted { policy, .. } => Some(match self.adaptive() {
                Some(adaptive) => adaptive.policy().quota().capacity(),
                None => policy.quota().capacity(),
            }),
        }
    }

    /// Returns the limits of its node that are charged together: all its rates, in the order of the
    /// file.
    #[must_use]
    pub fn node(&self) -> std::ops::Range<RuleIndex> {
        self.node.0..self.node.1
    }

    /// Tells whether different values share a count (`share_threshold`).
    #[must_use]
    pub const fn shares_values(&self) -> bool {
        self.shares_values
    }

    /// Returns the policies that it counts by: its own, and those of its overrides.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        std::iter::once(&self.kind).chain(self.overrides.values()).filter_map(Kind::policy)
    }

    /// Returns the descriptor keys whose values make up the key in the store.
    #[must_use]
    pub const fn free_keys(&self) -> &[Box<str>] {
        &self.free_keys
    }

    /// Tells whether denials are only reported.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Tells whether a denial counts only if all limits in this mode deny.
    #[must_use]
    pub const fn is_quota_mode(&self) -> bool {
        self.quota_mode
    }

    /// Tells whether refused hits are charged as well.
    #[must_use]
    pub const fn counts_refused(&self) -> bool {
        self.count_refused
    }

    /// Returns the percentages of the limit at which a key is reported, ascending.
    #[must_use]
    pub const fn warn(&self) -> &[u8] {
        &self.warn
    }

    /// Returns the percentage of keys for which a denial counts.
    #[must_use]
    pub const fn enforce(&self) -> u8 {
        self.enforce
    }

    /// Returns what happens when the store cannot answer.
    #[must_use]
    pub const fn failure(&self) -> Failure {
        self.failure
    }

    /// Returns the names of the limits that it replaces.
    #[must_use]
    pub const fn replaces(&self) -> &[Box<str>] {
        &self.replaces
    }

    /// Returns the rules that are charged as well.
    #[must_use]
    pub const fn parents(&self) -> &[Parent] {
        &self.parents
    }

    /// Returns the metadata for responses that this rule admits.
    #[must_use]
    pub const fn metadata(&self) -> Option<&serde_json::Value> {
        self.metadata.as_ref()
    }

    /// Returns whether permits of a shared store are taken in advance.
    #[must_use]
    pub const fn lease(&self) -> Lease {
        self.lease
    }

    /// Returns the number of its store.
    #[must_use]
    pub const fn store(&self) -> usize {
        self.store
    }

    /// Returns its counts, which outlive a reload.
    #[must_use]
    pub const fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// Returns where it was declared.
    #[must_use]
    pub const fn place(&self) -> &crate::config::Place {
        &self.place
    }
}
