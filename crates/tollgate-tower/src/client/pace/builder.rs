//! How a pacing layer is put together.

use super::{CostOf, PaceBuildError, PaceLayer, RouteOf, Shared};
use crate::{
    Info,
    client::{counts::Counts, lane::Manner, lanes::Lanes, learned::Reader, spend::Spend},
};
use std::{
    fmt,
    hash::{Hash, RandomState},
    sync::Arc,
    time::Duration,
};
use tollgate::{Clock, Limiter};

/// Builds a [`PaceLayer`]. Nothing is judged before [`build`](Self::build).
#[must_use = "a builder does nothing until `build`"]
pub struct PaceBuilder {
    quota: Option<Limiter>,
    cost: Option<CostOf>,
    route: Option<RouteOf>,
    learns: bool,
    spend: Spend,
    max_wait: Duration,
    max_waiting: usize,
    max_lanes: usize,
    longest: Duration,
    clock: Option<Clock>,
}

impl PaceBuilder {
    pub(super) fn new() -> Self {
        Self {
            quota: None,
            cost: None,
            route: None,
            learns: true,
            spend: Spend::default(),
            max_wait: Duration::from_secs(30),
            max_waiting: 1_000,
            max_lanes: 1_000,
            longest: Reader::new().bound(),
            clock: None,
        }
    }

    /// Sets a quota of one's own, for all calls together; by default there is none.
    ///
    /// Its limiter may be shared with others, and has a queue of its own.
    pub fn quota(mut self, limiter: Limiter) -> Self {
        self.quota = Some(limiter);
        self
    }

    /// Sets what a call costs of one's own [`quota`](Self::quota), by default 1. To the server, each
    /// call counts as one.
    pub fn cost(mut self, cost: impl Fn(&Info<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Box::new(cost));
        self
    }

    /// Tells routes of one server apart that have limits of their own; by default all calls to one
    /// server (host and port) are learned of together.
    ///
    /// A refusal then stops only the calls of that route. The closure should return one of few
    /// values: the first part of a path, say, but not an id.
    pub fn route<K: Hash>(
        mut self,
        route: impl Fn(&Info<'_>) -> K + Send + Sync + 'static,
    ) -> Self {
        self.route = Some(Box::new(move |info, mut hasher| route(info).hash(&mut hasher)));
        self
    }

    /// Learns nothing from answers: only one's own [`quota`](Self::quota) counts.
    pub fn without_learning(mut self) -> Self {
        self.learns = false;
        self
    }

    /// Sets how to use what the server says is left, by default [`Spend::EvenBelow`] 50 %.
    pub fn spend(mut self, spend: Spend) -> Self {
        self.spend = spend;
        self
    }

    /// Sets how long a call may wait for its turn in all, by default 30 s. What would take longer
    /// fails at once.
    pub fn max_wait(mut self, longest: Duration) -> Self {
        self.max_wait = longest;
        self
    }

    /// Sets how many calls may wait for one server, by default 1000. Those that come then fail at
    /// once.
    pub fn max_waiting(mut self, most: usize) -> Self {
        self.max_waiting = most;
        self
    }

    /// Sets how many servers, or routes, are remembered, by default 1000. Each takes a few hundred
    /// bytes, and 4 kB at most.
    ///
    /// If there are more, the one that was idle longest is forgotten. If all are in use, those that
    /// find no place are learned of together.
    pub fn max_lanes(mut self, most: usize) -> Self {
        self.max_lanes = most;
        self
    }

    /// Sets how far ahead a time in an answer may lie, by default one hour; see [`Reader::longest`].
    /// What lies beyond is cut to that, and counted. Nor does a longer window of the server hold calls
    /// back for more than that: after such a time one goes ahead and asks.
    pub fn longest(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }

    /// Sets the clock, by default [`Clock::tokio`]. Waits are timers of tokio, so another clock must
    /// run as fast: a manual one does not.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// When there is nothing to pace by, or a bound makes no sense.
    pub fn build(self) -> Result<PaceLayer, PaceBuildError> {
        if self.quota.is_none() {
            if !self.learns {
                return Err(PaceBuildError::NothingToPaceBy);
            }
            if self.cost.is_some() {
                return Err(PaceBuildError::CostWithoutQuota);
            }
        }
        if self.learns && self.max_lanes == 0 {
            return Err(PaceBuildError::NoLanes);
        }
        if self.learns && self.longest.is_zero() {
            return Err(PaceBuildError::NoTime);
        }
        if let Spend::EvenBelow(percent @ 101..) = self.spend {
            return Err(PaceBuildError::Percent(percent));
        }
        let clock = self.clock.unwrap_or_else(Clock::tokio);
        let manner = Manner { spend: self.spend, longest: self.longest };
        let lanes = self
            .learns
            .then(|| Lanes::new(self.max_lanes, self.max_waiting, manner, clock.clone()));
        let shared = Shared {
            quota: self.quota,
            cost: self.cost,
            route: self.route,
            lanes,
            reader: Reader::new().longest(self.longest),
            max_wait: self.max_wait,
            clock,
            counts: Counts::default(),
            hash: RandomState::new(),
        };
        Ok(PaceLayer { shared: Arc::new(shared) })
    }
}

impl fmt::Debug for PaceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PaceBuilder")
            .field("quota", &self.quota)
            .field("learns", &self.learns)
            .field("spend", &self.spend)
            .field("max_wait", &self.max_wait)
            .finish_non_exhaustive()
    }
}
