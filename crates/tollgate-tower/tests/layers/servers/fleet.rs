//! Layers of several processes share one limit in a real Redis.

use axum::{Router, body::Body, routing::get};
use http::{Request, StatusCode};
use std::time::Duration;
use tokio::task::JoinSet;
use tollgate::{Algorithm, Quota};
use tollgate_redis::{Link, RedisStore, Settings};
use tollgate_rig::{Flavor, Redis};
use tollgate_tower::{Charge, Key, OnStoreError, Policy, RateLimitBuilder, RateLimitLayer};
use tower::ServiceExt;

/// A store, as each process has one of its own.
fn store(server: &Redis) -> RedisStore {
    let long = Duration::from_secs(30);
    let settings: Settings = server.url().parse().unwrap();
    let link = Link::open(settings.deadline(long).connect_timeout(long)).unwrap();
    RedisStore::builder(link).build().unwrap()
}

/// An application that a process runs.
fn app(store: RedisStore, with: impl FnOnce(RateLimitBuilder) -> RateLimitBuilder) -> Router {
    let limits = with(RateLimitLayer::builder().store(store)).build().unwrap();
    let routes = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/fails", get(|| async { StatusCode::UNAUTHORIZED }));
    routes.layer(limits)
}

async fn ask(app: &Router, path: &str, user: &str) -> u16 {
    let request = Request::get(path).header("x-user", user).body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn processes_hold_one_limit_together_by_every_algorithm() {
    let server = Redis::start(Flavor::Redis);
    for algorithm in Algorithm::ALL {
        let policies = |builder: RateLimitBuilder| {
            let name = |part: &str| format!("{part}-{algorithm}");
            let each = Policy::new(name("each"), Quota::per_year(20)).key(Key::header("x-user"));
            let all = Policy::new(name("all"), Quota::per_year(30));
            builder.policy(each.algorithm(algorithm)).policy(all.algorithm(algorithm))
        };
        let apps: Vec<Router> = (0..3).map(|_| app(store(&server), policies)).collect();
        let mut calls = JoinSet::new();
        for number in 0..120 {
            let (app, user) = (apps[number % 3].clone(), ["a", "b"][number / 3 % 2]);
            calls.spawn(async move { (user, ask(&app, "/", user).await) });
        }
        let answers = calls.join_all().await;
        let passed = |who: &str| answers.iter().filter(|it| **it == (who, 200)).count();
        let (a, b) = (passed("a"), passed("b"));
        assert!(a <= 20 && b <= 20, "{algorithm}: {a} of a, {b} of b");
        assert_eq!(a + b, 30, "{algorithm}: all that there is, and no more");
        assert!(answers.iter().all(|it| [200, 429].contains(&it.1)), "{algorithm}: {answers:?}");
    }
}

#[tokio::test]
async fn failures_are_charged_wherever_they_happen() {
    let server = Redis::start(Flavor::Redis);
    let policies = |builder: RateLimitBuilder| {
        let logins = Policy::new("logins", Quota::per_year(2)).charge(Charge::on_failure());
        builder.policy(logins).on_store_error(OnStoreError::Refuse)
    };
    let [one, other] = [0, 1].map(|_| app(store(&server), policies));
    // A response comes only after its given-back permits are available to all processes.
    for app in [&one, &other, &one, &other, &one] {
        assert_eq!(ask(app, "/", "a").await, 200);
    }
    assert_eq!(ask(&one, "/fails", "a").await, 401);
    assert_eq!(ask(&other, "/fails", "a").await, 401);
    assert_eq!((ask(&one, "/", "a").await, ask(&other, "/", "a").await), (429, 429));
}

#[tokio::test]
async fn a_server_that_is_gone_is_answered_as_declared() {
    let server = Redis::start(Flavor::Redis);
    let url = server.url();
    let with = |on_error| {
        let soon = Duration::from_millis(500);
        let settings: Settings = url.parse().unwrap();
        let link = Link::open(settings.deadline(soon).connect_timeout(soon)).unwrap();
        let store = RedisStore::builder(link).build().unwrap();
        app(store, |builder| {
            builder.policy(Policy::new("p", Quota::per_year(9))).on_store_error(on_error)
        })
    };
    let (open, closed) = (with(OnStoreError::Allow), with(OnStoreError::Refuse));
    assert_eq!((ask(&open, "/", "a").await, ask(&closed, "/", "a").await), (200, 200));
    drop(server);
    assert_eq!((ask(&open, "/", "a").await, ask(&closed, "/", "a").await), (200, 503));
}
