//! Where a rate is put in force, and the quota that it becomes there.

use super::super::law::LawError;
use crate::{
    Algorithm, Concurrency, Inherit, Initial, Limiter, Quota, QuotaError,
    algorithm::AnyRule,
    keyed::core::Core,
    store::Policy,
    sync::{Arc, Mutex, lock},
};
use std::{fmt, time::Duration};

/// A [`Policy`] whose quota changes while it is in use. Clones share it.
///
/// Take the policy anew for each call: it travels with the call, so a change is one write here and
/// none in the store, in memory as in Redis.
///
/// # Examples
///
/// ```
/// use tollgate::{Quota, adaptive::rate::CurrentPolicy, store::{MemoryStore, Policy}};
///
/// let store = MemoryStore::new();
/// let users = CurrentPolicy::new(Policy::new("users", Quota::per_second(10))?);
/// assert_eq!(store.acquire_one_now(&users.get(), b"alice", 1)?.remaining(), 9);
/// users.set_quota(Quota::per_second(5))?;
/// assert_eq!(store.acquire_one_now(&users.get(), b"bob", 1)?.remaining(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct CurrentPolicy {
    policy: Arc<Mutex<Policy>>,
}

impl CurrentPolicy {
    /// Returns a policy that can change.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy: Arc::new(Mutex::new(policy)) }
    }

    /// Returns the policy in force.
    #[must_use]
    pub fn get(&self) -> Policy {
        lock(&self.policy).clone()
    }

    /// Puts another quota in force, with the name and the algorithm as before. No key is touched:
    /// [`KeyedLimiter::set_quota`](crate::KeyedLimiter::set_quota) says what each keeps.
    ///
    /// # Errors
    ///
    /// When the quota makes no sense for the algorithm, or comes with each call
    /// ([`Policy::ad_hoc`]); the old one then stays in force.
    pub fn set_quota(&self, quota: Quota) -> Result<(), QuotaError> {
        let mut policy = lock(&self.policy);
        if policy.is_ad_hoc() {
            return Err(QuotaError::NothingToCount);
        }
        *policy = Policy::with_algorithm(policy.name(), quota, policy.algorithm())?;
        Ok(())
    }
}

impl fmt::Debug for CurrentPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CurrentPolicy").field(&self.get()).finish()
    }
}

/// Where a rate is put in force.
pub(super) enum Target {
    Limiter(Limiter, Concurrency),
    Keys(Arc<Core>),
    Policy(CurrentPolicy),
}

impl Target {
    pub(super) fn shape(&self) -> Result<Shape, LawError> {
        match self {
            Self::Limiter(limiter, _) => Shape::new(&limiter.quota(), limiter.algorithm()),
            Self::Keys(core) => {
                let (quota, algorithm) = core.default_quota();
                Shape::new(&quota, algorithm)
            }
            Self::Policy(current) => match current.get() {
                policy if policy.is_ad_hoc() => Err(QuotaError::NothingToCount.into()),
                policy => Shape::new(&policy.quota(), policy.algorithm()),
            },
        }
    }

    /// Puts a quota in force: one write, however many keys there are.
    pub(super) fn set_quota(&self, quota: Quota) -> Result<(), LawError> {
        match self {
            Self::Limiter(limiter, _) => limiter.set_quota(quota, Inherit::Proportional)?,
            Self::Keys(core) => {
                let set = core.set_default_quota(quota);
                // The shape was checked for keys: it is that of the quota they have.
                debug_assert!(set.is_ok(), "{set:?}");
            }
            Self::Policy(current) => current.set_quota(quota)?,
        }
        Ok(())
    }

    /// Returns how many calls may be in flight beside the rate.
    pub(super) fn in_flight_max(&self) -> Option<u64> {
        match self {
            Self::Limiter(_, concurrency) => Some(concurrency.limit()),
            _ => None,
        }
    }

    /// Tells whether the rate is one for all calls, and not one for each key.
    pub(super) const fn is_one_for_all(&self) -> bool {
        matches!(self, Self::Limiter(..))
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limiter(limiter, concurrency) => {
                f.debug_tuple("Limiter").field(limiter).field(concurrency).finish()
            }
            Self::Keys(core) => f.debug_tuple("Keys").field(&core.name).finish(),
            Self::Policy(current) => current.fmt(f),
        }
    }
}

/// What stays of a quota while its rate moves: burst / rate, or the length of its window.
///
/// So an exhausted key stays exhausted: with a fixed burst every cut would free a burst.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    algorithm: Algorithm,
    /// The window; a period without meaning for GCRA.
    period: Duration,
    /// Burst / rate, or the window.
    seconds: f64,
    initial: Initial,
}

impl Shape {
    fn new(quota: &Quota, algorithm: Algorithm) -> Result<Self, LawError> {
        quota.check_countable()?;
        if quota.count() == 0 {
            return Err(QuotaError::NothingToCount.into());
        }
        let period = quota.period();
        let seconds = match algorithm {
            Algorithm::Gcra => {
                quota.capacity() as f64 * period.as_secs_f64() / quota.count() as f64
            }
            _ => period.as_secs_f64(),
        };
        Ok(Self { algorithm, period, seconds, initial: quota.initial_fill() })
    }

    /// Checks that every rate between `min` and `max` has a quota.
    pub(super) fn check(&self, min: f64, max: f64) -> Result<(), LawError> {
        if self.permits(min) == 0 {
            let rule = "brings less than one permit in the time of the burst or window, so nothing \
                        would ever pass; raise min or the burst, or take a longer window";
            return Err(LawError::OutOfRange { setting: "min", value: min, rule });
        }
        for rate in [min, max] {
            AnyRule::new(self.algorithm, &self.quota(rate), Duration::ZERO)?;
        }
        Ok(())
    }

    /// Returns the whole permits of a span at a rate.
    fn permits(&self, rate: f64) -> u64 {
        // A product such as 2.3 x 10 is a hair below 23.
        (rate * self.seconds * (1.0 + 1e-12)).floor() as u64
    }

    /// Returns the quota for a rate in permits per second. Windows count whole permits, so theirs
    /// is rounded down; elsewhere the rate is kept to a millionth.
    pub(super) fn quota(&self, rate: f64) -> Quota {
        let permits = self.permits(rate);
        let quota = match self.algorithm {
            Algorithm::Gcra => exact(rate).burst(permits),
            _ => Quota::per(permits, self.period),
        };
        quota.initial(match self.initial {
            Initial::Permits(initial) => Initial::Permits(initial.min(permits)),
            initial => initial,
        })
    }
}

/// Returns a quota of `rate` permits per second, without a burst: 27.5 are 55 in 2 s.
fn exact(rate: f64) -> Quota {
    const MILLION: u64 = 1_000_000;
    if rate < 1.0 {
        return Quota::one_every(Duration::from_nanos((1e9 / rate).round() as u64));
    }
    // OVERFLOW: a rate is at most 10^9.
    let count = (rate * MILLION as f64).round() as u64;
    let common = greatest_common_divisor(count, MILLION);
    Quota::per(count / common, Duration::from_secs(MILLION / common))
}

const fn greatest_common_divisor(mut one: u64, mut two: u64) -> u64 {
    while two != 0 {
        (one, two) = (two, one % two);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_becomes_a_quota_with_the_same_burst_by_rate() {
        for (quota, algorithm, rate, expected) in [
            ("100/s", Algorithm::Gcra, 27.5, "55 per 2s burst 27"),
            ("100/s burst 20", Algorithm::Gcra, 50.0, "50/s burst 10"),
            ("3/s burst 4", Algorithm::Gcra, 0.75, "1 per 1333333333ns burst 1"),
            ("60/min burst 600", Algorithm::Gcra, 2.3, "23 per 10s burst 1380"),
            ("100/s", Algorithm::FixedWindow, 27.5, "27/s"),
            ("600/min", Algorithm::SlidingCounter, 2.5, "150/min"),
        ] {
            let shape = Shape::new(&quota.parse().unwrap(), algorithm).unwrap();
            let expected: Quota = expected.parse().unwrap();
            assert_eq!(shape.quota(rate), expected, "{quota} at {rate}/s: {}", shape.quota(rate));
        }
    }

    /// Three divided by four is nothing in whole numbers: a limit of 0, for ever.
    #[test]
    fn a_minimum_without_a_whole_permit_is_refused() {
        let shape = Shape::new(&Quota::per_second(3), Algorithm::Gcra).unwrap();
        let error = shape.check(0.75, 3.0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "min 0.75 brings less than one permit in the time of the burst or window, so nothing \
             would ever pass; raise min or the burst, or take a longer window"
        );
        assert_eq!(shape.check(1.0, 3.0), Ok(()));
        let wider = Shape::new(&Quota::per_second(3).burst(4), Algorithm::Gcra).unwrap();
        assert_eq!(wider.check(0.75, 3.0), Ok(()));
    }

    #[test]
    fn quotas_without_a_rate_are_refused() {
        for quota in [Quota::once(10), Quota::unlimited()] {
            let refused = Shape::new(&quota, Algorithm::Gcra).unwrap_err();
            assert_eq!(refused, LawError::Quota(QuotaError::NothingToCount), "{quota}");
        }
    }
}
