//! Clients that leave while the handler runs.

use super::{
    client::{Client, LEAVES, Leave, status},
    rig::{Rig, SERVERS, Server, Setup},
    until,
};
use http::HeaderName;
use tollgate::Quota;
use tollgate_tower::{Charge, OnStoreError, Policy, Settle};

/// Disconnects while the handler runs, and waits until the handler is dropped.
async fn cut_off(rig: &Rig, leave: Leave) -> Option<Client> {
    let ran = rig.ran() + 1;
    let client = Client::ask(rig.address, leave, "/hangs").await;
    until("the handler runs", || rig.ran() == ran && rig.running() == 1).await;
    let open = client.leave().await;
    until("the handler is dropped", || rig.running() == 0).await;
    open
}

fn by_header(policy: Policy) -> Policy {
    policy.cost(2).settle(Settle::header(HeaderName::from_static("x-used")))
}

#[tokio::test]
async fn what_ran_is_spent_whoever_waits_for_it() {
    type Row = (&'static str, fn(Policy) -> Policy, u64);
    let rows: [Row; 5] = [
        ("nothing is settled", |policy| policy, 9),
        ("failures", |policy| policy.charge(Charge::on_failure()), 9),
        ("all but the server's", |policy| policy.charge(Charge::unless_server_error()), 9),
        ("by a header", by_header, 8),
        ("by bytes", |policy| policy.cost(3).settle(Settle::body_bytes()), 7),
    ];
    for (server, leave) in SERVERS.into_iter().flat_map(|it| LEAVES.map(|leave| (it, leave))) {
        for (name, policy, left) in rows {
            let rig = Setup::new(server, Quota::once(10)).policy(policy).serve().await;
            let open = cut_off(&rig, leave).await;
            assert_eq!(rig.left().await, left, "{server:?} {leave:?}: {name}");
            drop(open);
        }
    }
}

#[tokio::test]
async fn guesses_of_clients_that_hang_up_are_not_free() {
    let quota = Quota::per_hour(5);
    let rig = Setup::new(Server::Axum, quota).policy(|it| it.charge(Charge::on_failure()));
    let rig = rig.serve().await;
    for number in 0..5 {
        drop(cut_off(&rig, LEAVES[number % LEAVES.len()]).await);
    }
    assert_eq!(status(rig.address, "/").await, 429);
    assert_eq!(rig.ran(), 5);
}

/// Was a fault: the estimate stays spent, as it should; but its reservation stays open, too, for
/// all of `settle_within`. When the store has no room for more of them, `OnStoreError` decides:
/// either no request is limited any more, or none is served.
#[tokio::test]
async fn what_was_cut_off_leaves_no_reservation_open() {
    for (server, leave) in SERVERS.into_iter().flat_map(|it| LEAVES.map(|leave| (it, leave))) {
        let rig = Setup::new(server, Quota::once(10))
            .policy(|policy| policy.charge(Charge::on_failure()))
            .memory(|memory| memory.max_reservations(1))
            .layer(|layer| layer.on_store_error(OnStoreError::Refuse))
            .serve()
            .await;
        let open = cut_off(&rig, leave).await;
        let row = format!("{server:?} {leave:?}");
        assert_eq!(status(rig.address, "/").await, 200, "{row}: there is room for a reservation");
        assert_eq!(rig.left().await, 9, "{row}");
        drop(open);
    }
}

/// The same from outside: a client that can hang up fifty times has switched the limit off.
#[tokio::test]
async fn hanging_up_does_not_switch_a_limit_off() {
    let rig = Setup::new(Server::Axum, Quota::once(100))
        .policy(|policy| policy.charge(Charge::by(|_| true)))
        .memory(|memory| memory.max_reservations(50))
        .serve()
        .await;
    for _ in 0..50 {
        drop(cut_off(&rig, Leave::Close).await);
    }
    let mut passed = 0;
    for _ in 0..100 {
        passed += usize::from(status(rig.address, "/").await == 200);
    }
    assert_eq!(passed, 50, "a hundred less the fifty that hung up");
}
