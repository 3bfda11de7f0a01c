//! The guaranteed bounds while the store is away.

use super::{FailurePolicy, plan::Plan};
use std::fmt;
use tollgate::{Algorithm, store::Policy};

/// The most that passes for one key while the store is away, over all processes.
///
/// Over a time with one outage of length d, at most this much passes:
///
/// - the store's own limit for the time before the outage, and again for the time after it: with a
///   rate R and a burst B, B + R x t each;
/// - d / period x [`while_down_per_window`](Self::while_down_per_window) +
///   [`while_down_once`](Self::while_down_once).
///
/// `tests/failover/servers/guard_fleet.rs` tests this, over five algorithms. A process that starts
/// during the outage counts as one more, and a key that a full [local
/// table](super::GuardedBuilder::local_keys) forgets gets its share again.
///
/// # Examples
///
/// ```
/// use tollgate::{Quota, store::{MemoryStore, Policy}};
/// use tollgate_redis::{Bound, FailurePolicy, Guarded};
///
/// let store = Guarded::builder(MemoryStore::new()).failure(FailurePolicy::Closed).build()?;
/// let bound: Bound = store.bound(&Policy::new("logins", Quota::per_minute(5))?)?;
/// assert_eq!(
///     bound.to_string(),
///     "policy \"logins\" is closed while the store cannot be reached: nothing passes"
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bound {
    /// The failure policy that holds.
    pub failure: FailurePolicy,
    /// The number of processes in the calculation.
    pub processes: u64,
    /// The most that passes in one period of the quota while the store is away; `None` if there is
    /// no bound.
    pub while_down_per_window: Option<u64>,
    /// The most that passes beyond that, once per outage: the bursts of all processes, or their
    /// windows that are cut by its ends.
    pub while_down_once: Option<u64>,
    /// The most that the store can over-admit once it is back: it has refilled meanwhile, and
    /// receives the admissions made without it only later, or never, if the process has ended.
    pub extra_at_recovery: Option<u64>,
    /// The same in words.
    pub text: String,
}

impl Bound {
    pub(super) fn new(policy: &Policy, plan: &Plan, processes: u64) -> Self {
        let (failure, capacity) = (plan.failure, policy.quota().capacity());
        let (per_window, once, extra) = match failure {
            FailurePolicy::Closed => (Some(0), Some(0), Some(0)),
            _ if policy.quota().is_unlimited() || policy.is_ad_hoc() => (None, None, None),
            FailurePolicy::Open => (None, None, Some(capacity)),
            FailurePolicy::Local => {
                let (each, once) = share(policy, plan);
                let all = |each: u64| Some(each.saturating_mul(processes));
                let per_window = match policy.algorithm() {
                    // Rounded once, over all.
                    Algorithm::Gcra => Some(in_period(policy, plan, processes)),
                    _ => all(each),
                };
                (per_window, all(once), Some(capacity))
            }
        };
        let mut bound = Self {
            failure,
            processes,
            while_down_per_window: per_window,
            while_down_once: once,
            extra_at_recovery: extra,
            text: String::new(),
        };
        bound.text = bound.words(policy);
        bound
    }

    fn words(&self, policy: &Policy) -> String {
        let (name, period) = (policy.name(), policy.quota().period());
        match (self.failure, self.while_down_per_window, self.while_down_once) {
            (FailurePolicy::Closed, ..) => {
                format!(
                    "policy \"{name}\" is closed while the store cannot be reached: nothing passes"
                )
            }
            (FailurePolicy::Local, Some(per_window), Some(once)) => format!(
                "policy \"{name}\" is decided locally while the store cannot be reached: each key \
                 passes at most {per_window} per {period:?} over {} processes, plus {once} once; \
                 when the store is back, at most {} too many until the spend is reported to it",
                self.processes,
                policy.quota().capacity(),
            ),
            (FailurePolicy::Local, ..) => format!(
                "policy \"{name}\" is decided locally while the store cannot be reached, by this \
                 process's share of the quota that comes with a call, or has no limit"
            ),
            (FailurePolicy::Open, ..) => {
                format!(
                    "policy \"{name}\" is open while the store cannot be reached: everything \
                     passes uncounted"
                )
            }
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Returns what one process admits in a period, and beyond that once.
fn share(policy: &Policy, plan: &Plan) -> (u64, u64) {
    let limit = plan.local.quota().capacity();
    match policy.algorithm() {
        Algorithm::Gcra | Algorithm::SlidingLog => (limit, limit),
        // A time d touches at most d / period + 2 windows.
        _ => (limit, limit.saturating_mul(2)),
    }
}

/// Returns what all processes refill in one period of the policy.
fn in_period(policy: &Policy, plan: &Plan, processes: u64) -> u64 {
    let (whole, local) = (policy.quota(), plan.local.quota());
    // OVERFLOW: count and period are below 2^55, so saturating is beyond what quotas can be.
    let permits = (u128::from(local.count()) * whole.period().as_nanos())
        .saturating_mul(u128::from(processes));
    // The rate of a share is right to one part in 10^9: that much is not worth a permit.
    let period = local.period().as_nanos().max(1);
    let slack = permits / 1_000_000_000;
    u64::try_from(permits.saturating_sub(slack).div_ceil(period)).unwrap_or(u64::MAX)
}
