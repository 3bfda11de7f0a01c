//! The permits of a key that this process holds: the store has charged them already.
//!
//! ```text
//! ask(cost):
//!   the life of the permits is over      -> they are dropped
//!   enough of them                       -> take them; few left: fetch more ahead of the need
//!   the store had too little just now    -> refused, until the next useful call
//!   another request is asking already    -> wait for its answer
//!   otherwise                            -> fetch `want`, then take
//!
//! want = the demand of a sync period, at least the cost, at most the current lease
//! current lease: from 2 to the largest; less by every permit that expires unused, more by a 32nd
//!                with every fetch that finds the last lease used up
//! land(granted of want):
//!   all of it    -> hold it for two sync periods
//!   less         -> hold it, and ask no more for a pace (0.9 to 1.1 of it, so that the processes
//!                   spread); with nothing at all, not before the store's wait either
//! ```
//!
//! Demand per sync period is an average with a weight of one half for the newest period, in 1/256
//! permits; an unfinished period counts with its demand so far, so that a new key doubles its
//! leases until they suffice.
//!
//! INVARIANT: held permits and permits being fetched are together at most the largest lease. All
//! bounds of `Bounds` follow from this, and from the store having charged every permit before.

use super::{
    single_flight::SingleFlight,
    table::{Slot, Tally},
    terms::Terms,
};
use std::{sync::Arc, time::Duration};
use tollgate::{Algorithm, Answer, Decision, Outcome, Quota, Tick, store::Demand};

/// Fraction bits of the average demand, and of the current lease.
const FRACTION: u32 = 8;
/// A lease grows by 1/2^5 of itself.
const GROWTH: u32 = 5;
/// The smallest current lease: one permit would save no call.
const LEASE_MIN: u64 = 2;

pub(super) struct HeldPermits {
    /// Identifies the plan and the number of processes that the terms depend on.
    stamp: u64,
    terms: Terms,
    quota: Quota,
    algorithm: Algorithm,

    tokens: u64,
    /// The most permits in one fetch, in 1/256 permits: few if the last leases expired unused.
    current: u64,
    expires: Tick,
    flight: Option<Arc<SingleFlight>>,

    /// Demand per sync period; `seen` is that of the period that began at `since`.
    demand: u64,
    seen: u64,
    since: Tick,

    /// Until then, the store need not be called.
    next_call: Tick,
    /// Until then, nothing is fetched ahead, because a fetch failed.
    next_ahead: Tick,
    told: Told,
}

/// The store's last answer.
struct Told {
    limit: u64,
    left: u64,
    full_at: Option<Tick>,
    retry_at: Tick,
    is_degraded: bool,
}

/// The request for permits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    pub(super) cost: u64,
    /// Whether this is the first attempt, not one after waiting.
    pub(super) is_first: bool,
    /// How long the store takes to answer.
    pub(super) round_trip_ns: u64,
}

/// The next step.
pub(super) enum Step {
    /// The demand passes. If few permits are left, fetch more.
    Taken(Decision, Option<Fetch>),
    Refused(Decision),
    Wait(Arc<SingleFlight>),
    Fetch(Fetch),
}

/// A store call to make.
pub(super) struct Fetch {
    pub(super) want: u64,
    pub(super) flight: Arc<SingleFlight>,
}

/// The result of a [`Fetch`].
pub(super) struct Landing {
    pub(super) want: u64,
    /// The cost of the caller; zero if the fetch was ahead of the need.
    pub(super) cost: u64,
    pub(super) decision: Decision,
    /// The longest time for which a refusal is remembered.
    pub(super) believed: Duration,
}

impl HeldPermits {
    pub(super) fn new(demand: &Demand<'_>, now: Tick, of: (u64, Terms)) -> Self {
        let quota = demand.quota();
        let told = Told {
            limit: quota.capacity(),
            left: 0,
            full_at: None,
            retry_at: Tick::ZERO,
            is_degraded: false,
        };
        Self {
            stamp: of.0,
            terms: of.1,
            quota,
            algorithm: demand.policy().algorithm(),
            tokens: 0,
            current: of.1.lease_max << FRACTION,
            expires: now,
            flight: None,
            demand: 0,
            seen: 0,
            since: now,
            next_call: Tick::ZERO,
            next_ahead: Tick::ZERO,
            told,
        }
    }

    /// Tells whether the terms still match the settings in force.
    pub(super) fn is_current(&self, stamp: u64, demand: &Demand<'_>) -> bool {
        self.stamp == stamp
            && self.quota == demand.quota()
            && self.algorithm == demand.policy().algorithm()
    }

    /// Changes the terms. Permits fetched under another quota are dropped.
    pub(super) fn retune(&mut self, demand: &Demand<'_>, of: (u64, Terms), tally: &mut Tally) {
        let (quota, algorithm) = (demand.quota(), demand.policy().algorithm());
        (self.stamp, self.terms) = of;
        let kept = match self.quota == quota && self.algorithm == algorithm {
            true => self.tokens.min(self.terms.lease_max),
            false => 0,
        };
        if kept == 0 {
            (self.next_call, self.told.limit) = (Tick::ZERO, quota.capacity());
        }
        tally.wasted += self.tokens - kept;
        (self.tokens, self.quota, self.algorithm) = (kept, quota, algorithm);
    }

    /// Returns the largest lease.
    pub(super) fn lease_max(&self) -> u64 {
        self.terms.lease_max
    }

    /// Returns the permits held.
    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Takes permits, or returns the step that is needed first.
    pub(super) fn ask(&mut self, now: Tick, asking: Asking, tally: &mut Tally) -> Step {
        let cost = asking.cost;
        if asking.is_first {
            self.count(now, cost);
        }
        self.expire(now, tally);
        if self.tokens >= cost {
            self.tokens -= cost;
            tally.allowed += 1;
            let ahead = self.is_low(asking.round_trip_ns) && now >= self.next_ahead;
            let fetch = if ahead && now >= self.next_call { self.fetch(now, 1) } else { None };
            return Step::Taken(self.answer(now, cost, Outcome::Allowed), fetch);
        }
        if now < self.next_call {
            tally.refused += 1;
            return Step::Refused(self.answer(now, cost, Outcome::Later));
        }
        if let Some(flight) = &self.flight {
            if !flight.is_stuck(now) {
                return Step::Wait(Arc::clone(flight));
            }
            // The waiters ask by themselves, and this caller fetches anew.
            flight.fail();
            flight.end();
            self.flight = None;
        }
        match self.fetch(now, cost) {
            Some(fetch) => Step::Fetch(fetch),
            // Unreachable: a cost is at most the largest lease.
            None => Step::Refused(self.answer(now, cost, Outcome::Later)),
        }
    }

    /// Starts a fetch, after which there are at least `cost` permits if the store has them.
    fn fetch(&mut self, now: Tick, cost: u64) -> Option<Fetch> {
        let room = self.terms.lease_max.saturating_sub(self.tokens);
        let least = cost.saturating_sub(self.tokens).max(1);
        if self.flight.is_some() || least > room {
            return None;
        }
        // The last lease was used up, so this one may be larger. OVERFLOW: the largest lease is
        // half a burst, below 2^50.
        self.current += self.current >> GROWTH;
        self.current = self.current.min(self.terms.lease_max << FRACTION);
        let want = self.usual().min(self.current >> FRACTION).clamp(least, room);
        let flight = Arc::new(SingleFlight::new(now));
        self.flight = Some(Arc::clone(&flight));
        Some(Fetch { want, flight })
    }

    /// Adds the permits of a fetch. Returns the decision for its caller.
    pub(super) fn land(&mut self, now: Tick, landing: &Landing, tally: &mut Tally) -> Decision {
        let Landing { want, cost, decision, believed } = landing;
        self.flight = None;
        self.expire(now, tally);
        let granted = if decision.is_allowed() { decision.cost().min(*want) } else { 0 };
        let held = self.tokens.saturating_add(granted);
        self.tokens = held.min(self.terms.lease_max);
        tally.wasted += held - self.tokens;
        self.expires = self.life(now, decision);
        self.told = Told {
            limit: decision.limit(),
            left: decision.remaining(),
            full_at: decision.full_at(),
            retry_at: Tick::ZERO,
            is_degraded: decision.is_degraded(),
        };
        if granted < *want {
            self.next_call = now.saturating_add(spread(self.terms.pace_ns));
        }
        if granted == 0 {
            let retry_at = decision.retry_at().unwrap_or(self.next_call);
            self.told.retry_at = retry_at;
            // A degraded refusal says nothing about the store: the next call follows after one
            // pace.
            let longest = if decision.is_degraded() { Duration::ZERO } else { *believed };
            self.next_call = self.next_call.max(retry_at.min(now.saturating_add(longest)));
        }
        if *cost == 0 {
            return *decision;
        }
        if self.tokens < *cost {
            let is_never = decision.is_never();
            return if is_never { *decision } else { self.answer(now, *cost, Outcome::Later) };
        }
        self.tokens -= cost;
        self.answer(now, *cost, Outcome::Allowed)
    }

    /// Returns the end of the permits: after two sync periods, but permits of a window end with it.
    fn life(&self, now: Tick, decision: &Decision) -> Tick {
        let end = now.saturating_add(Duration::from_nanos(2 * self.terms.sync_ns));
        match (self.algorithm, decision.full_at()) {
            (Algorithm::FixedWindow | Algorithm::AnchoredWindow, Some(reset)) => end.min(reset),
            _ => end,
        }
    }

    /// Tells whether this flight is the current one.
    pub(super) fn is_flight(&self, flight: &Arc<SingleFlight>) -> bool {
        self.flight.as_ref().is_some_and(|own| Arc::ptr_eq(own, flight))
    }

    /// Records that a fetch has failed, unless it is over already.
    pub(super) fn give_up(&mut self, now: Tick, flight: &Arc<SingleFlight>) {
        if self.is_flight(flight) {
            self.flight = None;
            self.next_ahead = now.saturating_add(Duration::from_nanos(self.terms.pace_ns));
        }
    }

    /// Forgets that the store had too little.
    pub(super) fn ask_again(&mut self) {
        (self.next_call, self.told.retry_at) = (Tick::ZERO, Tick::ZERO);
    }

    /// Takes back permits that were not used after all.
    pub(super) fn put_back(&mut self, now: Tick, permits: u64, tally: &mut Tally) {
        self.expire(now, tally);
        let room = self.terms.lease_max.saturating_sub(self.tokens);
        let kept = if now < self.expires { permits.min(room) } else { 0 };
        self.tokens += kept;
        tally.wasted += permits - kept;
    }

    fn expire(&mut self, now: Tick, tally: &mut Tally) {
        if now >= self.expires {
            tally.wasted += self.tokens;
            let less = self.current.saturating_sub(self.tokens << FRACTION);
            self.current = less.max(LEASE_MIN << FRACTION);
            self.tokens = 0;
        }
    }

    /// Counts demand.
    fn count(&mut self, now: Tick, cost: u64) {
        let passed = now.since(self.since).as_nanos() / u128::from(self.terms.sync_ns.max(1));
        if passed > 0 {
            // OVERFLOW: `seen` stays below 2^48, see below; the average is no larger.
            self.demand = (self.demand + (self.seen << FRACTION)) / 2;
            let idle = u32::try_from(passed - 1).unwrap_or(u32::MAX);
            self.demand = self.demand.checked_shr(idle).unwrap_or(0);
            self.seen = 0;
            let periods = u64::try_from(passed).unwrap_or(u64::MAX);
            let by = periods.saturating_mul(self.terms.sync_ns);
            self.since = self.since.saturating_add(Duration::from_nanos(by));
        }
        self.seen = self.seen.saturating_add(cost).min(1 << 48);
    }

    /// Returns the demand per sync period.
    fn usual(&self) -> u64 {
        self.seen.max(self.demand.div_ceil(1 << FRACTION))
    }

    /// Tells whether the held permits last for less than two round trips.
    fn is_low(&self, round_trip_ns: u64) -> bool {
        let needed = 2 * u128::from(self.demand) * u128::from(round_trip_ns);
        (u128::from(self.tokens) << FRACTION) * u128::from(self.terms.sync_ns) < needed
    }

    fn answer(&self, now: Tick, cost: u64, outcome: Outcome) -> Decision {
        let Told { limit, left, full_at, retry_at, is_degraded } = self.told;
        let left = if outcome == Outcome::Allowed { left } else { 0 };
        let decision = Decision::answered(Answer {
            outcome,
            at: now,
            cost,
            limit,
            remaining: self.tokens.saturating_add(left).min(limit),
            retry_at: self.next_call.max(retry_at),
            full_at,
        });
        if is_degraded { decision.degraded() } else { decision }
    }
}

impl Slot for HeldPermits {
    fn rank(&self) -> Option<u64> {
        let has = u64::from(self.tokens > 0) << 63;
        self.flight.is_none().then_some(has | self.expires.as_nanos() >> 1)
    }
}

/// Returns nine to eleven tenths of a time, so that processes that began together spread out.
fn spread(nanos: u64) -> Duration {
    let tenth = nanos / 10;
    Duration::from_nanos(nanos - tenth + fastrand::u64(0..=2 * tenth))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the memory that the docs of the builder state.
    #[test]
    fn entries_are_as_small_as_stated() {
        use crate::lease::denial_cache::Denial;
        assert_eq!((size_of::<(u128, HeldPermits)>(), size_of::<(u128, Denial)>()), (240, 144));
    }
}
