//! What is corrected once a request has run, or has not.

use super::{
    gate::{Gate, at_once},
    pass::{Part, Pass},
    settle::Settle,
};
use http::response;
use std::sync::Arc;
use tollgate::store::{Demand, ReservationId, StoreError};

/// What a request has cost by each of its policies.
#[derive(Debug)]
pub(super) struct Actual {
    costs: Vec<Cost>,
}

#[derive(Clone, Copy, Debug)]
enum Cost {
    Known(u64),
    /// The length of the body.
    Body,
}

impl Actual {
    /// Tells whether the body tells more.
    pub(super) fn is_by_body(&self) -> bool {
        self.costs.iter().any(|cost| matches!(cost, Cost::Body))
    }
}

impl Gate {
    /// Returns what a request has cost, as far as the head of its response tells. `None` if nothing
    /// is to be corrected.
    pub(super) fn actual(&self, pass: &Pass, head: &response::Parts) -> Option<Actual> {
        let is_reserved = |part: &Part| part.reservation.is_some();
        if pass.reservation.is_none() && !pass.parts.iter().any(is_reserved) {
            return None;
        }
        let cost = |part: &Part| {
            let Some(policy) = self.limits.get(part.limit).map(|limit| &limit.policy) else {
                return Cost::Known(part.cost);
            };
            match &policy.settle {
                _ if !policy.charge.is_charged(head) => Cost::Known(0),
                Some(settle) if settle.is_by_body() => Cost::Body,
                settle => {
                    let told = settle.as_ref().and_then(|settle: &Settle| settle.head(head));
                    Cost::Known(told.unwrap_or(part.cost))
                }
            }
        };
        Some(Actual { costs: pass.parts.iter().map(cost).collect() })
    }

    /// Corrects the costs of a request, of whose body so many bytes were sent.
    pub(super) fn settle(self: &Arc<Self>, pass: &Pass, actual: &Actual, sent: u64) {
        let cost = |cost: &Cost| match cost {
            Cost::Known(cost) => *cost,
            Cost::Body => sent,
        };
        let all = pass.parts.iter().zip(actual.costs.iter().map(cost));
        if let Some(id) = pass.reservation {
            let enforced = all.clone().filter(|(part, _)| part.is_enforced());
            self.settle_one(id, enforced.map(|(_, cost)| cost).collect());
        }
        for (part, cost) in all {
            if let Some(id) = part.reservation {
                self.settle_one(id, vec![cost]);
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
        let nothing = Actual { costs: vec![Cost::Known(0); pass.parts.len()] };
        self.settle(&pass, &nothing, 0);
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
