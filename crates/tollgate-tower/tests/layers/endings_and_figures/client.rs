//! The client side.

use crate::stub::{Stub, get, seconds};
use std::{task::Context, time::Duration};
use tollgate::{Algorithm, Clock, Limiter, Quota};
use tollgate_tower::client::{PaceLayer, RetryBudget, RetryLayer};
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimit};

/// If an answer has several policies with one name, each is followed, so the tightest one holds: a
/// gateway and the service behind it may both have a policy "default". Was a fault: the client kept
/// the last one only, and exceeded the limit of the other.
#[tokio::test(start_paused = true)]
async fn of_two_policies_with_one_name_the_tighter_holds() {
    // A gateway and the service behind it, both with a policy "default".
    let lines = "RateLimit: \"default\";r=0;t=10\nRateLimit: \"default\";r=100;t=10";
    let server = Stub::scripted([(200, lines)]);
    let client = PaceLayer::builder().build().unwrap().layer(server.clone());
    for _ in 0..2 {
        client.clone().oneshot(get("http://a/")).await.unwrap();
    }
    assert!(server.starts()[1] >= seconds(10), "{:?}", server.starts());
}

/// A call that has to wait holds no place further in, not even one that is taken in `poll_ready`:
/// it drops the service, and polls a clone of it when the call may start. Was a fault: one server
/// that said "in 20 s" stopped the calls to all others.
#[tokio::test(start_paused = true)]
async fn who_is_paced_holds_no_place_further_in() {
    let server = Stub::scripted([(429, "retry-after: 20"), (200, "")]);
    let inner = ConcurrencyLimit::new(server, 1);
    let mut first = PaceLayer::builder().build().unwrap().layer(inner);
    let mut second = first.clone();
    first.ready().await.unwrap().call(get("http://a/")).await.unwrap();
    let mut waits = Box::pin(first.ready().await.unwrap().call(get("http://a/")));
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(waits.as_mut().poll(&mut context).is_pending());
    // Calls to another server must not wait for this one.
    assert!(second.poll_ready(&mut context).is_ready());
}

/// After `longest` one call goes ahead as a probe, however long the server's window is. Was a
/// fault: a single `w=999999999999999` stopped the client for 584 years, and "10 per year" for 36
/// days.
#[tokio::test(start_paused = true)]
async fn a_window_without_end_does_not_stop_a_client_for_ever() {
    let lines = "RateLimit: \"p\";r=0;t=1\nRateLimit-Policy: \"p\";q=1;w=999999999999999";
    let server = Stub::scripted([(200, lines), (200, "")]);
    let client = PaceLayer::builder().build().unwrap().layer(server.clone());
    client.clone().oneshot(get("http://a/")).await.unwrap();
    // Times beyond an hour are cut to that.
    let two_hours = tokio::time::timeout(seconds(7200), std::future::pending::<()>());
    assert!(two_hours.await.is_err());
    let next = client.clone().oneshot(get("http://a/")).await;
    assert!(next.is_ok(), "after two hours: {next:?}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_nobody_reads_holds_up_no_other() {
    use http_body::Body;
    use tollgate_tower::{BandwidthLayer, Shaping};
    let limiter = Limiter::builder(Quota::per_second(10)).clock(Clock::tokio()).build().unwrap();
    let layer = BandwidthLayer::builder().response(Shaping::shared(limiter)).build().unwrap();
    let service =
        layer.layer(tower::service_fn(|_: http::Request<tollgate_tower::ShapedBody<()>>| async {
            let body = http_body_util::Full::new(bytes::Bytes::from("x".repeat(30)));
            Ok::<_, std::convert::Infallible>(http::Response::new(body))
        }));
    let first = service.clone().oneshot(get("http://a/")).await.unwrap();
    let second = service.clone().oneshot(get("http://a/")).await.unwrap();
    let mut first = Box::pin(first.into_body());
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(first.as_mut().poll_frame(&mut context).is_ready());
    assert!(first.as_mut().poll_frame(&mut context).is_pending());
    let whole = http_body_util::BodyExt::collect(second.into_body());
    let whole = tokio::time::timeout(seconds(60), whole).await;
    assert!(whole.is_ok(), "the other stands still");
}

/// A field with a name of more than 128 bytes is malformed, so the memory of a server is bounded
/// (`src/client/lane/tests.rs` adds it up).
/// Was a fault: sixteen names of 4 kB were kept for each of 1000 servers.
#[test]
fn names_of_policies_are_bounded() {
    use tollgate_tower::client::Reader;
    let name = "n".repeat(4_000);
    let headers = crate::stub::response(200, &format!("RateLimit: \"{name}\";r=1;t=1"));
    let learned = Reader::new().read(http::StatusCode::OK, headers.headers(), Duration::ZERO);
    let kept: usize = learned
        .policies
        .iter()
        .filter_map(|policy| policy.name.as_ref())
        .map(|name| name.len())
        .sum();
    assert!(16 * kept <= 1024, "sixteen such policies are {} bytes", 16 * kept);
}

/// A call that is not repeated costs nothing. Was a fault: in a runtime without timers each refusal
/// took a repeat out of the budget, which clones in other runtimes share, and nothing was repeated.
#[test]
fn a_repeat_that_is_not_sent_costs_the_budget_nothing() {
    let budget = RetryBudget::builder().percent(100).min_per_second(0);
    let budget = budget.clock(Clock::monotonic()).build().unwrap();
    let retry = RetryLayer::builder().clock(Clock::monotonic()).budget(budget.clone());
    let retry = retry.build().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let server = Stub::scripted([(200, ""), (429, "retry-after: 1")]);
        let client = retry.layer(server);
        for expected in [200, 429] {
            let response = client.clone().oneshot(get("http://a/")).await.unwrap();
            assert_eq!(response.status(), expected);
        }
    });
    assert_eq!(budget.balance(), 1);
}

/// A dropped call gives back only those permits of the client's own quota that have not refilled,
/// whatever the algorithm. Was a fault (3, in ends.rs): a call that waited for a stopped server
/// until its permit had refilled gave it back once more when it was dropped, although others had
/// taken it meanwhile.
#[tokio::test(start_paused = true)]
async fn who_leaves_late_does_not_give_back_what_others_have_taken() {
    for algorithm in Algorithm::ALL {
        let limiter = Limiter::builder(Quota::per_minute(2)).algorithm(algorithm);
        let limiter = limiter.clock(Clock::tokio()).build().unwrap();
        let server = Stub::scripted([(429, "retry-after: 600"), (200, "")]);
        let pace = PaceLayer::builder().quota(limiter.clone()).max_wait(seconds(600));
        let client = pace.build().unwrap().layer(server.clone());
        client.clone().oneshot(get("http://a/")).await.unwrap();
        let mut waits = Box::pin(client.clone().oneshot(get("http://a/")));
        super::poll_once(waits.as_mut());
        assert_eq!(limiter.available(), 0, "{algorithm}");
        // After three minutes both permits are back, and others take them.
        tokio::time::advance(seconds(180)).await;
        for _ in 0..2 {
            client.clone().oneshot(get("http://b/")).await.unwrap();
        }
        drop(waits);
        assert_eq!(limiter.available(), 0, "{algorithm}: three in one minute");
        // A call that is dropped at once gives back.
        tokio::time::advance(seconds(180)).await;
        let mut waits = Box::pin(client.clone().oneshot(get("http://a/")));
        super::poll_once(waits.as_mut());
        assert_eq!(limiter.available(), 1, "{algorithm}");
        drop(waits);
        assert_eq!(limiter.available(), 2, "{algorithm}");
    }
}
