//! How a guarded store is built.

use super::{
    FailurePolicy, Failures, Guarded, Shared,
    local_share::{Share, WHOLE},
    plan::Plans,
    spend::Spends,
    status::Counts,
};
use crate::FleetSize;
use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};
use tokio::sync::Notify;
use tollgate::store::{MemoryStore, Store};

/// The longest wait that a refusal can name.
const RETRY_MAX: Duration = Duration::from_secs(3600);
/// The most spends that can be remembered.
const SPENDS_MAX: usize = 10_000_000;

/// Builds a [`Guarded`] store. Only [`build`](Self::build) checks the settings.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::store::MemoryStore;
/// use tollgate_redis::{FailurePolicy, FleetSize, Guarded};
///
/// let store = Guarded::builder(MemoryStore::new())
///     .failure_of("logins", FailurePolicy::Closed)
///     .retry_after(Duration::from_secs(5))
///     .fleet(FleetSize::fixed(8))
///     .fraction(0.25) // of every quota, as traffic is uneven
///     .local_keys(1_000_000)
///     .spends(10_000)
///     .build()?;
/// # Ok::<(), tollgate_redis::GuardError>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
#[derive(Debug)]
pub struct GuardedBuilder<S> {
    inner: S,
    failures: Failures,
    fleet: FleetSize,
    fraction: Option<f64>,
    retry_after: Duration,
    local_keys: u64,
    is_warm: bool,
    spends: usize,
}

impl<S: Store + 'static> GuardedBuilder<S> {
    pub(super) fn new(inner: S) -> Self {
        Self {
            inner,
            failures: Failures::default(),
            fleet: FleetSize::fixed(1),
            fraction: None,
            retry_after: Duration::from_secs(1),
            local_keys: 100_000,
            is_warm: true,
            spends: 100_000,
        }
    }

    /// Sets the failure policy of all that have none of their own, by default
    /// [`FailurePolicy::Local`]: it neither stops the service nor leaves it unprotected.
    pub fn failure(mut self, failure: FailurePolicy) -> Self {
        self.failures.set_default(failure);
        self
    }

    /// Sets the failure policy of one policy, or of the permits of a name.
    pub fn failure_of(mut self, name: impl Into<Box<str>>, failure: FailurePolicy) -> Self {
        self.failures = self.failures.but(name, failure);
        self
    }

    /// Sets all failure policies at once.
    pub fn failures(mut self, failures: Failures) -> Self {
        self.failures = failures;
        self
    }

    /// Sets how many processes share the limits, by default one: each decides locally by one over
    /// that many of the quota.
    pub fn fleet(mut self, fleet: FleetSize) -> Self {
        self.fleet = fleet;
        self
    }

    /// Sets this process's share of every quota, above 0 and at most 1, instead of one over the
    /// number of processes: more than that where traffic is uneven, at the price of a larger
    /// [bound](Guarded::bound). Counted in 10^-9.
    pub fn fraction(mut self, fraction: f64) -> Self {
        self.fraction = Some(fraction);
        self
    }

    /// Sets how long a refusal by [`FailurePolicy::Closed`] tells to wait, by default 1 s: about
    /// when the store is probed again. At most an hour.
    pub fn retry_after(mut self, retry_after: Duration) -> Self {
        self.retry_after = retry_after;
        self
    }

    /// Sets how many keys the local limiter has memory for, 24 bytes each, by default 100000. Beyond
    /// that the keys that have used least are forgotten.
    pub fn local_keys(mut self, keys: u64) -> Self {
        self.local_keys = keys;
        self
    }

    /// Sets whether the local limiter follows the store, by default true: it books what the store
    /// admits, and gives up its saved burst when the store refuses. Without this an outage begins with
    /// a full burst in every process. Only for [`FailurePolicy::Local`].
    pub fn warm(mut self, warm: bool) -> Self {
        self.is_warm = warm;
        self
    }

    /// Sets of how many keys the spend is remembered, to be booked into the store when it is back, by
    /// default 100000. Their keys may have 256 bytes on average. With zero nothing is booked.
    pub fn spends(mut self, entries: usize) -> Self {
        self.spends = entries;
        self
    }

    fn share(&self) -> Result<Share, GuardError> {
        let fleet = self.fleet.clone();
        let Some(fraction) = self.fraction else { return Ok(Share::Fleet(fleet)) };
        let parts = fraction * WHOLE as f64;
        if !(0.5..=WHOLE as f64).contains(&parts) {
            return Err(GuardError::new(format!(
                "the share {fraction} of a process is not above 0 and at most 1; leave it out for one \
                 over the number of processes"
            )));
        }
        Ok(Share::Fraction(parts.round() as u64, fleet))
    }

    /// Builds the store.
    ///
    /// # Errors
    ///
    /// Names the value, the rule it breaks, and a way out.
    pub fn build(self) -> Result<Guarded<S>, GuardError> {
        let share = self.share()?;
        self.failures.check()?;
        if self.retry_after.is_zero() || self.retry_after > RETRY_MAX {
            return Err(GuardError::new(format!(
                "a denial cannot ask for a wait of {:?}; use more than zero and at most an hour",
                self.retry_after
            )));
        }
        if self.spends > SPENDS_MAX {
            return Err(GuardError::new(format!(
                "the spend of {} keys is too much to remember; use at most {SPENDS_MAX}",
                self.spends
            )));
        }
        let local = MemoryStore::builder().clock(self.inner.clock().clone());
        let local = local.bounded(self.local_keys).build();
        let shared = Shared {
            inner: self.inner,
            local: local.map_err(|error| GuardError::new(error.to_string()))?,
            plans: Plans::new(share, self.failures),
            spends: Spends::new(self.spends),
            counts: Counts::default(),
            retry_after: self.retry_after,
            is_warm: self.is_warm,
            tag: fastrand::u64(..) | 1 << 63,
            carrying: AtomicBool::new(false),
            has_task: AtomicBool::new(false),
            wake: Arc::new(Notify::new()),
        };
        Ok(Guarded { shared: Arc::new(shared) })
    }
}

/// Why a guarded store cannot be built or changed.
///
/// # Examples
///
/// ```
/// use tollgate::store::MemoryStore;
/// use tollgate_redis::Guarded;
///
/// let error = Guarded::builder(MemoryStore::new()).fraction(1.5).build().unwrap_err();
/// assert!(error.to_string().starts_with("the share 1.5 of a process is not above 0 and at most 1"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardError(String);

impl GuardError {
    pub(super) fn new(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for GuardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GuardError {}
