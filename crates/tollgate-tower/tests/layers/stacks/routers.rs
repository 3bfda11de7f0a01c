//! Routers of axum.

use super::{drain, once};
use axum::{
    Router,
    body::Body,
    error_handling::HandleErrorLayer,
    extract::{Request, State},
    middleware::{Next, from_fn},
    response::Response,
    routing::{any_service, get},
};
use http::StatusCode;
use std::time::Duration;
use tollgate::Quota;
use tollgate_tower::{Key, Policy, RateLimitLayer};
use tower::{BoxError, ServiceBuilder, ServiceExt, timeout::TimeoutLayer};

fn routes() -> Router {
    Router::new()
        .route("/a", get(|| async { "a" }))
        .route("/b/{id}", get(|| async { "b" }).post(|| async { "posted" }))
}

async fn status(app: &Router, path: &str) -> u16 {
    let request = Request::get(path).body(Body::empty()).unwrap();
    app.clone().oneshot(request).await.unwrap().status().as_u16()
}

/// Requests the paths in turn, and returns how many permits of ten are spent.
async fn spent(limits: &RateLimitLayer, app: &Router, rows: &[(&str, u16)]) -> u64 {
    for (path, expected) in rows {
        assert_eq!(status(app, path).await, *expected, "{path}");
    }
    10 - drain(limits).await
}

#[tokio::test]
async fn each_place_in_a_router_counts_what_it_covers_once() {
    let all = [("/a", 200), ("/b/1", 200), ("/none", 404), ("/in/a", 200), ("/in/none", 404)];
    let outer = || Router::new().nest("/in", routes()).merge(routes());
    type Build = fn(RateLimitLayer, Router) -> Router;
    let rows: [(&str, Build, u64); 9] = [
        ("around all", |limits, app| app.layer(limits), 5),
        ("routes only", |limits, app| app.route_layer(limits), 3),
        // As usual in axum, the outer router's fallback handles unknown paths under the prefix.
        ("inside of nest", |limits, _| Router::new().nest("/in", routes().layer(limits)), 1),
        (
            "inside of nest, routes only",
            |limits, _| Router::new().nest("/in", routes().route_layer(limits)),
            1,
        ),
        ("outside of nest", |limits, _| Router::new().nest("/in", routes()).layer(limits), 5),
        // Its fallback becomes that of the whole, with the layer: all unknown paths are counted.
        ("merged", |limits, app| app.merge(Router::new().route("/c", get("c")).layer(limits)), 2),
        (
            "merged, routes only",
            |limits, app| app.merge(Router::new().route("/c", get("c")).route_layer(limits)),
            0,
        ),
        (
            "on the method",
            |limits, _| {
                Router::new().nest("/in", routes()).route("/a", get(|| async { "a" }).layer(limits))
            },
            1,
        ),
        (
            "the fallback",
            |limits, app| {
                app.fallback_service(ServiceBuilder::new().layer(limits).service(
                    tower::service_fn(|_: Request| async {
                        Ok::<_, std::convert::Infallible>(missing())
                    }),
                ))
            },
            2,
        ),
    ];
    for (name, build, expected) in rows {
        let limits = once(10);
        let app = build(limits.clone(), outer());
        for (path, _) in all {
            status(&app, path).await;
        }
        assert_eq!(10 - drain(&limits).await, expected, "{name}");
    }
    let limits = once(10);
    assert_eq!(spent(&limits, &outer().layer(limits.clone()), &all).await, 5);
}

fn missing() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

#[tokio::test]
async fn what_is_added_behind_a_layer_is_not_limited() {
    let limits = once(10);
    let app = routes().layer(limits.clone()).route("/later", get(|| async { "later" }));
    assert_eq!(spent(&limits, &app, &[("/a", 200), ("/later", 200)]).await, 1);
}

#[tokio::test]
async fn a_layer_that_is_added_twice_counts_twice() {
    let limits = once(10);
    let inner = routes().layer(limits.clone());
    let app = Router::new().nest("/in", inner).layer(limits.clone());
    assert_eq!(spent(&limits, &app, &[("/in/a", 200)]).await, 2, "as the page says");
}

#[tokio::test]
async fn state_and_extensions_come_through() {
    #[derive(Clone)]
    struct User(u64);
    let policy = Policy::new("per-user", Quota::once(1)).key(Key::extension(|user: &User| &user.0));
    let limits = RateLimitLayer::builder().policy(policy).build().unwrap();
    let app = Router::new()
        .route("/", get(|State(state): State<&'static str>| async move { state }))
        .layer(limits)
        .layer(from_fn(|mut request: Request, next: Next| async move {
            let user = request.uri().query().unwrap().parse().unwrap();
            request.extensions_mut().insert(User(user));
            next.run(request).await
        }))
        .with_state("state");
    for (path, expected) in [("/?1", 200), ("/?2", 200), ("/?1", 429), ("/?3", 200)] {
        assert_eq!(status(&app, path).await, expected, "{path}");
    }
}

#[tokio::test]
async fn middleware_of_axum_fits_inside_and_outside() {
    let limits = once(10);
    let pass = |request: Request, next: Next| async move { next.run(request).await };
    let app = routes().layer(from_fn(pass)).layer(limits.clone()).layer(from_fn(pass));
    assert_eq!(spent(&limits, &app, &[("/a", 200), ("/none", 404)]).await, 2);
    let limits = once(10);
    let stack =
        ServiceBuilder::new().layer(from_fn(pass)).layer(limits.clone()).layer(from_fn(pass));
    assert_eq!(spent(&limits, &routes().layer(stack), &[("/a", 200), ("/none", 404)]).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_inside_has_run_and_one_outside_has_too() {
    async fn late(_: BoxError) -> StatusCode {
        StatusCode::GATEWAY_TIMEOUT
    }
    let timeout = || TimeoutLayer::new(Duration::from_secs(1));
    let hangs = || Router::new().route("/", get(std::future::pending::<()>));
    let limits = once(10);
    let outside = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(late))
        .layer(timeout())
        .layer(limits.clone());
    assert_eq!(spent(&limits, &hangs().layer(outside), &[("/", 504)]).await, 1);
    let limits = once(10);
    let inside = ServiceBuilder::new()
        .layer(limits.clone())
        .layer(HandleErrorLayer::new(late))
        .layer(timeout());
    assert_eq!(spent(&limits, &hangs().layer(inside), &[("/", 504)]).await, 1);
    // An error that passes the layer stays as it is.
    let limits = once(10);
    let between = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(late))
        .layer(limits.clone())
        .layer(timeout());
    assert_eq!(spent(&limits, &hangs().layer(between), &[("/", 504)]).await, 1);
}

#[tokio::test]
async fn a_limited_service_is_a_route() {
    let limits = once(10);
    let service = ServiceBuilder::new().layer(limits.clone()).service_fn(super::hello::<Body>);
    let app = Router::new().route("/", any_service(service));
    assert_eq!(spent(&limits, &app, &[("/", 200), ("/", 200)]).await, 2);
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn the_route_is_that_of_the_whole_path() {
    type Build = fn(RateLimitLayer) -> Router;
    let builds: [Build; 3] = [
        |limits| Router::new().nest("/in", routes().layer(limits)),
        |limits| Router::new().nest("/in", routes().route_layer(limits)),
        |limits| Router::new().nest("/in", routes()).layer(limits),
    ];
    for build in builds {
        let policy = Policy::new("per-route", Quota::once(1)).key(Key::route());
        let limits = RateLimitLayer::builder().policy(policy).build().unwrap();
        let app = build(limits.clone());
        for (path, expected) in [("/in/b/1", 200), ("/in/b/2", 429), ("/in/a", 200), ("/in/a", 429)]
        {
            assert_eq!(status(&app, path).await, expected, "{path}");
        }
        let same = Router::new().route("/in/b/{id}", get(|| async {})).layer(limits);
        assert_eq!(status(&same, "/in/b/3").await, 429, "with the prefix of the nest");
    }
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn what_is_not_found_has_no_route() {
    for (key, expected) in [
        (Key::route(), [403, 403]),
        (Key::route().or_anonymous(), [404, 429]),
        (Key::route().or_skip(), [404, 404]),
    ] {
        let policy = Policy::new("per-route", Quota::once(1)).key(key);
        let limits = RateLimitLayer::builder().policy(policy).build().unwrap();
        let app = routes().layer(limits);
        assert_eq!([status(&app, "/x").await, status(&app, "/y").await], expected);
    }
}
