//! The calls of a guarded store: to the inner one, and how its failures are handled.

use super::{
    Guarded, Shared,
    decide::{Away, Verb},
};
use std::time::Duration;
use tollgate::{
    Clock, Decision,
    store::{Demand, Entered, PermitId, Permits, ReservationId, Reserved, Store, StoreError},
};

impl<S: Store + 'static> Guarded<S> {
    /// Checks the store's result: records an answer, or returns when the store failed. Passes on
    /// errors that are not failures of the store.
    fn heard<T>(&self, result: Result<T, StoreError>) -> Result<Result<T, Away>, StoreError> {
        match result {
            Ok(value) => {
                self.answered();
                Ok(Ok(value))
            }
            Err(error) if error.is_unreachable() => {
                self.shared.failed(&error);
                let at = self.shared.inner.clock().now();
                Ok(Err(Away { at, is_unknown: error.is_timeout() }))
            }
            Err(error) => Err(error),
        }
    }

    /// [`heard`](Self::heard) for calls that only the store can answer.
    fn passed_on<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        match &result {
            Ok(_) => self.answered(),
            Err(error) if error.is_unreachable() => self.shared.failed(error),
            Err(_) => {}
        }
        result
    }

    fn answered(&self) {
        self.shared.answered();
        if !self.shared.spends.is_empty() {
            self.shared.wake_carrying();
        }
    }

    /// Updates the local limiter to the store's state, for each demand.
    fn warm_all(&self, decision: &Decision, demands: &[Demand<'_>]) {
        for demand in demands {
            let taken = if decision.is_allowed() { demand.cost() } else { 0 };
            if let Some(told) = demand.decision() {
                self.warm(demand, taken, &told);
            }
        }
    }

    /// [`warm_all`](Self::warm_all) for the cost of one decision.
    fn warm_taken(&self, decision: &Decision, demand: &Demand<'_>) {
        self.warm(demand, if decision.is_allowed() { decision.cost() } else { 0 }, decision);
    }

    /// Forwards a call with an id: to the local store if the id looks like one of its own, and to
    /// the inner store if the local one does not know it (any more).
    async fn by_id<L>(
        &self,
        id: u64,
        local: impl FnOnce(u64) -> L + Send,
        inner: impl Future<Output = Result<bool, StoreError>> + Send,
    ) -> Result<bool, StoreError>
    where
        L: Future<Output = Result<bool, StoreError>> + Send,
    {
        match self.shared.inside(id) {
            None => self.passed_on(inner.await),
            Some(0) => Ok(true),
            Some(id) => Ok(local(id).await? || self.heard(inner.await)?.unwrap_or(false)),
        }
    }
}

impl<S: Store + 'static> Store for Guarded<S> {
    fn clock(&self) -> &Clock {
        self.shared.inner.clock()
    }

    async fn acquire(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        match self.heard(self.shared.inner.acquire(demands).await)? {
            Ok(decision) => {
                self.warm_all(&decision, demands);
                Ok(decision)
            }
            Err(away) => self.decide(demands, away, Verb::Take),
        }
    }

    async fn peek(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        match self.heard(self.shared.inner.peek(demands).await)? {
            Ok(decision) => Ok(decision),
            Err(away) => self.decide(demands, away, Verb::Look),
        }
    }

    async fn force(&self, demand: &Demand<'_>) -> Result<Decision, StoreError> {
        match self.heard(self.shared.inner.force(demand).await)? {
            Ok(decision) => {
                self.warm_taken(&decision, demand);
                Ok(decision)
            }
            Err(away) => self.force_here(demand, away),
        }
    }

    async fn refund(&self, demand: &Demand<'_>) -> Result<u64, StoreError> {
        let given = self.passed_on(self.shared.inner.refund(demand).await)?;
        self.unwarm(demand, given);
        Ok(given)
    }

    async fn reset(&self, demand: &Demand<'_>) -> Result<(), StoreError> {
        self.passed_on(self.shared.inner.reset(demand).await)?;
        self.shared.spends.forget(demand);
        let plan = self.shared.plans.of(demand.policy())?;
        self.shared.local.reset_now(&plan.demand(demand, 0)?)
    }

    async fn reserve(
        &self,
        demands: &mut [Demand<'_>],
        life: Duration,
    ) -> Result<Reserved, StoreError> {
        match self.heard(self.shared.inner.reserve(demands, life).await)? {
            Ok(reserved) => {
                self.warm_all(&reserved.decision, demands);
                Ok(reserved)
            }
            Err(away) => self.reserve_here(demands, away, life).await,
        }
    }

    async fn settle(&self, id: ReservationId, actual: &[u64]) -> Result<bool, StoreError> {
        let Shared { local, inner, .. } = &*self.shared;
        let here = |id| local.settle(ReservationId(id), actual);
        self.by_id(id.0, here, inner.settle(id, actual)).await
    }

    async fn lease(&self, demand: &mut Demand<'_>, life: Duration) -> Result<Reserved, StoreError> {
        match self.heard(self.shared.inner.lease(demand, life).await)? {
            Ok(reserved) => {
                self.warm_taken(&reserved.decision, demand);
                Ok(reserved)
            }
            Err(away) => self.lease_here(demand, away, life).await,
        }
    }

    async fn up_to(&self, demand: &mut Demand<'_>) -> Result<Decision, StoreError> {
        match self.heard(self.shared.inner.up_to(demand).await)? {
            Ok(decision) => {
                self.warm_taken(&decision, demand);
                Ok(decision)
            }
            Err(away) => {
                let life = Duration::from_millis(1);
                Ok(self.lease_here(demand, away, life).await?.decision)
            }
        }
    }

    async fn enter(&self, permits: &Permits<'_>, life: Duration) -> Result<Entered, StoreError> {
        match self.heard(self.shared.inner.enter(permits, life).await)? {
            Ok(entered) => Ok(entered),
            Err(_) => self.enter_here(permits, life).await,
        }
    }

    async fn renew(
        &self,
        permits: &Permits<'_>,
        id: PermitId,
        life: Duration,
    ) -> Result<bool, StoreError> {
        let Shared { local, inner, .. } = &*self.shared;
        let here = |id| local.renew(permits, PermitId(id), life);
        self.by_id(id.0, here, inner.renew(permits, id, life)).await
    }

    async fn leave(&self, permits: &Permits<'_>, id: PermitId) -> Result<bool, StoreError> {
        let Shared { local, inner, .. } = &*self.shared;
        let here = |id| local.leave(permits, PermitId(id));
        self.by_id(id.0, here, inner.leave(permits, id)).await
    }
}
