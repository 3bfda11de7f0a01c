//! Where the state of a layer is.

use super::figures::still_out;
use std::{sync::Arc, time::Duration};
use tollgate::{
    Clock, Decision,
    store::{Demand, DynStore, MemoryStore, ReservationId, Reserved, Store, StoreError},
};

/// Where the state is.
pub(super) enum Backend {
    /// Answers at once.
    Memory(MemoryStore),
    Shared(Arc<dyn DynStore>),
}

impl Backend {
    pub(super) fn clock(&self) -> &Clock {
        match self {
            Self::Memory(store) => Store::clock(store),
            Self::Shared(store) => store.dyn_clock(),
        }
    }

    pub(super) async fn acquire(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => store.acquire_now(demands),
            Self::Shared(store) => store.dyn_acquire(demands).await,
        }
    }

    pub(super) async fn reserve(
        &self,
        demands: &mut [Demand<'_>],
        life: Duration,
    ) -> Result<Reserved, StoreError> {
        match self {
            Self::Memory(store) => store.reserve(demands, life).await,
            Self::Shared(store) => store.dyn_reserve(demands, life).await,
        }
    }

    pub(super) async fn settle(
        &self,
        id: ReservationId,
        actual: &[u64],
    ) -> Result<bool, StoreError> {
        match self {
            Self::Memory(store) => store.settle(id, actual).await,
            Self::Shared(store) => store.dyn_settle(id, actual).await,
        }
    }

    pub(super) async fn force(&self, demand: &Demand<'_>) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => store.force(demand).await,
            Self::Shared(store) => store.dyn_force(demand).await,
        }
    }

    pub(super) async fn refund(&self, demand: &Demand<'_>) -> Result<u64, StoreError> {
        match self {
            Self::Memory(store) => store.refund(demand).await,
            Self::Shared(store) => store.dyn_refund(demand).await,
        }
    }

    /// Takes back what a decision took for a request that never ran. A store somewhere else gives back
    /// whole permits only, those of which it is sure that time has not given them back already.
    pub(super) async fn undo(
        &self,
        demand: &Demand<'_>,
        decision: &Decision,
    ) -> Result<(), StoreError> {
        let (policy, now) = (demand.policy(), self.clock().now());
        if let Self::Memory(store) = self {
            return store.undo_at(now, demand, decision);
        }
        let out = still_out(decision, (policy.quota(), policy.algorithm()), now);
        if out > 0 {
            self.refund(&Demand::new(policy, demand.key(), out)).await?;
        }
        Ok(())
    }

    pub(super) const fn is_memory(&self) -> bool {
        matches!(self, Self::Memory(_))
    }
}
