//! A client that paces itself, on paused time.

use crate::DOCS;
use crate::stub::{Stub, get, seconds};
use http::{Request, Response, StatusCode};
use std::{convert::Infallible, time::Duration};
use tokio::time::timeout;
use tollgate::{Clock, Limiter, Quota};
use tollgate_tower::client::{
    Pace, PaceBuildError, PaceError, PaceFuture, PaceLayer, Spend, Unsent,
};
use tower::{Layer, Service, ServiceExt};

type Outcome = Result<Response<()>, PaceError<Infallible>>;

/// Calls once.
async fn call(client: &Pace<Stub>, uri: &str) -> Outcome {
    client.clone().oneshot(get(uri)).await
}

#[tokio::test(start_paused = true)]
async fn nobody_of_a_host_starts_before_the_time_that_a_refusal_names() {
    let stub = Stub::scripted([(429, "Retry-After: 5"), (200, "")]);
    let layer = PaceLayer::builder().build().unwrap();
    let client = layer.layer(stub.clone());
    assert_eq!(call(&client, "http://a/").await.unwrap().status(), 429);
    // Another host is not affected, and a host in upper case is the same host.
    call(&client, "http://b/").await.unwrap();
    let (first, second) = tokio::join!(call(&client, "http://a/1"), call(&client, "http://A/2"));
    assert!(first.unwrap().status() == 200 && second.unwrap().status() == 200);
    assert_eq!(stub.starts(), [seconds(0), seconds(0), seconds(5), seconds(5)]);
    let counts = layer.counts();
    assert_eq!((counts.sent, counts.waited, counts.stops, counts.refused), (4, 2, 1, 0));
    assert_eq!(layer.lanes(), 2);
}

#[tokio::test(start_paused = true)]
async fn what_would_take_too_long_fails_at_once() {
    let stub = Stub::scripted([(429, "Retry-After: 60"), (200, "")]);
    let layer = PaceLayer::builder().max_wait(seconds(10)).build().unwrap();
    let client = layer.layer(stub.clone());
    assert_eq!(call(&client, "http://a/").await.unwrap().status(), 429);
    let error = call(&client, "http://a/").await.unwrap_err();
    let expected = PaceError::TooLong { wait: seconds(60), max_wait: seconds(10) };
    assert_eq!(error, expected);
    assert!(error.is_unsent());
    assert_eq!((error.retry_after(), error.into_inner()), (Some(seconds(60)), None));
    assert_eq!(
        error.to_string(),
        "the server asks for no calls for another 60s, longer than 10s; try again later, or allow \
         a longer wait"
    );
    assert_eq!((stub.now(), layer.counts().refused), (seconds(0), 1));
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_are_told_at_once_when_it_becomes_too_long() {
    // The second call is sent and answered late; a third waits for a policy meanwhile.
    let stub = Stub::scripted([(200, "RateLimit: \"a\";r=1;t=5"), (429, "Retry-After: 60")]);
    let layer = PaceLayer::builder().spend(Spend::Burst).max_wait(seconds(10)).build().unwrap();
    let client = layer.layer(stub.clone());
    call(&client, "http://a/").await.unwrap();
    stub.delay(seconds(2));
    let waits = async {
        tokio::task::yield_now().await;
        call(&client, "http://a/").await
    };
    let (second, third) = tokio::join!(call(&client, "http://a/"), waits);
    assert_eq!(second.unwrap().status(), 429);
    assert!(matches!(third, Err(PaceError::TooLong { .. })), "{third:?}");
    assert_eq!(stub.now(), seconds(2));
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded_and_in_order() {
    let stub = Stub::scripted([(429, "Retry-After: 5"), (200, "")]);
    let layer = PaceLayer::builder().max_waiting(3).build().unwrap();
    let client = layer.layer(stub.clone());
    call(&client, "http://a/").await.unwrap();
    let names = ["http://a/1", "http://a/2", "http://a/3", "http://a/4"];
    let (a, b, c, d) = tokio::join!(
        call(&client, names[0]),
        call(&client, names[1]),
        call(&client, names[2]),
        call(&client, names[3]),
    );
    assert!(a.is_ok() && b.is_ok() && c.is_ok());
    assert_eq!(d.unwrap_err(), PaceError::QueueFull { max_waiting: 3 });
    assert_eq!(stub.paths(), ["/", "/1", "/2", "/3"]);
}

#[tokio::test(start_paused = true)]
async fn ones_own_quota_paces_and_its_refusals_keep_their_reason() {
    let stub = Stub::scripted([(200, "")]);
    let limiter = Limiter::builder(Quota::per_second(2).burst(2)).clock(Clock::tokio());
    let limiter = limiter.build().unwrap();
    let layer = PaceLayer::builder()
        .quota(limiter.clone())
        .cost(|info| if info.uri().path() == "/big" { 3 } else { 1 })
        .max_wait(seconds(1))
        .build()
        .unwrap();
    let client = layer.layer(stub.clone());
    for _ in 0..4 {
        call(&client, "http://a/").await.unwrap();
    }
    let half = Duration::from_millis(500);
    assert_eq!(stub.starts(), [seconds(0), seconds(0), half, seconds(1)]);
    let error = call(&client, "http://a/big").await.unwrap_err();
    assert!(matches!(error, PaceError::Quota(tollgate::Refused::Never(_))), "{error:?}");
    assert_eq!(error.retry_after(), None);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_gives_back_what_it_has() {
    let stub = Stub::scripted([(429, "Retry-After: 5"), (200, "")]);
    let limiter = Limiter::builder(Quota::once(3)).clock(Clock::tokio()).build().unwrap();
    let layer = PaceLayer::builder().quota(limiter.clone()).build().unwrap();
    let client = layer.layer(stub.clone());
    call(&client, "http://a/").await.unwrap();
    assert_eq!(limiter.available(), 2);
    // The call has its permit, waits for the server, and is dropped after a second.
    let gone = timeout(seconds(1), call(&client, "http://a/gone"));
    let stays = async {
        tokio::task::yield_now().await;
        call(&client, "http://a/stays").await
    };
    let (gone, stays) = tokio::join!(gone, stays);
    assert!(gone.is_err() && stays.is_ok());
    assert_eq!(limiter.available(), 1);
    assert_eq!(stub.paths(), ["/", "/stays"]);
    // A call that is refused gives back, too.
    let strict = PaceLayer::builder().quota(limiter.clone()).max_wait(seconds(1)).build().unwrap();
    let stub = Stub::scripted([(429, "Retry-After: 5")]);
    let client = strict.layer(stub);
    call(&client, "http://a/").await.unwrap();
    assert_eq!(limiter.available(), 0);
    limiter.refund(1);
    assert!(matches!(call(&client, "http://a/").await, Err(PaceError::TooLong { .. })));
    assert_eq!(limiter.available(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_the_server_does_not_want_in_time_takes_nothing_of_ones_own_quota() {
    let stub = Stub::scripted([(429, "Retry-After: 60")]);
    let limiter = Limiter::builder(Quota::per_minute(1)).clock(Clock::tokio()).build().unwrap();
    let layer = PaceLayer::builder().quota(limiter.clone()).max_wait(seconds(59)).build().unwrap();
    let client = layer.layer(stub.clone());
    call(&client, "http://a/").await.unwrap();
    // It would have to wait for the quota as well, but fails before that.
    let error = call(&client, "http://a/").await.unwrap_err();
    assert_eq!(error, PaceError::TooLong { wait: seconds(60), max_wait: seconds(59) });
    assert_eq!((stub.now(), limiter.waiting()), (seconds(0), 0));
}

#[tokio::test(start_paused = true)]
async fn permits_that_were_waited_for_stay_spent_until_time_brings_them_back() {
    let stub = Stub::scripted([(200, "RateLimit: \"a\";r=0;t=20")]);
    let limiter = Limiter::builder(Quota::one_every(seconds(5))).clock(Clock::tokio());
    let limiter = limiter.build().unwrap();
    let layer = PaceLayer::builder().quota(limiter.clone()).build().unwrap();
    let client = layer.layer(stub.clone());
    call(&client, "http://a/").await.unwrap();
    // The call has its permit at 5 s, and is dropped at 6 s.
    assert!(timeout(seconds(6), call(&client, "http://a/")).await.is_err());
    assert_eq!(limiter.available(), 0);
    tokio::time::advance(seconds(4)).await;
    assert_eq!(limiter.available(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_comes_while_the_inner_service_is_not_ready_holds() {
    let policy = "RateLimit-Policy: \"a\";q=10;w=1\nRateLimit: \"a\";r=0;t=1";
    let stub = Stub::scripted([(200, policy), (429, "Retry-After: 5"), (200, "")]);
    let layer = PaceLayer::builder().build().unwrap();
    let mut client = layer.layer(tower::limit::ConcurrencyLimit::new(stub.clone(), 1));
    client.ready().await.unwrap().call(get("http://a/")).await.unwrap();
    // Both services become ready one after the other, wait, and are released. The first call starts
    // at 1 s and takes half a second; the second could start at 1.1 s.
    stub.delay(Duration::from_millis(500));
    let mut first = Box::pin(client.ready().await.unwrap().call(get("http://a/1")));
    assert!(timeout(Duration::ZERO, first.as_mut()).await.is_err());
    let second = client.ready().await.unwrap().call(get("http://a/2"));
    let (first, second) = tokio::join!(first, second);
    assert!(first.unwrap().status() == 429 && second.unwrap().status() == 200);
    assert_eq!(stub.starts(), [seconds(0), seconds(1), Duration::from_millis(6500)]);
    assert_eq!(stub.paths(), ["/", "/1", "/2"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_lost_lets_the_next_probe_go() {
    let stub = Stub::scripted([(429, "Retry-After: 5"), (200, "")]);
    let layer = PaceLayer::builder().build().unwrap();
    let client = layer.layer(stub.clone());
    call(&client, "http://a/").await.unwrap();
    stub.delay(seconds(100));
    // The probe starts at 5 s and is dropped at 5.2 s: the next goes then, not at 6 s.
    let probe = timeout(Duration::from_millis(5200), call(&client, "http://a/probe"));
    let next = async {
        tokio::task::yield_now().await;
        call(&client, "http://a/next").await
    };
    let (probe, next) = tokio::join!(probe, next);
    assert!(probe.is_err() && next.is_ok());
    assert_eq!(stub.starts()[1..], [seconds(5), Duration::from_millis(5200)]);
}

#[tokio::test(start_paused = true)]
async fn futures_that_nobody_polls_hold_up_nobody_for_long() {
    let stub = Stub::scripted([(429, "Retry-After: 5"), (200, "")]);
    let layer = PaceLayer::builder().build().unwrap();
    let client = layer.layer(stub.clone());
    call(&client, "http://a/").await.unwrap();
    // Two calls are polled once, so that they are first in the queue, and then never again.
    let mut first = Box::pin(call(&client, "http://a/first"));
    let mut second = Box::pin(call(&client, "http://a/second"));
    for sleeper in [&mut first, &mut second] {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(sleeper.as_mut().poll(&mut context).is_pending());
    }
    let (third, fourth) = tokio::join!(call(&client, "http://a/3"), call(&client, "http://a/4"));
    assert!(third.is_ok() && fourth.is_ok());
    assert_eq!(stub.paths(), ["/", "/3", "/4"]);
    assert!(stub.now() <= seconds(5 + 3), "{:?}", stub.now());
    // They are delayed, but not lost.
    assert!(first.await.is_ok() && second.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn routes_are_told_apart_and_idle_ones_are_forgotten() {
    let stub = Stub::scripted([(429, "Retry-After: 5"), (200, "")]);
    let route = |info: &tollgate_tower::Info<'_>| info.uri().path().len();
    let layer = PaceLayer::builder().route(route).max_lanes(2).build().unwrap();
    let client = layer.layer(stub.clone());
    call(&client, "http://a/x").await.unwrap();
    call(&client, "http://a/xx").await.unwrap();
    assert_eq!(stub.now(), seconds(0));
    // The second lane is idle, the first is stopped: the stopped one is kept.
    call(&client, "http://a/xxx").await.unwrap();
    assert_eq!((layer.lanes(), layer.counts().evicted), (2, 1));
    call(&client, "http://a/x").await.unwrap();
    assert_eq!(stub.now(), seconds(5));
}

#[tokio::test(start_paused = true)]
async fn keys_without_a_place_share_a_lane() {
    let stub = Stub::scripted([(200, "")]);
    let layer = PaceLayer::builder().max_lanes(1).build().unwrap();
    let client = layer.layer(stub.clone());
    stub.delay(seconds(1));
    let (a, b) = tokio::join!(call(&client, "http://a/"), call(&client, "http://b/"));
    assert!(a.is_ok() && b.is_ok());
    assert_eq!((layer.lanes(), layer.counts().crowded), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_answering_layer_keeps_the_error_type() {
    let stub = Stub::scripted([(429, "Retry-After: 60")]);
    let layer = PaceLayer::builder().max_wait(seconds(1)).build().unwrap().answering();
    let client = layer.layer(stub.clone());
    let sent: Result<_, Infallible> = client.clone().oneshot(get("http://a/")).await;
    assert!(sent.unwrap().extensions().get::<Unsent>().is_none());
    tokio::time::advance(Duration::from_millis(500)).await;
    let unsent = client.clone().oneshot(get("http://a/")).await.unwrap();
    assert_eq!(unsent.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(unsent.headers()["retry-after"], "60");
    assert_eq!(unsent.extensions().get(), Some(&Unsent));
    let mut grpc = get("http://a/");
    grpc.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let unsent = client.clone().oneshot(grpc).await.unwrap();
    assert_eq!(
        (unsent.status(), &unsent.headers()["grpc-status"]),
        (StatusCode::OK, &"8".parse().unwrap())
    );
    assert_eq!(unsent.headers()["grpc-retry-pushback-ms"], "59501");
    assert_eq!(stub.starts().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn implausible_and_malformed_fields_are_counted() {
    let stub = Stub::scripted([
        (200, "RateLimit: \"a\";r=1;t=99999"),
        (200, "RateLimit: ?"),
        (200, "RateLimit: \"a\";r=0;t=9\nAge: 7"),
    ]);
    let layer = PaceLayer::builder().build().unwrap();
    let client = layer.layer(stub);
    for host in ["http://a/", "http://b/", "http://c/"] {
        call(&client, host).await.unwrap();
    }
    let counts = layer.counts();
    assert_eq!((counts.clamped, counts.malformed, counts.cached), (1, 1, 1));
}

/// Only the service that was polled ready may be called.
#[derive(Debug, Default)]
struct Strict {
    is_ready: bool,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Service<Request<()>> for Strict {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        self.is_ready = true;
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "a service is called that was not ready");
        std::future::ready(Ok(Response::new(())))
    }
}

#[tokio::test(start_paused = true)]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    // From the second call on, each has to wait, and polls the service once more.
    let quota = Limiter::builder(Quota::per_second(1)).clock(Clock::tokio()).build().unwrap();
    let layer = PaceLayer::builder().quota(quota).build().unwrap();
    let mut client = layer.clone().layer(Strict::default());
    let mut answering = layer.answering().layer(Strict::default());
    for _ in 0..3 {
        client.ready().await.unwrap().call(get("http://a/")).await.unwrap();
        answering.ready().await.unwrap().call(get("http://a/")).await.unwrap();
    }
}

#[test]
fn public_types_can_be_sent_shared_and_printed() {
    fn check<T: Send + Sync + std::fmt::Debug>() {}
    check::<PaceLayer>();
    check::<Pace<Strict>>();
    check::<PaceError<Infallible>>();
    check::<tollgate_tower::client::PaceAnswer<Strict>>();
    check::<tollgate_tower::client::Retry<Strict>>();
    check::<tollgate_tower::client::RetryLayer>();
    check::<tollgate_tower::client::RetryBudget>();
    check::<tollgate_tower::client::Learned>();
    check::<tollgate_tower::client::Reader>();
    check::<PaceFuture<Strict, ()>>();
}

#[test]
fn nonsense_is_refused_with_a_way_out() {
    let quota = || Limiter::new(Quota::per_second(1)).unwrap();
    let builder = PaceLayer::builder;
    for (builder, expected, code) in [
        (builder().without_learning(), PaceBuildError::NothingToPaceBy, "TG-C01"),
        (builder().cost(|_| 2), PaceBuildError::CostWithoutQuota, "TG-C02"),
        (builder().max_lanes(0), PaceBuildError::NoLanes, "TG-C03"),
        (builder().longest(Duration::ZERO), PaceBuildError::NoTime, "TG-C04"),
        (builder().spend(Spend::EvenBelow(101)), PaceBuildError::Percent(101), "TG-C05"),
    ] {
        let error = builder.build().unwrap_err();
        assert_eq!((error, error.code()), (expected, code));
        assert!(error.to_string().contains(';'), "{error}: no way out");
        let docs = format!("{DOCS}/clients.md#{}", code.to_ascii_lowercase());
        assert_eq!(error.docs(), docs);
        assert!(error.to_string().ends_with(&format!("({code}, see {docs})")), "{error}");
    }
    assert!(PaceLayer::builder().quota(quota()).without_learning().max_lanes(0).build().is_ok());
}
