//! The state that a request leaves when it does not end normally.

use super::{ask, get, hangs, hello, manual, poll_once, status};
use crate::away::Away;
use http::{Request, Response};
use std::{
    convert::Infallible,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};
use tollgate::{
    Algorithm, Clock, Concurrency, Quota,
    observe::{Event, Observer},
    store::MemoryStore,
};
use tollgate_tower::{Charge, ConcurrencyLayer, OnStoreError, Policy, RateLimitLayer, Settle};
use tower::{Layer, Service, ServiceExt};

/// Was a fault, high: Requests hang for ever when the store accepts connections and does not answer
/// (a frozen host, a lost packet without a reset, a custom store without a timeout). `OnStoreError`
/// never applies, although docs/http.md ("When the store does not answer") and
/// `x-tollgate-decision: store-failed` say it does. Each client that gives up leaves a task that
/// waits for the answer (`Drop for Turn`), without a bound. Right: a bound on each store call, and
/// then `OnStoreError`.
#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_does_not_hold_requests_for_ever() {
    for on_store_error in [OnStoreError::Allow, OnStoreError::Refuse] {
        let store = Away::new(MemoryStore::builder().clock(Clock::tokio()).build().unwrap());
        store.hold();
        let limits = RateLimitLayer::builder()
            .store(store)
            .on_store_error(on_store_error)
            .policy(Policy::new("p", Quota::once(5)))
            .build()
            .unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(60), ask(&limits, "/")).await;
        assert!(answer.is_ok(), "{on_store_error:?}: no answer within a minute");
    }
}

/// Was a fault, high: The same while a request waits: the store exceeds the bound of
/// `wait_up_to(2 s)`. Right: `until` bounds the store call, too.
#[tokio::test(start_paused = true)]
async fn the_longest_wait_holds_whatever_the_store_does() {
    let clock = Clock::tokio();
    let start = clock.now();
    let store = Away::new(MemoryStore::builder().clock(clock.clone()).build().unwrap());
    let limits = RateLimitLayer::builder()
        .store(store.clone())
        .policy(Policy::new("p", Quota::per_second(1)))
        .wait_up_to(Duration::from_secs(2))
        .build()
        .unwrap();
    assert_eq!(status(&limits).await, 200);
    let waiting = tokio::spawn(async move { status(&limits).await });
    let half = tokio::time::timeout(Duration::from_millis(500), std::future::pending::<()>());
    assert!(half.await.is_err());
    // It sleeps now; at its next try no answer comes.
    store.hold();
    let answer = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    assert!(answer.is_ok(), "after {:?} of a longest 2 s", clock.now().since(start));
}

/// Was a fault, high: More requests pass than the quota allows whenever a request waits for a while
/// further in (a queue of `ConcurrencyLayer`, a slow shed) and is dropped: its permit has refilled
/// meanwhile, and is given back once more although others have taken it. With `max_wait` near the
/// period and clients that hang up, each dropped request admits one more; a client can do it on
/// purpose. Right: give back the outstanding part of *this* charge. Settling does that right, by
/// marks; `Store::refund` takes "whatever is outstanding".
#[tokio::test]
async fn what_has_come_back_by_itself_is_not_given_back_once_more() {
    let mut wrong = Vec::new();
    for algorithm in Algorithm::ALL {
        let (builder, _, hand) = manual();
        let policy = Policy::new("p", Quota::per_minute(1)).algorithm(algorithm);
        let limits = builder.policy(policy).build().unwrap();
        let slot = Concurrency::builder(1).max_waiting(9).build().unwrap();
        let _taken = slot.try_acquire().unwrap();
        let slots_layer =
            ConcurrencyLayer::builder(slot).max_wait(Duration::from_secs(600)).build();
        let mut queued = limits.layer(slots_layer.unwrap().layer(tower::service_fn(hello)));
        let mut waits = Box::pin(queued.ready().await.unwrap().call(get("/")));
        poll_once(waits.as_mut());
        // After two minutes its permit is back; another request takes the next one.
        hand.advance(Duration::from_secs(120));
        assert_eq!(status(&limits).await, 200, "{algorithm}");
        assert_eq!(status(&limits).await, 429, "{algorithm}");
        drop(waits);
        if status(&limits).await == 200 {
            wrong.push(format!("{algorithm}: two in one minute"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

async fn web(code: &'static str) -> Result<Response<String>, Infallible> {
    let response = Response::builder().header("content-type", "application/grpc-web+proto");
    Ok(response.header("grpc-status", code).body(String::new()).unwrap())
}

/// Was a fault, high: `Charge::on_failure` for logins over gRPC-web (tonic-web further in, or a
/// proxy that does not translate) limits nothing: every failure is HTTP 200, so every guess is
/// given back. The headers of this response contain the status, but the layer ignores it. Right: as
/// in gRPC.
#[tokio::test]
async fn failures_of_grpc_web_are_failures() {
    let policy = Policy::new("logins", Quota::once(2)).charge(Charge::on_failure());
    let limits = RateLimitLayer::builder().policy(policy).build().unwrap();
    let mut passed = 0;
    for _ in 0..5 {
        let call =
            Request::post("/auth.Login/Try").header("content-type", "application/grpc-web+proto");
        let service = limits.layer(tower::service_fn(|_: Request<String>| web("16")));
        let response = service.oneshot(call.body(String::new()).unwrap()).await.unwrap();
        passed += u32::from(response.headers().get("grpc-status").is_some_and(|code| code == "16"));
    }
    assert_eq!(passed, 2, "guesses at a password");
}

/// Was a fault, high: The same where the status is in the last frame of the body, which is the
/// usual case of gRPC-web. Right: "If its status is unknown, it is [charged]"
/// (`is_charged_at_the_end` in src/limit/settle.rs).
#[tokio::test]
async fn grpc_web_whose_end_nobody_can_read_is_charged() {
    // The trailers of gRPC-web are in the body: the head says 200 and nothing else.
    let policy = Policy::new("logins", Quota::once(2)).charge(Charge::on_failure());
    let limits = RateLimitLayer::builder().policy(policy).build().unwrap();
    let mut passed = 0;
    for _ in 0..5 {
        let service = limits.layer(tower::service_fn(|_: Request<String>| async {
            let response = Response::builder().header("content-type", "application/grpc-web-text");
            let trailers = "gAAAAA9ncnBjLXN0YXR1czoxNg0K"; // grpc-status:16
            Ok::<_, Infallible>(response.body(trailers.to_owned()).unwrap())
        }));
        passed += u32::from(service.oneshot(get("/")).await.unwrap().status() == 200);
    }
    assert_eq!(passed, 2, "guesses at a password");
}

/// Was a fault, medium: A gateway forwards the request to two servers with its extensions. The
/// first has answered, and the copy waits in the queue of a `ConcurrencyLayer` on the client side,
/// when the client hangs up: the whole charge is given back although the work was done. With login
/// protection outside, that is a free guess. src/queued.rs says that a handler's own request has no
/// mark, but `Request::from_parts` and `clone` keep it, as docs/http.md (TG-L52) says. Right: a
/// request that has passed one queue has run.
#[tokio::test]
async fn a_handler_that_has_worked_is_charged_although_a_copy_of_its_request_waits() {
    let limits =
        RateLimitLayer::builder().policy(Policy::new("p", Quota::once(1))).build().unwrap();
    let slot = Concurrency::builder(1).max_waiting(9).build().unwrap();
    let worked = Arc::new(AtomicBool::new(false));
    let handler = {
        let (slot, worked) = (slot.clone(), Arc::clone(&worked));
        tower::service_fn(move |request: Request<String>| {
            let (slot, worked) = (slot.clone(), Arc::clone(&worked));
            async move {
                let slots_layer = ConcurrencyLayer::builder(slot.clone());
                let slots_layer = slots_layer.max_wait(Duration::from_secs(600)).build().unwrap();
                let client = slots_layer.layer(tower::service_fn(hello));
                // As in a gateway: the same head, extensions included, goes to two servers.
                let first = client.clone().oneshot(request.clone()).await;
                drop(first);
                worked.store(true, SeqCst);
                let _taken = slot.try_acquire().unwrap();
                client.oneshot(request).await.map(|response| response.map(|_| String::new()))
            }
        })
    };
    let mut service = limits.layer(handler);
    let mut running = Box::pin(service.ready().await.unwrap().call(get("/")));
    poll_once(running.as_mut());
    assert!(worked.load(SeqCst));
    drop(running);
    assert_eq!(status(&limits).await, 429, "the work was done, and is free");
}

#[derive(Debug)]
struct Panics(AtomicBool);

impl Observer for Panics {
    fn decided(&self, _: &Event<'_>) {
        assert!(self.0.swap(true, SeqCst), "an observer with a fault");
    }
}

/// Was a fault, low: A request that never ran is charged (and its reservation stays open) if an
/// observer panics. "Charged from here on: it is given back even if the service panics" does not
/// hold for the code between the decision and the ticket. Right: given back.
#[tokio::test]
async fn an_observer_that_panics_costs_nobody_a_permit() {
    let limits = RateLimitLayer::builder()
        .policy(Policy::new("p", Quota::once(1)))
        .observer(Panics(AtomicBool::new(false)))
        .build()
        .unwrap();
    let mut service = limits.layer(tower::service_fn(hello));
    service.ready().await.unwrap();
    let call = std::panic::catch_unwind(AssertUnwindSafe(|| drop(service.call(get("/")))));
    assert!(call.is_err());
    assert_eq!(status(&limits).await, 200, "the request before never ran");
}

/// Was a fault, low: A `Settle::by` or `Charge::by` that panics on one kind of response leaves a
/// reservation open for `settle_within`. A client that can cause it exhausts the reservations, and
/// then all clients get 503. Right: closed with the estimate, as for a service that panics.
#[tokio::test]
async fn a_closure_that_panics_on_a_response_leaves_no_reservation_open() {
    let panics = || -> bool { panic!("a closure with a fault") };
    let rows: [(&str, Policy); 2] = [
        (
            "settle",
            Policy::new("p", Quota::once(9)).settle(Settle::by(move |_| Some(panics().into()))),
        ),
        ("charge", Policy::new("p", Quota::once(9)).charge(Charge::by(move |_| panics()))),
    ];
    for (name, policy) in rows {
        let memory = MemoryStore::builder().max_reservations(1).build().unwrap();
        let limits = RateLimitLayer::builder().memory(memory).policy(policy).build().unwrap();
        let first = limits.clone();
        assert!(tokio::spawn(async move { status(&first).await }).await.is_err(), "it panics");
        let mut service = limits.layer(tower::service_fn(hangs));
        let mut next = pin!(service.ready().await.unwrap().call(get("/")));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let refused = next.as_mut().poll(&mut context).is_ready();
        assert!(!refused, "{name}: 503 until `settle_within` is over");
    }
}

/// Was a fault, medium: A client that reads slowly (or a stream of events that lives for an hour)
/// pays only the estimate: after `settle_within` the reservation is gone, `settle` answers false,
/// and the layer ignores that answer without a log line. docs/http.md says that the estimate stays
/// spent, but a few lines above that "a client that leaves pays for what it got". Right: the cost
/// above the estimate is booked all the same.
#[tokio::test]
async fn who_reads_slowly_pays_for_what_it_gets() {
    let (builder, _, hand) = manual();
    let policy = Policy::new("bytes", Quota::per_day(100)).cost(1).settle(Settle::body_bytes());
    let limits = builder.policy(policy).settle_within(Duration::from_secs(300)).build().unwrap();
    let send = || {
        let long = tower::service_fn(|_: Request<String>| async {
            Ok::<_, Infallible>(Response::new("x".repeat(1000)))
        });
        limits.layer(long).oneshot(get("/"))
    };
    let mut got = 0;
    for _ in 0..10 {
        let response = send().await.unwrap();
        hand.advance(Duration::from_secs(301));
        let is_served = response.status() == 200;
        let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap();
        got += if is_served { body.to_bytes().len() } else { 0 };
    }
    assert!(got <= 1000, "{got} bytes of a quota of 100");
}

/// Was a fault, high: A client sends `Content-Length: 0` with a GET and downloads as much as it
/// likes: the estimate is 0, "zero is not counted", so nothing is reserved and nothing settled. The
/// same with `cost_by` of a field that the client writes (`max_tokens: 0`). Right: if a policy
/// settles, the estimate may be 0, but the cost that the response reports is charged.
#[tokio::test]
async fn an_estimate_of_nothing_is_settled_all_the_same() {
    let (builder, _, _hand) = manual();
    // The request's length is the estimate, and the response's length is the cost.
    let policy =
        Policy::new("bytes", Quota::per_day(100)).cost_by_length(1).settle(Settle::body_bytes());
    let limits = builder.policy(policy).build().unwrap();
    let mut got = 0;
    for _ in 0..10 {
        let long = tower::service_fn(|_: Request<String>| async {
            Ok::<_, Infallible>(Response::new("x".repeat(1000)))
        });
        let mut request = get("/");
        request.headers_mut().insert("content-length", 0.into());
        let response = limits.layer(long).oneshot(request).await.unwrap();
        let is_served = response.status() == 200;
        let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap();
        got += if is_served { body.to_bytes().len() } else { 0 };
    }
    assert!(got <= 1000, "{got} bytes of a quota of 100");
}

/// Was a fault, medium: With a shared store the response is sent before its settlement: the client
/// reads `r=1`, and is refused when it retries at once. A successful login is followed by a 429; a
/// client that follows the headers is refused, which docs/clients.md rules out. Right: the headers
/// show the true state, or the settlement comes first.
#[tokio::test]
async fn what_was_told_as_given_back_is_there_for_the_next_request() {
    let store = Away::new(MemoryStore::builder().build().unwrap());
    let limits = RateLimitLayer::builder()
        .store(store)
        .policy(Policy::new("logins", Quota::once(1)).charge(Charge::on_failure()))
        .build()
        .unwrap();
    let first = ask(&limits, "/").await;
    assert_eq!(first.headers()["ratelimit"], "\"logins\";r=1");
    assert_eq!(status(&limits).await, 200, "one was left, as the answer before said");
}

/// Was a fault, medium: A user who tries a limit in `Mode::Shadow` over a store that cannot be
/// reached sees no denials, no error in the log, no `tollgate_store_errors_total`, and
/// `x-tollgate-decision: allowed`: all looks well, so the limit is enforced next. Right: as
/// docs/http.md says of `store-failed`, and logged.
#[tokio::test]
async fn a_shadow_whose_store_is_down_says_so() {
    let store = Away::new(MemoryStore::builder().build().unwrap());
    store.is_down.store(true, SeqCst);
    let limits = RateLimitLayer::builder()
        .store(store)
        .policy(Policy::new("new", Quota::once(1)).mode(tollgate_tower::Mode::Shadow))
        .debug_headers()
        .build()
        .unwrap();
    let response = ask(&limits, "/").await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["x-tollgate-decision"], "store-failed");
}

/// Fault 9, high, and without any copy: a handler calls another service through a stack with a
/// limit of its own (`RateLimitLayer` outside, `ConcurrencyLayer` with a queue inside). That limit
/// marks the handler's request. If the client hangs up while this request waits in the queue,
/// `LEFT` is set for "those further out", and the limit of the *server* takes it for its own
/// request and gives back, although its handler has run. A client that hangs up while the inner
/// service is busy works for free, and logins are guessed for free. Right: only the limits that
/// have charged the dropped request give back.
#[tokio::test]
async fn a_request_of_the_handlers_own_that_waits_gives_nothing_back_further_out() {
    let once = |permits| {
        let policy = Policy::new("p", Quota::once(permits));
        RateLimitLayer::builder().policy(policy).build().unwrap()
    };
    let (limits, outbound) = (once(1), once(9));
    let slot = Concurrency::builder(1).max_waiting(9).build().unwrap();
    let _taken = slot.try_acquire().unwrap();
    let slots_layer = ConcurrencyLayer::builder(slot).max_wait(Duration::from_secs(600)).build();
    let client = outbound.layer(slots_layer.unwrap().layer(tower::service_fn(hello)));
    let mut service = limits.layer(tower::service_fn(move |_: Request<String>| {
        let client = client.clone();
        // The handler works here, and then calls another service with a new request.
        async move { client.oneshot(get("/")).await.map(|response| response.map(|_| String::new())) }
    }));
    let mut running = Box::pin(service.ready().await.unwrap().call(get("/")));
    poll_once(running.as_mut());
    drop(running);
    assert_eq!(status(&limits).await, 429, "the handler ran, and is free");
}
