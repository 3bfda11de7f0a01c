//! A store somewhere else: its answers come when a test lets them, or not at all.
#![allow(dead_code, reason = "each test uses what it needs")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::sync::Semaphore;
use tollgate::{
    Clock, Decision, Inherit,
    store::{
        Demand, Entered, MemoryStore, PermitId, Permits, Policy, ReservationId, Reserved, Store,
        StoreError,
    },
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

    async fn on_the_way<T>(&self, answer: T) -> Result<T, StoreError> {
        if self.is_down.load(SeqCst) {
            return Err(StoreError::unavailable("the store is away"));
        }
        self.asked.fetch_add(1, SeqCst);
        self.answers.acquire().await.unwrap().forget();
        Ok(answer)
    }
}

impl Store for Away {
    fn clock(&self) -> &Clock {
        Store::clock(&self.memory)
    }

    async fn acquire(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        if self.is_down.load(SeqCst) {
            return Err(StoreError::unavailable("the store is away"));
        }
        let answer = self.memory.acquire_now(demands)?;
        self.on_the_way(answer).await
    }

    async fn peek(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        self.memory.peek(demands).await
    }

    async fn force(&self, demand: &Demand<'_>) -> Result<Decision, StoreError> {
        self.memory.force(demand).await
    }

    async fn refund(&self, demand: &Demand<'_>) -> Result<u64, StoreError> {
        self.memory.refund(demand).await
    }

    async fn reset(&self, demand: &Demand<'_>) -> Result<(), StoreError> {
        self.memory.reset(demand).await
    }

    async fn reserve(
        &self,
        demands: &mut [Demand<'_>],
        life: Duration,
    ) -> Result<Reserved, StoreError> {
        let answer = self.memory.reserve(demands, life).await?;
        self.on_the_way(answer).await
    }

    async fn settle(&self, id: ReservationId, actual: &[u64]) -> Result<bool, StoreError> {
        self.memory.settle(id, actual).await
    }

    async fn lease(&self, demand: &mut Demand<'_>, life: Duration) -> Result<Reserved, StoreError> {
        self.memory.lease(demand, life).await
    }

    async fn enter(&self, permits: &Permits<'_>, life: Duration) -> Result<Entered, StoreError> {
        self.memory.enter(permits, life).await
    }

    async fn renew(
        &self,
        permits: &Permits<'_>,
        id: PermitId,
        life: Duration,
    ) -> Result<bool, StoreError> {
        self.memory.renew(permits, id, life).await
    }

    async fn leave(&self, permits: &Permits<'_>, id: PermitId) -> Result<bool, StoreError> {
        self.memory.leave(permits, id).await
    }

    async fn change_quota(
        &self,
        old: &Policy,
        new: &Policy,
        how: Inherit,
    ) -> Result<(), StoreError> {
        self.memory.change_quota(old, new, how).await
    }
}
