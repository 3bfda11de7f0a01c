//! The failure policy and the local share of each policy, computed once.

use super::{
    FailurePolicy, Failures,
    local_share::{Ratio, Share},
};
use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};
use tollgate::{
    Algorithm, Quota,
    store::{Demand, Policy, StoreError},
};

/// How many names have plans at once. When there are more, all plans are dropped and made again on
/// demand.
const NAMES_MAX: usize = 4096;
/// How many plans a name has at once, for different quotas of the same name.
const PLANS_MAX: usize = 4;

/// How a policy is decided while the store cannot be reached.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) failure: FailurePolicy,
    /// The policy for the local store: with this process's share of the quota.
    pub(super) local: Policy,
    ratio: Ratio,
    quota: Quota,
    algorithm: Algorithm,
    is_ad_hoc: bool,
}

impl Plan {
    fn new(policy: &Policy, failure: FailurePolicy, ratio: Ratio) -> Result<Self, StoreError> {
        let (name, quota, algorithm) = (policy.name(), policy.quota(), policy.algorithm());
        let is_ad_hoc = policy.is_ad_hoc();
        let local = match (failure, is_ad_hoc, algorithm) {
            (FailurePolicy::Open, ..) => open()?,
            (_, true, Algorithm::Gcra) => Policy::ad_hoc(name),
            (_, true, _) => Policy::ad_hoc_window(name, quota.period())?,
            _ => Policy::with_algorithm(name, ratio.of_quota(quota, algorithm), algorithm)?,
        };
        Ok(Self { failure, local, ratio, quota, algorithm, is_ad_hoc })
    }

    fn fits(&self, policy: &Policy, ratio: Ratio) -> bool {
        let own = (self.quota, self.algorithm, self.is_ad_hoc, self.ratio);
        own == (policy.quota(), policy.algorithm(), policy.is_ad_hoc(), ratio)
    }

    /// Returns this process's share of a number of permits, at least one if there are any.
    pub(super) fn share_of(&self, permits: u64) -> u64 {
        self.ratio.of(permits)
    }

    /// Returns the demand for the local store. The local store rejects one that lacks its quota.
    pub(super) fn demand<'a>(
        &'a self,
        demand: &Demand<'a>,
        cost: u64,
    ) -> Result<Demand<'a>, StoreError> {
        if self.local.is_ad_hoc() && demand.has_own_quota() {
            let quota = self.ratio.of_quota(demand.quota(), self.algorithm);
            return Ok(Demand::ad_hoc(&self.local, demand.key(), cost, quota)?);
        }
        Ok(Demand::new(&self.local, demand.key(), cost))
    }
}

/// The policy for demands that always pass: with it, several demands can still form one reservation
/// in which each has its place.
fn open() -> Result<Policy, StoreError> {
    Ok(Policy::new("\0open", Quota::unlimited())?)
}

/// All plans, and the settings that they are made from.
#[derive(Debug)]
pub(super) struct Plans {
    pub(super) share: Share,
    /// Whether any policy may be decided locally. If none may, no local limiter has to be kept
    /// warm, which saves a lookup for each call: a third of the instructions of this crate over a
    /// store in memory.
    has_local: AtomicBool,
    book: RwLock<Book>,
}

#[derive(Debug)]
struct Book {
    failures: Failures,
    plans: HashMap<Box<str>, Vec<Arc<Plan>>>,
}

impl Plans {
    pub(super) fn new(share: Share, failures: Failures) -> Self {
        let has_local = AtomicBool::new(failures.has_local());
        Self { share, has_local, book: RwLock::new(Book { failures, plans: HashMap::new() }) }
    }

    // A thread that panicked while it held the lock left no half-made entry: each change is one
    // call of the map.
    fn read(&self) -> RwLockReadGuard<'_, Book> {
        self.book.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Book> {
        self.book.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn failures(&self) -> Failures {
        self.read().failures.clone()
    }

    pub(super) fn set_failures(&self, failures: Failures) {
        let mut book = self.write();
        // ORDERING: Relaxed, here and below. A concurrent call may see either value.
        self.has_local.store(failures.has_local(), Relaxed);
        book.failures = failures;
        book.plans.clear();
    }

    /// Tells whether any policy may be decided locally.
    pub(super) fn has_local(&self) -> bool {
        self.has_local.load(Relaxed)
    }

    pub(super) fn failure_of(&self, name: &str) -> FailurePolicy {
        self.read().failures.of(name)
    }

    /// Returns the plan for a policy.
    pub(super) fn of(&self, policy: &Policy) -> Result<Arc<Plan>, StoreError> {
        let ratio = self.share.ratio();
        {
            let book = self.read();
            let known = book.plans.get(policy.name());
            let fitting = known.and_then(|plans| plans.iter().find(|it| it.fits(policy, ratio)));
            if let Some(plan) = fitting {
                return Ok(Arc::clone(plan));
            }
        }
        let mut book = self.write();
        let failure = book.failures.of(policy.name());
        let plan = Arc::new(Plan::new(policy, failure, ratio)?);
        if book.plans.len() >= NAMES_MAX && !book.plans.contains_key(policy.name()) {
            book.plans.clear();
        }
        let plans = book.plans.entry(policy.name().into()).or_default();
        if plans.len() >= PLANS_MAX {
            plans.remove(0);
        }
        plans.push(Arc::clone(&plan));
        Ok(plan)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.read().plans.values().map(Vec::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FleetSize;

    #[test]
    fn plans_are_kept_within_bounds() {
        let plans = Plans::new(Share::Fleet(FleetSize::fixed(2)), Failures::default());
        for round in 0..10_u64 {
            let policy = Policy::new("one", Quota::per_second(100 + round)).unwrap();
            assert_eq!(plans.of(&policy).unwrap().local.quota().capacity(), (100 + round) / 2);
        }
        assert_eq!(plans.len(), PLANS_MAX);
        for number in 0..2 * NAMES_MAX {
            let policy = Policy::new(format!("policy {number}"), Quota::per_second(10)).unwrap();
            plans.of(&policy).unwrap();
            assert!(plans.len() <= NAMES_MAX + PLANS_MAX);
        }
    }

    #[test]
    fn a_plan_follows_the_fleet_and_the_failures() {
        let size = FleetSize::fixed(2);
        let plans = Plans::new(Share::Fleet(size.clone()), Failures::default());
        let policy = Policy::new("one", Quota::per_second(100)).unwrap();
        assert_eq!(plans.of(&policy).unwrap().local.quota().capacity(), 50);
        size.set(4);
        assert_eq!(plans.of(&policy).unwrap().local.quota().capacity(), 25);
        assert!(plans.has_local());
        plans.set_failures(Failures::all(FailurePolicy::Closed));
        assert!(!plans.has_local());
        assert_eq!(plans.of(&policy).unwrap().failure, FailurePolicy::Closed);
    }
}
