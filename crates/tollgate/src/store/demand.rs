//! Policies and demands: the input of a store.

use crate::{
    Algorithm, Decision, Quota, QuotaError, Tick,
    algorithm::{AnyRule, FixedWindow, PerCall},
    clock::tick::duration_nanos,
    keyed::fingerprint::Started,
    sync::Arc,
};
use siphasher::sip::SipHasher13;
use std::{fmt, hash::Hasher, sync::OnceLock, time::Duration};

/// Permits per minute or window of a quota that stands in for those that come with the calls.
const NOMINAL: u64 = 100;

/// A named rule: which quota, by which algorithm. Clones are the same policy.
///
/// Policies of one name share the states of their keys: under a policy with another quota, what each key has
/// used stays as it is ([`KeyedLimiter::set_quota`](crate::KeyedLimiter::set_quota) says what that is). A policy
/// that says the same as the one before is no change.
#[derive(Clone)]
pub struct Policy {
    inner: Arc<Inner>,
}

struct Inner {
    name: Box<str>,
    quota: Quota,
    algorithm: Algorithm,
    /// The quota is nominal: that of a call comes with it.
    is_ad_hoc: bool,
    /// A number for the name.
    id: u64,
    /// What the first store of this process that was asked remembers of the policy.
    in_force: OnceLock<InForce>,
}

/// A policy in a store of this process.
pub(crate) struct InForce {
    pub(crate) store: u64,
    pub(crate) rule: AnyRule,
    pub(crate) since: Tick,
    /// The fingerprints of its keys, begun.
    pub(crate) started: Option<Started>,
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
        AnyRule::new(algorithm, &quota, Duration::ZERO)?;
        Ok(Self::made(name.into(), quota, algorithm, false))
    }

    /// Returns a policy by GCRA whose quota comes with each call, in
    /// [`Demand::ad_hoc`]: of redis-cell's `CL.THROTTLE`, or of an override in the request.
    ///
    /// A store can tell any number of such quotas apart. When the quota of a key changes from one
    /// call to the next, the time up to which the key is booked stays as it is, and the new quota
    /// is held against that.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Quota, store::{Demand, MemoryStore, Policy}};
    ///
    /// let (store, throttle) = (MemoryStore::new(), Policy::ad_hoc("throttle"));
    /// let quota = Quota::per_minute(30).burst(16); // as the caller says
    /// let mut demands = [Demand::ad_hoc(&throttle, b"user123", 1, quota)?];
    /// let decision = store.acquire_now(&mut demands)?;
    /// assert_eq!((decision.limit(), decision.remaining()), (16, 15));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn ad_hoc(name: impl Into<Box<str>>) -> Self {
        Self::made(name.into(), Quota::per_minute(NOMINAL), Algorithm::Gcra, true)
    }

    /// Returns a policy of aligned fixed windows whose limit comes with each call, in
    /// [`Demand::ad_hoc`].
    ///
    /// When the limit of a key changes from one call to the next, the count of its window stays.
    ///
    /// # Errors
    ///
    /// When there can be no such windows.
    pub fn ad_hoc_window(name: impl Into<Box<str>>, period: Duration) -> Result<Self, QuotaError> {
        let nominal = Quota::per(NOMINAL.min(duration_nanos(period)), period);
        FixedWindow::aligned(&nominal, Duration::ZERO)?;
        Ok(Self::made(name.into(), nominal, Algorithm::FixedWindow, true))
    }

    fn made(name: Box<str>, quota: Quota, algorithm: Algorithm, is_ad_hoc: bool) -> Self {
        let mut hasher = SipHasher13::new_with_keys(0x746f_6c6c, 0x6761_7465);
        hasher.write(name.as_bytes());
        let (id, in_force) = (hasher.finish(), OnceLock::new());
        let inner = Inner { name, quota, algorithm, is_ad_hoc, id, in_force };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Returns the quota. If that [comes with each call](Self::is_ad_hoc), a nominal one, of which
    /// only the period of windows means something.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.inner.quota
    }

    /// Tells whether the quota comes with each call, in [`Demand::ad_hoc`].
    #[must_use]
    pub fn is_ad_hoc(&self) -> bool {
        self.inner.is_ad_hoc
    }

    /// Returns the algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.inner.algorithm
    }

    pub(crate) fn id(&self) -> u64 {
        self.inner.id
    }

    /// Returns what a store of this process remembers of the policy.
    #[inline]
    pub(crate) fn in_force(&self, store: u64) -> Option<&InForce> {
        self.inner.in_force.get().filter(|known| known.store == store)
    }

    /// Lets a store remember the policy, unless another one does.
    pub(crate) fn put_in_force(&self, known: impl FnOnce() -> InForce) {
        self.inner.in_force.get_or_init(known);
    }
}

/// Policies are equal if they say the same.
impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        let told = |policy: &Self| (policy.quota(), policy.algorithm(), policy.is_ad_hoc());
        self.name() == other.name() && told(self) == told(other)
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.name())
            .field("quota", &self.quota().to_string())
            .field("algorithm", &self.algorithm())
            .field("is_ad_hoc", &self.is_ad_hoc())
            .finish()
    }
}

/// One policy, key and cost of a call, and afterwards its own decision.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    policy: &'a Policy,
    key: &'a [u8],
    cost: u64,
    /// The quota that comes with the call, if one does.
    ad_hoc: Option<(Quota, PerCall)>,
    decision: Option<Decision>,
}

impl<'a> Demand<'a> {
    /// Returns a demand for `cost` permits of a key. Keys are bytes, of any length and content.
    #[must_use]
    pub const fn new(policy: &'a Policy, key: &'a [u8], cost: u64) -> Self {
        Self { policy, key, cost, ad_hoc: None, decision: None }
    }

    /// Returns a demand with a quota of its own, for a [policy](Policy::ad_hoc) that has none.
    ///
    /// # Errors
    ///
    /// When the quota makes no sense; or has another period than the windows of its policy, or no
    /// rate, or an initial fill, or a burst that takes more than 4.5 years to refill; or when the
    /// policy has a quota of its own.
    pub fn ad_hoc(
        policy: &'a Policy,
        key: &'a [u8],
        cost: u64,
        quota: Quota,
    ) -> Result<Self, QuotaError> {
        if !policy.is_ad_hoc() {
            return Err(QuotaError::NotAdHoc);
        }
        let call = PerCall::new(policy.algorithm(), &policy.quota(), &quota)?;
        Ok(Self { policy, key, cost, ad_hoc: Some((quota, call)), decision: None })
    }

    /// Returns the quota in force: the one that came with the call, or the policy's.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.ad_hoc.map_or_else(|| self.policy.quota(), |(quota, _)| quota)
    }

    /// Tells whether a quota came with the call.
    #[must_use]
    pub const fn has_own_quota(&self) -> bool {
        self.ad_hoc.is_some()
    }

    pub(crate) const fn call(&self) -> Option<PerCall> {
        match self.ad_hoc {
            Some((_, call)) => Some(call),
            None => None,
        }
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

    /// Returns the decision of the last call about this demand. If others refused, it was not charged
    /// even though it was allowed.
    #[must_use]
    pub const fn decision(&self) -> Option<Decision> {
        self.decision
    }

    pub(crate) const fn decided(&self) -> Option<&Decision> {
        self.decision.as_ref()
    }

    /// Sets the decision about the demand: for stores.
    pub fn tell(&mut self, decision: Decision) {
        self.decision = Some(decision);
    }
}
