//! Clients that leave in the middle of a response.

use super::{
    at_once,
    client::{Client, LEAVES, Leave, status},
    next,
    rig::{SERVERS, Server, Setup},
    until,
};
use bytes::Bytes;
use tollgate::Quota;
use tollgate_tower::{OnStoreError, Settle};

fn by_bytes(server: Server) -> Setup {
    Setup::new(server, Quota::once(1000))
        .policy(|policy| policy.cost(400).settle(Settle::body_bytes()))
        .memory(|memory| memory.max_reservations(1))
        .layer(|layer| layer.on_store_error(OnStoreError::Refuse))
}

#[tokio::test]
async fn whoever_leaves_pays_for_what_it_got() {
    for (server, leave) in SERVERS.into_iter().flat_map(|it| LEAVES.map(|leave| (it, leave))) {
        let row = format!("{server:?} {leave:?}");
        let mut rig = by_bytes(server).serve().await;
        let mut client = Client::ask(rig.address, leave, "/fed").await;
        let body = next(&mut rig.bodies).await;
        assert_eq!(client.status().await, 200, "{row}");
        assert_eq!(rig.left().await, 600, "{row}: reserved");
        body.send(Bytes::from_static(&[7; 100])).unwrap();
        client.read(100).await;
        assert_eq!(rig.left().await, 600, "{row}: it is not over");
        let open = client.leave().await;
        until(&format!("{row}: the body is dropped"), || body.is_closed()).await;
        assert_eq!(rig.left().await, 900, "{row}");
        assert_eq!(status(rig.address, "/").await, 200, "{row}: its reservation is closed");
        assert_eq!(rig.left().await, 900, "{row}: and that one had no body");
        drop(open);
    }
}

#[tokio::test]
async fn whoever_stays_pays_for_all_of_it() {
    for (server, leave) in
        SERVERS.into_iter().flat_map(|it| [Leave::Close, Leave::ResetStream].map(|how| (it, how)))
    {
        let mut rig = by_bytes(server).serve().await;
        let mut client = Client::ask(rig.address, leave, "/fed").await;
        let body = next(&mut rig.bodies).await;
        assert_eq!(client.status().await, 200);
        for _ in 0..7 {
            body.send(Bytes::from_static(&[7; 100])).unwrap();
            client.read(100).await;
        }
        drop(body);
        until("it is settled while the connection stays", || at_once(rig.left()) == 300).await;
        drop(client);
    }
}

#[tokio::test]
async fn more_than_the_estimate_is_taken_from_those_who_leave() {
    let mut rig = by_bytes(Server::Axum).serve().await;
    let mut client = Client::ask(rig.address, Leave::Reset, "/fed").await;
    let body = next(&mut rig.bodies).await;
    client.status().await;
    for _ in 0..12 {
        body.send(Bytes::from_static(&[7; 100])).unwrap();
        client.read(100).await;
    }
    client.leave().await;
    until("the body is dropped", || body.is_closed()).await;
    assert_eq!(rig.left().await, 0, "200 into debt");
    assert_eq!(status(rig.address, "/").await, 429);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_not_charged_for_what_waits_for_it() {
    // Bytes in the buffers of the kernel and of hyper count as sent; bytes that the service still
    // has do not.
    let rig = Setup::new(Server::Axum, Quota::once(1 << 30))
        .policy(|policy| policy.cost(1).settle(Settle::body_bytes()));
    let mut rig = rig.serve().await;
    let mut client = Client::ask(rig.address, Leave::Close, "/fed").await;
    let body = next(&mut rig.bodies).await;
    client.status().await;
    let megabyte = Bytes::from(vec![7; 1 << 20]);
    for _ in 0..64 {
        body.send(megabyte.clone()).unwrap();
    }
    until("something is on its way", || at_once(rig.left()) <= (1 << 30)).await;
    client.leave().await;
    until("the body is dropped", || body.is_closed()).await;
    let paid = (1 << 30) - rig.left().await;
    assert!(paid < 60 << 20, "{paid} bytes were paid, of 64 MB that nobody has read");
}
