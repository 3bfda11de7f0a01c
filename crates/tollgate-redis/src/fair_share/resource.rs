//! A shared resource, and its members.

use super::{Rate, Sharing, shares::BANDS};
use crate::fleet::{JoinError, escaped, random_name};
use std::time::Duration;

/// The most processes that share one resource: the script visits every row for every report.
pub(super) const CLIENTS_MAX: u64 = 500;

const WEIGHT_MAX: u16 = 1_000;

/// A capacity with a name, shared by the processes that join it.
///
/// All processes should set the same one; during a rollout of new settings, the highest capacity
/// holds.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate_redis::{Rate, Resource, Sharing};
///
/// let resource = Resource::new("payments api", Rate::per_second(500))
///     .sharing(Sharing::bands())
///     .safe_capacity(Rate::per_second(20))
///     .lease(Duration::from_secs(15));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a resource does nothing until it is joined"]
pub struct Resource {
    pub(super) name: String,
    pub(super) capacity: Rate,
    pub(super) sharing: Sharing,
    pub(super) safe_capacity: Option<Rate>,
    pub(super) lease: Duration,
    pub(super) refresh: Duration,
    pub(super) soonest: Duration,
    pub(super) learning: Option<Duration>,
    pub(super) burst: Duration,
}

impl Resource {
    /// Returns a resource that is shared fairly.
    pub fn new(name: impl Into<String>, capacity: Rate) -> Self {
        Self {
            name: name.into(),
            capacity,
            sharing: Sharing::default(),
            safe_capacity: None,
            lease: Duration::from_secs(10),
            refresh: Duration::from_secs(3),
            soonest: Duration::from_secs(1),
            learning: None,
            burst: Duration::from_secs(1),
        }
    }

    /// Sets how the capacity is shared, by default [`Sharing::Fair`].
    pub fn sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = sharing;
        self
    }

    /// Sets the share of a process while the store is away and its lease is over. By default, it is
    /// the capacity divided by the last known number of processes, or nothing if there was never an
    /// answer.
    pub fn safe_capacity(mut self, rate: Rate) -> Self {
        self.safe_capacity = Some(rate);
        self
    }

    /// Sets the length of a lease, by default 10 s. The share of a killed process is free after
    /// that.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets the time between two reports, give or take a tenth, over which demand is averaged; by
    /// default 3 s, so that two reports may be lost in a lease.
    pub fn refresh(mut self, refresh: Duration) -> Self {
        self.refresh = refresh;
        self
    }

    /// Sets the shortest time between two reports when demand rises before the next is due, by
    /// default 1 s. Rises in between are reported together.
    pub fn soonest(mut self, soonest: Duration) -> Self {
        self.soonest = soonest;
        self
    }

    /// Sets for how long a new (or lost) table only restates the shares that processes hold
    /// already, by default one lease. During that time newcomers get nothing.
    ///
    /// Zero assumes that a new table means a new fleet: newcomers get a share at once, and after a
    /// loss of the table up to twice the capacity can be granted for one refresh.
    pub fn learning(mut self, learning: Duration) -> Self {
        self.learning = Some(learning);
        self
    }

    /// Sets how much of a share can accumulate, as the time in which it comes; by default 1 s, and
    /// at least one permit.
    pub fn burst(mut self, burst: Duration) -> Self {
        self.burst = burst;
        self
    }

    /// Returns the key of the table.
    pub(super) fn key(&self) -> Result<Vec<u8>, JoinError> {
        Ok(format!("tollgate:{{allot:{}}}", escaped(&self.name)?).into_bytes())
    }

    pub(super) fn learning_time(&self) -> Duration {
        self.learning.unwrap_or(self.lease)
    }

    pub(super) fn check(&self) -> Result<(), JoinError> {
        let wrong = |text: String| Err(JoinError::new(text));
        let Self { capacity, lease, refresh, soonest, burst, .. } = *self;
        let day = Duration::from_secs(86_400);
        let rates = [Some(capacity), self.safe_capacity, self.most_each()];
        if let Some(rate) = rates.into_iter().flatten().find(|rate| *rate > Rate::MAX) {
            return wrong(format!(
                "{rate} is above the maximum of {}; count in larger units",
                Rate::MAX
            ));
        }
        if let Sharing::Bands { floor_ppm } = self.sharing
            && floor_ppm as usize > 1_000_000 / BANDS
        {
            let rule = "is above 125000 (an eighth of the capacity for each of 8 bands); lower it";
            return wrong(format!("the floor of {floor_ppm} millionths {rule}"));
        }
        if refresh < Duration::from_millis(10) || lease > day {
            let rule =
                "are out of range; use a refresh of at least 10ms and a lease of at most one day";
            return wrong(format!("refresh {refresh:?} and lease {lease:?} {rule}"));
        }
        if lease < 2 * refresh {
            let rule = "is shorter than two refreshes of";
            return wrong(format!("lease {lease:?} {rule} {refresh:?}; make it three or more"));
        }
        if soonest > refresh || soonest < Duration::from_millis(1) {
            let rule = "is not between 1ms and the refresh";
            return wrong(format!("soonest {soonest:?} {rule} {refresh:?}"));
        }
        if burst > day || self.learning_time() > day {
            return wrong("burst and learning must be at most one day each".to_owned());
        }
        Ok(())
    }

    fn most_each(&self) -> Option<Rate> {
        match self.sharing {
            Sharing::Static { each } => Some(each),
            _ => None,
        }
    }
}

/// A member of a resource: one process.
///
/// # Examples
///
/// ```
/// use tollgate_redis::Member;
///
/// let batch = Member::new().weight(2).band(3);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a member does nothing until it joins"]
pub struct Member {
    pub(super) id: Option<String>,
    pub(super) weight: u16,
    pub(super) band: u8,
    pub(super) least: Option<Rate>,
}

impl Member {
    /// Returns a member of weight 1 in band 0, with a random name.
    pub const fn new() -> Self {
        Self { id: None, weight: 1, band: 0, least: None }
    }

    /// Sets the name in the table, by default a random one. The script refuses a second process of
    /// the same name until the first has left or its lease is over.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets the weight, 1 (the default) to 1000.
    pub const fn weight(mut self, weight: u16) -> Self {
        self.weight = weight;
        self
    }

    /// Sets the band, 0 (the highest, the default) to 7.
    pub const fn band(mut self, band: u8) -> Self {
        self.band = band;
        self
    }

    /// Sets the least demand when demand is measured, by default a hundredth of the capacity, so
    /// that a process that becomes busy has something to begin with.
    pub const fn at_least(mut self, rate: Rate) -> Self {
        self.least = Some(rate);
        self
    }

    pub(super) fn check(&self) -> Result<(), JoinError> {
        if self.weight == 0 || self.weight > WEIGHT_MAX {
            let text = format!("weight {} is out of range; use 1 to {WEIGHT_MAX}", self.weight);
            return Err(JoinError::new(text));
        }
        if usize::from(self.band) >= BANDS {
            return Err(JoinError::new(format!("band {} is out of range; use 0 to 7", self.band)));
        }
        match self.least {
            Some(rate) if rate > Rate::MAX => {
                Err(JoinError::new(format!("{rate} as a minimum is above {}", Rate::MAX)))
            }
            _ => Ok(()),
        }
    }

    /// Returns the field of the table.
    pub(super) fn field(&self) -> Result<String, JoinError> {
        self.id.as_deref().map_or_else(|| Ok(random_name()), escaped)
    }
}

impl Default for Member {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_named() {
        let base = || Resource::new("api", Rate::per_second(10));
        let secs = Duration::from_secs;
        for (resource, text) in [
            (
                Resource::new("api", Rate::per_second(2_000_000_000)),
                "2000000000/s is above the maximum of 1000000000/s; count in larger units",
            ),
            (
                base().sharing(Sharing::Bands { floor_ppm: 200_000 }),
                "the floor of 200000 millionths is above 125000 (an eighth of the capacity for \
                 each of 8 bands); lower it",
            ),
            (
                base().lease(secs(5)),
                "lease 5s is shorter than two refreshes of 3s; make it three or more",
            ),
            (base().soonest(secs(4)), "soonest 4s is not between 1ms and the refresh 3s"),
        ] {
            assert_eq!(resource.check().unwrap_err().to_string(), text);
        }
        assert_eq!(base().check(), Ok(()));
        assert_eq!(base().key().unwrap(), b"tollgate:{allot:api}");
        for member in [Member::new().weight(0), Member::new().weight(1001), Member::new().band(8)] {
            assert!(member.check().is_err(), "{member:?}");
        }
        assert!(Member::new().id("").field().is_err());
        assert_ne!(Member::new().field(), Member::new().field());
    }
}
