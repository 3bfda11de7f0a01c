//! Policies in shadow mode or tag mode, headers for troubleshooting, and stores that are
//! unavailable.

use crate::away::Away;
use bytes::Bytes;
use http::{HeaderName, Request, Response};
use http_body_util::{BodyExt, Full};
use std::{convert::Infallible, sync::atomic::Ordering::SeqCst, time::Duration};
use tollgate::{Clock, ManualClock, Quota, store::MemoryStore};
use tollgate_tower::{
    Charge, LimitBody, Mode, OnStoreError, OverLimit, Policy, RateLimitBuilder, RateLimitLayer,
    Settle,
    answer::{Headers, Jitter, Legacy, Unit},
    key::Key,
};
use tower::{Service, ServiceExt};
use tower_layer::Layer;

type Answer = Response<LimitBody<Full<Bytes>>>;

/// A service that reports which limits its request exceeds, and its cost.
async fn answer(request: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    let over = request.extensions().get::<OverLimit>();
    let over: Vec<_> = over.iter().flat_map(|over| over.policies()).collect();
    let mut response = Response::new(Full::from(over.join(" ")));
    if let Some(used) = request.headers().get("x-use") {
        response.headers_mut().insert("x-used", used.clone());
    }
    if request.uri().path() == "/fail" {
        *response.status_mut() = http::StatusCode::UNAUTHORIZED;
    }
    Ok(response)
}

fn built(with: impl FnOnce(RateLimitBuilder) -> RateLimitBuilder) -> (RateLimitLayer, ManualClock) {
    let (clock, hand) = Clock::manual();
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    (with(RateLimitLayer::builder().memory(store)).build().unwrap(), hand)
}

fn get(path: &str) -> Request<()> {
    Request::get(path).body(()).unwrap()
}

async fn ask(layer: &RateLimitLayer, request: Request<()>) -> Answer {
    layer.layer(tower::service_fn(answer)).oneshot(request).await.unwrap()
}

async fn text(response: Answer) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

fn marks(response: &Answer) -> Vec<String> {
    let over = response.extensions().get::<OverLimit>();
    over.iter().flat_map(|over| over.policies()).map(String::from).collect()
}

#[tokio::test]
async fn a_tag_tells_the_service_and_a_shadow_only_those_further_out() {
    let (layer, hand) = built(|builder| {
        builder
            .policy(Policy::new("tagged", Quota::per_minute(1)).mode(Mode::Tag))
            .policy(Policy::new("shadow", Quota::per_minute(2)).mode(Mode::Shadow))
    });
    // The marks that the service sees, and those that layers further out see.
    for (service, outside) in [
        ("", vec![]),
        ("tagged", vec!["tagged"]),
        ("tagged", vec!["tagged", "shadow"]),
        ("tagged", vec!["tagged", "shadow"]),
    ] {
        let response = ask(&layer, get("/")).await;
        assert_eq!(response.status(), 200);
        assert_eq!(marks(&response), outside);
        assert!(!response.headers().contains_key("ratelimit"), "clients are not told");
        assert_eq!(text(response).await, service);
    }
    hand.advance(Duration::from_secs(60));
    assert_eq!(text(ask(&layer, get("/")).await).await, "");
}

#[tokio::test]
async fn what_is_not_enforced_needs_no_identity() {
    for (mode, expected) in
        [(Mode::Shadow, 200), (Mode::Tag, 200), (Mode::Percent(0), 403), (Mode::Enforce, 403)]
    {
        let policy = Policy::new("p", Quota::per_minute(1)).key(Key::bearer()).mode(mode);
        let (layer, _hand) = built(|builder| builder.policy(policy));
        assert_eq!(ask(&layer, get("/")).await.status(), expected, "{mode:?}");
    }
}

#[tokio::test]
async fn a_shadow_is_settled_as_if_it_were_enforced() {
    let used = Settle::header(HeaderName::from_static("x-used"));
    for mode in [Mode::Shadow, Mode::Tag, Mode::Percent(0)] {
        let tokens = Policy::new("tokens", Quota::once(100)).cost(40).settle(used.clone());
        let failures = Policy::new("failures", Quota::once(1)).charge(Charge::on_failure());
        let (layer, _hand) =
            built(|builder| builder.policy(tokens.mode(mode)).policy(failures.mode(mode)));
        let using = |count: &str| Request::get("/").header("x-use", count).body(()).unwrap();
        for (count, over) in
            [("10", vec![]), ("45", vec![]), ("5", vec![]), ("1", vec![]), ("1", vec!["tokens"])]
        {
            // 100, 90, 45, 40 and 39 are left, of which the estimate needs 40.
            assert_eq!(marks(&ask(&layer, using(count)).await), over, "{mode:?}, {count}");
        }
        assert_eq!(ask(&layer, get("/fail")).await.status(), 401);
        assert_eq!(marks(&ask(&layer, get("/")).await), ["tokens", "failures"]);
    }
}

#[tokio::test]
async fn a_shadow_by_bytes_is_settled_when_the_body_ends() {
    let bytes = Policy::new("bytes", Quota::once(30)).cost(20).settle(Settle::body_bytes());
    let tag = Policy::new("always", Quota::once(1)).mode(Mode::Tag);
    let (layer, _hand) = built(|builder| builder.policy(bytes.mode(Mode::Shadow)).policy(tag));
    let empty = ask(&layer, get("/")).await;
    assert!(marks(&empty).is_empty());
    assert_eq!(marks(&ask(&layer, get("/")).await), ["bytes", "always"], "20 are held");
    assert_eq!(text(empty).await, "");
    for left in [30, 24] {
        let response = ask(&layer, get("/")).await;
        assert_eq!(marks(&response), ["always"], "{left} are left");
        assert_eq!(text(response).await.len(), "always".len());
    }
    assert_eq!(marks(&ask(&layer, get("/")).await), ["bytes", "always"], "18 are left");
}

#[tokio::test]
async fn response_headers_are_as_recorded() {
    let headers = Headers::new().three_fields().legacy(Legacy::Epoch).envoy();
    let (layer, _hand) = built(|builder| {
        builder.policy(Policy::new("one", Quota::per_minute(1))).headers(headers).debug_headers()
    });
    let mut found = std::collections::BTreeSet::new();
    for kind in ["text/plain", "text/plain", "application/grpc"] {
        let mut request = get("/");
        request.headers_mut().insert("content-type", kind.parse().unwrap());
        found.extend(ask(&layer, request).await.headers().keys().map(ToString::to_string));
    }
    found.extend(crate::adaptive::shed::headers_of_a_refusal().await);
    tollgate_rig::golden("middleware", &found);
}

#[tokio::test]
async fn debugging_headers_tell_how_each_policy_stands() {
    let (layer, _hand) = built(|builder| {
        builder
            .policy(Policy::new("global", Quota::per_minute(3)))
            .policy(Policy::new("new \"one\"", Quota::per_minute(1)).mode(Mode::Shadow))
            .debug_headers()
    });
    let shadow = |rest| format!("\"new \\\"one\\\"\";mode=shadow;cost=1;limit=1;remaining=0{rest}");
    for (status, decision, global, shadow) in [
        (200, "allowed", "limit=3;remaining=2", Some(shadow(""))),
        (200, "over", "limit=3;remaining=1", Some(shadow(";wait=60000"))),
        (200, "over", "limit=3;remaining=0", Some(shadow(";wait=60000"))),
        (429, "refused", "limit=3;remaining=0;wait=20000", None),
    ] {
        let response = ask(&layer, get("/")).await;
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["x-tollgate-decision"], decision);
        let policies = response.headers()["x-tollgate-policies"].to_str().unwrap();
        let shadow =
            shadow.unwrap_or_else(|| "\"new \\\"one\\\"\";mode=shadow;cost=1;unknown".to_owned());
        assert_eq!(policies, format!("\"global\";mode=enforce;cost=1;{global}, {shadow}"));
        assert!(sfv::Parser::new(policies).parse::<sfv::List>().is_ok(), "{policies}");
    }
    let (layer, _hand) = built(|builder| {
        let policy = Policy::new("p", Quota::per_minute(3)).key(Key::bearer());
        builder.policy(policy).debug_headers()
    });
    let response = ask(&layer, get("/")).await;
    assert_eq!(response.headers()["x-tollgate-decision"], "no-key");
    assert_eq!(response.headers()["x-tollgate-policies"], "\"p\"");
}

#[tokio::test]
async fn jitter_makes_clients_wait_longer_and_never_shorter() {
    let (layer, _hand) = built(|builder| {
        let jitter = Jitter::percent_of_window(50).unwrap();
        builder.policy(Policy::new("p", Quota::per_minute(1))).jitter(jitter)
    });
    assert_eq!(ask(&layer, get("/")).await.status(), 200);
    let mut waits = std::collections::BTreeSet::new();
    for _ in 0..50 {
        let response = ask(&layer, get("/")).await;
        let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((60..=90).contains(&wait), "{wait}");
        assert_eq!(response.headers()["ratelimit"], format!("\"p\";r=0;t={wait}"));
        waits.insert(wait);
    }
    assert!(waits.len() > 5, "{waits:?}");
}

#[tokio::test]
async fn clients_are_told_what_is_counted() {
    let policy = Policy::new("tokens", Quota::per_minute(9)).unit(Unit::Other("tokens".into()));
    let (layer, _hand) = built(|builder| builder.policy(policy));
    let response = ask(&layer, get("/")).await;
    assert_eq!(response.headers()["ratelimit-policy"], "\"tokens\";q=9;w=60;qu=\"tokens\"");
}

fn away(with: impl FnOnce(RateLimitBuilder) -> RateLimitBuilder) -> (RateLimitLayer, Away) {
    let (clock, _hand) = Clock::manual();
    let memory = MemoryStore::builder().clock(clock).max_reservations_per_key(9_000);
    let store = Away::new(memory.build().unwrap());
    (with(RateLimitLayer::builder().store(store.clone())).build().unwrap(), store)
}

#[tokio::test]
async fn a_store_that_is_down_is_answered_as_declared() {
    for (on_error, status) in [(OnStoreError::Allow, 200), (OnStoreError::Refuse, 503)] {
        for charge in [Charge::always(), Charge::on_failure()] {
            let policy = Policy::new("p", Quota::per_minute(1)).charge(charge);
            let (layer, store) =
                away(|builder| builder.policy(policy).on_store_error(on_error).debug_headers());
            store.is_down.store(true, SeqCst);
            for _ in 0..3 {
                let response = ask(&layer, get("/")).await;
                assert_eq!(response.status(), status);
                assert_eq!(response.headers()["x-tollgate-decision"], "store-failed");
                assert!(!response.headers().contains_key("retry-after"));
            }
        }
    }
}

#[tokio::test]
async fn who_leaves_while_the_store_is_asked_has_paid_nothing() {
    for charge in [Charge::always(), Charge::on_failure()] {
        let policy = Policy::new("p", Quota::once(2)).charge(charge);
        let (layer, store) = away(|builder| builder.policy(policy));
        store.hold();
        let mut service = layer.layer(tower::service_fn(answer));
        let mut calls = Vec::new();
        for _ in 0..2 {
            let mut call = Box::pin(service.ready().await.unwrap().call(get("/")));
            assert!(futures_poll(&mut call).is_pending());
            calls.push(call);
        }
        // Both permits are taken by now, and the store's answers are in transit.
        drop(calls);
        store.answers.add_permits(1_000);
        tokio::task::yield_now().await;
        for expected in [401, 401, 429] {
            assert_eq!(ask(&layer, get("/fail")).await.status(), expected);
        }
    }
}

fn futures_poll<F: Future + Unpin>(future: &mut F) -> std::task::Poll<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::Pin::new(future).poll(&mut context)
}

/// Answers a gRPC call: a message, and the status in the trailers.
fn grpc(
    status: Option<&'static str>,
) -> Response<http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>> {
    let trailers = status.map(|status| {
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", status.parse().unwrap());
        Ok(http_body::Frame::trailers(trailers))
    });
    let frames = [Ok(http_body::Frame::data(Bytes::from_static(b"12345")))];
    let frames = tonic::codegen::tokio_stream::iter(frames.into_iter().chain(trailers));
    let body = http_body_util::StreamBody::new(frames).boxed_unsync();
    Response::builder().header("content-type", "application/grpc").body(body).unwrap()
}

#[tokio::test]
async fn a_status_in_the_trailers_is_charged_at_the_end() {
    for (charge, status, is_charged) in [
        (Charge::on_failure(), Some("0"), false),
        (Charge::on_failure(), Some("16"), true),
        // A call that ends without a status, or is cut off, has not succeeded.
        (Charge::on_failure(), None, true),
        (Charge::unless_server_error(), Some("13"), false),
        (Charge::unless_server_error(), Some("5"), true),
        (Charge::on_status([http::StatusCode::UNAUTHORIZED]), Some("16"), true),
        (Charge::on_status([http::StatusCode::UNAUTHORIZED]), Some("7"), false),
    ] {
        for mode in [Mode::Enforce, Mode::Shadow] {
            let policy = Policy::new("p", Quota::once(1)).charge(charge.clone()).mode(mode);
            let (layer, _hand) = built(|builder| builder.policy(policy).debug_headers());
            let service = tower::service_fn(move |_: Request<()>| async move {
                Ok::<_, Infallible>(grpc(status))
            });
            let first = layer.layer(service).oneshot(get("/")).await.unwrap();
            assert_eq!(first.headers()["x-tollgate-decision"], "allowed");
            let between = layer.layer(service).oneshot(get("/")).await.unwrap();
            assert_ne!(between.headers()["x-tollgate-decision"], "allowed", "it is reserved");
            drop(between);
            let body = first.into_body().collect().await.unwrap();
            assert_eq!(body.trailers().is_some(), status.is_some(), "they pass");
            let next = layer.layer(service).oneshot(get("/")).await.unwrap();
            let is_next_charged = next.headers()["x-tollgate-decision"] != "allowed";
            assert_eq!(is_next_charged, is_charged, "{charge:?} {status:?} {mode:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_comes_when_enough_wait_is_refused_at_once() {
    let memory = MemoryStore::builder().clock(Clock::tokio()).build().unwrap();
    let layer = RateLimitLayer::builder()
        .memory(memory)
        .policy(Policy::new("p", Quota::per_second(1)))
        .wait_up_to(Duration::from_secs(60))
        .max_waiting(2)
        .build()
        .unwrap();
    assert_eq!(ask(&layer, get("/")).await.status(), 200);
    let mut service = layer.layer(tower::service_fn(answer));
    let mut waits: Vec<_> = (0..2).map(|_| Box::pin(service.call(get("/")))).collect();
    assert!(waits.iter_mut().all(|wait| futures_poll(wait).is_pending()));
    assert_eq!(ask(&layer, get("/")).await.status(), 429, "two wait already");
    drop(waits);
    assert_eq!(ask(&layer, get("/")).await.status(), 200, "there is room to wait again");
}

#[tokio::test(start_paused = true)]
async fn what_a_store_takes_after_its_time_is_given_back() {
    let store = Away::held(MemoryStore::builder().clock(Clock::tokio()).build().unwrap());
    let layer = RateLimitLayer::builder()
        .store(store.clone())
        .on_store_error(OnStoreError::Refuse)
        .policy(Policy::new("p", Quota::once(1)))
        .build()
        .unwrap();
    assert_eq!(ask(&layer, get("/")).await.status(), 503, "no answer in time");
    store.answers.add_permits(9);
    // The answer comes, and its charge goes back, each in a task of its own.
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    for expected in [200, 429] {
        assert_eq!(ask(&layer, get("/")).await.status(), expected);
    }
}

/// Drops this many requests during the store call.
fn leave(layer: &RateLimitLayer, count: usize) {
    let mut service = layer.layer(tower::service_fn(answer));
    for _ in 0..count {
        let mut call = Box::pin(service.call(get("/")));
        assert!(futures_poll(&mut call).is_pending());
    }
}

/// Answers come, and their charges go back, each in a task of its own: waits until no task is left.
async fn tasks_end() {
    let tasks = tokio::runtime::Handle::current().metrics();
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
        if tasks.num_alive_tasks() == 0 {
            return;
        }
    }
    panic!("{} tasks do not end", tasks.num_alive_tasks());
}

/// Releases all answers, and returns the permits that are left then. Costs one permit, as `/fail`
/// does.
async fn left(layer: &RateLimitLayer, store: &Away) -> u64 {
    store.answers.add_permits(10_000);
    tasks_end().await;
    let response = ask(layer, get("/fail")).await;
    store.hold();
    let told = response.headers()["ratelimit"].to_str().unwrap();
    told.strip_prefix("\"p\";r=").unwrap().parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn of_those_who_leave_1024_are_given_back_at_a_time() {
    for charge in [Charge::always(), Charge::on_failure()] {
        let policy = Policy::new("p", Quota::once(9_000)).charge(charge);
        let (layer, store) = away(|builder| builder.policy(policy));
        store.hold();
        leave(&layer, 1024);
        assert_eq!(left(&layer, &store).await, 8_999, "all are given back");
        leave(&layer, 1025);
        assert_eq!(left(&layer, &store).await, 8_997, "the last stays spent");
        leave(&layer, 1);
        assert_eq!(left(&layer, &store).await, 8_996, "there is room again");
        leave(&layer, 1024);
        assert_eq!(left(&layer, &store).await, 8_995, "and as much as at first");
        // A call to a store that never answers is bounded by `settle_within`: five minutes.
        leave(&layer, 1024);
        tokio::time::advance(Duration::from_secs(299)).await;
        leave(&layer, 1);
        tokio::time::advance(Duration::from_secs(2)).await;
        tasks_end().await;
        leave(&layer, 1);
        assert_eq!(left(&layer, &store).await, 8_995 - 1024 - 1 - 1, "only the last is given back");
    }
}
