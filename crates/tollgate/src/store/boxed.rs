//! Stores chosen at run time, and pointers to stores.

use super::{Store, StoreError, forward_store};
use crate::Clock;
use std::{future::Future, pin::Pin, sync::Arc};

/// A future on the heap.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

macro_rules! dyn_store {
    ([] $($name:ident $twin:ident $operation:ident ($($argument:ident: $type:ty),+) -> $answer:ty;)+) => {
        /// [`Store`] as a trait object: each call allocates one future.
        ///
        /// Every store is a `DynStore`, and `dyn DynStore` is a store, also behind `&`, `Box` and `Arc`.
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
        /// let _now = store.clock().now();
        /// ```
        #[allow(missing_docs, reason = "the calls are those of Store")]
        pub trait DynStore: Send + Sync {
            fn dyn_clock(&self) -> &Clock;
            $(fn $twin<'a>(&'a self, $($argument: $type),+) -> BoxFuture<'a, $answer>;)+
        }

        impl<S: Store> DynStore for S {
            fn dyn_clock(&self) -> &Clock {
                self.clock()
            }

            $(fn $twin<'a>(&'a self, $($argument: $type),+) -> BoxFuture<'a, $answer> {
                Box::pin(self.$name($($argument),+))
            })+
        }
    };
}
crate::__store_operations! { [dyn_store] [] 'a }

macro_rules! store_of_dyn_store {
    ([] $($name:ident $twin:ident $operation:ident ($($argument:ident: $type:ty),+) -> $answer:ty;)+) => {
        impl Store for dyn DynStore + '_ {
            fn clock(&self) -> &Clock {
                self.dyn_clock()
            }

            $(async fn $name(&self, $($argument: $type),+) -> Result<$answer, StoreError> {
                self.$twin($($argument),+).await
            })+
        }
    };
}
crate::__store_operations! { [store_of_dyn_store] [] }

impl<S: Store + ?Sized> Store for &S {
    forward_store!(self => &**self);
}

impl<S: Store + ?Sized> Store for Box<S> {
    forward_store!(self => &**self);
}

impl<S: Store + ?Sized> Store for Arc<S> {
    forward_store!(self => &**self);
}
