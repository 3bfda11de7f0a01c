//! A rate limit outside, and a limit on requests in flight inside.

use super::{
    LONG,
    client::{Client, LEAVES, Leave, status},
    next,
    rig::{SERVERS, Server, Setup},
    until,
};
use bytes::Bytes;
use tollgate::{Concurrency, Quota};
use tollgate_tower::{Charge, ConcurrencyLayer, Policy};

/// One slot, and two places in the queue if requests may wait.
fn setup_with_slots(server: Server, may_wait: bool) -> (Setup, Concurrency) {
    let limit = Concurrency::builder(1).max_waiting(2).build().unwrap();
    let layer = ConcurrencyLayer::builder(limit.clone());
    let layer = if may_wait { layer.max_wait(LONG) } else { layer }.build().unwrap();
    let setup = Setup::new(server, Quota::once(10)).inner(|routes| routes.layer(layer));
    (setup, limit)
}

#[tokio::test]
async fn what_is_shed_further_in_is_given_back() {
    let rows: [fn(Policy) -> Policy; 2] =
        [|policy| policy, |policy| policy.charge(Charge::on_failure())];
    for (server, policy) in SERVERS.into_iter().flat_map(|it| rows.map(|policy| (it, policy))) {
        let (setup, limit) = setup_with_slots(server, false);
        let mut rig = setup.policy(policy).serve().await;
        let held = Client::ask(rig.address, Leave::Close, "/fed").await;
        let _body = next(&mut rig.bodies).await;
        for _ in 0..20 {
            assert_eq!(status(rig.address, "/").await, 503, "{server:?}");
        }
        assert_eq!((rig.ran(), limit.in_flight()), (1, 1), "{server:?}");
        held.leave().await;
        until("the slot is free", || limit.in_flight() == 0).await;
        assert_eq!(status(rig.address, "/").await, 200, "{server:?}");
    }
}

#[tokio::test]
async fn whoever_leaves_half_way_frees_the_slot_and_has_paid() {
    for (server, leave) in SERVERS.into_iter().flat_map(|it| LEAVES.map(|leave| (it, leave))) {
        let (setup, limit) = setup_with_slots(server, false);
        let mut rig = setup.serve().await;
        let mut client = Client::ask(rig.address, leave, "/fed").await;
        let body = next(&mut rig.bodies).await;
        body.send(Bytes::from_static(b"half")).unwrap();
        assert_eq!(client.status().await, 200);
        client.read(4).await;
        assert_eq!((limit.in_flight(), rig.left().await), (1, 9));
        let open = client.leave().await;
        until("the slot is free", || limit.in_flight() == 0).await;
        assert_eq!(rig.left().await, 9, "{server:?} {leave:?}");
        drop(open);
    }
}

/// A request that never ran gives back its charge, even if it was cancelled further in: here, in
/// the queue of an inner layer.
#[tokio::test]
async fn whoever_leaves_in_a_queue_further_in_never_ran() {
    for (server, leave) in SERVERS.into_iter().flat_map(|it| LEAVES.map(|leave| (it, leave))) {
        let (setup, limit) = setup_with_slots(server, true);
        let mut rig = setup.serve().await;
        let held = Client::ask(rig.address, Leave::Close, "/fed").await;
        let _body = next(&mut rig.bodies).await;
        assert_eq!(rig.left().await, 9);
        let client = Client::ask(rig.address, leave, "/").await;
        until("it waits further in", || limit.waiting() == 1).await;
        let open = client.leave().await;
        until("it has left the queue", || limit.waiting() == 0).await;
        assert_eq!((rig.ran(), rig.left().await), (1, 9), "{server:?} {leave:?}");
        drop((held, open));
    }
}

#[tokio::test]
async fn the_queue_of_an_inner_layer_is_conserved() {
    for (server, leave) in SERVERS.into_iter().flat_map(|it| LEAVES.map(|leave| (it, leave))) {
        let (setup, limit) = setup_with_slots(server, true);
        let mut rig = setup.serve().await;
        let first = Client::ask(rig.address, leave, "/fed").await;
        let _body = next(&mut rig.bodies).await;
        let second = Client::ask(rig.address, leave, "/fed").await;
        until("the second waits", || limit.waiting() == 1).await;
        let mut third = Client::ask(rig.address, leave, "/").await;
        until("the third waits", || limit.waiting() == 2).await;
        let second = second.leave().await;
        until("the second has left", || limit.waiting() == 1).await;
        let open = (second, first.leave().await);
        assert_eq!(third.status().await, 200, "{server:?} {leave:?}");
        until("all slots are free", || limit.in_flight() == 0 && limit.waiting() == 0).await;
        assert_eq!(rig.ran(), 2, "{server:?} {leave:?}: the second never ran");
        drop(open);
    }
}
