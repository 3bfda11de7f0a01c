//! Clients that leave in the middle of an upload.

use super::{
    LONG,
    client::{Client, LEAVES, status},
    next,
    rig::{SERVERS, Setup},
    until,
};
use std::time::Duration;
use tollgate::Quota;
use tollgate_tower::{Charge, Policy};

#[tokio::test]
async fn an_upload_that_is_cut_off_has_run() {
    let rows: [fn(Policy) -> Policy; 2] =
        [|policy| policy, |policy| policy.charge(Charge::on_failure())];
    for (server, leave) in SERVERS.into_iter().flat_map(|it| LEAVES.map(|leave| (it, leave))) {
        for policy in rows {
            let row = format!("{server:?} {leave:?}");
            let mut rig = Setup::new(server, Quota::once(10)).policy(policy).serve().await;
            let mut client = Client::ask(rig.address, leave, "/upload").await;
            client.send(&[7; 100]).await;
            assert_eq!(next(&mut rig.uploads).await, Ok(100), "{row}");
            assert_eq!((rig.running(), rig.left().await), (1, 9), "{row}");
            let open = client.leave().await;
            until(&format!("{row}: the handler is over"), || rig.running() == 0).await;
            assert_eq!(rig.left().await, 9, "{row}");
            drop(open);
        }
    }
}

#[tokio::test]
async fn an_upload_that_waits_has_left_or_runs_and_pays() {
    for (server, leave) in SERVERS.into_iter().flat_map(|it| LEAVES.map(|leave| (it, leave))) {
        let row = format!("{server:?} {leave:?}");
        let quota = Quota::per_second(50).burst(1);
        let rig = Setup::new(server, quota).layer(|it| it.wait_up_to(LONG)).serve().await;
        assert_eq!(status(rig.address, "/").await, 200);
        let mut client = Client::ask(rig.address, leave, "/upload").await;
        client.send(&[7; 100]).await;
        until("the upload waits", || rig.asked() == 2).await;
        let open = client.leave().await;
        if leave.is_http2() {
            until(&format!("{row}: the server has seen it"), || rig.there() == 0).await;
        }
        // HTTP/1 does not check the connection while a body is unread.
        rig.hand.advance(Duration::from_millis(20));
        until(&row, || rig.there() == 0 && rig.running() == 0).await;
        let ran = rig.ran() as u64 - 1;
        assert_eq!(rig.left().await, 1 - ran, "{row}");
        assert_eq!(ran, u64::from(!leave.is_http2()), "{row}");
        drop(open);
    }
}
