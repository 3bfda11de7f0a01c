//! Which policies lease, and how.

use super::TierError;
use std::{collections::HashMap, time::Duration};

/// How the permits of a policy are leased.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate_redis::LeaseSettings;
///
/// let settings = LeaseSettings::new().sync(Duration::from_millis(50)).most(20);
/// assert_eq!(settings.sync_period(), Duration::from_millis(50));
/// ```
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    sync: Duration,
    most: Option<u64>,
}

impl LeaseSettings {
    /// Returns the defaults: a sync period of 100 ms, and leases as large as the formula says.
    pub const fn new() -> Self {
        Self { sync: Duration::from_millis(100), most: None }
    }

    /// Sets the sync period, by default 100 ms, from 1 ms to 10 s: a process asks the store about
    /// once in that time for each key. Unused permits are dropped after twice that time.
    pub const fn sync(mut self, period: Duration) -> Self {
        self.sync = period;
        self
    }

    /// Sets the most permits that one process holds for one key, by default what the formula says
    /// ([`Bounds::lease_max`](super::Bounds::lease_max)). It can only lower that.
    pub const fn most(mut self, permits: u64) -> Self {
        self.most = Some(permits);
        self
    }

    /// Returns the sync period.
    #[must_use]
    pub const fn sync_period(&self) -> Duration {
        self.sync
    }

    /// Returns the most permits that one process holds for one key, if that was set.
    #[must_use]
    pub const fn most_permits(&self) -> Option<u64> {
        self.most
    }

    pub(super) fn check(&self) -> Result<(), TierError> {
        let range = Duration::from_millis(1)..=Duration::from_secs(10);
        if range.contains(&self.sync) { Ok(()) } else { Err(TierError::Sync(self.sync)) }
    }
}

impl Default for LeaseSettings {
    fn default() -> Self {
        Self::new()
    }
}

/// Which policies lease: none of them by default, all, or some by name.
///
/// # Examples
///
/// All policies lease but `logins`, which stays exact:
///
/// ```
/// use tollgate_redis::{LeasePlan, LeaseSettings};
///
/// let plan = LeasePlan::all(LeaseSettings::new()).of("logins", None);
/// assert!(plan.settings("api").is_some());
/// assert!(plan.settings("logins").is_none());
/// ```
#[must_use]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeasePlan {
    all: Option<LeaseSettings>,
    named: HashMap<Box<str>, Option<LeaseSettings>>,
}

impl LeasePlan {
    /// No policy leases. The default.
    pub fn none() -> Self {
        Self::default()
    }

    /// Every policy leases for which it pays.
    pub fn all(settings: LeaseSettings) -> Self {
        Self { all: Some(settings), named: HashMap::new() }
    }

    /// Sets how one policy leases, regardless of the others; `None`: not at all.
    pub fn of(mut self, policy: impl Into<Box<str>>, settings: Option<LeaseSettings>) -> Self {
        self.named.insert(policy.into(), settings);
        self
    }

    /// Returns how a policy leases; `None` if it does not.
    #[must_use]
    pub fn settings(&self, policy: &str) -> Option<LeaseSettings> {
        if self.named.is_empty() {
            return self.all;
        }
        self.named.get(policy).copied().unwrap_or(self.all)
    }

    pub(super) fn with_all(mut self, settings: LeaseSettings) -> Self {
        self.all = Some(settings);
        self
    }

    /// Tells whether any policy may lease.
    pub(super) fn is_any(&self) -> bool {
        self.all.is_some() || self.named.values().any(Option::is_some)
    }

    pub(super) fn check(&self) -> Result<(), TierError> {
        let mut each = self.all.iter().chain(self.named.values().flatten());
        each.try_for_each(LeaseSettings::check)
    }
}
