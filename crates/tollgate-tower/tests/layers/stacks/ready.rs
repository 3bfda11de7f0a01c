//! Services that insist on being ready, are shared, or are not `Send`.

use super::{drain, get, once};
use http::{Request, Response};
use std::{
    cell::Cell,
    convert::Infallible,
    future::{Ready, ready},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};
use tollgate::{Clock, Quota, store::MemoryStore};
use tollgate_tower::{Policy, RateLimitLayer};
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt, buffer::Buffer, limit::ConcurrencyLimit,
    spawn_ready::SpawnReady,
};

/// Panics if it is called without being ready; clones are not ready. Counts both.
#[derive(Default)]
struct Strict {
    is_ready: bool,
    /// How many became ready, were called, and were dropped ready.
    counts: Arc<[AtomicU64; 3]>,
}

impl Strict {
    // ORDERING: SeqCst here and below, which a test can afford.
    fn counts(counts: &[AtomicU64; 3]) -> [u64; 3] {
        [0, 1, 2].map(|place: usize| counts[place].load(SeqCst))
    }
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { is_ready: false, counts: Arc::clone(&self.counts) }
    }
}

impl Drop for Strict {
    fn drop(&mut self) {
        self.counts[2].fetch_add(u64::from(self.is_ready), SeqCst);
    }
}

impl Service<Request<String>> for Strict {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if !std::mem::replace(&mut self.is_ready, true) {
            self.counts[0].fetch_add(1, SeqCst);
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called without being ready");
        self.counts[1].fetch_add(1, SeqCst);
        ready(Ok(Response::new(String::new())))
    }
}

#[tokio::test]
async fn permits_are_taken_by_calls_and_not_by_being_ready() {
    let limits = once(3);
    let mut service = limits.layer(Strict::default());
    for _ in 0..10 {
        service.ready().await.unwrap();
    }
    assert_eq!(drain(&limits).await, 3);
}

#[tokio::test]
async fn what_was_ready_is_what_is_called() {
    let strict = Strict::default();
    let counts = Arc::clone(&strict.counts);
    let mut service = once(3).layer(strict);
    let mut passed = 0;
    for _ in 0..10 {
        passed +=
            u64::from(service.ready().await.unwrap().call(get("/")).await.unwrap().status() == 200);
    }
    assert_eq!(passed, 3);
    // A refused request drops the service that was ready.
    assert_eq!(Strict::counts(&counts), [10, 3, 7]);
}

#[tokio::test(start_paused = true)]
async fn what_was_ready_is_held_by_who_waits() {
    let strict = Strict::default();
    let counts = Arc::clone(&strict.counts);
    let store = MemoryStore::builder().clock(Clock::tokio()).build().unwrap();
    let limits = RateLimitLayer::builder()
        .memory(store)
        .policy(Policy::new("p", Quota::per_second(10).burst(1)))
        .wait_up_to(Duration::from_secs(10))
        .build()
        .unwrap();
    let mut service = limits.layer(strict);
    let mut calls = Vec::new();
    for _ in 0..5 {
        calls.push(tokio::spawn(service.ready().await.unwrap().call(get("/"))));
    }
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
    assert_eq!(Strict::counts(&counts), [5, 5, 0]);
    // A request that is dropped while it waits drops the service.
    drop(service.ready().await.unwrap().call(get("/")));
    assert_eq!(Strict::counts(&counts), [6, 5, 1]);
}

#[tokio::test]
async fn a_store_afar_is_asked_with_what_was_ready() {
    let strict = Strict::default();
    let counts = Arc::clone(&strict.counts);
    let limits = RateLimitLayer::builder()
        .store(MemoryStore::new())
        .policy(Policy::new("p", Quota::once(3)))
        .build()
        .unwrap();
    let mut service = limits.layer(strict);
    for number in 0..5 {
        let response = service.ready().await.unwrap().call(get("/")).await.unwrap();
        assert_eq!(response.status(), if number < 3 { 200 } else { 429 });
    }
    assert_eq!(Strict::counts(&counts), [5, 3, 2]);
}

#[tokio::test]
async fn the_limit_of_tower_inside_and_outside() {
    // Outside: one request at a time, and each is counted.
    let limits = once(3);
    let mut outside = ConcurrencyLimit::new(limits.layer(Strict::default()), 1);
    for expected in [200, 200, 200, 429, 429] {
        let response = outside.ready().await.unwrap().call(get("/")).await.unwrap();
        assert_eq!(response.status(), expected);
    }
    // Inside: a refused request does not keep the slot.
    let inside = once(3).layer(ConcurrencyLimit::new(Strict::default(), 1));
    for expected in [200, 200, 200, 429, 429, 429] {
        assert_eq!(inside.clone().oneshot(get("/")).await.unwrap().status(), expected);
    }
    let mut inside = once(3).layer(ConcurrencyLimit::new(Strict::default(), 1));
    for expected in [200, 200, 200, 429, 429, 429] {
        let response = inside.ready().await.unwrap().call(get("/")).await.unwrap();
        assert_eq!(response.status(), expected);
    }
    // Inside, and no service is ready: no request is charged.
    let limits = once(3);
    let service = ConcurrencyLimit::new(tower::service_fn(hangs), 1);
    let mut first = limits.layer(service);
    let mut second = first.clone();
    let hanging = first.ready().await.unwrap().call(get("/"));
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(second.poll_ready(&mut context).is_pending());
    drop(hanging);
    assert!(second.poll_ready(&mut context).is_ready());
    assert_eq!(drain(&limits).await, 3);
}

async fn hangs(_: Request<String>) -> Result<Response<String>, Infallible> {
    std::future::pending().await
}

#[tokio::test]
async fn buffers_and_spawned_readiness_fit_on_both_sides() {
    let limits = once(4);
    let inner = Buffer::new(Strict::default(), 2);
    let mut service = Buffer::new(limits.layer(inner), 2);
    for expected in [200, 200, 200, 200, 429] {
        let response = service.ready().await.unwrap().call(get("/")).await.unwrap();
        assert_eq!(response.status(), expected);
    }
    let mut service = SpawnReady::new(once(2).layer(Strict::default()));
    for expected in [200, 200, 429, 429] {
        let response = service.ready().await.unwrap().call(get("/")).await.unwrap();
        assert_eq!(response.status(), expected);
    }
    let service = once(2).layer(ServiceBuilder::new().boxed_clone().service(Strict::default()));
    for expected in [200, 200, 429] {
        let response = service.clone().boxed_clone().oneshot(get("/")).await.unwrap();
        assert_eq!(response.status(), expected);
    }
}

#[tokio::test]
async fn a_service_that_is_not_send_is_limited_too() {
    let ran = Rc::new(Cell::new(0));
    let counts = Rc::clone(&ran);
    let inner = tower::service_fn(move |request: Request<Rc<str>>| {
        let counts = Rc::clone(&counts);
        async move {
            counts.set(counts.get() + request.body().len());
            Ok::<_, Infallible>(Response::new(Rc::new(())))
        }
    });
    let limits = once(2);
    let service = limits.layer(inner);
    for expected in [200, 200, 429] {
        let request = Request::new(Rc::from("four"));
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), expected);
    }
    assert_eq!(ran.get(), 8);
}

#[tokio::test]
async fn a_service_that_is_not_clone_is_limited_behind_a_buffer() {
    struct Alone(Strict);
    impl Service<Request<String>> for Alone {
        type Response = Response<String>;
        type Error = Infallible;
        type Future = Ready<Result<Response<String>, Infallible>>;
        fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            self.0.poll_ready(context)
        }
        fn call(&mut self, request: Request<String>) -> Self::Future {
            self.0.call(request)
        }
    }
    let service = once(1).layer(Buffer::new(Alone(Strict::default()), 1));
    assert_eq!(service.clone().oneshot(get("/")).await.unwrap().status(), 200);
    assert_eq!(service.clone().oneshot(get("/")).await.unwrap().status(), 429);
}

#[tokio::test]
async fn errors_of_the_inner_service_stay_as_they_are() {
    #[derive(Debug, PartialEq)]
    struct Own(u8);
    let inner =
        tower::service_fn(|_: Request<String>| async { Err::<Response<String>, _>(Own(7)) });
    let limits = once(5);
    let error: Own = limits.layer(inner).oneshot(get("/")).await.unwrap_err();
    assert_eq!(error, Own(7));
    assert_eq!(drain(&limits).await, 4, "it ran");
}
