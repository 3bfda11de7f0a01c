//! A thousand clients that connect and disconnect.

use super::{
    client::{Client, LEAVES, Leave, status},
    next,
    rig::{Rig, Server, Setup},
    until,
};
use bytes::Bytes;
use std::time::Duration;
use tokio::runtime::Handle;
use tollgate::Quota;
use tollgate_tower::{OnStoreError, Settle};

/// The number of clients, of each kind in turn.
const MANY: usize = 1_000;

/// Waits until only the server's own tasks are left: the task that accepts, and the one that waits
/// for the signal to stop.
async fn quiet(rig: &Rig) {
    let alive = || Handle::current().metrics().num_alive_tasks();
    until("all tasks of clients and connections are over", || alive() <= 2).await;
    assert_eq!((rig.there(), rig.running()), (0, 0));
}

#[tokio::test]
async fn a_thousand_who_leave_while_they_wait_leave_nothing_behind() {
    let quota = Quota::per_second(50).burst(1);
    let mut rig = Setup::new(Server::Axum, quota)
        .policy(|policy| policy.settle(Settle::body_bytes()))
        .memory(|memory| memory.max_reservations(1))
        .layer(|it| it.wait_up_to(super::LONG).on_store_error(OnStoreError::Refuse))
        .serve()
        .await;
    let first = Client::ask(rig.address, Leave::Close, "/fed").await;
    let body = next(&mut rig.bodies).await;
    let bytes = rig.memory.bytes();
    for number in 0..MANY {
        let client = Client::ask(rig.address, LEAVES[number % LEAVES.len()], "/").await;
        until("it waits", || rig.asked() == number + 2).await;
        drop(client.leave().await);
    }
    until("all have left", || rig.there() == 0).await;
    drop((first, body));
    quiet(&rig).await;
    assert_eq!((rig.ran(), rig.memory.bytes()), (1, bytes));
    rig.hand.advance(Duration::from_secs(1));
    assert_eq!(rig.left().await, 1);
    assert_eq!(status(rig.address, "/").await, 200, "there is room for a reservation");
    assert!(rig.bodies.try_recv().is_err());
}

#[tokio::test]
async fn a_thousand_who_leave_half_way_pay_for_half() {
    let mut rig = Setup::new(Server::Axum, Quota::once(10_000_000))
        .policy(|policy| policy.cost(5_000).settle(Settle::body_bytes()))
        .memory(|memory| memory.max_reservations(1))
        .layer(|layer| layer.on_store_error(OnStoreError::Refuse))
        .serve()
        .await;
    for number in 0..MANY {
        let mut client = Client::ask(rig.address, LEAVES[number % LEAVES.len()], "/fed").await;
        assert_eq!(client.status().await, 200, "number {number}");
        let body = next(&mut rig.bodies).await;
        body.send(Bytes::from_static(b"half")).unwrap();
        client.read(4).await;
        drop(client.leave().await);
        until("the body is dropped", || body.is_closed()).await;
    }
    quiet(&rig).await;
    assert_eq!(rig.left().await, 10_000_000 - 4 * MANY as u64);
}

/// The same, for a thousand clients.
#[tokio::test]
async fn a_thousand_who_leave_while_the_handler_runs_leave_no_reservation_open() {
    let rig = Setup::new(Server::Axum, Quota::once(2_000))
        .policy(|policy| policy.settle(Settle::body_bytes()))
        .memory(|memory| memory.max_reservations(1))
        .layer(|layer| layer.on_store_error(OnStoreError::Refuse))
        .serve()
        .await;
    for number in 1..=MANY {
        let client = Client::ask(rig.address, LEAVES[number % LEAVES.len()], "/hangs").await;
        until("the handler runs", || rig.ran() == number).await;
        drop(client.leave().await);
        until("the handler is dropped", || rig.running() == 0).await;
    }
    quiet(&rig).await;
    assert_eq!(rig.left().await, 1_000);
    assert_eq!(status(rig.address, "/").await, 200);
}
