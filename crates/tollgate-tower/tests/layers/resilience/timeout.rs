//! Timeouts: the phases, and deadlines that travel.

use super::*;
use http::HeaderMap;
use http_body_util::BodyExt;
use std::sync::{Arc, Mutex};
use tollgate::{Concurrency, Quota};
use tollgate_tower::{
    ConcurrencyLayer, Deadline, NotRun, Peer, Policy, RateLimitLayer, TimeoutError, TimeoutLayer,
    key::Trust,
    timeout::{TimeoutBody, TimeoutCounts, TimeoutLayerBuilder, TimeoutPhase, TimeoutService},
};

struct Bounded {
    clock: Clock,
    layer: TimeoutLayer,
    service: TimeoutService<Inner>,
    senders: Senders,
}

fn bounded(change: impl FnOnce(TimeoutLayerBuilder) -> TimeoutLayerBuilder) -> Bounded {
    let clock = Clock::tokio();
    let layer = change(TimeoutLayer::builder().clock(clock.clone())).build().unwrap();
    let (service, senders) = limited(&layer);
    Bounded { clock, layer, service, senders }
}

/// Tells whether a time is as expected, to the millisecond of tokio's timers.
fn is_about(time: Duration, expected: Duration) -> bool {
    (expected..expected + 2 * MS).contains(&time)
}

type Polled = Option<Result<http_body::Frame<bytes::Bytes>, tower::BoxError>>;

fn phase_of(body: &TimeoutBody<Fed>, polled: Polled) -> TimeoutPhase {
    let error = polled.unwrap().unwrap_err();
    assert!(http_body::Body::is_end_stream(body), "nothing follows an error");
    error.downcast_ref::<TimeoutError>().unwrap().phase()
}

#[tokio::test(start_paused = true)]
async fn a_head_that_is_late_is_504_and_the_call_is_dropped() {
    for (row, (head_ms, attempt_ms, total_ms, expected)) in [
        (Some(100), None, None, (TimeoutPhase::Head, 100)),
        (None, Some(200), None, (TimeoutPhase::Attempt, 200)),
        (None, None, Some(300), (TimeoutPhase::Total, 300)),
        (Some(100), Some(200), Some(300), (TimeoutPhase::Head, 100)),
        (None, Some(200), Some(300), (TimeoutPhase::Attempt, 200)),
        (Some(100), Some(100), Some(100), (TimeoutPhase::Total, 100)), // the outermost of equals
    ]
    .into_iter()
    .enumerate()
    {
        let mut bounded = bounded(|mut builder| {
            for (limit, set) in [
                (head_ms, TimeoutLayerBuilder::head as fn(_, _) -> _),
                (attempt_ms, TimeoutLayerBuilder::attempt),
                (total_ms, TimeoutLayerBuilder::total),
            ] {
                if let Some(ms) = limit {
                    builder = set(builder, MS * ms);
                }
            }
            builder
        });
        let start = bounded.clock.now();
        let response = once(&bounded.service, request("/hangs")).await.unwrap();
        assert!(is_about(bounded.clock.now().since(start), MS * expected.1), "row {row}");
        assert_eq!(response.status(), 504, "row {row}");
        let error = response.extensions().get::<TimeoutError>().unwrap();
        assert_eq!((error.phase(), error.limit()), (expected.0, MS * expected.1), "row {row}");
        assert!(response.extensions().get::<NotRun>().is_none(), "row {row}: it ran");
        assert!(bounded.senders.recv().await.unwrap().is_closed(), "row {row}: nothing goes on");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(body.starts_with(b"{\"type\""), "row {row}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_body_has_a_time_of_its_own() {
    // Frames come every 300 ms.
    for (row, (idle_ms, total_ms, frames, expected)) in [
        (Some(301), None, 5, None),
        (Some(200), None, 0, Some(TimeoutPhase::BodyIdle)),
        (None, Some(1_000), 3, Some(TimeoutPhase::Total)),
        (Some(301), Some(1_000), 3, Some(TimeoutPhase::Total)),
        (None, Some(5_000), 5, None),
    ]
    .into_iter()
    .enumerate()
    {
        let mut bounded = bounded(|builder| {
            let builder = builder.attempt(60 * SECOND);
            let builder = match idle_ms {
                Some(ms) => builder.body_idle(MS * ms),
                None => builder,
            };
            match total_ms {
                Some(ms) => builder.attempt(MS * ms).total(MS * ms),
                None => builder,
            }
        });
        let mut body = once(&bounded.service, request("/")).await.unwrap().into_body();
        let sender = bounded.senders.recv().await.unwrap();
        let feeds = tokio::spawn(async move {
            for _ in 0..5 {
                let _over = tokio::time::timeout(300 * MS, std::future::pending::<()>()).await;
                if sender.send(Ok("frame")).is_err() {
                    return;
                }
            }
        });
        let mut seen = 0;
        let end = loop {
            match body.frame().await {
                Some(Ok(_)) => seen += 1,
                other => break other,
            }
        };
        assert_eq!(seen, frames, "row {row}");
        match expected {
            Some(phase) => assert_eq!(phase_of(&body, end), phase, "row {row}"),
            None => assert!(end.is_none(), "row {row}"),
        }
        feeds.await.unwrap();
        let counts = bounded.layer.counts();
        let sum = counts.head + counts.attempt + counts.body_idle + counts.total;
        assert_eq!(sum, u64::from(expected.is_some()), "row {row}");
    }
}

/// A slow reader is not the service's fault; a body without an end is.
#[tokio::test(start_paused = true)]
async fn only_waiting_counts_as_idle_and_a_busy_body_has_an_end_too() {
    let mut bounded = bounded(|builder| builder.body_idle(SECOND).total(60 * SECOND));
    let mut body = once(&bounded.service, request("/")).await.unwrap().into_body();
    let sender = bounded.senders.recv().await.unwrap();
    for _ in 0..3 {
        tokio::time::advance(10 * SECOND).await;
        sender.send(Ok("frame")).unwrap();
        assert!(body.frame().await.unwrap().is_ok(), "it was there when it was asked for");
    }
    tokio::time::advance(30 * SECOND).await;
    sender.send(Ok("frame")).unwrap();
    let late = body.frame().await;
    assert_eq!(phase_of(&body, late), TimeoutPhase::Total, "although a frame is there");
    assert!(sender.is_closed(), "the inner body is gone, although ours is kept");
    assert!(body.frame().await.is_none());
    let expected = TimeoutCounts::default();
    let counts = bounded.layer.counts();
    assert_eq!((counts.total, counts.body_idle), (1, expected.body_idle));
}

#[tokio::test(start_paused = true)]
async fn a_slot_further_in_is_free_when_the_time_is_over() {
    let slots = Concurrency::new(1).unwrap();
    let limit = ConcurrencyLayer::builder(slots.clone()).build().unwrap();
    let layer = TimeoutLayer::builder().attempt(SECOND).clock(Clock::tokio()).build().unwrap();
    let (inner, mut senders) = limited(&limit);
    let service = layer.layer(inner);
    let mut call = Box::pin(once(&service, request("/hangs")));
    let response = call.as_mut().await.unwrap();
    assert_eq!((response.status().as_u16(), slots.in_flight()), (504, 0), "late head");
    let mut body = once(&service, request("/")).await.unwrap().into_body();
    assert_eq!(slots.in_flight(), 1);
    assert!(body.frame().await.unwrap().is_err());
    assert_eq!(slots.in_flight(), 0, "late body");
    assert!(senders.recv().await.unwrap().is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_breaker_outside_counts_a_timeout_and_not_a_deadline_that_had_passed() {
    let clock = Clock::tokio();
    let breaker = settings(clock.clone()).build().unwrap();
    let outer = BreakerLayer::builder(breaker.clone()).build().unwrap();
    let layer = TimeoutLayer::builder().head(SECOND).clock(clock.clone()).build().unwrap();
    let (inner, mut senders) = limited(&layer);
    let rate = Policy::new("p", Quota::per_hour(10));
    let rate = RateLimitLayer::builder().policy(rate).build().unwrap();
    let service = rate.layer(outer.layer(inner));
    let late = once(&service, request("/hangs")).await.unwrap();
    assert_eq!((late.status().as_u16(), breaker.counts().failed), (504, 1));
    assert_eq!(late.headers()["ratelimit"], r#""p";r=9;t=360"#, "it ran");
    assert!(senders.try_recv().is_ok());

    for is_grpc in [false, true] {
        let mut expired = request("/");
        expired.extensions_mut().insert(Deadline::new(&clock, clock.now()));
        if is_grpc {
            expired.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
        }
        let response = once(&service, expired).await.unwrap();
        match is_grpc {
            true => assert_eq!(response.headers()["grpc-status"], "4"),
            false => assert_eq!(response.status(), 504),
        }
        assert_eq!(refused_by(&response), Some(("timeout", None)));
        assert!(response.extensions().get::<NotRun>().is_some());
        assert!(response.headers()["ratelimit"].to_str().unwrap().contains("r=9;"), "given back");
    }
    assert_eq!((breaker.counts().ended, layer.counts().not_run), (1, 2));
    assert!(senders.try_recv().is_err(), "the target was not called");
}

/// The deadline and the headers that reach a service.
type Noted = Arc<Mutex<Option<(Option<Duration>, HeaderMap)>>>;

type Answered = std::future::Ready<Result<Response<String>, std::convert::Infallible>>;

#[derive(Clone)]
struct Noting(Noted);

impl Service<Request<String>> for Noting {
    type Response = Response<String>;
    type Error = std::convert::Infallible;
    type Future = Answered;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Answered {
        let left = request.extensions().get::<Deadline>().map(Deadline::left);
        *self.0.lock().unwrap() = Some((left, request.headers().clone()));
        std::future::ready(Ok(Response::new(String::new())))
    }
}

fn noting(builder: TimeoutLayerBuilder) -> (Noted, TimeoutService<Noting>) {
    let noted = Noted::default();
    (Arc::clone(&noted), builder.build().unwrap().layer(Noting(noted)))
}

#[tokio::test(start_paused = true)]
async fn a_server_believes_deadlines_of_trusted_peers_and_of_its_own_layers() {
    let own = |ms| (Some(ms), None, "");
    let header = |peer, line| (None, Some(peer), line);
    // total, the deadline of the request, the deadline of the handler
    for (row, (total_ms, (own_ms, peer, line), expected_ms)) in [
        (None, own(700), Some(700)),
        (Some(500), own(700), Some(500)),
        (Some(900), own(700), Some(700)),
        (Some(900), header("10.0.0.1", "grpc-timeout: 300m"), Some(300)),
        (Some(900), header("10.0.0.1", "x-envoy-expected-rq-timeout-ms: 250"), Some(250)),
        (Some(900), header("10.0.0.1", "grpc-timeout: 5S"), Some(900)),
        (Some(900), header("10.0.0.1", "grpc-timeout: never"), Some(900)),
        (Some(900), header("192.0.2.1", "grpc-timeout: 300m"), Some(900)), // an untrusted peer
        (None, header("192.0.2.1", "grpc-timeout: 300m"), None),
        (None, header("10.0.0.1", "grpc-timeout: 300m"), Some(300)),
        (Some(900), (None, None, "grpc-timeout: 300m"), Some(900)), // the peer is unknown
        (Some(900), (Some(100), Some("10.0.0.1"), "grpc-timeout: 300m"), Some(100)),
    ]
    .into_iter()
    .enumerate()
    {
        let clock = Clock::tokio();
        let mut builder = TimeoutLayer::builder().trust_deadline(Trust::private_networks());
        if let Some(ms) = total_ms {
            builder = builder.total(MS * ms);
        }
        let (noted, service) = noting(builder.clock(clock.clone()));
        let mut request = request("/");
        if let Some(ms) = own_ms {
            // Layers may have clocks of their own.
            let other = Clock::tokio();
            request.extensions_mut().insert(Deadline::after(&other, MS * ms));
        }
        if let Some(peer) = peer {
            request.extensions_mut().insert(Peer(format!("{peer}:1").parse().unwrap()));
        }
        if let Some((name, value)) = line.split_once(": ") {
            let name: http::HeaderName = name.parse().unwrap();
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        assert_eq!(once(&service, request).await.unwrap().status(), 200, "row {row}");
        let (left, _) = noted.lock().unwrap().take().unwrap();
        assert_eq!(left, expected_ms.map(|ms| MS * ms), "row {row}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_sends_the_time_that_is_left() {
    // grpc, its own header, own deadline, the header that is sent
    for (row, (is_grpc, header, own_ms, expected)) in [
        (true, None, None, "2000000u"),
        (true, None, Some(50), "50000000n"),
        (true, Some("1S"), None, "1000000u"),
        (true, Some("9S"), None, "2000000u"),
        (false, None, None, "2000"),
        (false, None, Some(50), "50"),
    ]
    .into_iter()
    .enumerate()
    {
        let clock = Clock::tokio();
        let layer = TimeoutLayer::builder().attempt(2 * SECOND).send_deadline();
        let (noted, service) = noting(layer.clock(clock.clone()));
        let mut request = request("/");
        let kind = if is_grpc { "application/grpc+proto" } else { "text/plain" };
        request.headers_mut().insert("content-type", kind.parse().unwrap());
        if let Some(value) = header {
            request.headers_mut().insert("grpc-timeout", value.parse().unwrap());
        }
        if let Some(ms) = own_ms {
            request.extensions_mut().insert(Deadline::after(&clock, MS * ms));
        }
        assert_eq!(once(&service, request).await.unwrap().status(), 200, "row {row}");
        let (_, headers) = noted.lock().unwrap().take().unwrap();
        let names = ["grpc-timeout", "x-envoy-expected-rq-timeout-ms"];
        let sent = names.map(|name| headers.get(name).map(|value| value.to_str().unwrap()));
        let expected = if is_grpc { [Some(expected), None] } else { [None, Some(expected)] };
        assert_eq!(sent, expected, "row {row}");
    }
    let (noted, service) = noting(TimeoutLayer::builder().total(SECOND));
    assert!(once(&service, request("/")).await.is_ok());
    assert!(noted.lock().unwrap().take().unwrap().1.is_empty(), "only if it is asked for");
}

#[test]
fn without_timers_nothing_panics_and_the_call_goes_on() {
    let clock = Clock::monotonic();
    let layer = TimeoutLayer::builder().total(SECOND).clock(clock).build().unwrap();
    let (mut service, _senders) = limited(&layer);
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_ready());
    let mut call = Box::pin(service.call(request("/hangs")));
    assert!(poll_once(&mut call).is_pending());
    assert!(service.poll_ready(&mut context).is_ready());
    let mut call = Box::pin(service.call(request("/")));
    assert!(matches!(poll_once(&mut call), Poll::Ready(Ok(response)) if response.status() == 200));
}

#[test]
fn settings_without_a_meaning_are_refused() {
    let new = TimeoutLayer::builder;
    for (row, (builder, code, text)) in [
        (new(), "TG-T01", "no timeout is set, and no deadline is read or sent"),
        (new().head(Duration::ZERO), "TG-T02", "`head` is 0 s"),
        (new().body_idle(Duration::ZERO), "TG-T02", "`body_idle` is 0 s"),
        (new().attempt(Duration::ZERO), "TG-T02", "`attempt` is 0 s"),
        (new().total(Duration::ZERO), "TG-T02", "`total` is 0 s"),
        (new().head(2 * MS).total(MS), "TG-T03", "`head` of 2ms is longer than `total` of 1ms"),
        (new().head(2 * MS).attempt(MS), "TG-T03", "`head` of 2ms is longer than `attempt` of 1ms"),
        (new().body_idle(2 * MS).total(MS), "TG-T03", "`body_idle` of 2ms is longer than `total`"),
        (new().attempt(2 * MS).total(MS), "TG-T03", "`attempt` of 2ms is longer than `total`"),
        (new().trust_deadline(Trust::networks(["0.0.0.0/0"])), "TG-K", "0.0.0.0/0"),
        (new().trust_deadline(Trust::hops(0)), "TG-K", "grpc-timeout"),
    ]
    .into_iter()
    .enumerate()
    {
        let error = builder.build().unwrap_err();
        assert!(error.code().starts_with(code), "row {row}: {}", error.code());
        let told = error.to_string();
        assert!(told.contains(text), "row {row}: {told}");
        assert!(told.contains(error.docs()), "row {row}: {told}");
    }
    for builder in [
        new().head(MS).total(MS),
        new().send_deadline(),
        new().trust_deadline(Trust::hops(1)),
        new().head(2 * MS).body_idle(MS),
    ] {
        assert!(builder.build().is_ok());
    }
}
