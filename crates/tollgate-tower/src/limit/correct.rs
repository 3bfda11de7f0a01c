//! What is corrected once a request has run, or has not.

use super::{
    gate::{Gate, at_once},
    pass::{Part, Pass},
};
use http::{StatusCode, response};
use std::{sync::Arc, time::Duration};
use tollgate::{
    Answer, Decision, Outcome, Quota, Tick,
    store::{Demand, ReservationId, StoreError},
};

/// What a request has cost by each of its policies.
#[derive(Debug)]
pub(super) struct Actual {
    costs: Vec<Cost>,
}

#[derive(Clone, Copy, Debug)]
struct Cost {
    /// What is charged, if it is; `None` for the length of the body.
    permits: Option<u64>,
    /// `None` if the end of the body tells.
    is_charged: Option<bool>,
}

/// How a response has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct End {
    /// So many bytes of its body were sent.
    pub(super) sent: u64,
    /// What its trailers say, in gRPC.
    pub(super) status: Option<StatusCode>,
}

impl Actual {
    /// Tells whether more is known at the end of the body.
    pub(super) fn is_by_body(&self) -> bool {
        self.costs.iter().any(|cost| cost.known().is_none())
    }
}

impl Cost {
    const fn known(self) -> Option<u64> {
        match self.is_charged {
            Some(true) => self.permits,
            Some(false) => Some(0),
            None => None,
        }
    }
}

impl Gate {
    /// Returns what a request has cost, as far as the head of its response tells.
    pub(super) fn actual(&self, pass: &Pass, head: &response::Parts) -> Actual {
        let cost = |part: &Part| {
            let Some(policy) = self.limits.get(part.limit).map(|limit| &limit.policy) else {
                return Cost { permits: Some(part.cost), is_charged: Some(true) };
            };
            let permits = match &policy.settle {
                Some(settle) if settle.is_by_body() => None,
                Some(settle) => Some(settle.head(head).unwrap_or(part.cost)),
                None => Some(part.cost),
            };
            Cost { permits, is_charged: policy.charge.is_charged(head) }
        };
        Actual { costs: pass.parts.iter().map(cost).collect() }
    }

    /// Corrects what clients are told of a request by what it has cost, as far as that is known.
    pub(super) fn correct(&self, pass: &mut Pass, actual: &Actual) {
        for (part, cost) in pass.parts.iter_mut().zip(&actual.costs) {
            let way = self.limits.get(part.limit).and_then(|limit| limit.ways.get(part.way));
            let (Some(way), Some(decision), Some(cost)) = (way, part.decision, cost.known()) else {
                continue;
            };
            if decision.is_allowed() && cost != part.cost {
                part.decision = Some(corrected(&decision, way.policy.quota(), part.cost, cost));
            }
        }
    }

    /// Corrects the costs of a request that has ended like this.
    pub(super) fn settle(self: &Arc<Self>, pass: &Pass, actual: &Actual, end: End) {
        let cost = |(part, cost): (&Part, &Cost)| {
            let policy = self.limits.get(part.limit).map(|limit| &limit.policy);
            let is_charged = cost.is_charged.unwrap_or_else(|| {
                policy.is_none_or(|policy| policy.charge.is_charged_at_the_end(end.status))
            });
            if is_charged { cost.permits.unwrap_or(end.sent) } else { 0 }
        };
        let costs: Vec<u64> = pass.parts.iter().zip(&actual.costs).map(cost).collect();
        self.settle_all(pass, &costs);
    }

    /// Closes what is reserved for a request that did not come to its end: its estimate stays spent.
    pub(super) fn keep(self: &Arc<Self>, pass: &Pass) {
        if pass.is_reserved() {
            let costs: Vec<u64> = pass.parts.iter().map(|part| part.cost).collect();
            self.settle_all(pass, &costs);
        }
    }

    /// Settles every reservation of a request with what each of its parts has cost.
    fn settle_all(self: &Arc<Self>, pass: &Pass, costs: &[u64]) {
        let all = pass.parts.iter().zip(costs);
        if let Some(id) = pass.reservation {
            let enforced = all.clone().filter(|(part, _)| part.is_enforced());
            self.settle_one(id, enforced.map(|(_, cost)| *cost).collect());
        }
        for (part, cost) in all {
            if let Some(id) = part.reservation {
                self.settle_one(id, vec![*cost]);
            }
        }
    }

    fn settle_one(self: &Arc<Self>, id: ReservationId, costs: Vec<u64>) {
        let gate = Arc::clone(self);
        self.beside(async move { gate.backend.settle(id, &costs).await.map(drop) });
    }

    /// Gives back everything: the request never ran.
    pub(super) fn give_back(self: &Arc<Self>, pass: Pass) {
        if !pass.is_allowed {
            return;
        }
        if pass.is_reserved() {
            self.settle_all(&pass, &vec![0; pass.parts.len()]);
        }
        let gate = Arc::clone(self);
        self.beside(async move { gate.refund(&pass).await });
    }

    /// Gives back what was charged without a reservation.
    async fn refund(&self, pass: &Pass) -> Result<(), StoreError> {
        for part in &pass.parts {
            let is_reserved = match part.is_enforced() {
                true => pass.reservation.is_some(),
                false => part.reservation.is_some(),
            };
            let is_charged = part.decision.is_some_and(|decision| decision.is_allowed());
            if let Some(way) = self.way(part).filter(|_| is_charged && !is_reserved) {
                let demand = Demand::new(&way.policy, part.key.as_bytes(), part.cost);
                self.backend.refund(&demand).await?;
            }
        }
        Ok(())
    }

    /// Lets a correction run beside the response: at once if it can, in a task if it takes a while.
    /// Without a runtime for that, permits stay spent.
    fn beside(
        self: &Arc<Self>,
        work: impl Future<Output = Result<(), StoreError>> + Send + 'static,
    ) {
        let gate = Arc::clone(self);
        let work = async move {
            if let Err(error) = work.await {
                gate.failed(&error, "a rate limit could not be corrected");
            }
        };
        if self.backend.is_memory() {
            at_once(work);
        } else if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(work));
        }
    }
}

/// Returns a decision as it would have been with another cost: more is left if it was less, and all is
/// back sooner.
fn corrected(decision: &Decision, quota: Quota, estimate: u64, actual: u64) -> Decision {
    let (less, more) = (estimate.saturating_sub(actual), actual.saturating_sub(estimate));
    let remaining = decision.remaining().saturating_add(less).saturating_sub(more);
    let moved = |at: Tick| {
        let (sooner, later) = (time_of(quota, less), time_of(quota, more));
        // What is back already does not come back once more.
        Tick::from_nanos(at.as_nanos().saturating_sub(sooner))
            .max(decision.at())
            .saturating_add(Duration::from_nanos(later))
    };
    Decision::answered(Answer {
        outcome: Outcome::Allowed,
        at: decision.at(),
        cost: actual,
        limit: decision.limit(),
        remaining: remaining.min(decision.limit()),
        retry_at: decision.at(),
        full_at: decision.full_at().map(moved),
    })
}

/// Returns the nanoseconds in which so many permits come back.
fn time_of(quota: Quota, permits: u64) -> u64 {
    let ns = quota.period().as_nanos().checked_mul(u128::from(permits));
    let ns = ns.and_then(|ns| ns.checked_div(u128::from(quota.count())));
    ns.map_or(u64::MAX, |ns| u64::try_from(ns).unwrap_or(u64::MAX))
}
