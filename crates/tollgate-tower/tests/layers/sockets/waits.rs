//! Clients that disconnect while their requests wait (`wait_up_to`).

use super::{
    LONG,
    client::{Client, LEAVES, Leave, status},
    rig::{Rig, SERVERS, Server, Setup},
    until,
};
use std::time::Duration;
use tokio::time::timeout;
use tollgate::Quota;
use tollgate_tower::Charge;

/// The refill time of one permit, on the clock of the limit. A waiting request tries again after
/// the same real time, and continues to wait unless a test has moved that clock.
const REFILL: Duration = Duration::from_millis(20);

fn waits(server: Server) -> Setup {
    let quota = Quota::per_second(50).burst(2);
    Setup::new(server, quota).layer(|layer| layer.wait_up_to(LONG))
}

/// Spends all permits, and makes three clients wait.
async fn three_wait(rig: &Rig, leave: Leave) -> [Client; 3] {
    assert_eq!(status(rig.address, "/").await, 200);
    assert_eq!(status(rig.address, "/").await, 200);
    let mut clients = Vec::new();
    for number in 3..=5 {
        clients.push(Client::ask(rig.address, leave, "/").await);
        until("the next has come to the limit", || rig.asked() == number).await;
    }
    assert_eq!((rig.there(), rig.ran()), (3, 2), "three wait");
    clients.try_into().ok().unwrap()
}

#[tokio::test]
async fn whoever_hangs_up_while_it_waits_has_spent_nothing() {
    for (server, leave) in SERVERS.into_iter().flat_map(|it| LEAVES.map(|leave| (it, leave))) {
        let row = format!("{server:?} {leave:?}");
        let rig = waits(server).serve().await;
        let [first, mut second, third] = three_wait(&rig, leave).await;
        let open = (first.leave().await, third.leave().await);
        until(&format!("{row}: the server has seen it"), || rig.there() == 1).await;
        assert_eq!(rig.left().await, 0, "{row}");
        rig.hand.advance(REFILL);
        assert_eq!(second.status().await, 200, "{row}: one permit is there, for who has stayed");
        assert_eq!((rig.ran(), rig.left().await), (3, 0), "{row}");
        rig.hand.advance(REFILL * 10);
        assert_eq!(rig.left().await, 2, "{row}");
        drop(open);
        assert_eq!((rig.ran(), rig.there(), rig.left().await), (3, 0, 2), "{row}");
    }
}

#[tokio::test]
async fn nor_has_it_reserved_anything() {
    for (server, leave) in SERVERS.into_iter().flat_map(|it| LEAVES.map(|leave| (it, leave))) {
        let row = format!("{server:?} {leave:?}");
        let rig = waits(server)
            .policy(|policy| policy.charge(Charge::by(|_| true)))
            // Only one may be open: a reservation left open would make the next request fail.
            .memory(|memory| memory.max_reservations(1))
            .layer(|layer| {
                layer.wait_up_to(LONG).on_store_error(tollgate_tower::OnStoreError::Refuse)
            })
            .serve()
            .await;
        let [first, mut second, third] = three_wait(&rig, leave).await;
        let open = (first.leave().await, third.leave().await);
        until(&format!("{row}: the server has seen it"), || rig.there() == 1).await;
        rig.hand.advance(REFILL);
        assert_eq!(second.status().await, 200, "{row}");
        rig.hand.advance(REFILL * 10);
        assert_eq!(status(rig.address, "/").await, 200, "{row}: no reservation was left open");
        assert_eq!((rig.ran(), rig.left().await), (4, 1), "{row}");
        drop(open);
    }
}

#[tokio::test]
async fn streams_of_one_connection_leave_one_by_one() {
    for server in SERVERS {
        let rig = waits(server).serve().await;
        let [first, second, third] = three_wait(&rig, Leave::ResetStream).await;
        let Client::Two(mut first) = first else { unreachable!() };
        let request = || http::Request::get(format!("http://{}/", rig.address)).body(()).unwrap();
        let mut streams = Vec::new();
        for number in 6..=9 {
            streams.push(first.sender.send_request(request(), true).unwrap());
            until("one more waits", || rig.asked() == number).await;
        }
        assert_eq!(rig.there(), 7);
        for left in [6, 5, 4] {
            let (_response, mut stream) = streams.remove(0);
            stream.send_reset(h2::Reason::CANCEL);
            until("that stream is gone, and the others are there", || rig.there() == left).await;
        }
        drop(second.leave().await);
        until("another connection", || rig.there() == 3).await;
        rig.hand.advance(REFILL * 2);
        until("two have had their turn", || rig.ran() == 4).await;
        assert_eq!((rig.there(), rig.left().await), (1, 0));
        first.connection.abort();
        drop((streams, third.leave().await));
        until("all have left", || rig.there() == 0).await;
        rig.hand.advance(REFILL * 10);
        assert_eq!((rig.ran(), rig.left().await), (4, 2));
    }
}

#[tokio::test]
async fn a_server_that_is_asked_to_finish_lets_those_who_wait_pass() {
    for (server, leave) in
        SERVERS.into_iter().flat_map(|it| [Leave::Close, Leave::ResetStream].map(|it2| (it, it2)))
    {
        let row = format!("{server:?} {leave:?}");
        let mut rig = waits(server).serve().await;
        let [mut first, second, mut third] = three_wait(&rig, leave).await;
        rig.stop.send(()).unwrap();
        drop(second.leave().await);
        until(&format!("{row}: one has hung up meanwhile"), || rig.there() == 2).await;
        assert!(!rig.server.is_finished(), "{row}: it waits for those who wait");
        rig.hand.advance(REFILL * 2);
        assert_eq!((first.status().await, third.status().await), (200, 200), "{row}");
        drop((first, third));
        timeout(LONG, &mut rig.server).await.unwrap().unwrap();
        assert_eq!((rig.ran(), rig.there(), rig.left().await), (4, 0, 0), "{row}");
    }
}

#[tokio::test]
async fn a_server_that_is_cut_off_spends_nothing_for_those_who_wait() {
    let rig = waits(Server::Hyper).serve().await;
    let clients = three_wait(&rig, Leave::Close).await;
    rig.server.abort();
    until("all connections are dropped", || rig.there() == 0).await;
    rig.hand.advance(REFILL * 10);
    assert_eq!((rig.ran(), rig.left().await), (2, 2));
    drop(clients);
}
