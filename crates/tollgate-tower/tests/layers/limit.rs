//! The rate limit layer: which requests pass, their charges, and the responses to clients.

mod never_ran;

use crate::DOCS;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use std::{convert::Infallible, time::Duration};
use tollgate::{Algorithm, Clock, ManualClock, Quota, observe::KeyForm, store::MemoryStore};
use tollgate_tower::{
    Charge, LimitBody, Mode, NotRun, Policy, RateLimit, RateLimitBuilder, RateLimitLayer, Settle,
    answer::Refusal,
    key::{Key, rollout_place},
};
use tower::{Service, ServiceExt};
use tower_layer::Layer;

type Answer = Response<Full<Bytes>>;

/// A service that answers as the path says: a status, and headers by the query.
async fn answer(request: Request<String>) -> Result<Answer, Infallible> {
    let status = request.uri().path().trim_start_matches('/').parse().unwrap_or(200);
    let mut response = Response::new(Full::from("0123456789"));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    if let Some(used) = request.uri().query().and_then(|query| query.strip_prefix("used=")) {
        response.headers_mut().insert("x-used", used.parse().unwrap());
    }
    if request.headers().contains_key("x-shed") {
        response.extensions_mut().insert(NotRun);
    }
    Ok(response)
}

fn built(
    with: impl FnOnce(RateLimitBuilder) -> RateLimitBuilder,
) -> (RateLimitLayer, MemoryStore, ManualClock) {
    let (clock, hand) = Clock::manual();
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    let layer = with(RateLimitLayer::builder().memory(store.clone())).build().unwrap();
    (layer, store, hand)
}

/// One policy, for a key in a header.
fn one(policy: Policy) -> (RateLimitLayer, ManualClock) {
    let (layer, _, hand) = built(|builder| builder.policy(policy));
    (layer, hand)
}

fn request(path: &str, key: &str) -> Request<String> {
    Request::builder().uri(path).header("x-key", key).body(String::new()).unwrap()
}

async fn ask(layer: &RateLimitLayer, request: Request<String>) -> Response<LimitBody<Full<Bytes>>> {
    layer.layer(tower::service_fn(answer)).oneshot(request).await.unwrap()
}

async fn status(layer: &RateLimitLayer, path: &str, key: &str) -> u16 {
    ask(layer, request(path, key)).await.status().as_u16()
}

fn by_header() -> Key {
    Key::header("x-key")
}

#[tokio::test]
async fn what_exceeds_the_quota_is_refused_and_told_why() {
    let (layer, hand) = one(Policy::new("per-key", Quota::per_minute(2)).key(by_header()));
    let first = ask(&layer, request("/", "a")).await;
    assert_eq!(first.status(), 200);
    assert_eq!(first.headers()["ratelimit"], "\"per-key\";r=1;t=30");
    assert_eq!(first.headers()["ratelimit-policy"], "\"per-key\";q=2;w=60");
    assert_eq!(status(&layer, "/", "a").await, 200);
    let refused = ask(&layer, request("/", "a")).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "30");
    assert_eq!(refused.headers()["cache-control"], "no-store");
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["per-key"]));
    assert_eq!(status(&layer, "/", "b").await, 200, "another key has its own quota");
    hand.advance(Duration::from_secs(30));
    assert_eq!(status(&layer, "/", "a").await, 200);
}

#[tokio::test]
async fn several_policies_are_charged_all_or_none() {
    let (layer, _, _hand) = built(|builder| {
        builder
            .policy(Policy::new("per-key", Quota::per_minute(1)).key(by_header()))
            .policy(Policy::new("global", Quota::per_minute(3)))
    });
    assert_eq!(status(&layer, "/", "a").await, 200);
    for _ in 0..5 {
        assert_eq!(status(&layer, "/", "a").await, 429, "a has spent its own");
    }
    assert_eq!(status(&layer, "/", "b").await, 200, "what was refused has cost the others nothing");
    assert_eq!(status(&layer, "/", "c").await, 200);
    let refused = ask(&layer, request("/", "d")).await;
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem["violated-policies"], serde_json::json!(["global"]));
}

#[tokio::test]
async fn a_retry_exactly_at_retry_after_passes_by_every_algorithm() {
    for algorithm in Algorithm::ALL {
        let policy = Policy::new("p", Quota::per(3, Duration::from_millis(7_300)));
        let (layer, hand) = one(policy.algorithm(algorithm));
        hand.advance(Duration::from_millis(1_234));
        while status(&layer, "/", "a").await == 200 {}
        let refused = ask(&layer, request("/", "a")).await;
        let wait: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        hand.advance(Duration::from_secs(wait));
        assert_eq!(status(&layer, "/", "a").await, 200, "{algorithm}");
    }
}

#[tokio::test]
async fn all_services_and_their_clones_share_one_limit() {
    let (layer, _hand) = one(Policy::new("global", Quota::per_minute(3)));
    let mut services: Vec<RateLimit<_>> =
        (0..2).map(|_| layer.clone().layer(tower::service_fn(answer))).collect();
    services.push(services[0].clone());
    let mut passed = 0;
    for round in 0..9 {
        let service = &mut services[round % 3];
        let response = service.ready().await.unwrap().call(request("/", "a")).await.unwrap();
        passed += usize::from(response.status() == 200);
    }
    assert_eq!(passed, 3);
}

#[tokio::test]
async fn who_cannot_be_counted_is_refused_unless_said_otherwise() {
    let bare = || Request::new(String::new());
    for (key, expected) in [
        (by_header(), [403, 403, 403]),
        (by_header().or_anonymous(), [200, 200, 429]),
        (by_header().or_skip(), [200, 200, 200]),
    ] {
        let (layer, _hand) = one(Policy::new("p", Quota::per_minute(2)).key(key));
        for expected in expected {
            assert_eq!(ask(&layer, bare()).await.status(), expected);
        }
    }
}

#[tokio::test]
async fn costs_and_what_does_not_count() {
    let policy = Policy::new("p", Quota::per_minute(10))
        .only(|info| info.uri().path() != "/200")
        .cost_by(|info| info.uri().path().len() as u64);
    let (layer, _hand) = one(policy);
    assert_eq!(status(&layer, "/status", "a").await, 200, "7 of 10");
    for _ in 0..20 {
        assert_eq!(status(&layer, "/200", "a").await, 200, "it is not counted");
    }
    assert_eq!(status(&layer, "/201", "a").await, 429, "4 do not fit");
    assert_eq!(status(&layer, "/ab", "a").await, 200, "3 do");

    let (layer, _hand) = one(Policy::new("bytes", Quota::per_minute(100)).cost_by_length(1));
    let mut upload = request("/", "a");
    upload.headers_mut().insert("content-length", "99".parse().unwrap());
    assert_eq!(ask(&layer, upload).await.status(), 200);
    let chunked = || {
        let mut request = request("/", "a");
        request.headers_mut().insert("transfer-encoding", "chunked".parse().unwrap());
        request
    };
    assert_eq!(ask(&layer, chunked()).await.status(), 200);
    assert_eq!(ask(&layer, chunked()).await.status(), 429);
}

#[tokio::test]
async fn tiers_have_quotas_of_their_own() {
    let policy = Policy::new("p", Quota::per_minute(1))
        .key(by_header())
        .tier("gold", Quota::per_minute(3))
        .tier_by(|info| (info.headers()["x-key"].as_bytes()[0] == b'g').then_some(0));
    let (layer, _hand) = one(policy);
    for (key, most) in [("a", 1), ("g", 3)] {
        for number in 0..5 {
            let expected = if number < most { 200 } else { 429 };
            assert_eq!(status(&layer, "/", key).await, expected, "{key}: number {number}");
        }
    }
}

#[tokio::test]
async fn a_shadow_counts_and_never_refuses() {
    let (layer, _hand) = one(Policy::new("p", Quota::per_minute(1)).mode(Mode::Shadow));
    for _ in 0..5 {
        let response = ask(&layer, request("/", "a")).await;
        assert_eq!(response.status(), 200);
        assert!(!response.headers().contains_key("ratelimit"), "clients are not told of it");
    }
}

#[tokio::test]
async fn a_percentage_of_the_keys_is_held_to_the_limit() {
    let by_name = Key::from_fn(|info, key| {
        let name = info.headers().get("x-key").map(HeaderValue::as_bytes).unwrap_or_default();
        key.push(name);
        true
    });
    let policy = Policy::new("p", Quota::once(1)).key(by_name).mode(Mode::Percent(30));
    let (layer, _hand) = one(policy);
    let mut held = 0;
    for key in 0..500 {
        let key = key.to_string();
        let statuses = [status(&layer, "/", &key).await, status(&layer, "/", &key).await];
        assert_eq!(statuses[0], 200);
        // The service selects the same keys: `configuration/engine.rs` of tollgate-server.
        assert_eq!(statuses[1] == 429, rollout_place([&key]) < 30, "{key}");
        held += u64::from(statuses[1] == 429);
    }
    assert!((100..200).contains(&held), "{held} of 500 are held, of 150 expected");
}

#[tokio::test]
async fn failed_logins_are_charged_and_good_ones_are_not() {
    let policy = Policy::new("logins", Quota::per_minute(2)).charge(Charge::on_failure());
    let (layer, _hand) = one(policy);
    for _ in 0..10 {
        assert_eq!(status(&layer, "/200", "a").await, 200);
    }
    assert_eq!(status(&layer, "/401", "a").await, 401);
    assert_eq!(status(&layer, "/200", "a").await, 200);
    assert_eq!(status(&layer, "/401", "a").await, 401);
    assert_eq!(status(&layer, "/200", "a").await, 429, "two have failed");
}

#[tokio::test]
async fn an_estimate_is_settled_with_what_the_response_says() {
    let used = Settle::header(HeaderName::from_static("x-used"));
    let policy = Policy::new("tokens", Quota::once(100)).cost(40).settle(used);
    let (layer, _hand) = one(policy);
    assert_eq!(status(&layer, "/200?used=10", "a").await, 200); // 90 left
    assert_eq!(status(&layer, "/200?used=45", "a").await, 200); // 45 left: more than the estimate
    assert_eq!(status(&layer, "/200", "a").await, 200); // 5 left: the estimate stays
    assert_eq!(status(&layer, "/200?used=1", "a").await, 429);
}

#[tokio::test]
async fn bytes_of_a_body_are_settled_when_it_ends_or_is_dropped() {
    let policy = Policy::new("bytes", Quota::once(30)).cost(20).settle(Settle::body_bytes());
    let (layer, _hand) = one(policy);
    let whole = ask(&layer, request("/", "a")).await;
    assert_eq!(status(&layer, "/", "a").await, 429, "20 are reserved while it is sent");
    assert_eq!(whole.into_body().collect().await.unwrap().to_bytes().len(), 10);
    let dropped = ask(&layer, request("/", "a")).await;
    assert_eq!(dropped.status(), 200, "20 are left");
    drop(dropped);
    assert_eq!(status(&layer, "/", "a").await, 200, "nothing was sent, so 20 are left");
}

#[tokio::test]
async fn a_policy_beside_thousands_of_quotas_is_limited() {
    let (clock, _hand) = Clock::manual();
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    for number in 1..3_000 {
        let quota = tollgate::store::Policy::new(format!("{number}"), Quota::per_hour(number));
        assert!(store.acquire_one_now(&quota.unwrap(), b"key", 1).unwrap().is_allowed());
    }
    let policies = ["p", "q"].map(|name| Policy::new(name, Quota::per_hour(2)));
    let [one, other] = policies.map(|policy| RateLimitLayer::builder().policy(policy));
    for builder in [one.memory(store.clone()), other.store(store)] {
        let layer = builder.build().unwrap();
        for expected in [200, 200, 429] {
            assert_eq!(status(&layer, "/", "a").await, expected);
        }
    }
}

#[tokio::test]
async fn grpc_is_refused_in_its_own_words() {
    let (layer, _hand) = one(Policy::new("calls", Quota::per_minute(1)));
    let call = || {
        let request = Request::post("/echo.Echo/Say").header("content-type", "application/grpc");
        request.body(String::new()).unwrap()
    };
    assert_eq!(ask(&layer, call()).await.status(), 200);
    let refused = ask(&layer, call()).await;
    assert_eq!(refused.status(), 200);
    assert_eq!(refused.headers()["grpc-status"], "8");
    assert_eq!(refused.headers()["grpc-retry-pushback-ms"], "60000");
    assert!(refused.into_body().collect().await.unwrap().to_bytes().is_empty());
}

#[tokio::test]
async fn a_store_that_others_share_decides_the_same() {
    let (clock, _hand) = Clock::manual();
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    let layer = RateLimitLayer::builder()
        .store(store)
        .policy(Policy::new("p", Quota::per_minute(2)).key(by_header()))
        .build()
        .unwrap();
    for expected in [200, 200, 429, 429] {
        assert_eq!(status(&layer, "/", "a").await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_if_it_may_and_if_that_suffices() {
    let store = MemoryStore::builder().clock(Clock::tokio()).build().unwrap();
    let layer = RateLimitLayer::builder()
        .memory(store)
        .policy(Policy::new("p", Quota::per_second(10).burst(1)))
        .wait_up_to(Duration::from_millis(250))
        .build()
        .unwrap();
    let clock = Clock::tokio();
    let begin = clock.now();
    for number in 0..5u64 {
        assert_eq!(status(&layer, "/", "a").await, 200);
        let at = clock.now().since(begin);
        let due = Duration::from_millis(100 * number);
        assert!(at >= due && at <= due + Duration::from_millis(3 * number), "{at:?}");
    }
    // Of five at once two pass in time, and the others are refused at once.
    let all = futures_of(&layer, 5).await;
    assert_eq!(all.iter().filter(|status| **status == 200).count(), 2, "{all:?}");
    // A request that is dropped while it waits is not charged.
    let mut service = layer.layer(tower::service_fn(answer));
    let waits = service.ready().await.unwrap().call(request("/", "a"));
    assert!(tokio::time::timeout(Duration::from_millis(1), waits).await.is_err());
    assert_eq!(status(&layer, "/", "a").await, 200);
}

#[test]
fn without_timers_nobody_waits_and_nothing_panics() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (layer, _, _hand) = built(|builder| {
        let policy = Policy::new("p", Quota::per_second(1));
        builder.policy(policy).wait_up_to(Duration::from_secs(5))
    });
    let asked = async { (status(&layer, "/", "a").await, status(&layer, "/", "a").await) };
    assert_eq!(runtime.block_on(asked), (200, 429));
}

/// Sends this many requests at once, and returns the statuses.
async fn futures_of(layer: &RateLimitLayer, count: usize) -> Vec<u16> {
    let tasks: Vec<_> = (0..count)
        .map(|_| {
            let layer = layer.clone();
            tokio::spawn(async move { status(&layer, "/", "a").await })
        })
        .collect();
    let mut statuses = Vec::new();
    for task in tasks {
        statuses.push(task.await.unwrap());
    }
    statuses
}

#[test]
fn what_cannot_be_meant_is_refused_at_the_start() {
    let builder = RateLimitLayer::builder;
    let policy = || Policy::new("p", Quota::per_minute(1));
    let cases = [
        (builder(), "TG-L01"),
        ((0..65).fold(builder(), |builder, _| builder.policy(policy())), "TG-L02"),
        (builder().policy(policy()).policy(policy()), "TG-L03"),
        (builder().policy(policy()).settle_within(Duration::ZERO), "TG-L04"),
        (builder().policy(policy().mode(Mode::Percent(101))), "TG-L05"),
        (builder().policy(policy().tier("gold", Quota::per_minute(2))), "TG-L06"),
        (builder().policy(policy().tier_by(|_| None)), "TG-L06"),
        (builder().policy(Policy::new("p", Quota::per(1, Duration::ZERO))), "TG-L07"),
        (builder().policy(Policy::new("", Quota::per_minute(1))), "TG-L08"),
        (builder().policy(policy().cost(0)), "TG-L09"),
        (builder().policy(policy().cost(2)), "TG-L10"),
        (
            builder().policy(
                Policy::new("p", Quota::per_minute(9))
                    .cost(2)
                    .tier("small", Quota::per_minute(1))
                    .tier_by(|_| None),
            ),
            "TG-L10",
        ),
        (builder().policy(policy()).wait_up_to(Duration::ZERO), "TG-L11"),
        (builder().policy(policy()).memory(MemoryStore::new()).store(MemoryStore::new()), "TG-L12"),
        (builder().policy(policy().mode(Mode::Percent(50))), "TG-L13"),
        (builder().policy(policy()).max_waiting(9), "TG-L14"),
        (builder().policy(policy()).wait_up_to(Duration::from_secs(1)).max_waiting(0), "TG-L14"),
        (builder().policy(policy()).store_timeout(Duration::ZERO), "TG-L15"),
        (builder().policy(policy().refusal(Refusal::Forbidden)), "TG-L16"),
        (builder().policy(policy().refusal(Refusal::Unidentified)), "TG-L16"),
        (builder().policy(policy().tier("", Quota::per_minute(1)).tier_by(|_| None)), "TG-L17"),
        (builder().policy(policy().cost(1).cost(1)), "TG-L18"),
        (builder().policy(policy().charge(Charge::on_status([]))), "TG-L19"),
        (builder().policy(policy()).top_keys(0, KeyForm::Plain), "TG-L20"),
        (builder().policy(policy()).top_keys(100_001, KeyForm::Plain), "TG-L20"),
        (builder().policy(Policy::new("p", Quota::per_minute(0)).cost_by(|_| 1)), "TG-L07"),
        (builder().policy(Policy::new("\u{e9}", Quota::per_minute(1))), "TG-L08"),
    ];
    for (builder, code) in cases {
        let error = builder.build().unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains(code), "{error}");
        let docs = format!("{DOCS}/http.md#{}", code.to_ascii_lowercase());
        assert_eq!(error.docs(), docs, "{error}");
    }
}

#[tokio::test]
async fn a_router_of_axum_and_its_clones_hold_one_limit() {
    use axum::{Router, body::Body, routing::get};
    let layer = RateLimitLayer::builder()
        .policy(Policy::new("global", Quota::per_hour(5)))
        .build()
        .unwrap();
    let nested = Router::new().route("/inner", get(|| async { "inner" }));
    let app = Router::new().route("/", get(|| async { "hello" })).nest("/sub", nested).layer(layer);
    let mut statuses = Vec::new();
    for path in ["/", "/sub/inner", "/", "/", "/sub/inner", "/", "/"] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        statuses.push(app.clone().oneshot(request).await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
}
