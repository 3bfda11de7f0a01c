//! The stores that an engine can decide by.

use super::RemoteStore;
use std::{fmt, sync::Arc};
use tollgate::{
    Clock, Decision, Tick,
    store::{Demand, DynStore, MemoryStore, Store, StoreError, forward_store},
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
        Store::clock(self)
    }

    pub(super) async fn acquire_at(
        &self,
        now: Tick,
        demands: &mut [Demand<'_>],
    ) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => store.acquire_at(now, demands),
            _ => self.acquire(demands).await,
        }
    }

    pub(super) async fn peek_at(
        &self,
        now: Tick,
        demands: &mut [Demand<'_>],
    ) -> Result<Decision, StoreError> {
        match self {
            Self::Memory(store) => store.peek_at(now, demands),
            _ => self.peek(demands).await,
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
}

impl Store for Backend {
    forward_store!(self => match {
        Self::Memory(store) => store,
        Self::Remote(store) => &**store as &dyn DynStore,
        Self::Other(store) => store,
    });
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}
