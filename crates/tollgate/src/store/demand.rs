//! What a store is asked for.

use crate::{
    Algorithm, Clock, Decision, Quota, QuotaError,
    sync::{Arc, AtomicU64},
    table::class::ClassRule,
};
use siphasher::sip::SipHasher13;
use std::{fmt, hash::Hasher};

/// A named rule: which quota, by which algorithm. Clones are the same policy.
///
/// Policies of one name share the states of their keys: a policy with another quota takes over what
/// each key has left.
#[derive(Clone)]
pub struct Policy {
    inner: Arc<Inner>,
}

struct Inner {
    name: Box<str>,
    quota: Quota,
    algorithm: Algorithm,
    /// A number for the name.
    id: u64,
    /// What a store in this process remembers of the policy.
    hint: AtomicU64,
}

impl Policy {
    /// Returns a policy with the default algorithm, [`Algorithm::Gcra`].
    ///
    /// # Errors
    ///
    /// When the quota makes no sense.
    pub fn new(name: impl Into<Box<str>>, quota: Quota) -> Result<Self, QuotaError> {
        Self::with_algorithm(name, quota, Algorithm::default())
    }

    /// Returns a policy.
    ///
    /// # Errors
    ///
    /// When the quota makes no sense, or not for this algorithm.
    pub fn with_algorithm(
        name: impl Into<Box<str>>,
        quota: Quota,
        algorithm: Algorithm,
    ) -> Result<Self, QuotaError> {
        ClassRule::new(algorithm, &quota, &Clock::manual().0)?;
        let name = name.into();
        let mut hasher = SipHasher13::new_with_keys(0x746f_6c6c, 0x6761_7465);
        hasher.write(name.as_bytes());
        let (id, hint) = (hasher.finish(), AtomicU64::new(0));
        Ok(Self { inner: Arc::new(Inner { name, quota, algorithm, id, hint }) })
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the quota.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.inner.quota
    }

    /// Returns the algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.inner.algorithm
    }

    pub(crate) fn id(&self) -> u64 {
        self.inner.id
    }

    pub(crate) fn hint(&self) -> &AtomicU64 {
        &self.inner.hint
    }
}

/// Policies are equal if they say the same.
impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        let told = |policy: &Self| (policy.quota(), policy.algorithm());
        self.name() == other.name() && told(self) == told(other)
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.name())
            .field("quota", &self.quota().to_string())
            .field("algorithm", &self.algorithm())
            .finish()
    }
}

/// One policy, key and cost of a call, and afterwards its own decision.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    policy: &'a Policy,
    key: &'a [u8],
    cost: u64,
    decision: Option<Decision>,
}

impl<'a> Demand<'a> {
    /// Returns a demand for `cost` permits of a key. Keys are bytes, of any length and content.
    #[must_use]
    pub const fn new(policy: &'a Policy, key: &'a [u8], cost: u64) -> Self {
        Self { policy, key, cost, decision: None }
    }

    /// Returns the policy.
    #[must_use]
    pub const fn policy(&self) -> &'a Policy {
        self.policy
    }

    /// Returns the key.
    #[must_use]
    pub const fn key(&self) -> &'a [u8] {
        self.key
    }

    /// Returns the cost.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns what this demand was told by the last call. If others refused, it was not charged
    /// even though it was allowed.
    #[must_use]
    pub const fn decision(&self) -> Option<Decision> {
        self.decision
    }

    /// Notes what the demand is told: for stores.
    pub fn tell(&mut self, decision: Decision) {
        self.decision = Some(decision);
    }
}
