//! How layers are put together, and what that leads to.

use super::{get, hello, status};
use crate::away::Away;
use http::Request;
use std::{task::Context, time::Duration};
use tollgate::{Clock, Quota, store::MemoryStore};
use tollgate_tower::{ConcurrencyLayer, Info, Key, Peer, Policy, RateLimitLayer, key::KeyBytes};
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimit};

/// Was a fault, medium: "api" with the tier "paid" and a policy "api/paid" are one policy in the store:
/// each request is charged twice, here one passes of three. TG-L03 is there for this and looks at
/// the names of policies only. Right: an error at build.
#[tokio::test]
async fn a_tier_has_no_name_of_another_policy() {
    let built = RateLimitLayer::builder()
        .policy(
            Policy::new("api", Quota::once(5)).tier("paid", Quota::once(3)).tier_by(|_| Some(0)),
        )
        .policy(Policy::new("api/paid", Quota::once(3)))
        .build();
    match built {
        Err(error) => assert_eq!(error.code(), "TG-L03"),
        Ok(limits) => {
            let mut passed = 0;
            while status(&limits).await == 200 {
                passed += 1;
            }
            panic!("it is built, and {passed} of 3 pass");
        }
    }
}

/// Was a fault, medium: A service that was polled ready may hold something for the call to come (a
/// place of `tower::limit::ConcurrencyLimit`, of a `Buffer`). If the call is refused, it stays in
/// the service until the next call or the end. Where a service lives as long as its connection
/// (hyper's own `serve_connection` with a service of one's own, a clone per client), refused
/// clients that stay connected block all others. Right: it is let go of.
#[tokio::test]
async fn a_refusal_lets_go_of_the_place_that_was_ready() {
    let limits =
        RateLimitLayer::builder().policy(Policy::new("p", Quota::once(1))).build().unwrap();
    assert_eq!(status(&limits).await, 200);
    let mut first = limits.layer(ConcurrencyLimit::new(tower::service_fn(hello), 1));
    let mut second = first.clone();
    // As a server does that has one service for each connection, which stays open.
    let refused = first.ready().await.unwrap().call(get("/")).await.unwrap();
    assert_eq!(refused.status(), 429);
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(second.poll_ready(&mut context).is_ready(), "an idle connection has the only place");
}

/// Was a fault, medium: The same of `ConcurrencyLayer`.
#[tokio::test]
async fn a_full_room_lets_go_of_the_place_that_was_ready() {
    let slots = tollgate::Concurrency::builder(1).build().unwrap();
    let _taken = slots.try_acquire().unwrap();
    let slots_layer = ConcurrencyLayer::builder(slots).build().unwrap();
    let mut first = slots_layer.layer(ConcurrencyLimit::new(tower::service_fn(hello), 1));
    let mut second = first.clone();
    let refused = first.ready().await.unwrap().call(get("/")).await.unwrap();
    assert_eq!(refused.status(), 503);
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(second.poll_ready(&mut context).is_ready(), "an idle connection has the only place");
}

/// Was a fault, medium: With `wait_up_to` all who wait are told the same time, wake together and ask;
/// one passes. 200 requests are 20100 questions to the store, 2000 are two millions: the square of
/// the crowd, just when there is one. Nor is there a bound on how many wait ("every queue has a
/// bound"): whoever sends enough holds as many requests, bodies and connections as it likes. Right:
/// a bounded number, each asking about once.
#[tokio::test(start_paused = true)]
async fn those_who_wait_do_not_all_ask_for_each_permit() {
    let store = Away::new(MemoryStore::builder().clock(Clock::tokio()).build().unwrap());
    let limits = RateLimitLayer::builder()
        .store(store.clone())
        .policy(Policy::new("p", Quota::per_second(100).burst(1)))
        .wait_up_to(Duration::from_secs(10))
        .build()
        .unwrap();
    let before = store.answers.available_permits();
    let many = 200;
    let calls: Vec<_> = (0..many)
        .map(|_| {
            let limits = limits.clone();
            tokio::spawn(async move { status(&limits).await })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), 200);
    }
    let asked = before - store.answers.available_permits();
    assert!(asked <= 10 * many, "{many} requests ask {asked} times");
}

/// Was a fault, low: A client of an axum service that says `content-type: application/grpc` is counted
/// by the path it writes, where others have no route: each path (`/files/1`, `/files/2`) is a quota
/// of its own, and refusals are HTTP 200. Right: a path is a route only where somebody has said
/// that this is a server of gRPC.
#[test]
fn nobody_chooses_a_route_by_a_header() {
    // Around a whole router there is no route: all of one address are one...
    let key = Key::all([Key::peer(), Key::route().or_anonymous()]);
    let found = |path: &str, kind: Option<&'static str>| {
        let mut request = Request::post(path).body(()).unwrap();
        request.extensions_mut().insert(Peer(([192, 0, 2, 1], 443).into()));
        if let Some(kind) = kind {
            request.headers_mut().insert("content-type", kind.parse().unwrap());
        }
        let mut bytes = KeyBytes::new();
        let _known = key.find(&Info::of(&request), &mut bytes);
        bytes.as_bytes().to_vec()
    };
    assert_eq!(found("/login", None), found("/files/1", None));
    // ... unless they say that they speak gRPC.
    let grpc = Some("application/grpc");
    assert_eq!(found("/files/1", grpc), found("/files/2", grpc), "a key for each path");
}

/// Was a fault, low: `Mode::Percent(50)` of a policy without a key (the default!) is enforced for all
/// or for nobody, as one hash falls. Who brings in a global limit by docs/http.md ("`Shadow`, then
/// `Percent(1)`") changes nothing at each step, and then everything. Right: refused at build, or
/// decided per request.
#[tokio::test]
async fn a_percentage_of_one_key_is_refused() {
    let policy = Policy::new("global", Quota::once(1)).mode(tollgate_tower::Mode::Percent(50));
    let built = RateLimitLayer::builder().policy(policy).build();
    assert!(built.is_err(), "it is enforced for all or for nobody");
}

/// Was a fault, low: The example estimates 1400 tokens for a prompt without a `Content-Length`
/// (chunked, as most clients of streams send), of a budget of 1000: it is refused for ever, and
/// told "ask for less". Right: an estimate that can pass.
#[tokio::test]
async fn the_example_takes_a_prompt_of_unknown_length() {
    let app = crate::llm_budget::app().unwrap();
    let prompt = axum::body::Body::from("Tell me a story").into_data_stream();
    let prompt = axum::body::Body::from_stream(prompt);
    let request = Request::post("/chat").header("authorization", "Bearer alice");
    let response = app.oneshot(request.body(prompt).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200, "{:?}", response.headers());
}

/// Was a fault, low: Who tests an axum app as axum's documentation says, with `MockConnectInfo`, gets 403
/// for everything: `Info::peer` reads `ConnectInfo` and not what axum itself falls back to. Right: the
/// same address that the extractor sees.
#[cfg(feature = "axum")]
#[test]
fn the_address_of_a_mock_is_one() {
    let address = std::net::SocketAddr::from(([192, 0, 2, 1], 443));
    let mut request = get("/");
    request.extensions_mut().insert(axum::extract::connect_info::MockConnectInfo(address));
    assert_eq!(Info::of(&request).peer(), Some(address));
}

/// Was a fault, low: The example locks an address out for an hour after five `GET /login` (a crawler, the
/// form itself, a preview of a link): 405 and 400 are failures, too, and no guesses. Whoever copies it
/// locks out an office behind one address. Right: wrong passwords are charged.
#[cfg(feature = "axum")]
#[tokio::test]
async fn the_example_counts_guesses_only() {
    let app = super::login_protection::app().unwrap();
    let send = async |request: http::request::Builder, body: &'static str| {
        let peer = std::net::SocketAddr::from(([192, 0, 2, 1], 443));
        let request = request.extension(axum::extract::ConnectInfo(peer));
        let request = request.body(axum::body::Body::from(body)).unwrap();
        app.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    for _ in 0..5 {
        assert_eq!(send(Request::get("/login"), "").await, 405);
    }
    assert_eq!(send(Request::post("/login"), "alice:correct horse").await, 200);
}
