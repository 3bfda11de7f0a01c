//! Guaranteed shares of one limit.

use super::{AdaptiveConcurrency, MeasuredPermit};
use crate::{
    CallOutcome, ConfigError, Full,
    sync::{Arc, AtomicU64, Ordering::Relaxed},
};

/// Guaranteed shares of an [`AdaptiveConcurrency`]; clones share them.
///
/// While the limit has room, everybody passes, whatever its share. When the limit is full, a partition passes as long as
/// it has less in flight than its share of the limit, rounded up, at least one; who has borrowed more than its share waits
/// for room. So the total may exceed the limit for a moment, by at most what the others have borrowed.
///
/// A name that was not declared has no share: it lives on what is free.
///
/// # Examples
///
/// ```
/// use tollgate::{CallOutcome, Concurrency};
/// use tollgate::adaptive::{AdaptiveConcurrency, Partitions, law::Aimd};
///
/// let law = Aimd::builder().initial(4).min(1).max(100).build()?;
/// let limit = AdaptiveConcurrency::over(Concurrency::new(0)?, law);
/// let parts = Partitions::builder(&limit).share("web", 75).share("jobs", 25).build()?;
/// let jobs: Vec<_> = (0..4).map(|_| parts.try_acquire("jobs")).collect();
/// assert!(jobs.iter().all(Result::is_ok)); // nobody else wants anything
/// assert!(parts.try_acquire("jobs").is_err());
/// assert!(parts.try_acquire("web").is_ok()); // three of four are guaranteed
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Partitions {
    limit: AdaptiveConcurrency,
    shares: Arc<Vec<Arc<Share>>>,
}

#[derive(Debug)]
struct Share {
    name: Box<str>,
    percent: u64,
    in_flight: AtomicU64,
}

impl Partitions {
    /// Starts shares of `limit`.
    pub fn builder(limit: &AdaptiveConcurrency) -> PartitionsBuilder {
        PartitionsBuilder { limit: limit.clone(), shares: Vec::new() }
    }

    /// Returns the limit that is shared.
    #[must_use]
    pub const fn limit(&self) -> &AdaptiveConcurrency {
        &self.limit
    }

    /// Takes a slot for a partition, if the limit has room, or the partition is below its share. Never waits.
    ///
    /// # Errors
    ///
    /// [`Full`] says why not.
    pub fn try_acquire(&self, name: &str) -> Result<PartitionPermit, Full> {
        let enforced = self.limit.concurrency();
        let share = self.share(name);
        let (permit, slot) = match enforced.try_acquire() {
            Ok(permit) => (permit, share.and_then(|share| ShareSlot::take(share, u64::MAX))),
            Err(full) if full.is_closed() => return Err(full),
            Err(full) => {
                let share = share.ok_or(full)?;
                let most = (enforced.limit() * share.percent).div_ceil(100).max(1);
                let slot = ShareSlot::take(share, most).ok_or(full)?;
                (enforced.acquire_beyond()?, Some(slot))
            }
        };
        Ok(PartitionPermit { call: self.limit.measured(Some(permit)), _slot: slot })
    }

    fn share(&self, name: &str) -> Option<&Arc<Share>> {
        self.shares.iter().find(|share| *share.name == *name)
    }

    /// Returns how many calls of a partition are in flight; 0 if it was not declared.
    #[must_use]
    pub fn in_flight(&self, name: &str) -> u64 {
        self.share(name).map_or(0, |share| share.in_flight.load(Relaxed))
    }
}

/// Builds [`Partitions`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct PartitionsBuilder {
    limit: AdaptiveConcurrency,
    shares: Vec<(Box<str>, u8)>,
}

impl PartitionsBuilder {
    /// Guarantees a partition so many percent of the limit.
    pub fn share(mut self, name: &str, percent: u8) -> Self {
        self.shares.push((name.into(), percent));
        self
    }

    /// Builds the shares.
    ///
    /// # Errors
    ///
    /// When they exceed 100 percent together, or a name is declared twice.
    pub fn build(self) -> Result<Partitions, ConfigError> {
        let percent: u32 = self.shares.iter().map(|(_, percent)| u32::from(*percent)).sum();
        if percent > 100 {
            return Err(ConfigError::new(format!(
                "the shares are {percent} percent together, and more than 100 cannot be guaranteed; lower some of them"
            )));
        }
        for (index, (name, _)) in self.shares.iter().enumerate() {
            if self.shares[..index].iter().any(|(other, _)| other == name) {
                return Err(ConfigError::new(format!(
                    "partition {name:?} is declared twice; give each one share"
                )));
            }
        }
        let share = |(name, percent): (Box<str>, u8)| {
            Arc::new(Share { name, percent: percent.into(), in_flight: AtomicU64::new(0) })
        };
        let shares = self.shares.into_iter().map(share).collect();
        Ok(Partitions { limit: self.limit, shares: Arc::new(shares) })
    }
}

/// A slot of a partition, with the time at which the call began: as [`MeasuredPermit`].
#[must_use = "a slot that is dropped at once limits nothing, and measures nothing"]
#[derive(Debug)]
pub struct PartitionPermit {
    call: MeasuredPermit,
    _slot: Option<ShareSlot>,
}

impl PartitionPermit {
    /// Ends the call now: gives the slot back and tells the law.
    pub fn end(mut self, outcome: CallOutcome) {
        self.measure(outcome);
    }

    /// As [`MeasuredPermit::measure`].
    pub fn measure(&mut self, outcome: CallOutcome) {
        self.call.measure(outcome);
    }
}

/// One call in flight of a partition.
#[derive(Debug)]
struct ShareSlot(Arc<Share>);

impl ShareSlot {
    /// Counts one more call, unless the partition has `most` in flight.
    fn take(share: &Arc<Share>, most: u64) -> Option<Self> {
        let more = |count: u64| (count < most).then_some(count + 1);
        // ORDERING: Relaxed, here and below: a count that guards nothing but itself.
        share.in_flight.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(Self(Arc::clone(share)))
    }
}

impl Drop for ShareSlot {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}
