//! Building a two-tier store.

use super::{LeasePlan, LeaseSettings, TwoTier};
use crate::FleetSize;
use std::{fmt, time::Duration};
use tollgate::store::Store;

/// Entries of each of the two tables.
const ENTRIES: usize = 100_000;

/// The most entries of a table: some gigabytes.
const ENTRIES_MAX: usize = 1 << 24;

/// The longest time for which a refusal can be remembered.
const DENY_CAP_MAX: Duration = Duration::from_secs(3600);

/// Builds a [`TwoTier`].
#[must_use]
#[derive(Debug)]
pub struct TwoTierBuilder<S> {
    pub(super) inner: S,
    pub(super) fleet: FleetSize,
    pub(super) plan: LeasePlan,
    pub(super) deny_cap: Duration,
    pub(super) deny_entries: usize,
    pub(super) lease_entries: usize,
}

impl<S: Store + 'static> TwoTierBuilder<S> {
    pub(super) fn new(inner: S, fleet: FleetSize) -> Self {
        Self {
            inner,
            fleet,
            plan: LeasePlan::none(),
            deny_cap: Duration::from_secs(1),
            deny_entries: ENTRIES,
            lease_entries: ENTRIES,
        }
    }

    /// Lets every policy lease that benefits from it. By default none does: a lease moves
    /// admissions in time, within [bounds](TwoTier::bounds) that the operator should accept first.
    pub fn leases(mut self, settings: LeaseSettings) -> Self {
        self.plan = self.plan.with_all(settings);
        self
    }

    /// Sets how one policy leases, regardless of the others; `None`: not at all.
    pub fn leases_of(
        mut self,
        policy: impl Into<Box<str>>,
        settings: Option<LeaseSettings>,
    ) -> Self {
        self.plan = self.plan.of(policy, settings);
        self
    }

    /// Sets which policies lease, all at once. By default none does.
    pub fn plan(mut self, plan: LeasePlan) -> Self {
        self.plan = plan;
        self
    }

    /// Sets the longest time for which a refusal is remembered, by default 1 s, at most one hour: a
    /// call may pass that much later after another process has given permits back. Zero remembers
    /// no refusals.
    pub fn deny_cap(mut self, cap: Duration) -> Self {
        self.deny_cap = cap;
        self
    }

    /// Sets how many refusals are remembered at most, by default 100 000 (15 MB when full).
    pub fn deny_entries(mut self, entries: usize) -> Self {
        self.deny_entries = entries;
        self
    }

    /// Sets for how many keys permits are held at most, by default 100 000 (25 MB when full).
    pub fn lease_entries(mut self, entries: usize) -> Self {
        self.lease_entries = entries;
        self
    }

    /// Builds the store.
    ///
    /// # Errors
    ///
    /// When a setting is invalid.
    pub fn build(self) -> Result<TwoTier<S>, TierError> {
        self.plan.check()?;
        if self.deny_cap > DENY_CAP_MAX {
            return Err(TierError::DenyCap(self.deny_cap));
        }
        for entries in [self.deny_entries, self.lease_entries] {
            if !(1..=ENTRIES_MAX).contains(&entries) {
                return Err(TierError::Entries(entries));
            }
        }
        Ok(TwoTier::made(self))
    }
}

/// An invalid setting of a [`TwoTier`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TierError {
    /// The sync period is out of range.
    Sync(Duration),
    /// The longest time for which a refusal is remembered is out of range.
    DenyCap(Duration),
    /// The size of a table is out of range.
    Entries(usize),
}

impl fmt::Display for TierError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sync(sync) => write!(
                f,
                "a sync period of {sync:?} is out of range; use 1 ms to 10 s, usually 100 ms, or \
                 turn leases off"
            ),
            Self::DenyCap(cap) => {
                write!(f, "denials cannot be cached for {cap:?}; use at most an hour")
            }
            Self::Entries(entries) => write!(
                f,
                "a table of {entries} entries is out of range; use 1 to {ENTRIES_MAX}, usually \
                 {ENTRIES}, or set the cap of denials to zero to cache none"
            ),
        }
    }
}

impl std::error::Error for TierError {}
