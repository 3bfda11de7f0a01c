//! The corrections after a request has run, or has not run.

use super::{
    figures::corrected,
    gate::{Gate, at_once},
    pass::{Part, Pass},
    settle::Settle,
    usage::Usage,
};
use crate::timer;
use http::{Extensions, StatusCode, response};
use std::sync::Arc;
use tokio::task::JoinHandle;
use tollgate::store::{Demand, ReservationId, Store, StoreError};

/// The task of a correction in a shared store; `None` if it is done.
pub(super) type Amended = Option<JoinHandle<()>>;

/// The actual cost of a request by each of its policies.
#[derive(Debug)]
pub(super) struct Actual {
    costs: Vec<Cost>,
}

#[derive(Clone, Copy, Debug)]
struct Cost {
    /// The permits to charge, if it is charged; `None` if they are known at the end of the body
    /// only.
    permits: Option<u64>,
    /// `None` if it is known at the end of the body only.
    is_charged: Option<bool>,
}

/// How a response has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct End {
    /// The bytes of its body that were sent.
    pub(super) sent: u64,
    /// The gRPC status in its trailers.
    pub(super) status: Option<StatusCode>,
}

impl Actual {
    /// Returns that a request has cost nothing, by this many policies.
    pub(super) fn nothing(parts: usize) -> Self {
        Self { costs: vec![Cost { permits: Some(0), is_charged: Some(false) }; parts] }
    }

    /// Tells whether part of the cost is known at the end of the body only.
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
    /// Returns the cost of a request, as far as the head of its response determines it.
    pub(super) fn actual(&self, pass: &Pass, head: &response::Parts) -> Actual {
        let cost = |part: &Part| {
            let Some(policy) = self.limits.get(part.limit).map(|limit| &limit.policy) else {
                return Cost { permits: Some(part.cost), is_charged: Some(true) };
            };
            let permits = match &policy.settle {
                Some(settle) if settle.is_at_the_end() => None,
                Some(settle) => Some(settle.head(head).unwrap_or(part.cost)),
                None => Some(part.cost),
            };
            Cost { permits, is_charged: policy.charge.is_charged(head) }
        };
        Actual { costs: pass.parts.iter().map(cost).collect() }
    }

    /// Corrects the decisions that clients see by the actual cost, as far as that is known.
    pub(super) fn correct(&self, pass: &mut Pass, actual: &Actual) {
        let is_late = self.backend.clock().now() >= pass.now.saturating_add(self.life);
        let is_reserved = pass.reservation.is_some();
        for (part, cost) in pass.parts.iter_mut().zip(&actual.costs) {
            let Some(limit) = self.limits.get(part.limit) else { continue };
            let (Some(way), Some(decision)) = (limit.ways.get(part.way), part.decision) else {
                continue;
            };
            let is_reserved = match part.is_enforced() {
                true => is_reserved,
                false => part.reservation.is_some(),
            };
            // A late settlement gives back nothing of the estimate, and charges the cost above it.
            let least = if is_late && is_reserved { part.cost } else { 0 };
            let cost = cost.known().map(|cost| cost.max(least));
            if let Some(cost) = cost.filter(|cost| decision.is_allowed() && *cost != part.cost) {
                let rule = (way.policy.quota(), limit.policy.algorithm);
                part.decision = Some(corrected(&decision, rule, cost));
            }
        }
    }

    /// Settles the costs of a request whose response has ended like this.
    pub(super) fn settle(self: &Arc<Self>, pass: Pass, actual: &Actual, end: End) -> Amended {
        let cost = |(part, cost): (&Part, &Cost)| {
            let policy = self.limits.get(part.limit).map(|limit| &limit.policy);
            let is_charged = cost.is_charged.unwrap_or_else(|| {
                policy.is_none_or(|policy| policy.charge.is_charged_at_the_end(end.status))
            });
            let at_the_end = || match self.is_reported(part) {
                true => pass.reported().unwrap_or(part.cost),
                false => end.sent,
            };
            if is_charged { cost.permits.unwrap_or_else(at_the_end) } else { 0 }
        };
        let costs = pass.parts.iter().zip(&actual.costs).map(cost).collect();
        self.beside(pass, costs)
    }

    /// Closes the reservations of a request that did not end normally: its estimate stays spent, or
    /// the cost that was reported already, if that is more.
    pub(super) fn keep(self: &Arc<Self>, pass: Pass) {
        if pass.is_reserved() {
            let reported = |part: &&Part| pass.reported().filter(|_| self.is_reported(part));
            let costs = pass.parts.iter().map(|part| part.cost.max(reported(&part).unwrap_or(0)));
            let costs = costs.collect();
            let _beside = self.beside(pass, costs);
        }
    }

    /// Tells whether the service reports the cost of a part.
    fn is_reported(&self, part: &Part) -> bool {
        let settle = self.limits.get(part.limit).and_then(|limit| limit.policy.settle.as_ref());
        settle.is_some_and(Settle::is_reported)
    }

    /// Returns the value by which the service reports the cost of a request, if a policy settles by
    /// it.
    pub(super) fn usage(&self, pass: &Pass, extensions: &mut Extensions) -> Option<Usage> {
        let is_wanted = pass.parts.iter().any(|part| self.is_reported(part));
        is_wanted.then(|| Usage::of(extensions))
    }

    /// Gives back everything: the request never ran.
    pub(super) fn give_back(self: &Arc<Self>, pass: Pass) -> Amended {
        if !pass.is_allowed {
            return None;
        }
        let costs = vec![0; pass.parts.len()];
        self.beside(pass, costs)
    }

    /// Corrects the cost of a request independently of its response: at once if possible, otherwise
    /// in a task. Without a runtime for that, permits stay spent.
    fn beside(self: &Arc<Self>, pass: Pass, costs: Vec<u64>) -> Amended {
        let gate = Arc::clone(self);
        let work = async move {
            if let Err(error) = gate.amend(&pass, &costs).await {
                gate.failed(&error, "the charge of a request could not be corrected");
            }
        };
        if self.backend.is_memory() {
            at_once(work);
            return None;
        }
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        // Bounds the wait for a store that never answers.
        let work = timer::timeout(self.life, work).ok()?;
        Some(runtime.spawn(async move {
            let _in_time = work.await;
        }))
    }

    /// Corrects the cost of each part of a request.
    async fn amend(&self, pass: &Pass, costs: &[u64]) -> Result<(), StoreError> {
        let (enforced, shadow): (Vec<_>, Vec<_>) =
            pass.parts.iter().zip(costs).partition(|(part, _)| part.is_enforced());
        self.amend_one(pass.reservation, &enforced).await?;
        for one in shadow {
            self.amend_one(one.0.reservation, &[one]).await?;
        }
        Ok(())
    }

    /// Corrects parts that were charged together: by their reservation, if there is one.
    async fn amend_one(
        &self,
        reservation: Option<ReservationId>,
        parts: &[(&Part, &u64)],
    ) -> Result<(), StoreError> {
        if let Some(id) = reservation {
            let costs: Vec<u64> = parts.iter().map(|(_, cost)| **cost).collect();
            if self.backend.settle(id, &costs).await? {
                return Ok(());
            }
        }
        for (part, cost) in parts {
            let Some((demand, decision)) = self.demand(part).zip(part.decision) else { continue };
            let has_taken = decision.is_allowed();
            if **cost > part.cost && has_taken {
                // The response took longer than its reservation lived. The estimate is spent, the
                // rest is not.
                let rest = **cost - part.cost;
                let demand = Demand::new(demand.policy(), demand.key(), rest);
                let _debt = self.backend.force(&demand).await?;
            } else if **cost == 0 && has_taken && reservation.is_none() {
                self.backend.undo(&demand, &decision).await?;
            }
        }
        Ok(())
    }
}
