//! The reports of layers about their decisions: counts, observers, span events, log lines.

use crate::heard::Heard;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::{
    Clock, Concurrency, KeyedConcurrency, Outcome,
    observe::{Event, Health, KeyForm, Observer, Registry, Verb},
};
use tollgate_tower::{ConcurrencyLayer, Key};
use tower::{Layer, ServiceExt};

/// Calls a service behind a layer, and returns its response; the body still holds its resources.
macro_rules! ask {
    ($layer:expr, $request:expr) => {{
        let inner = tower::service_fn(|_: Request<Full<Bytes>>| {
            std::future::ready(Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("hello")))))
        });
        $layer.layer(inner).oneshot($request)
    }};
}

fn request(client: &str) -> Request<Full<Bytes>> {
    Request::builder().header("x-key", client).body(Full::default()).unwrap()
}

/// Polls a future that is ready at once.
fn at_once<F: Future>(future: F) -> F::Output {
    match Box::pin(future).as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it is ready at once"),
    }
}

/// Name, verb, outcome, limit, remaining permits.
type Row = (String, Verb, Outcome, u64, u64);

#[derive(Debug, Default)]
struct Told(Mutex<Vec<Row>>);

impl Observer for Told {
    fn decided(&self, event: &Event<'_>) {
        let it = event.decision;
        assert!(event.is_enforced);
        let row = (event.name.to_owned(), event.verb, it.outcome(), it.limit(), it.remaining());
        self.0.lock().unwrap().push(row);
    }
}

impl Told {
    fn take(&self) -> Vec<Row> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

#[test]
fn observers_hear_of_slots_that_are_taken_and_of_those_who_find_none() {
    let told = Arc::new(Told::default());
    let limit = Concurrency::builder(2).name("slots").build().unwrap();
    let layer = ConcurrencyLayer::builder(limit.clone()).observer(Arc::clone(&told));
    let also = Arc::new(Told::default());
    let layer = layer.observer(Arc::clone(&also)).build().unwrap();
    let held = (at_once(ask!(layer, request("a"))), at_once(ask!(layer, request("a"))));
    assert_eq!(at_once(ask!(layer, request("a"))).unwrap().status(), 503);
    drop(held);
    limit.close();
    assert_eq!(at_once(ask!(layer, request("a"))).unwrap().status(), 503);
    let row = |outcome, left| ("slots".to_owned(), Verb::TryAcquire, outcome, 2, left);
    let expected = [
        row(Outcome::Allowed, 1),
        row(Outcome::Allowed, 0),
        row(Outcome::Later, 0),
        row(Outcome::Never, 0),
    ];
    assert_eq!(told.take(), expected);
    assert_eq!(also.take(), expected);
}

#[test]
fn observers_hear_of_keys_by_their_own_limits() {
    let told = Arc::new(Told::default());
    let limit = KeyedConcurrency::builder(1).max_keys(2).build().unwrap();
    let layer = ConcurrencyLayer::keyed(limit, Key::header("x-key").or_skip())
        .name("each")
        .observer(Arc::clone(&told))
        .build()
        .unwrap();
    let asked = |client| at_once(ask!(layer, request(client))).unwrap();
    let held = (asked("a"), asked("b"), asked("b"), asked("c"), asked(""));
    let told = told.take().into_iter().map(|(name, _, outcome, limit, left)| {
        assert_eq!((name.as_str(), limit, left), ("each", 1, 0));
        outcome
    });
    assert_eq!(
        told.collect::<Vec<_>>(),
        [Outcome::Allowed, Outcome::Allowed, Outcome::Later, Outcome::Later],
        "a, b, b again, too many keys; who is not counted is not told of"
    );
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_is_told_of_when_the_wait_is_over() {
    let told = Arc::new(Told::default());
    let limit = Concurrency::builder(1).max_waiting(5).build().unwrap();
    let layer = ConcurrencyLayer::builder(limit)
        .max_wait(Duration::from_secs(1))
        .observer(Arc::clone(&told))
        .build()
        .unwrap();
    let outcomes = || told.take().iter().map(|row| (row.1, row.2)).collect::<Vec<_>>();
    let held = ask!(layer, request("a")).await.unwrap();
    assert_eq!(outcomes(), [(Verb::Acquire, Outcome::Allowed)]);
    let waits = tokio::spawn(ask!(layer, request("a")));
    tokio::task::yield_now().await;
    assert_eq!(outcomes(), [], "it waits");
    drop(held);
    let held = waits.await.unwrap().unwrap();
    assert_eq!(outcomes(), [(Verb::Acquire, Outcome::Allowed)]);
    assert_eq!(ask!(layer, request("a")).await.unwrap().status(), 503);
    assert_eq!(outcomes(), [(Verb::Acquire, Outcome::Later)], "for one second");
    drop(held);
}

#[test]
fn the_log_has_a_line_now_and_then_and_no_client() {
    let heard = Heard::during(|| {
        let limit = Concurrency::builder(0).name("slots").build().unwrap();
        let layer = ConcurrencyLayer::builder(limit).log_denials(Duration::from_secs(3600));
        let layer = layer.retry_after(Duration::from_secs(2)).build().unwrap();
        for _ in 0..100 {
            assert_eq!(at_once(ask!(layer, request("secret"))).unwrap().status(), 503);
        }
    });
    assert_eq!(
        heard,
        ["WARN message=denied by \"slots\": cost 1 of 0, retry after 2s limiter=slots cost=1 \
             limit=0 retry_after_ms=2000 never=false enforced=true left_out=0"]
    );
}

#[test]
fn refusals_are_events_on_the_span_of_the_request() {
    let heard = Heard::during(|| {
        let limit = Concurrency::builder(1).name("slots").build().unwrap();
        let layer = ConcurrencyLayer::builder(limit).span_events().build().unwrap();
        let span = tracing::info_span!("request");
        let _inside = span.enter();
        let held = at_once(ask!(layer, request("a")));
        assert_eq!(at_once(ask!(layer, request("a"))).unwrap().status(), 503);
        drop(held);
    });
    let [passed, refused] = &heard[..] else { panic!("{heard:?}") };
    assert!(passed.starts_with("TRACE in request") && passed.contains("remaining=0"), "{passed}");
    assert!(refused.starts_with("INFO in request") && refused.contains("slots"), "{refused}");
}

#[test]
fn nothing_is_told_unless_it_is_asked_for() {
    let heard = Heard::during(|| {
        let layer = ConcurrencyLayer::builder(Concurrency::new(0).unwrap()).build().unwrap();
        assert_eq!(at_once(ask!(layer, request("a"))).unwrap().status(), 503);
    });
    assert_eq!(heard, [""; 0]);
}

#[test]
fn clients_are_counted_without_a_label_of_their_own() {
    let limit = KeyedConcurrency::builder(1).max_keys(20_000).build().unwrap();
    let key = Key::header("x-key");
    let layer = ConcurrencyLayer::keyed(limit, key).name("each").counted().build().unwrap();
    let registry = Registry::new();
    registry.add("slots", &layer).unwrap();
    let empty = registry.prometheus().lines().count();
    let mut held = Vec::new();
    for client in 0..10_000 {
        held.push(at_once(ask!(layer, request(&client.to_string()))).unwrap());
    }
    assert!(held.iter().all(|response| response.status() == 200));
    assert_eq!(at_once(ask!(layer, request("7"))).unwrap().status(), 429);
    assert_eq!(at_once(ask!(layer, request(""))).unwrap().status(), 403);
    let text = registry.prometheus();
    for line in [
        "tollgate_decisions_total{limiter=\"slots\",outcome=\"allowed\"} 10000",
        "tollgate_decisions_total{limiter=\"slots\",outcome=\"denied_later\"} 1",
        "tollgate_no_key_total{limiter=\"slots\"} 1",
        "tollgate_in_flight{limiter=\"slots/slots\"} 10000",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}:\n{text}");
    }
    assert_eq!(text.lines().count(), empty, "{text}");
    assert_eq!((layer.counts().decisions.allowed, layer.counts().no_key), (10_000, 1));
}

#[test]
fn a_layer_that_refuses_95_of_100_requests_is_unhealthy() {
    let (clock, hand) = Clock::manual();
    let limit = Concurrency::builder(1).clock(clock).build().unwrap();
    let layer = ConcurrencyLayer::builder(limit).counted().build().unwrap();
    assert_eq!(layer.health(), Health::Unknown);
    let held = at_once(ask!(layer, request("a")));
    for _ in 0..99 {
        assert_eq!(at_once(ask!(layer, request("a"))).unwrap().status(), 503);
    }
    hand.advance(Duration::from_secs(10));
    assert_eq!(layer.health(), Health::Denying { denied_percent: 99 });
    drop(held);
}

#[test]
fn the_log_shows_the_key_that_has_no_slot_by_choice() {
    let heard = Heard::during(|| {
        let by_name = Key::from_fn(|info, key| {
            info.headers().get("x-key").inspect(|name| key.push(name.as_bytes())).is_some()
        });
        let limit = KeyedConcurrency::builder(0).build().unwrap();
        let layer = ConcurrencyLayer::keyed(limit, by_name)
            .log_denials_with(Duration::ZERO, |log| log.show_key(KeyForm::Plain));
        let layer = layer.build().unwrap();
        assert_eq!(at_once(ask!(layer, request("tenant"))).unwrap().status(), 429);
    });
    let [line] = &heard[..] else { panic!("{heard:?}") };
    assert!(line.contains(" key=tenant "), "{line}");
}

#[tokio::test(start_paused = true)]
async fn bytes_are_counted_by_whether_they_had_to_wait() {
    use http_body_util::BodyExt;
    use tollgate::{Limiter, Quota};
    use tollgate_tower::{BandwidthLayer, ShapedBody, Shaping};
    let limiter = Limiter::builder(Quota::per_second(10)).clock(Clock::tokio());
    let shaping = Shaping::shared(limiter.build().unwrap());
    let layer = BandwidthLayer::builder().response(shaping).build().unwrap();
    let service = layer.layer(tower::service_fn(|_: Request<ShapedBody<String>>| {
        let body = Full::new(Bytes::from(vec![7; 25]));
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    }));
    let response = service.oneshot(Request::new(String::new())).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 25);
    let counts = layer.counts();
    assert_eq!((counts.response.at_once, counts.response.delayed), (10, 15));
    assert_eq!((counts.request.at_once, counts.request.delayed), (0, 0));
}
