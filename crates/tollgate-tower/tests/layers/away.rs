//! A shared store whose answers come when a test releases them, or not at all.
#![allow(dead_code, reason = "each test uses what it needs")]

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};
use tokio::sync::Semaphore;
use tollgate::store::{MemoryStore, Operation, Store, StoreError, forward_store};

/// The store. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Away {
    pub(crate) memory: MemoryStore,
    /// Calls that have arrived.
    pub(crate) asked: Arc<AtomicUsize>,
    /// How many answers may come.
    pub(crate) answers: Arc<Semaphore>,
    pub(crate) is_down: Arc<AtomicBool>,
}

impl Away {
    pub(crate) fn new(memory: MemoryStore) -> Self {
        Self { answers: Arc::new(Semaphore::new(1_000_000)), ..Self::held(memory) }
    }

    /// Returns a store whose answers come only when a test releases them.
    pub(crate) fn held(memory: MemoryStore) -> Self {
        let (asked, answers) = (Arc::default(), Arc::new(Semaphore::new(0)));
        Self { memory, asked, answers, is_down: Arc::default() }
    }

    /// From now on answers come only when a test releases them.
    pub(crate) fn hold(&self) {
        self.answers.forget_permits(usize::MAX >> 3);
    }
}

impl Away {
    async fn run<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        if !matches!(operation, Operation::Acquire | Operation::Reserve) {
            return call.await;
        }
        if self.is_down.load(SeqCst) {
            return Err(StoreError::unavailable("the store is away"));
        }
        // The store executes the call at once, and its answer is in transit.
        let answer = call.await?;
        self.asked.fetch_add(1, SeqCst);
        self.answers.acquire().await.unwrap().forget();
        Ok(answer)
    }
}

impl Store for Away {
    forward_store!(self => &self.memory, through run);
}
