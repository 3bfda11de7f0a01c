//! The store of a layer's state.

use super::figures::still_out;
use std::sync::Arc;
use tollgate::{
    Clock, Decision,
    store::{Demand, DynStore, MemoryStore, Store, StoreError, forward_store},
};

/// The store of the state.
pub(super) enum Backend {
    /// Answers at once.
    Memory(MemoryStore),
    Shared(Arc<dyn DynStore>),
}

impl Backend {
    pub(super) fn clock(&self) -> &Clock {
        Store::clock(self)
    }

    /// Gives back the permits that a decision took for a request that never ran. A shared store
    /// gives back whole permits only, and only those that have certainly not refilled already.
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

impl Store for Backend {
    forward_store!(self => match {
        Self::Memory(store) => store,
        Self::Shared(store) => store,
    });
}
