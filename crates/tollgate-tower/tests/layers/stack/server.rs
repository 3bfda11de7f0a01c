//! The order of a server stack, and its consequences.

use super::*;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};
use tollgate::{KeyedConcurrency, Priority};
use tollgate_tower::{Deadline, Key, Policy, RateLimitLayer, ServerStack};

/// Counts the requests that reach authentication.
fn authentication(
    count: &Arc<AtomicU64>,
) -> tower::util::MapRequestLayer<impl Fn(Request<String>) -> Request<String> + Clone + use<>> {
    let count = Arc::clone(count);
    tower::util::MapRequestLayer::new(move |request| {
        // ORDERING: SeqCst, which a test can afford.
        count.fetch_add(1, SeqCst);
        request
    })
}

fn limits(burst: u64) -> RateLimitLayer {
    let policy = Policy::new("all", Quota::per_second(1).burst(burst));
    RateLimitLayer::builder().policy(policy).build().unwrap()
}

fn by_route(limit: u64) -> ConcurrencyLayer {
    let slots = KeyedConcurrency::builder(limit).max_keys(100).build().unwrap();
    ConcurrencyLayer::keyed(slots, Key::header("x-route").or_anonymous()).build().unwrap()
}

fn to(route: &'static str) -> Request<String> {
    Request::get("/").header("x-route", route).body(String::new()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn explain_lists_the_parts_from_the_outside_in() {
    let stack = ServerStack::builder("shop")
        .bulkhead(by_route(2))
        .limits(limits(5))
        .handler_timeout(attempt(ms(500)))
        .authenticate(authentication(&Arc::default()))
        .shed(slots(10, 20).1)
        .total_timeout(total(ms(1_000)))
        .build()
        .unwrap();
    let expected = "\
server stack `shop`, from the outside in:
 1. total timeout: total 1s; outermost, so that every wait further in keeps to the caller's deadline
 2. shed: 10 in flight, a queue of 20 with waits of up to 1s; one limit for all, before authentication, because that costs too; the least urgent leave first
 3. authenticate: a layer of yours; after shedding, because it costs, and before the quotas, which count users
 4. rate limit: policies `all` 1/s burst 5; after authentication, so that it counts users, and before the slots of routes, so that a denied request takes none
 5. bulkhead: 2 in flight for each of up to 100 keys, no queue; after the quotas, so that a slow route cannot take the slots of the others
 6. handler timeout: attempt 500ms; innermost, so that a handler that hangs frees the slots of its request
";
    assert_eq!(stack.handle().explain(), expected);
}

#[tokio::test(start_paused = true)]
async fn each_part_refuses_in_its_own_name_and_before_the_parts_further_in() {
    let authenticated = Arc::new(AtomicU64::new(0));
    let stack = ServerStack::builder("shop")
        .shed(slots(2, 0).1)
        .authenticate(authentication(&authenticated))
        .limits(limits(3))
        .bulkhead(by_route(1))
        .build()
        .unwrap();
    let service = stack.layer(Strict::new([HANGS]));
    let refused = |request| {
        let response = poll_once(&mut Box::pin(service.clone().oneshot(request)));
        let Poll::Ready(Ok(response)) = response else { panic!("it is refused at once") };
        *response.extensions().get::<RefusedBy>().expect("it is refused")
    };
    let count = || authenticated.load(SeqCst);
    let mut slow = Box::pin(service.clone().oneshot(to("slow")));
    assert!(poll_once(&mut slow).is_pending());
    // The route is full: the quota is given back.
    for _ in 0..5 {
        let row = refused(to("slow"));
        assert_eq!((row.part(), row.why()), ("bulkhead", "all slots are taken"));
    }
    assert_eq!(count(), 6);
    // All slots are taken: no request is authenticated.
    let mut other = Box::pin(service.clone().oneshot(to("other")));
    assert!(poll_once(&mut other).is_pending());
    assert_eq!((refused(to("third")).part(), count()), ("shed", 7));
    // The quota is used up: no slot of the route is taken.
    drop(other);
    let mut other = Box::pin(service.clone().oneshot(to("other")));
    assert!(poll_once(&mut other).is_pending());
    drop(other);
    let row = refused(to("other"));
    assert_eq!(row.part(), "rate limit");
    assert!(row.retry_after().is_some_and(|wait| wait <= ms(1_000)), "{row}");
    drop(slow);
    let report = stack.handle().report();
    assert_eq!(report.calls.refused, [("rate limit", 1), ("shed", 1), ("bulkhead", 5)]);
    let limits: Vec<_> = report.limits.iter().map(|it| (it.part, it.in_flight)).collect();
    assert_eq!(limits, [("bulkhead", 0), ("shed", 0)]);
}

/// Returns which part refused a call, if one did. The response is dropped, and frees its slot.
async fn part<B>(call: impl Future<Output = Result<Response<B>, &str>>) -> Option<&'static str> {
    call.await.unwrap().extensions().get().map(RefusedBy::part)
}

#[tokio::test(start_paused = true)]
async fn the_most_urgent_request_gets_the_slot_and_waits_keep_to_the_deadline() {
    let slots = Concurrency::builder(1).max_waiting(2).clock(Clock::tokio()).build().unwrap();
    let shed = ConcurrencyLayer::builder(slots).max_wait(ms(1_000));
    let shed = shed.priority_by(|info| info.extensions().get::<Priority>().copied());
    let stack = ServerStack::builder("shop").shed(shed.build().unwrap());
    let stack = stack.total_timeout(total(ms(400))).build().unwrap();
    let inner = Strict::new([status(200, 100)]);
    let seen = inner.shared();
    let service = stack.layer(inner);
    let call = |priority| {
        let mut request = get("/");
        request.extensions_mut().insert(priority);
        Box::pin(service.clone().oneshot(request))
    };
    let mut holder = call(Priority::NORMAL);
    let (mut batch, mut urgent) = (call(Priority::BACKGROUND), call(Priority::CRITICAL));
    for call in [&mut holder, &mut batch, &mut urgent] {
        assert!(poll_once(call).is_pending());
    }
    let ended = tokio::join!(part(holder), part(batch), part(urgent));
    // The batch would have been served at 200 ms, when half of its time was over.
    assert_eq!(ended, (None, Some("shed"), None));
    assert_eq!(seen.starts(), [0, 100]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_frees_its_slots_and_a_deadline_that_has_passed_runs_nothing() {
    let stack = ServerStack::builder("shop")
        .total_timeout(total(ms(1_000)))
        .shed(slots(1, 0).1)
        .bulkhead(by_route(1))
        .handler_timeout(attempt(ms(300)))
        .build()
        .unwrap();
    let inner = Strict::new([HANGS, status(200, 0)]);
    let seen = inner.shared();
    let service = stack.layer(inner);
    assert_eq!(once(&service).await, Ok(504));
    assert_eq!(seen.now_ms(), 300);
    assert_released(&stack.handle(), &seen, "after a timeout");
    assert_eq!(once(&service).await, Ok(200));
    let mut late = get("/");
    late.extensions_mut().insert(Deadline::after(&Clock::tokio(), Duration::ZERO));
    let response = service.oneshot(late).await.unwrap();
    assert_eq!(response.extensions().get::<RefusedBy>().unwrap().part(), "timeout");
    assert_eq!(seen.starts(), [0, 300]);
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn an_application_of_axum_takes_it_as_a_layer() {
    use axum::{Router, body::Body, routing::get};
    let (all, shed) = slots(1, 0);
    let stack = ServerStack::builder("shop")
        .shed(shed)
        .limits(limits(5))
        .total_timeout(total(ms(1_000)))
        .build()
        .unwrap();
    let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(stack.clone());
    let request = || Request::get("/").body(Body::empty()).unwrap();
    assert_eq!(app.clone().oneshot(request()).await.unwrap().status(), 200);
    let _slot = all.try_acquire().unwrap();
    let refused = app.oneshot(request()).await.unwrap();
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.extensions().get::<RefusedBy>().unwrap().part(), "shed");
    assert_eq!(stack.handle().report().calls.refused, [("shed", 1)]);
}
