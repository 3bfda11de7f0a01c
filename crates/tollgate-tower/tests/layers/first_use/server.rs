//! The figures that a server reports, and the requests that it charges.

use super::{ask, get, hello, joined};
use crate::llm_budget;
use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode, Version};
use http_body_util::BodyExt;
use std::{convert::Infallible, time::Duration};
use tollgate::{Algorithm, Clock, Quota, store::MemoryStore};
use tollgate_tower::{
    Key, Mode, NotRun, OverLimit, Policy, RateLimitLayer, Settle,
    answer::{Refusal, Unit},
};
use tower::{Layer, ServiceExt, service_fn};

const USED: HeaderName = HeaderName::from_static("x-used");

fn tags(name: &str) -> RateLimitLayer {
    let policy = Policy::new(name, Quota::per_hour(1)).mode(Mode::Tag);
    RateLimitLayer::builder().policy(policy).build().unwrap()
}

fn names(over: Option<&OverLimit>) -> String {
    let mut names: Vec<_> = over.iter().flat_map(|over| over.policies()).collect();
    names.sort_unstable();
    names.join(" ")
}

/// Was a fault, medium: Two layers, each with an exceeded policy: the inner one overwrites the mark
/// of the outer one for the service, and the outer one overwrites the mark of the inner one for
/// layers further out.
///
/// Right: an `OverLimit` names all exceeded policies.
#[tokio::test]
async fn each_layer_tells_what_is_exceeded() {
    let (outer, inner) = (tags("outer"), tags("inner"));
    let tells = service_fn(|request: Request<String>| async move {
        Ok::<_, Infallible>(Response::new(names(request.extensions().get())))
    });
    let service = outer.layer(inner.layer(tells));
    service.clone().oneshot(get()).await.unwrap();
    let response = service.oneshot(get()).await.unwrap();
    assert_eq!(names(response.extensions().get()), "inner outer", "those further out");
    let heard = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(heard, Bytes::from("inner outer"), "the service");
}

/// Was a fault, medium: The issue requires 429 for a client over its share and 503 for overload,
/// and the table in docs/http.md says "503 if it is not the client's fault". A client whose first
/// request finds a shared limit used up gets 429 and `quota-exceeded`, as if it were its own limit.
/// The same limit in a `ConcurrencyLayer` is 503. A hook can change the status, but neither the
/// problem nor the gRPC status.
///
/// Right: 503, or a setter like `ConcurrencyLayerBuilder::refusal`.
#[tokio::test]
async fn a_limit_over_all_is_no_fault_of_the_client() {
    let limits = RateLimitLayer::builder()
        .policy(Policy::new("mine", Quota::per_hour(9)).key(Key::path()))
        .policy(Policy::new("all", Quota::per_hour(1)).refusal(Refusal::ReducedCapacity))
        .build()
        .unwrap();
    ask(&limits).await;
    let other = || Request::get("/somebody-else").body(String::new()).unwrap();
    let response = limits.layer(service_fn(hello)).oneshot(other()).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["retry-after"], "3600");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(problem["type"], Refusal::ReducedCapacity.type_uri());
    assert_eq!(problem["violated-policies"], serde_json::json!(["all"]));
    let mut call = other();
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let response = limits.layer(service_fn(hello)).oneshot(call).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "14", "UNAVAILABLE");
}

/// If several policies refuse, the one with the longest wait gives the reason.
#[tokio::test]
async fn the_share_of_a_client_is_told_as_such_beside_a_limit_over_all() {
    for (mine, all, expected) in [
        (Quota::per_day(1), Quota::per_hour(1), StatusCode::TOO_MANY_REQUESTS),
        (Quota::per_hour(1), Quota::per_day(1), StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let limits = RateLimitLayer::builder()
            .policy(Policy::new("mine", mine).key(Key::path()))
            .policy(Policy::new("all", all).refusal(Refusal::ReducedCapacity))
            .build()
            .unwrap();
        ask(&limits).await;
        assert_eq!(ask(&limits).await.status(), expected);
    }
}

/// Was a fault, medium: A response that comes later than `settle_within` keeps its estimate, as the
/// docs say, but the headers look as if the rest had been given back.
///
/// Right: 900 are left of 1000, so the headers say 900.
#[tokio::test]
async fn what_came_too_late_is_not_told_as_given_back() {
    for algorithm in [
        Algorithm::Gcra,
        Algorithm::FixedWindow,
        Algorithm::AnchoredWindow,
        Algorithm::SlidingCounter,
        Algorithm::SlidingLog,
    ] {
        let (clock, hand) = Clock::manual();
        let policy = Policy::new("tokens", Quota::per_year(1_000))
            .algorithm(algorithm)
            .cost(100)
            .settle(Settle::header(USED));
        let limits = RateLimitLayer::builder()
            .memory(MemoryStore::builder().clock(clock).build().unwrap())
            .policy(policy)
            .settle_within(Duration::from_secs(1))
            .build()
            .unwrap();
        let late = service_fn(move |_: Request<String>| {
            hand.advance(Duration::from_secs(2));
            let response = Response::builder().header(USED, 30).body(String::new());
            async { Ok::<_, Infallible>(response.unwrap()) }
        });
        let told = limits.layer(late).oneshot(get()).await.unwrap();
        let told = joined(told.headers(), "ratelimit");
        // The next response shows the true state: its own estimate stays, because it reports no
        // cost.
        let so = joined(ask(&limits).await.headers(), "ratelimit");
        assert!(so.contains(";r=800;"), "{algorithm:?}: {so}");
        assert!(told.contains(";r=900;"), "{algorithm:?}: {told}");
    }
}

/// The same for a request that never ran; if the cost was higher, the headers report that.
#[tokio::test]
async fn what_was_shed_too_late_is_not_told_as_given_back() {
    for (is_shed, used, expected) in [(true, 30, ";r=900;"), (false, 150, ";r=850;")] {
        let (clock, hand) = Clock::manual();
        let policy = Policy::new("tokens", Quota::per_year(1_000)).cost(100);
        let limits = RateLimitLayer::builder()
            .memory(MemoryStore::builder().clock(clock).build().unwrap())
            .policy(policy.settle(Settle::header(USED)))
            .settle_within(Duration::from_secs(1))
            .build()
            .unwrap();
        let late = service_fn(move |_: Request<String>| {
            hand.advance(Duration::from_secs(1));
            let mut response = Response::builder().header(USED, used).body(String::new()).unwrap();
            if is_shed {
                response.extensions_mut().insert(NotRun);
            }
            async { Ok::<_, Infallible>(response) }
        });
        let told = limits.layer(late).oneshot(get()).await.unwrap();
        let told = joined(told.headers(), "ratelimit");
        assert!(told.contains(expected), "{told}");
    }
}

/// Was a fault, medium: A request of HTTP/1.1 that has neither `Content-Length` nor
/// `Transfer-Encoding` has no content (RFC 9112, section 6.3): all `GET`s.
/// `cost_by_length(unknown)` charges `unknown` for them, so a router with a limit on upload bytes
/// charges every page for a large upload.
///
/// Right: no charge.
#[tokio::test]
async fn a_request_without_a_body_has_no_bytes() {
    let policy = Policy::new("uploads", Quota::per_hour(1_000)).cost_by_length(400);
    let limits = RateLimitLayer::builder().policy(policy).build().unwrap();
    for _ in 0..5 {
        assert_eq!(ask(&limits).await.status(), StatusCode::OK);
    }
}

#[tokio::test]
async fn a_body_of_unknown_length_is_charged_as_such() {
    let (one, two) = (Version::HTTP_11, Version::HTTP_2);
    let (chunked, ten) = (("transfer-encoding", "chunked"), ("content-length", "10"));
    let none = ("accept", "*/*");
    // method, version, header, left of 1000
    for (method, version, header, left) in [
        ("POST", one, none, None),
        ("POST", one, ten, Some(990)),
        ("POST", one, chunked, Some(600)),
        ("GET", one, chunked, Some(600)),
        ("POST", one, ("content-length", "many"), Some(600)),
        ("GET", two, none, None),
        ("GET", two, ten, Some(990)),
        ("POST", two, none, Some(600)),
    ] {
        let policy = Policy::new("uploads", Quota::per_hour(1_000)).cost_by_length(400);
        let limits = RateLimitLayer::builder().policy(policy).build().unwrap();
        let request = Request::builder().method(method).version(version).header(header.0, header.1);
        let request = request.body(String::new()).unwrap();
        let response = limits.layer(service_fn(hello)).oneshot(request).await.unwrap();
        let told = joined(response.headers(), "ratelimit");
        match left {
            Some(left) => assert!(told.contains(&format!(";r={left};")), "{method} {told}"),
            None => assert_eq!(told, "", "{method} {version:?} {header:?}"),
        }
    }
}

/// Was a fault, medium: Clients read bytes and tokens as requests, unless the user knows of
/// `Policy::unit`, which docs/http.md does not name: "1000 requests per 86400 s". By the draft a
/// policy without `qu` counts requests, so a client that paces itself believes it has that many.
/// The example `llm_budget` has that fault itself.
///
/// Right: `cost_by_length` and `Settle::body_bytes` are `content-bytes` by default; the example
/// sets `.unit(Unit::Other("tokens".into()))`.
#[tokio::test]
async fn what_is_no_request_is_not_told_as_one() {
    let quota = Quota::per_hour(1_000);
    for policy in [
        Policy::new("up", quota).cost_by_length(1),
        Policy::new("up", quota).cost_by_length(1).settle(Settle::header(USED)),
        Policy::new("down", quota).cost(1).settle(Settle::body_bytes()),
    ] {
        let limits = RateLimitLayer::builder().policy(policy).build().unwrap();
        let mut request = get();
        request.headers_mut().insert("content-length", 5.into());
        let response = limits.layer(service_fn(hello)).oneshot(request).await.unwrap();
        let told = joined(response.headers(), "ratelimit-policy");
        assert!(told.contains(r#";qu="content-bytes""#), "{told}");
    }
    let said = Policy::new("up", quota).unit(Unit::Other("octets".into())).cost_by_length(1);
    let limits = RateLimitLayer::builder().policy(said.settle(Settle::body_bytes())).build();
    let told = joined(ask(&limits.unwrap()).await.headers(), "ratelimit-policy");
    assert!(told.contains(r#";qu="octets""#), "{told}");
    let request = Request::post("/chat").header("authorization", "Bearer alice");
    let request = request.body(axum::body::Body::from("Tell me a story")).unwrap();
    let response = llm_budget::app().unwrap().oneshot(request).await.unwrap();
    let told = joined(response.headers(), "ratelimit-policy");
    assert!(told.contains(r#""tokens";q=1000;w=86400;qu="tokens""#), "{told}");
}

/// Was a fault, low: A name that is not ASCII is `"%C3%A9"` in the headers and `é` in
/// `violated-policies`, so a client cannot find which policy of the headers it has exceeded. And
/// `é` and `%C3%A9` are two policies to `build` and one to clients.
///
/// Right: one name, everywhere.
#[tokio::test]
async fn a_policy_has_one_name() {
    let named = |name| Policy::new(name, Quota::per_hour(1));
    let both = RateLimitLayer::builder().policy(named("é")).policy(named("%C3%A9")).build();
    assert!(both.is_err(), "two policies that clients cannot tell apart");
    // If the name itself is refused, all is well.
    let Ok(limits) = RateLimitLayer::builder().policy(named("é")).build() else { return };
    ask(&limits).await;
    let response = ask(&limits).await;
    let told = joined(response.headers(), "ratelimit-policy");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let name = problem["violated-policies"][0].as_str().unwrap();
    assert!(told.starts_with(&format!("\"{name}\"")), "{name} is not in {told}");
}

/// Was a fault, low: If a service further in forwards a response of revision 07 (`RateLimit:
/// limit=100, remaining=50, reset=30`), its line stays, and ours is added. Together they are
/// neither a dictionary nor a list, so a client can read neither; our own reader drops both.
///
/// Right: lines that parse as a list stay, others are removed.
#[tokio::test]
async fn what_another_generation_tells_does_not_spoil_ours() {
    let policy = Policy::new("p", Quota::per_hour(9));
    let limits = RateLimitLayer::builder().policy(policy).build().unwrap();
    let proxy = service_fn(|_: Request<String>| async {
        let response = Response::builder()
            .header("ratelimit", "limit=100, remaining=50, reset=30")
            .header("ratelimit", r#""other";r=1;t=2"#)
            .header("ratelimit-policy", "100;w=60")
            .header("ratelimit-policy", "limit=100");
        Ok::<_, Infallible>(response.body(String::new()).unwrap())
    });
    let response = limits.layer(proxy).oneshot(get()).await.unwrap();
    let told = joined(response.headers(), "ratelimit");
    assert!(sfv::Parser::new(&told).parse::<sfv::List>().is_ok(), "{told}");
    assert!(told.starts_with(r#""other";r=1;t=2, "p";r=8;"#), "{told}");
    let told = joined(response.headers(), "ratelimit-policy");
    assert_eq!(told, r#"100;w=60, "p";q=9;w=3600"#);
}
