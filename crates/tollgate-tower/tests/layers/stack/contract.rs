//! Whole stacks keep the contract of tower's services: readiness, clones, errors, drops.

use super::*;
use http_body_util::BodyExt;
use tollgate_tower::{Policy, RateLimitLayer, ServerStack};

/// A server stack with every part.
macro_rules! server {
    ($slots:expr) => {{
        let policy = Policy::new("all", Quota::per_second(1_000).burst(1_000));
        ServerStack::builder("shop")
            .handler_timeout(attempt(ms(2_000)))
            .bulkhead(slots(3, 0).1)
            .limits(RateLimitLayer::builder().policy(policy).build().unwrap())
            .shed($slots)
            .total_timeout(total(ms(5_000)))
    }};
}

macro_rules! for_both {
    ($test:ident($slots:expr)) => {{
        let client = full!(&breaker(), $slots, wide_pace()).build().unwrap();
        $test(&client, client.handle(), "client").await;
        let server = server!($slots).build().unwrap();
        $test(&server, server.handle(), "server").await;
    }};
}

/// The inner service panics if a clone is called that was not polled ready itself.
async fn calls_what_is_ready<L, B>(layer: &L, handle: StackHandle, kind: &str)
where
    L: Layer<Strict>,
    L::Service: Service<Request<String>, Response = Response<B>, Error = &'static str> + Clone,
{
    let inner = Strict::new([status(200, 0), status(200, 0), error("broken", 0)]);
    let seen = inner.shared();
    let mut service = layer.layer(inner);
    service.ready().await.unwrap();
    // A clone of a ready service is not ready.
    let mut clone = service.clone();
    assert!(clone.ready().await.unwrap().call(get("/")).await.is_ok(), "{kind}");
    assert!(service.call(get("/")).await.is_ok(), "{kind}");
    let failed = service.ready().await.unwrap().call(get("/")).await;
    assert_eq!(failed.err(), Some("broken"), "{kind}: the error stays as it is");
    assert_released(&handle, &seen, kind);
    let calls = handle.report().calls;
    assert_eq!((calls.answered, calls.failed), (2, 1), "{kind}");
}

#[tokio::test(start_paused = true)]
async fn the_service_that_was_polled_ready_is_called_and_errors_stay() {
    for_both!(calls_what_is_ready(slots(3, 0).1));
}

/// The stage of a call when it is dropped: before its first poll, while it waits for a slot, while
/// it runs, with its body unread.
async fn drops_what_is_dropped<L, B>(layer: &L, handle: StackHandle, kind: &str)
where
    L: Layer<Strict>,
    L::Service: Service<Request<String>, Response = Response<B>, Error = &'static str> + Clone,
    B: http_body::Body,
{
    for point in ["unpolled", "waiting", "running", "not ready", "answered"] {
        let step = if point == "answered" { status(200, 0) } else { HANGS };
        let inner = Strict::new([step]);
        let seen = inner.shared();
        let mut service = layer.layer(inner);
        let mut other = service.clone();
        let mut call = Box::pin(service.ready().await.unwrap().call(get("/")));
        match point {
            "unpolled" => drop(call),
            "waiting" => {
                // The other call has the only slot.
                let mut holder = call;
                assert!(poll_once(&mut holder).is_pending(), "{kind} {point}");
                let mut call = Box::pin(other.ready().await.unwrap().call(get("/")));
                assert!(poll_once(&mut call).is_pending(), "{kind} {point}");
                let waiting: u64 = handle.report().limits.iter().map(|it| it.waiting).sum();
                assert_eq!((waiting, seen.running()), (1, 1), "{kind} {point}");
                drop(call);
                drop(holder);
            }
            "running" => {
                assert!(poll_once(&mut call).is_pending(), "{kind} {point}");
                assert_eq!(seen.running(), 1, "{kind} {point}");
                drop(call);
            }
            "not ready" => {
                drop(call);
                seen.ready_takes(500);
                let mut readying = Box::pin(other.ready());
                assert!(poll_once(&mut readying).is_pending(), "{kind} {point}");
            }
            _ => {
                let response = call.await.unwrap();
                let held: u64 = handle.report().limits.iter().map(|it| it.in_flight).sum();
                assert!(held > 0, "{kind} {point}: the body holds the slot");
                drop(response);
            }
        }
        drop((service, other));
        assert_released(&handle, &seen, &format!("{kind} {point}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_at_any_point_gives_everything_back() {
    for_both!(drops_what_is_dropped(slots(1, 4).1));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_in_a_retry_pause_or_while_it_is_paced_gives_back() {
    let (quota, pace) = pace(ms(500));
    let stack = full!(&breaker(), slots(1, 0).1, pace).build().unwrap();
    let inner = Strict::new([status(429, 0)]);
    let seen = inner.shared();
    let service = stack.layer(inner);
    let mut paused = Box::pin(once(&service));
    assert!(poll_once(&mut paused).is_pending());
    assert_eq!(seen.starts(), [0], "it waits to be repeated");
    assert_released(&stack.handle(), &seen, "a pause holds nothing");
    drop(paused);
    let _spent = quota.try_acquire_n(1);
    let before = quota.peek();
    let mut paced = Box::pin(once(&service));
    assert!(poll_once(&mut paced).is_pending());
    assert_eq!(seen.starts(), [0], "it waits for its rate");
    drop(paced);
    assert_eq!(quota.peek(), before);
    assert_released(&stack.handle(), &seen, "while it is paced");
}

#[tokio::test(start_paused = true)]
async fn clones_and_services_share_all_state() {
    let breaker = breaker();
    let stack = full!(&breaker, slots(1, 0).1, pace(ms(0)).1).build().unwrap();
    let (one, other) =
        (stack.layer(Strict::new([HANGS])), stack.clone().layer(Strict::new([HANGS])));
    let mut running = Box::pin(once(&one));
    assert!(poll_once(&mut running).is_pending());
    assert_eq!(refusal(&other).await.part(), "concurrency");
    drop(running);
    stack.handle().breaker().unwrap().hold_open();
    for service in [&one, &other] {
        assert_eq!(refusal(service).await.part(), "breaker");
    }
    let refused = stack.clone().handle().report().calls.refused;
    assert_eq!(refused, [("concurrency", 1), ("breaker", 2)]);
}

async fn leaves_responses_alone<L, B>(layer: &L, _: StackHandle, kind: &str)
where
    L: Layer<Strict>,
    L::Service: Service<Request<String>, Response = Response<B>, Error = &'static str> + Clone,
    B: http_body::Body<Data = bytes::Bytes, Error: std::fmt::Debug>,
{
    let response = layer.layer(Strict::new([status(206, 0)])).oneshot(get("/")).await.unwrap();
    assert_eq!(response.status(), 206, "{kind}");
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "206", "{kind}");
}

#[tokio::test(start_paused = true)]
async fn responses_come_through_as_they_are() {
    for_both!(leaves_responses_alone(slots(1, 0).1));
}

#[tokio::test(start_paused = true)]
async fn services_and_futures_can_be_sent() {
    fn is_sent<T: Send + Sync>(_: &T) {}
    fn is_future<T: Send>(_: &T) {}
    let client = full!(&breaker(), slots(1, 0).1, pace(ms(0)).1).build().unwrap();
    let server = server!(slots(1, 0).1).build().unwrap();
    is_sent(&client);
    is_sent(&server);
    is_sent(&client.handle());
    is_future(&client.layer(Strict::new([HANGS])).oneshot(get("/")));
    is_future(&server.layer(Strict::new([HANGS])).oneshot(get("/")));
}
