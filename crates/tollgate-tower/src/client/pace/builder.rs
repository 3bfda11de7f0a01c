//! The builder of a pacing layer.

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

/// Builds a [`PaceLayer`]. Settings are validated by [`build`](Self::build) only.
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

    /// Sets a quota of the client's own, for all calls together; by default there is none.
    ///
    /// Its limiter may be shared with other users, and has a queue of its own.
    pub fn quota(mut self, limiter: Limiter) -> Self {
        self.quota = Some(limiter);
        self
    }

    /// Sets the cost of a call to the client's own [`quota`](Self::quota), by default 1. To the
    /// server, each call counts as one.
    pub fn cost(mut self, cost: impl Fn(&Info<'_>) -> u64 + Send + Sync + 'static) -> Self {
        self.cost = Some(Box::new(cost));
        self
    }

    /// Distinguishes routes of one server that have limits of their own; by default all calls to
    /// one server (host and port) share what the layer learns.
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

    /// Learns nothing from answers: only the client's own [`quota`](Self::quota) counts.
    pub fn without_learning(mut self) -> Self {
        self.learns = false;
        self
    }

    /// Sets how to use the calls that the server says are left, by default [`Spend::EvenBelow`]
    /// 50 %.
    pub fn spend(mut self, spend: Spend) -> Self {
        self.spend = spend;
        self
    }

    /// Sets how long a call may wait in all, by default 30 s. A call that would wait longer fails
    /// at once.
    pub fn max_wait(mut self, longest: Duration) -> Self {
        self.max_wait = longest;
        self
    }

    /// Sets how many calls may wait for one server, by default 1000. Further calls fail at once.
    pub fn max_waiting(mut self, most: usize) -> Self {
        self.max_waiting = most;
        self
    }

    /// Sets how many servers, or routes, are remembered, by default 1000. Each takes a few hundred
    /// bytes, and 4 kB at most.
    ///
    /// If there are more, the one that was idle longest is forgotten. If all are in use, the
    /// servers that find no place share one.
    pub fn max_lanes(mut self, most: usize) -> Self {
        self.max_lanes = most;
        self
    }

    /// Sets how far ahead a time in an answer may lie, by default one hour; see
    /// [`Reader::longest`]. A later time is cut to that, and counted. A longer window of the server
    /// does not hold calls back for longer either: after this time one call goes ahead as a probe.
    pub fn longest(mut self, longest: Duration) -> Self {
        self.longest = longest;
        self
    }

    /// Sets the clock, by default [`Clock::tokio`]. Waits use tokio's timers, so another clock must
    /// run as fast as they do: a manual one does not.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    ///
    /// If there is nothing to pace by, or a bound is invalid.
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
