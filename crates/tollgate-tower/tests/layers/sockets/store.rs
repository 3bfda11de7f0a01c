//! Clients that disconnect during a call to a shared store.
//!
//! A store has charged as soon as the call arrives, whether the caller waits for the answer or not
//! (`Store`, "Cancel safety"). The layer promises more: a request that never ran gives back.

use super::{
    at_once,
    client::{Client, LEAVES, Leave, status},
    rig::{SERVERS, Server, Setup},
    until,
};
use crate::away::Away;
use std::sync::atomic::Ordering::SeqCst;
use tollgate::{Quota, store::MemoryStore};
use tollgate_tower::{Charge, OnStoreError};

/// A store whose answers come when a test releases them.
fn afar(server: Server) -> (Setup, Away) {
    let way = Away::held(MemoryStore::new());
    let to = way.clone();
    let setup = Setup::new(server, Quota::once(10))
        .memory(|memory| memory.max_reservations(1))
        .layer(|layer| layer.on_store_error(OnStoreError::Refuse))
        .afar(move |memory| Box::new(Away { memory, ..to }));
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

/// Was a fault: the answer of the store is lost with the client, and its charge stays.
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

/// The same with a reservation, which stays open for all of `settle_within`.
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
