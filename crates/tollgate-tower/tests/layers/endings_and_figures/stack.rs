//! How layers are combined, and the consequences.

use super::{get, hello, status};
use crate::away::Away;
use http::Request;
use std::{task::Context, time::Duration};
use tollgate::{Clock, Quota, store::MemoryStore};
use tollgate_tower::{ConcurrencyLayer, Info, Key, Peer, Policy, RateLimitLayer, key::KeyBytes};
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimit};

/// Was a fault, medium: "api" with the tier "paid" and a policy "api/paid" are one policy in the
/// store: each request is charged twice, and here one of three passes. TG-L03 should catch this,
/// but checks the names of policies only. Right: an error at build.
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

/// Was a fault, medium: A service that was polled ready may hold a resource for the coming call (a
/// slot of `tower::limit::ConcurrencyLimit`, of a `Buffer`). If the call is refused, the resource
/// stays in the service until the next call or the end. If a service lives as long as its
/// connection (hyper's own `serve_connection` with a custom service, a clone per client), refused
/// clients that stay connected block all others. Right: the resource is released.
#[tokio::test]
async fn a_refusal_lets_go_of_the_place_that_was_ready() {
    let limits =
        RateLimitLayer::builder().policy(Policy::new("p", Quota::once(1))).build().unwrap();
    assert_eq!(status(&limits).await, 200);
    let mut first = limits.layer(ConcurrencyLimit::new(tower::service_fn(hello), 1));
    let mut second = first.clone();
    // As in a server that has one service for each connection, which stays open.
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

/// Was a fault, medium: With `wait_up_to` all waiting requests get the same time, wake together and
/// try again; one passes. 200 requests make 20100 store calls, 2000 make two million: the square of
/// the number of requests, just under load. Nor is there a bound on how many wait ("every queue has
/// a bound"): a client that sends enough holds as many requests, bodies and connections as it
/// likes. Right: a bounded number, each with about one try.
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

/// Was a fault, low: If a client of an axum service says `content-type: application/grpc`, it is
/// counted by the path it writes, where others have no route: each path (`/files/1`, `/files/2`) is
/// a quota of its own, and refusals are HTTP 200. Right: a path is a route only if the setup says
/// that this is a gRPC server.
#[test]
fn nobody_chooses_a_route_by_a_header() {
    // Around a whole router there is no route: all requests of one address share a key...
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

/// Was a fault, low: `Mode::Percent(50)` of a policy without a key (the default!) is enforced for
/// all requests or for none, depending on one hash. A user who introduces a global limit by
/// docs/http.md ("`Shadow`, then `Percent(1)`") changes nothing at each step, and then everything.
/// Right: refused at build, or decided per request.
#[tokio::test]
async fn a_percentage_of_one_key_is_refused() {
    let policy = Policy::new("global", Quota::once(1)).mode(tollgate_tower::Mode::Percent(50));
    let built = RateLimitLayer::builder().policy(policy).build();
    assert!(built.is_err(), "it is enforced for all or for nobody");
}

/// Was a fault, low: The example estimates 1400 tokens for a prompt without a `Content-Length`
/// (chunked, as most clients of streams send), of a budget of 1000: it is refused for ever, with
/// the advice "ask for less". Right: an estimate that can pass.
#[tokio::test]
async fn the_example_takes_a_prompt_of_unknown_length() {
    let app = crate::llm_budget::app().unwrap();
    let prompt = axum::body::Body::from("Tell me a story").into_data_stream();
    let prompt = axum::body::Body::from_stream(prompt);
    let request = Request::post("/chat").header("authorization", "Bearer alice");
    let response = app.oneshot(request.body(prompt).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200, "{:?}", response.headers());
}

/// Was a fault, low: A test of an axum app that follows axum's documentation, with
/// `MockConnectInfo`, gets 403 for every request: `Info::peer` reads `ConnectInfo` and not axum's
/// own fallback. Right: the same address that the extractor sees.
#[cfg(feature = "axum")]
#[test]
fn the_address_of_a_mock_is_one() {
    let address = std::net::SocketAddr::from(([192, 0, 2, 1], 443));
    let mut request = get("/");
    request.extensions_mut().insert(axum::extract::connect_info::MockConnectInfo(address));
    assert_eq!(Info::of(&request).peer(), Some(address));
}

/// Was a fault, low: The example locks an address out for an hour after five `GET /login` (a
/// crawler, the form itself, a preview of a link): 405 and 400 are failures, too, but not guesses.
/// A user who copies it locks out an office behind one address. Right: wrong passwords are charged.
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
