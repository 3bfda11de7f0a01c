//! The stores that an engine can decide by.

use super::RemoteStore;
use std::{fmt, sync::Arc, time::Duration};
use tollgate::{
    Clock, Decision, Tick,
    store::{Demand, DynStore, MemoryStore, ReservationId, Reserved, Store, StoreError},
};

/// A store. That of this process is known by its type, so that its calls are plain calls.
#[derive(Clone)]
pub enum Backend {
    /// State in this process.
    Memory(MemoryStore),
    /// One that several processes share.
    Remote(Arc<dyn RemoteStore>),
    /// Any other.
    Other(Arc<dyn DynStore>),
}

impl Backend {
    /// Returns what the store is called.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Memory(_) => "memory",
            Self::Remote(store) => store.kind(),
            Self::Other(_) => "other",
        }
    }

    /// Returns the store of this process, if it is one.
    #[must_use]
    pub const fn memory(&self) -> Option<&MemoryStore> {
        match self {
            Self::Memory(store) => Some(store),
            Self::Remote(_) | Self::Other(_) => None,
        }
    }

    /// Returns the store that several processes share, if it is one.
    #[must_use]
    pub fn remote(&self) -> Option<&dyn RemoteStore> {
        match self {
            Self::Remote(store) => Some(&**store),
            Self::Memory(_) | Self::Other(_) => None,
        }
    }

    /// Returns the clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        match self {
            Self::Memory(store) => Store::clock(store),
            Self::Remote(store) => store.dyn_clock(),
            Self::Other(store) => Store::clock(store),
        }
    }

    pub(super) async fn acquire(
        &self,
        now: Tick,
        demands: &mut [Demand<'_>],
    ) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => store.acquire_at(now, demands),
            Self::Remote(store) => store.dyn_acquire(demands).await,
            Self::Other(store) => Store::acquire(store, demands).await,
        }
    }

    pub(super) async fn peek(
        &self,
        now: Tick,
        demands: &mut [Demand<'_>],
    ) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => store.peek_at(now, demands),
            Self::Remote(store) => store.dyn_peek(demands).await,
            Self::Other(store) => Store::peek(store, demands).await,
        }
    }

    pub(super) async fn force(&self, demand: &Demand<'_>) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => Store::force(store, demand).await,
            Self::Remote(store) => store.dyn_force(demand).await,
            Self::Other(store) => Store::force(store, demand).await,
        }
    }

    pub(super) async fn refund(&self, demand: &Demand<'_>) -> Result<u64, StoreError> {
        match self {
            Self::Memory(store) => Store::refund(store, demand).await,
            Self::Remote(store) => store.dyn_refund(demand).await,
            Self::Other(store) => Store::refund(store, demand).await,
        }
    }

    /// Takes back what a decision has taken, because the request is refused elsewhere.
    pub(super) async fn undo(
        &self,
        demand: &Demand<'_>,
        decision: &Decision,
    ) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.undo_at(self.clock().now(), demand, decision),
            _ => self.refund(demand).await.map(drop),
        }
    }

    pub(super) async fn reset(&self, demand: &Demand<'_>) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => Store::reset(store, demand).await,
            Self::Remote(store) => store.dyn_reset(demand).await,
            Self::Other(store) => Store::reset(store, demand).await,
        }
    }

    pub(super) async fn reserve(
        &self,
        demands: &mut [Demand<'_>],
        life: Duration,
    ) -> Result<Reserved, StoreError> {
        match self {
            Self::Memory(store) => Store::reserve(store, demands, life).await,
            Self::Remote(store) => store.dyn_reserve(demands, life).await,
            Self::Other(store) => Store::reserve(store, demands, life).await,
        }
    }

    pub(super) async fn settle(
        &self,
        id: ReservationId,
        actual: &[u64],
    ) -> Result<bool, StoreError> {
        match self {
            Self::Memory(store) => Store::settle(store, id, actual).await,
            Self::Remote(store) => store.dyn_settle(id, actual).await,
            Self::Other(store) => Store::settle(store, id, actual).await,
        }
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}
