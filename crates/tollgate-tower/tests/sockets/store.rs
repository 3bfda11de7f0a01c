//! Clients that leave while a store somewhere else is asked.
//!
//! A store that is asked has charged as soon as the question is there, whether anybody waits for the
//! answer or not ([`Store`], "Cancel safety"). The layer promises more: what never ran is given back.

use super::{
    at_once,
    client::{Client, LEAVES, Leave, status},
    rig::{SERVERS, Server, Setup},
    until,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::sync::Semaphore;
use tollgate::{
    Clock, Decision, Inherit, Quota,
    store::{
        Demand, Entered, MemoryStore, PermitId, Permits, Policy, ReservationId, Reserved, Store,
        StoreError,
    },
};
use tollgate_tower::{Charge, OnStoreError};

/// The way to a store: questions arrive at once, and answers when a test lets them.
#[derive(Clone)]
struct Way {
    /// Questions that have arrived.
    asked: Arc<AtomicUsize>,
    answers: Arc<Semaphore>,
}

struct Afar {
    memory: MemoryStore,
    way: Way,
}

impl Afar {
    async fn answer<T>(&self, answer: T) -> T {
        // ORDERING: SeqCst, which a test can afford.
        self.way.asked.fetch_add(1, SeqCst);
        self.way.answers.acquire().await.unwrap().forget();
        answer
    }
}

impl Store for Afar {
    fn clock(&self) -> &Clock {
        Store::clock(&self.memory)
    }

    async fn acquire(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        let answer = self.memory.acquire(demands).await;
        self.answer(answer).await
    }

    async fn reserve(
        &self,
        demands: &mut [Demand<'_>],
        life: Duration,
    ) -> Result<Reserved, StoreError> {
        let answer = self.memory.reserve(demands, life).await;
        self.answer(answer).await
    }

    async fn settle(&self, id: ReservationId, actual: &[u64]) -> Result<bool, StoreError> {
        self.memory.settle(id, actual).await
    }

    async fn refund(&self, demand: &Demand<'_>) -> Result<u64, StoreError> {
        self.memory.refund(demand).await
    }

    async fn peek(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        self.memory.peek(demands).await
    }

    async fn force(&self, demand: &Demand<'_>) -> Result<Decision, StoreError> {
        self.memory.force(demand).await
    }

    async fn reset(&self, demand: &Demand<'_>) -> Result<(), StoreError> {
        self.memory.reset(demand).await
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

fn afar(server: Server) -> (Setup, Way) {
    let way = Way { asked: Arc::default(), answers: Arc::new(Semaphore::new(0)) };
    let to = way.clone();
    let setup = Setup::new(server, Quota::once(10))
        .memory(|memory| memory.max_reservations(1))
        .layer(|layer| layer.on_store_error(OnStoreError::Refuse))
        .afar(move |memory| Box::new(Afar { memory, way: to }));
    (setup, way)
}

#[tokio::test]
async fn whoever_stays_passes_when_the_store_has_answered() {
    for (server, leave) in SERVERS.into_iter().flat_map(|it| LEAVES.map(|leave| (it, leave))) {
        let (setup, way) = afar(server);
        let rig = setup.serve().await;
        let mut client = Client::ask(rig.address, leave, "/").await;
        until("the store is asked", || way.asked.load(SeqCst) == 1).await;
        assert_eq!((rig.there(), rig.ran()), (1, 0));
        way.answers.add_permits(1);
        assert_eq!(client.status().await, 200);
        assert_eq!((rig.ran(), rig.left().await), (1, 9));
    }
}

#[tokio::test]
async fn what_ran_is_settled_at_a_store_afar() {
    let (setup, way) = afar(Server::Axum);
    let rig = setup.policy(|policy| policy.charge(Charge::on_failure())).serve().await;
    way.answers.add_permits(3);
    for _ in 0..3 {
        assert_eq!(status(rig.address, "/").await, 200, "there is room for one reservation");
        until("it is given back", || at_once(rig.left()) == 10).await;
    }
}

/// Was a fault: the answer of the store is lost with the client, and what it has charged stays charged.
#[tokio::test]
async fn whoever_leaves_while_a_store_is_asked_has_spent_nothing() {
    for (server, leave) in SERVERS.into_iter().flat_map(|it| LEAVES.map(|leave| (it, leave))) {
        let (setup, way) = afar(server);
        let rig = setup.serve().await;
        let client = Client::ask(rig.address, leave, "/").await;
        until("the store is asked", || way.asked.load(SeqCst) == 1).await;
        let open = client.leave().await;
        until("the server has seen it", || rig.there() == 0).await;
        way.answers.add_permits(1);
        let row = format!("{server:?} {leave:?}: it is given back");
        until(&row, || at_once(rig.left()) == 10).await;
        assert_eq!(rig.ran(), 0);
        drop(open);
    }
}

/// The same, where something is reserved: that stays open for all of `settle_within`.
#[tokio::test]
async fn whoever_leaves_while_a_store_is_asked_leaves_no_reservation_open() {
    let (setup, way) = afar(Server::Axum);
    let rig = setup.policy(|policy| policy.charge(Charge::on_failure())).serve().await;
    let client = Client::ask(rig.address, Leave::Close, "/").await;
    until("the store is asked", || way.asked.load(SeqCst) == 1).await;
    client.leave().await;
    until("the server has seen it", || rig.there() == 0).await;
    way.answers.add_permits(2);
    until("it is given back", || at_once(rig.left()) == 10).await;
    assert_eq!(status(rig.address, "/").await, 200);
}
