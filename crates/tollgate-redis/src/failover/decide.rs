//! Decisions without the store.

use super::{FailurePolicy, Guarded, Shared, plan::Plan};
use std::{sync::Arc, time::Duration};
use tollgate::{
    Answer, Decision, Outcome, Tick,
    store::{Demand, Entered, PermitId, Permits, ReservationId, Reserved, Store, StoreError},
};

/// How many demands one decision can name.
const DEMANDS_MAX: usize = 64;
/// How many bits the numbers of the local store have.
const ID_BITS: u32 = 40;

/// A failure of the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Away {
    /// When it was noticed.
    pub(super) at: Tick,
    /// The store may have charged the call: it must not be charged there again.
    pub(super) is_unknown: bool,
}

/// Whether something is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Take,
    Look,
}

impl<S: Store + 'static> Guarded<S> {
    /// Decides by failure policies: all or none, as the store does.
    pub(super) fn decide(
        &self,
        demands: &mut [Demand<'_>],
        away: Away,
        verb: Verb,
    ) -> Result<Decision, StoreError> {
        let now = away.at;
        if let [demand] = demands {
            let plan = self.shared.plans.of(demand.policy())?;
            let own = match self.shared.fixed(&plan, demand, now) {
                Some(own) => own,
                None => {
                    let mut local = [plan.demand(demand, demand.cost())?];
                    let own = match verb {
                        Verb::Take => self.shared.local.acquire_at(now, &mut local)?,
                        Verb::Look => self.shared.local.peek_at(now, &mut local)?,
                    };
                    self.shared.soften(own, demand, now)
                }
            };
            self.tell(demand, plan.failure, own);
            if verb == Verb::Take && own.is_allowed() {
                self.note(demand, &plan, (demand.cost(), away));
            }
            return Ok(own);
        }
        let plans = self.plans(demands)?;
        let is_closed = plans.iter().any(|plan| plan.failure == FailurePolicy::Closed);
        let mut locals = locals(&plans, demands, |plan| plan.failure == FailurePolicy::Local)?;
        let joined = match verb {
            _ if locals.is_empty() => None,
            Verb::Take if !is_closed => Some(self.shared.local.acquire_at(now, &mut locals)?),
            _ => Some(self.shared.local.peek_at(now, &mut locals)?),
        };
        let own = locals.iter().map(Demand::decision);
        self.conclude(demands, &plans, (joined, away, verb), own)
    }

    /// Tells each demand its decision, and joins them.
    fn conclude(
        &self,
        demands: &mut [Demand<'_>],
        plans: &[Arc<Plan>],
        (joined, away, verb): (Option<Decision>, Away, Verb),
        mut locals: impl Iterator<Item = Option<Decision>>,
    ) -> Result<Decision, StoreError> {
        let now = away.at;
        let mut each = Vec::with_capacity(demands.len());
        for (demand, plan) in demands.iter_mut().zip(plans) {
            let own = match self.shared.fixed(plan, demand, now) {
                Some(own) => own,
                None => {
                    let own = locals.next().flatten().or(joined);
                    let own = own.unwrap_or_else(|| self.shared.closed(demand, now));
                    self.shared.soften(own, demand, now)
                }
            };
            self.tell(demand, plan.failure, own);
            each.push(own);
        }
        let decision = Decision::join(&each).ok_or_else(|| wrong_count(demands.len()))?;
        let is_denied = joined.is_some_and(|joined| joined.is_denied());
        debug_assert!(
            !is_denied || decision.is_denied(),
            "the joined decision denies if one demand does"
        );
        if verb == Verb::Take && decision.is_allowed() {
            for (demand, plan) in demands.iter().zip(plans) {
                self.note(demand, plan, (demand.cost(), away));
            }
        }
        Ok(decision.degraded())
    }

    fn plans(&self, demands: &[Demand<'_>]) -> Result<Vec<Arc<Plan>>, StoreError> {
        match demands.len() {
            1..=DEMANDS_MAX => {
                demands.iter().map(|demand| self.shared.plans.of(demand.policy())).collect()
            }
            count => Err(wrong_count(count)),
        }
    }

    fn tell(&self, demand: &mut Demand<'_>, failure: FailurePolicy, own: Decision) {
        self.shared.counts.decided(failure);
        demand.tell(own);
    }

    /// Remembers what was admitted here, for the store: unless it may have charged that already.
    fn note(&self, demand: &Demand<'_>, plan: &Plan, (permits, away): (u64, Away)) {
        let is_counted = plan.failure == FailurePolicy::Local && !demand.quota().is_unlimited();
        if is_counted && !away.is_unknown {
            self.shared.spends.note(demand, permits);
            self.shared.start_carrying();
        }
    }

    /// [`Store::force`] without the store.
    pub(super) fn force_here(
        &self,
        demand: &Demand<'_>,
        away: Away,
    ) -> Result<Decision, StoreError> {
        let plan = self.shared.plans.of(demand.policy())?;
        self.shared.counts.decided(plan.failure);
        if let Some(own) = self.shared.fixed(&plan, demand, away.at) {
            return Ok(own);
        }
        let own = self.shared.local.force_at(away.at, &plan.demand(demand, demand.cost())?)?;
        if own.is_allowed() {
            self.note(demand, &plan, (demand.cost(), away));
        }
        Ok(own.degraded())
    }

    /// [`Store::reserve`] without the store.
    pub(super) async fn reserve_here(
        &self,
        demands: &mut [Demand<'_>],
        away: Away,
        life: Duration,
    ) -> Result<Reserved, StoreError> {
        let plans = self.plans(demands)?;
        if plans.iter().any(|plan| plan.failure == FailurePolicy::Closed) {
            return Ok(Reserved { decision: self.decide(demands, away, Verb::Look)?, id: None });
        }
        // Those that are open take part without a limit: each demand has its place when it is settled.
        let mut locals = locals(&plans, demands, |_| true)?;
        let Reserved { decision, id } = self.shared.local.reserve(&mut locals, life).await?;
        let is_local = |(_, plan): &(_, &Arc<Plan>)| plan.failure == FailurePolicy::Local;
        let own = locals.iter().zip(&plans).filter(is_local).map(|(local, _)| local.decision());
        let verb = if id.is_some() { Verb::Take } else { Verb::Look };
        let decision = self.conclude(demands, &plans, (Some(decision), away, verb), own)?;
        Ok(Reserved {
            decision,
            id: id.map(|ReservationId(id)| ReservationId(self.shared.outside(id))),
        })
    }

    /// [`Store::lease`] without the store.
    pub(super) async fn lease_here(
        &self,
        demand: &mut Demand<'_>,
        away: Away,
        life: Duration,
    ) -> Result<Reserved, StoreError> {
        let plan = self.shared.plans.of(demand.policy())?;
        if let Some(own) = self.shared.fixed(&plan, demand, away.at) {
            self.tell(demand, plan.failure, own);
            let id = own.is_allowed().then(|| ReservationId(self.shared.outside(0)));
            return Ok(Reserved { decision: own, id });
        }
        let mut local = plan.demand(demand, demand.cost())?;
        let Reserved { decision, id } = self.shared.local.lease(&mut local, life).await?;
        let own = self.shared.soften(decision, demand, away.at);
        self.tell(demand, plan.failure, own);
        if own.is_allowed() {
            self.note(demand, &plan, (own.cost(), away));
        }
        let id = id.map(|ReservationId(id)| ReservationId(self.shared.outside(id)));
        Ok(Reserved { decision: own, id })
    }

    /// [`Store::enter`] without the store.
    pub(super) async fn enter_here(
        &self,
        permits: &Permits<'_>,
        life: Duration,
    ) -> Result<Entered, StoreError> {
        let Shared { plans, local, counts, retry_after, .. } = &*self.shared;
        let failure = plans.failure_of(permits.name);
        counts.decided(failure);
        let is_degraded = true;
        match failure {
            FailurePolicy::Open => {
                let id = Some(PermitId(self.shared.outside(0)));
                Ok(Entered { id, in_flight: permits.cost, retry_after: None, is_degraded })
            }
            FailurePolicy::Closed => {
                let retry_after = Some(*retry_after);
                Ok(Entered { id: None, in_flight: 0, retry_after, is_degraded })
            }
            FailurePolicy::Local => {
                let limit = plans.share.ratio().of(permits.limit);
                let mut entered = local.enter(&Permits { limit, ..*permits }, life).await?;
                entered.id = entered.id.map(|PermitId(id)| PermitId(self.shared.outside(id)));
                // More than the share is not more than the limit: the store may let it in.
                if permits.cost > limit && permits.cost <= permits.limit {
                    entered.retry_after = Some(*retry_after);
                }
                entered.is_degraded = is_degraded;
                Ok(entered)
            }
        }
    }

    /// Brings the local limiter to where the store is, so that an outage does not begin with a burst:
    /// books what the store has `taken`, and if the store is used up, leaves at most this process's
    /// share of what the store has left. Never into debt, for this process may well have more than its
    /// share of the traffic.
    ///
    /// The share matters where traffic or leases are uneven: a process that gets little of a quota
    /// that others use up would else save up its burst.
    pub(super) fn warm(&self, demand: &Demand<'_>, taken: u64, told: &Decision) {
        let Shared { plans, local, is_warm, .. } = &*self.shared;
        if !is_warm || told.is_never() || !plans.has_local() {
            return;
        }
        let Ok(plan) = plans.of(demand.policy()) else { return };
        if plan.failure != FailurePolicy::Local || demand.quota().is_unlimited() {
            return;
        }
        let take = |permits| {
            let taken = local.acquire_at(told.at(), &mut [plan.demand(demand, permits)?])?;
            Ok::<_, StoreError>((taken.is_denied(), taken.remaining()))
        };
        let Ok((is_denied, left)) = take(taken) else { return };
        // The store has refused, or granted less than the cost.
        let is_used_up = told.is_denied() || told.cost() < demand.cost();
        let kept = match is_denied {
            true => 0,
            false if is_used_up => plan.share_of(told.remaining()),
            false => left,
        };
        if left > kept {
            // If they are gone now, all the better.
            let _ = take(left - kept);
        }
    }
}

impl<S: Store> Guarded<S> {
    /// Gives back to the local limiter what the store was given back.
    pub(super) fn unwarm(&self, demand: &Demand<'_>, permits: u64) {
        let Shared { plans, local, is_warm, inner, .. } = &*self.shared;
        let Ok(plan) = plans.of(demand.policy()) else { return };
        if *is_warm && permits > 0 && plan.failure == FailurePolicy::Local {
            let given = plan.demand(demand, permits);
            // Without it the local limiter is stricter than need be, that is all.
            let _ = given.and_then(|given| local.refund_at(inner.clock().now(), &given));
        }
    }
}

impl<S: Store> Shared<S> {
    /// Returns the decision of a demand that needs no limiter.
    fn fixed(&self, plan: &Plan, demand: &Demand<'_>, now: Tick) -> Option<Decision> {
        match plan.failure {
            FailurePolicy::Open => Some(open(demand, now)),
            FailurePolicy::Closed => Some(self.closed(demand, now)),
            FailurePolicy::Local => None,
        }
    }

    /// A refusal, with a wait that may help.
    fn closed(&self, demand: &Demand<'_>, now: Tick) -> Decision {
        let (cost, limit) = (demand.cost(), limit_of(demand));
        let outcome = if cost > limit { Outcome::Never } else { Outcome::Later };
        let retry_at = now.saturating_add(self.retry_after);
        let full_at = Some(retry_at);
        let answer = Answer { outcome, at: now, cost, limit, remaining: 0, retry_at, full_at };
        Decision::answered(answer).degraded()
    }

    /// A decision of the local limiter as the caller sees it: a cost above the share, though not above
    /// the quota, may pass when the store is back.
    fn soften(&self, own: Decision, demand: &Demand<'_>, now: Tick) -> Decision {
        if !own.is_never() || demand.cost() > limit_of(demand) || own.cost() <= own.limit() {
            return own.degraded();
        }
        let answer = Answer {
            outcome: Outcome::Later,
            at: own.at(),
            cost: own.cost(),
            limit: own.limit(),
            remaining: own.remaining(),
            retry_at: now.saturating_add(self.retry_after),
            full_at: own.full_at(),
        };
        Decision::answered(answer).degraded()
    }

    /// Returns a number of the local store as callers know it.
    ///
    /// The store's own numbers can be any. Ours have 24 bits in common that were drawn at random, so
    /// that one of the store's looks like ours once in 16 million; and such a one is passed on to the
    /// store too, as the local store does not know it. Zero is of what was let in uncounted.
    fn outside(&self, id: u64) -> u64 {
        self.tag ^ id
    }

    /// Returns the number in the local store, if it looks like one.
    pub(super) fn inside(&self, id: u64) -> Option<u64> {
        let id = self.tag ^ id;
        (id >> ID_BITS == 0).then_some(id)
    }
}

/// Returns the demands as the local store knows them, of those whose plan is `wanted`.
fn locals<'a>(
    plans: &'a [Arc<Plan>],
    demands: &[Demand<'a>],
    wanted: impl Fn(&Plan) -> bool,
) -> Result<Vec<Demand<'a>>, StoreError> {
    let pairs = plans.iter().zip(demands).filter(|(plan, _)| wanted(plan));
    pairs.map(|(plan, demand)| plan.demand(demand, demand.cost())).collect()
}

fn limit_of(demand: &Demand<'_>) -> u64 {
    if demand.quota().is_unlimited() { u64::MAX } else { demand.quota().capacity() }
}

/// The decision if everything passes: the limit is the quota's, and the remaining permits are those
/// of a fresh key.
fn open(demand: &Demand<'_>, now: Tick) -> Decision {
    let (cost, limit) = (demand.cost(), limit_of(demand));
    let answer = Answer {
        outcome: Outcome::Allowed,
        at: now,
        cost,
        limit,
        remaining: limit.saturating_sub(cost),
        retry_at: now,
        full_at: Some(now),
    };
    Decision::answered(answer).degraded()
}

fn wrong_count(count: usize) -> StoreError {
    StoreError::invalid(format!(
        "{count} demands cannot be decided together; use 1 to {DEMANDS_MAX}"
    ))
}
