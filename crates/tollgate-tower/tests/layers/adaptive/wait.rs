//! The queue: the most urgent requests first, and deadlines.

use super::{MS, Recorder, Senders, Service1, call, poll_once};
use crate::concurrency::{ask, limited, request};
use http::{Request, Response, Uri};
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};
use tollgate::{Clock, Concurrency, Priority, adaptive::AdaptiveConcurrency};
use tollgate_tower::{
    AdaptiveLayer, AdaptiveLayerBuilder, ConcurrencyLayer, Deadline, Peer, Shedding, key::Trust,
};
use tower::{Layer, ServiceExt};

/// A limit of one with a queue of eight, on the paused clock of tokio.
fn queue(
    change: impl FnOnce(AdaptiveLayerBuilder) -> AdaptiveLayerBuilder,
) -> (AdaptiveConcurrency, Service1, Senders) {
    let enforced = Concurrency::builder(0).max_waiting(8).clock(Clock::tokio());
    let limit = Recorder::of(1).over(enforced);
    let layer = change(AdaptiveLayer::builder(limit.clone()).max_wait(1_000 * MS));
    let (service, senders) = limited(&layer.build().unwrap());
    (limit, service, senders)
}

/// A request from an address, with a `Priority` header and a priority in its extensions.
fn urgent(peer: [u8; 4], header: Option<&'static str>, extension: Option<u8>) -> Request<String> {
    let mut request = request("/");
    request.extensions_mut().insert(Peer((peer, 80).into()));
    if let Some(header) = header {
        request.headers_mut().insert("priority", http::HeaderValue::from_static(header));
    }
    if let Some(urgency) = extension {
        request.extensions_mut().insert(Priority::new(urgency).unwrap());
    }
    request
}

const PROXY: [u8; 4] = [10, 0, 0, 1];
const STRANGER: [u8; 4] = [203, 0, 113, 9];

#[tokio::test(start_paused = true)]
async fn the_most_urgent_is_served_first() {
    let (limit, mut service, _senders) = queue(|builder| {
        builder.trust_priority(Trust::networks(["10.0.0.0/8"])).priority_by(|info| {
            let urgency = info.uri().query()?.parse().ok()?;
            Priority::new(urgency)
        })
    });
    let mut by_closure = urgent(PROXY, Some("u=7"), Some(7));
    *by_closure.uri_mut() = Uri::from_static("/?0");
    let requests = [
        ("a stranger's header", urgent(STRANGER, Some("u=0"), None), 3),
        ("nothing", urgent(PROXY, None, None), 3),
        ("a header", urgent(PROXY, Some("u=2"), None), 2),
        ("an extension", urgent(STRANGER, None, Some(4)), 4),
        ("an extension before a header", urgent(PROXY, Some("u=6"), Some(1)), 1),
        ("a closure before both", by_closure, 0),
    ];
    let held = ask(&service, request("/")).await;
    let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
    let count = requests.len();
    for (name, request, urgency) in requests {
        let (running, sender) = (call(&mut service, request).await, sender.clone());
        tokio::spawn(async move {
            let response = running.await.unwrap();
            assert_eq!(response.status(), 200, "{name}");
            sender.send((urgency, name)).unwrap();
        });
    }
    assert_eq!(limit.report().waiting, 6);
    drop(held);
    let mut order = Vec::new();
    for _ in 0..count {
        order.push(served.recv().await.unwrap());
    }
    assert!(order.is_sorted_by_key(|(urgency, _)| *urgency), "{order:?}");
    assert_eq!(order[3].1, "a stranger's header", "the first of equal priority");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_leaves_half_of_the_time_for_the_work() {
    let (limit, mut service, _senders) = queue(|builder| builder);
    let clock = limit.clock().clone();
    for (deadline_ms, waited_ms) in [(None, 1_000), (Some(200), 100), (Some(9_000), 1_000)] {
        let held = ask(&service, request("/")).await;
        let mut waiting = request("/");
        let start = clock.now();
        if let Some(ms) = deadline_ms {
            waiting.extensions_mut().insert(Deadline::after(&clock, MS * ms));
        }
        let refused = call(&mut service, waiting).await.await.unwrap();
        assert_eq!(refused.status(), 503);
        let waited = clock.now().since(start);
        assert!((MS * waited_ms..MS * (waited_ms + 2)).contains(&waited), "{waited:?}");
        drop(held);
    }
    let mut late = request("/");
    late.extensions_mut().insert(Deadline::new(&clock, clock.now()));
    assert_eq!(ask(&service, late).await.status(), 200, "a free slot needs no wait");
}

#[tokio::test(start_paused = true)]
async fn dropping_a_request_in_the_queue_gives_its_place_to_the_next() {
    let (limit, mut service, mut senders) = queue(|builder| builder);
    let held = ask(&service, request("/")).await;
    drop(call(&mut service, request("/")).await);
    assert_eq!(limit.report().waiting, 0, "before its first poll");
    let mut first = call(&mut service, request("/")).await;
    let mut second = call(&mut service, request("/")).await;
    assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
    drop(held);
    assert_eq!(limit.report().in_flight, 1, "the slot is set aside for the first");
    drop(first);
    let response = second.await.unwrap();
    assert_eq!(response.status(), 200, "and goes to the second");
    drop(response);
    assert_eq!((limit.report().in_flight, limit.report().waiting), (0, 0));
    let mut ran = 0;
    while senders.try_recv().is_ok() {
        ran += 1;
    }
    assert_eq!(ran, 2);
}

#[tokio::test(start_paused = true)]
async fn a_fixed_limit_serves_by_priority_too_and_exempts() {
    let limit = Concurrency::builder(1).max_waiting(1).clock(Clock::tokio()).build().unwrap();
    let layer = ConcurrencyLayer::builder(limit.clone()).max_wait(1_000 * MS);
    let layer = layer.bypass(|info| info.uri().path() == "/health").build().unwrap();
    let mut service = limited(&layer).0;
    let held = ask(&service, request("/")).await;
    let low = call(&mut service, urgent(PROXY, None, Some(7))).await;
    let high = call(&mut service, urgent(PROXY, None, Some(0))).await;
    assert_eq!(low.await.unwrap().status(), 503, "it left its place to the more urgent one");
    let health = ask(&service, request("/health")).await;
    assert_eq!((health.status().as_u16(), limit.in_flight()), (200, 1));
    drop(held);
    assert_eq!(high.await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_standing_queue_sheds_the_least_urgent() {
    let shedding = Shedding::queue_delay(20 * MS).every(100 * MS);
    let (limit, mut service, _senders) = queue(|builder| builder.shed(shedding));
    let held = ask(&service, request("/")).await;
    tokio::time::advance(100 * MS).await;
    let waiting = call(&mut service, urgent(PROXY, None, Some(7))).await;
    tokio::time::advance(60 * MS).await;
    drop(held);
    let held = waiting.await.unwrap();
    assert_eq!(held.status(), 200, "one of them found a slot at once until now");
    tokio::time::advance(100 * MS).await;
    let shed = ask(&service, urgent(PROXY, None, Some(7))).await;
    assert_eq!((shed.status().as_u16(), limit.report().waiting), (503, 0));
    let waiting = call(&mut service, urgent(PROXY, None, Some(6))).await;
    assert_eq!(limit.report().waiting, 1);
    drop(held);
    assert_eq!(waiting.await.unwrap().status(), 200);
}

/// Counts the calls that run.
struct Running(Arc<AtomicU64>);

impl Drop for Running {
    fn drop(&mut self) {
        // ORDERING: SeqCst for simplicity, here and below.
        self.0.fetch_sub(1, SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clones_never_run_more_than_the_limit_whatever_is_dropped() {
    const LIMIT: u64 = 5;
    let limit = Recorder::of(LIMIT).over(Concurrency::builder(0).max_waiting(20));
    let layer = AdaptiveLayer::builder(limit.clone()).max_wait(1_000 * MS).build().unwrap();
    let (running, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (counted, highest) = (Arc::clone(&running), Arc::clone(&most));
    let service = layer.layer(tower::service_fn(move |_: Request<u64>| {
        highest.fetch_max(counted.fetch_add(1, SeqCst) + 1, SeqCst);
        let running = Running(Arc::clone(&counted));
        async move {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            drop(running);
            Ok::<_, Infallible>(Response::new(String::from("done")))
        }
    }));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..64_u64 {
        let service = service.clone();
        tasks.spawn(async move {
            for number in 0..50 {
                let mut call = Box::pin(service.clone().oneshot(Request::new(number)));
                // Dropped after up to eight polls: in the queue, while it runs, or when it is done.
                let polls = (task * 50 + number) * 2_654_435_761 % 9;
                for _ in 0..polls {
                    if poll_once(&mut call).is_ready() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    tasks.join_all().await;
    assert!((1..=LIMIT).contains(&most.load(SeqCst)), "{} ran at once", most.load(SeqCst));
    assert_eq!((running.load(SeqCst), limit.report().in_flight), (0, 0));
    assert_eq!(limit.report().waiting, 0);
}
