//! A store somewhere else: its answers come when a test lets them, or not at all.
#![allow(dead_code, reason = "each test uses what it needs")]

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};
use tokio::sync::Semaphore;
use tollgate::{
    store::{MemoryStore, StoreError},
    testing::{Around, Call, StoreFuture},
};

/// The store. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Away {
    pub(crate) memory: MemoryStore,
    /// Questions that have arrived.
    pub(crate) asked: Arc<AtomicUsize>,
    /// How many answers may come.
    pub(crate) answers: Arc<Semaphore>,
    pub(crate) is_down: Arc<AtomicBool>,
}

impl Away {
    pub(crate) fn new(memory: MemoryStore) -> Self {
        Self { answers: Arc::new(Semaphore::new(1_000_000)), ..Self::held(memory) }
    }

    /// Returns a store whose answers come only when they are let.
    pub(crate) fn held(memory: MemoryStore) -> Self {
        let (asked, answers) = (Arc::default(), Arc::new(Semaphore::new(0)));
        Self { memory, asked, answers, is_down: Arc::default() }
    }

    /// From now on answers come only when they are let.
    pub(crate) fn hold(&self) {
        self.answers.forget_permits(usize::MAX >> 3);
    }
}

impl Around for Away {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.memory
    }

    async fn run<T: Send>(&self, call: Call, work: impl StoreFuture<T>) -> Result<T, StoreError> {
        if !matches!(call, Call::Acquire | Call::Reserve) {
            return work.await;
        }
        if self.is_down.load(SeqCst) {
            return Err(StoreError::unavailable("the store is away"));
        }
        // It is carried out at once, and its answer is on the way.
        let answer = work.await?;
        self.asked.fetch_add(1, SeqCst);
        self.answers.acquire().await.unwrap().forget();
        Ok(answer)
    }
}
