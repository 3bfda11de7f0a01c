//! Stores chosen at run time.

use super::{Demand, Entered, PermitId, Permits, ReservationId, Reserved, Store, StoreError};
use crate::{Clock, Decision};
use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

/// A future on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// [`Store`] behind a pointer: each call costs one allocation for its future.
///
/// Every store is one; `Box<dyn DynStore>` and `Arc<dyn DynStore>` are stores again.
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use tollgate::store::{DynStore, MemoryStore, Store};
///
/// fn chosen(name: &str) -> Arc<dyn DynStore> {
///     match name {
///         _ => Arc::new(MemoryStore::new()),
///     }
/// }
/// let store: Arc<dyn DynStore> = chosen("memory");
/// let _now = Store::clock(&store).now();
/// ```
#[allow(missing_docs, reason = "the calls are those of Store")]
pub trait DynStore: Send + Sync {
    fn dyn_clock(&self) -> &Clock;
    fn dyn_acquire<'a>(&'a self, demands: &'a mut [Demand<'_>]) -> BoxFuture<'a, Decision>;
    fn dyn_peek<'a>(&'a self, demands: &'a mut [Demand<'_>]) -> BoxFuture<'a, Decision>;
    fn dyn_force<'a>(&'a self, demand: &'a Demand<'_>) -> BoxFuture<'a, Decision>;
    fn dyn_refund<'a>(&'a self, demand: &'a Demand<'_>) -> BoxFuture<'a, u64>;
    fn dyn_reset<'a>(&'a self, demand: &'a Demand<'_>) -> BoxFuture<'a, ()>;
    fn dyn_reserve<'a>(
        &'a self,
        demands: &'a mut [Demand<'_>],
        life: Duration,
    ) -> BoxFuture<'a, Reserved>;
    fn dyn_settle<'a>(&'a self, id: ReservationId, actual: &'a [u64]) -> BoxFuture<'a, bool>;
    fn dyn_lease<'a>(
        &'a self,
        demand: &'a mut Demand<'_>,
        life: Duration,
    ) -> BoxFuture<'a, Reserved>;
    fn dyn_up_to<'a>(&'a self, demand: &'a mut Demand<'_>) -> BoxFuture<'a, Decision>;
    fn dyn_enter<'a>(&'a self, permits: &'a Permits<'_>, life: Duration) -> BoxFuture<'a, Entered>;
    fn dyn_renew<'a>(
        &'a self,
        permits: &'a Permits<'_>,
        id: PermitId,
        life: Duration,
    ) -> BoxFuture<'a, bool>;
    fn dyn_leave<'a>(&'a self, permits: &'a Permits<'_>, id: PermitId) -> BoxFuture<'a, bool>;
}

impl<S: Store> DynStore for S {
    fn dyn_clock(&self) -> &Clock {
        self.clock()
    }

    fn dyn_acquire<'a>(&'a self, demands: &'a mut [Demand<'_>]) -> BoxFuture<'a, Decision> {
        Box::pin(self.acquire(demands))
    }

    fn dyn_peek<'a>(&'a self, demands: &'a mut [Demand<'_>]) -> BoxFuture<'a, Decision> {
        Box::pin(self.peek(demands))
    }

    fn dyn_force<'a>(&'a self, demand: &'a Demand<'_>) -> BoxFuture<'a, Decision> {
        Box::pin(self.force(demand))
    }

    fn dyn_refund<'a>(&'a self, demand: &'a Demand<'_>) -> BoxFuture<'a, u64> {
        Box::pin(self.refund(demand))
    }

    fn dyn_reset<'a>(&'a self, demand: &'a Demand<'_>) -> BoxFuture<'a, ()> {
        Box::pin(self.reset(demand))
    }

    fn dyn_reserve<'a>(
        &'a self,
        demands: &'a mut [Demand<'_>],
        life: Duration,
    ) -> BoxFuture<'a, Reserved> {
        Box::pin(self.reserve(demands, life))
    }

    fn dyn_settle<'a>(&'a self, id: ReservationId, actual: &'a [u64]) -> BoxFuture<'a, bool> {
        Box::pin(self.settle(id, actual))
    }

    fn dyn_lease<'a>(
        &'a self,
        demand: &'a mut Demand<'_>,
        life: Duration,
    ) -> BoxFuture<'a, Reserved> {
        Box::pin(self.lease(demand, life))
    }

    fn dyn_up_to<'a>(&'a self, demand: &'a mut Demand<'_>) -> BoxFuture<'a, Decision> {
        Box::pin(self.up_to(demand))
    }

    fn dyn_enter<'a>(&'a self, permits: &'a Permits<'_>, life: Duration) -> BoxFuture<'a, Entered> {
        Box::pin(self.enter(permits, life))
    }

    fn dyn_renew<'a>(
        &'a self,
        permits: &'a Permits<'_>,
        id: PermitId,
        life: Duration,
    ) -> BoxFuture<'a, bool> {
        Box::pin(self.renew(permits, id, life))
    }

    fn dyn_leave<'a>(&'a self, permits: &'a Permits<'_>, id: PermitId) -> BoxFuture<'a, bool> {
        Box::pin(self.leave(permits, id))
    }
}

/// A pointer to a store is a store.
macro_rules! store_behind {
    ($pointer:ty) => {
        impl Store for $pointer {
            fn clock(&self) -> &Clock {
                (**self).dyn_clock()
            }

            async fn acquire(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
                (**self).dyn_acquire(demands).await
            }

            async fn peek(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
                (**self).dyn_peek(demands).await
            }

            async fn force(&self, demand: &Demand<'_>) -> Result<Decision, StoreError> {
                (**self).dyn_force(demand).await
            }

            async fn refund(&self, demand: &Demand<'_>) -> Result<u64, StoreError> {
                (**self).dyn_refund(demand).await
            }

            async fn reset(&self, demand: &Demand<'_>) -> Result<(), StoreError> {
                (**self).dyn_reset(demand).await
            }

            async fn reserve(
                &self,
                demands: &mut [Demand<'_>],
                life: Duration,
            ) -> Result<Reserved, StoreError> {
                (**self).dyn_reserve(demands, life).await
            }

            async fn settle(&self, id: ReservationId, actual: &[u64]) -> Result<bool, StoreError> {
                (**self).dyn_settle(id, actual).await
            }

            async fn lease(
                &self,
                demand: &mut Demand<'_>,
                life: Duration,
            ) -> Result<Reserved, StoreError> {
                (**self).dyn_lease(demand, life).await
            }

            async fn up_to(&self, demand: &mut Demand<'_>) -> Result<Decision, StoreError> {
                (**self).dyn_up_to(demand).await
            }

            async fn enter(
                &self,
                permits: &Permits<'_>,
                life: Duration,
            ) -> Result<Entered, StoreError> {
                (**self).dyn_enter(permits, life).await
            }

            async fn renew(
                &self,
                permits: &Permits<'_>,
                id: PermitId,
                life: Duration,
            ) -> Result<bool, StoreError> {
                (**self).dyn_renew(permits, id, life).await
            }

            async fn leave(&self, permits: &Permits<'_>, id: PermitId) -> Result<bool, StoreError> {
                (**self).dyn_leave(permits, id).await
            }
        }
    };
}

store_behind!(Box<dyn DynStore>);
store_behind!(Arc<dyn DynStore>);
