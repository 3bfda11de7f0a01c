//! Requests that foreign layers shed further in.

use super::{drain, get, once};
use axum::{body::Body, error_handling::HandleErrorLayer, response::IntoResponse};
use http::{Request, Response, StatusCode};
use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll},
};
use tollgate::{Concurrency, Quota};
use tollgate_tower::{ConcurrencyLayer, NotRun, Policy, RateLimitLayer};
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt,
    load_shed::{LoadShed, LoadShedLayer, error::Overloaded},
};

/// A service that is never ready.
#[derive(Clone)]
struct Full;

impl<B> Service<Request<B>> for Full {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = std::future::Pending<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Pending
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        panic!("called without being ready")
    }
}

/// An error can be of any type, so the layer cannot know that this one means "it never ran".
#[tokio::test]
async fn an_error_says_nothing_about_having_run() {
    let limits = once(3);
    let error = limits.layer(LoadShed::new(Full)).oneshot(get("/")).await.unwrap_err();
    assert!(error.is::<Overloaded>());
    assert_eq!(drain(&limits).await, 2, "it stays spent");
}

/// Turns an error into a response, for `HandleErrorLayer`: the response says whether anything ran.
async fn answer(error: BoxError) -> axum::response::Response {
    let mut response = StatusCode::SERVICE_UNAVAILABLE.into_response();
    if error.is::<Overloaded>() {
        response.extensions_mut().insert(NotRun);
    }
    response
}

#[tokio::test]
async fn what_tower_sheds_is_given_back_if_its_response_is_marked() {
    let limits = once(3);
    let service = ServiceBuilder::new()
        .layer(limits.clone())
        .layer(HandleErrorLayer::new(answer))
        .layer(LoadShedLayer::new())
        .service(Full);
    for _ in 0..10 {
        let response = service.clone().oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(response.status(), 503);
    }
    assert_eq!(drain(&limits).await, 3);
}

#[tokio::test]
async fn each_layer_further_out_gives_back() {
    let (outer, inner) = (once(3), once(3));
    let full = Concurrency::new(0).unwrap();
    let slots_layer = ConcurrencyLayer::builder(full).build().unwrap();
    let service = tower::service_fn(super::hello::<String>);
    let service = outer.layer(inner.layer(slots_layer.layer(service)));
    for _ in 0..10 {
        assert_eq!(service.clone().oneshot(get("/")).await.unwrap().status(), 503);
    }
    assert_eq!((drain(&outer).await, drain(&inner).await), (3, 3));
}

#[tokio::test]
async fn a_panic_further_in_has_run() {
    let limits = once(3);
    let inner = tower::service_fn(|_: Request<String>| async {
        std::future::ready(()).await;
        panic!("on purpose") as Result<Response<String>, Infallible>
    });
    let service = limits.layer(inner);
    assert!(tokio::spawn(service.oneshot(get("/"))).await.unwrap_err().is_panic());
    assert_eq!(drain(&limits).await, 2);
}

/// A future that counts how often it was dropped and polled, and never ends.
struct Hangs(Arc<[AtomicU64; 2]>);

impl Future for Hangs {
    type Output = Result<Response<String>, Infallible>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        // ORDERING: SeqCst here and below, which a test can afford.
        self.0[0].fetch_add(1, SeqCst);
        Poll::Pending
    }
}

impl Drop for Hangs {
    fn drop(&mut self) {
        self.0[1].fetch_add(1, SeqCst);
    }
}

#[tokio::test]
async fn what_is_dropped_before_it_was_polled_is_given_back() {
    let counts = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let count = Arc::clone(&counts);
    let limits = RateLimitLayer::builder()
        .policy(Policy::new("p", Quota::once(3)))
        .policy(Policy::new("second", Quota::once(5)))
        .build()
        .unwrap();
    let mut service =
        limits.layer(tower::service_fn(move |_: Request<String>| Hangs(Arc::clone(&count))));
    for _ in 0..10 {
        drop(service.ready().await.unwrap().call(get("/")));
    }
    assert_eq!([0, 1].map(|it: usize| counts[it].load(SeqCst)), [0, 10]);
    let mut call = Box::pin(service.ready().await.unwrap().call(get("/")));
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(call.as_mut().poll(&mut context).is_pending());
    drop(call);
    assert_eq!([0, 1].map(|it: usize| counts[it].load(SeqCst)), [1, 11]);
    assert_eq!(drain(&limits).await, 2);
}
