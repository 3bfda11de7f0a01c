//! Costs that a service reports while it works, or while the body of its response is sent.

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use std::{
    convert::Infallible,
    future::Future,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};
use tollgate::{
    Algorithm, Clock, Quota,
    store::{self, Demand, MemoryStore, Store},
};
use tollgate_tower::{Charge, Mode, Policy, RateLimitLayer, Settle, Usage};
use tower::{Service, ServiceExt};
use tower_layer::Layer;

const ESTIMATE: u64 = 20;

/// A body that reports a cost with each of its frames.
struct Talk {
    usage: Usage,
    frames: Vec<u64>,
}

impl Body for Talk {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = if self.frames.is_empty() { None } else { Some(self.frames.remove(0)) };
        Poll::Ready(next.map(|tokens| {
            if tokens > 0 {
                self.usage.add(tokens);
            }
            Ok(Frame::data(Bytes::from_static(b"word ")))
        }))
    }
}

fn layer(store: &MemoryStore) -> RateLimitLayer {
    let policy = Policy::new("tokens", Quota::once(100)).cost(ESTIMATE).settle(Settle::reported());
    RateLimitLayer::builder().memory(store.clone()).policy(policy).build().unwrap()
}

fn memory() -> MemoryStore {
    MemoryStore::builder().clock(Clock::manual().0).build().unwrap()
}

/// Returns the remaining permits of the shared key, as the store knows them.
async fn left(store: &MemoryStore, algorithm: Algorithm) -> u64 {
    let mut key = tollgate_tower::key::KeyBytes::new();
    let info = Request::new(());
    let _found = tollgate_tower::Key::global().find(&tollgate_tower::Info::of(&info), &mut key);
    let quota = if algorithm == Algorithm::Gcra { Quota::once(100) } else { Quota::per_day(100) };
    let policy = store::Policy::with_algorithm("tokens", quota, algorithm).unwrap();
    store.peek(&mut [Demand::new(&policy, key.as_bytes(), 0)]).await.unwrap().remaining()
}

/// A service that reports a cost at once, and then with the frames of its response.
fn talks(
    first: Option<u64>,
    frames: &'static [u64],
) -> impl Service<
    Request<()>,
    Response = Response<Talk>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<Talk>, Infallible>>,
> + Clone {
    tower::service_fn(move |request: Request<()>| async move {
        let usage = request.extensions().get::<Usage>().unwrap().clone();
        if let Some(first) = first {
            usage.set(first);
        }
        Ok(Response::new(Talk { usage, frames: frames.to_vec() }))
    })
}

#[tokio::test]
async fn what_is_reported_until_the_end_of_the_body_is_paid() {
    // the cost reported at once, with each frame, and the resulting cost
    for (first, frames, expected) in [
        (None, &[1, 2, 3][..], 6),
        (Some(5), &[0, 7], 12),
        (Some(0), &[0], 0),
        (None, &[0, 0], ESTIMATE),
        (None, &[], ESTIMATE),
        (Some(30), &[12], 42),
        (Some(90), &[30], 100),
    ] {
        let store = memory();
        let service = layer(&store).layer(talks(first, frames));
        let response = service.oneshot(Request::new(())).await.unwrap();
        assert_eq!(left(&store, Algorithm::Gcra).await, 100 - ESTIMATE, "{first:?} {frames:?}");
        let words = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(words.len(), 5 * frames.len());
        let left = left(&store, Algorithm::Gcra).await;
        assert_eq!(left, 100 - expected, "{first:?} {frames:?}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_pays_what_was_reported_by_then() {
    for (frames, read, expected) in
        [(&[4, 4, 4][..], 1, 4), (&[4, 4, 4], 2, 8), (&[4, 4], 0, ESTIMATE), (&[0, 9], 1, ESTIMATE)]
    {
        let store = memory();
        let service = layer(&store).layer(talks(None, frames));
        let mut body = service.oneshot(Request::new(())).await.unwrap().into_body();
        for _ in 0..read {
            body.frame().await.unwrap().unwrap();
        }
        drop(body);
        assert_eq!(left(&store, Algorithm::Gcra).await, 100 - expected, "{frames:?} {read}");
    }
}

/// The rest of the service's use is unknown: the estimate stays, as the minimum.
#[tokio::test]
async fn a_request_that_is_cut_off_pays_its_estimate_or_more() {
    for (reported, expected) in [(None, ESTIMATE), (Some(3), ESTIMATE), (Some(33), 33)] {
        let store = memory();
        let service = tower::service_fn(move |request: Request<()>| async move {
            if let Some(reported) = reported {
                request.extensions().get::<Usage>().unwrap().set(reported);
            }
            std::future::pending::<Result<Response<Talk>, Infallible>>().await
        });
        let mut service = layer(&store).layer(service);
        {
            let mut future = pin!(service.call(Request::new(())));
            assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert_eq!(left(&store, Algorithm::Gcra).await, 100 - expected, "{reported:?}");
    }
}

#[tokio::test]
async fn it_goes_with_every_algorithm_mode_and_charge() {
    for algorithm in [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingCounter] {
        for (mode, charge, expected) in [
            (Mode::Enforce, Charge::always(), 6),
            (Mode::Shadow, Charge::always(), 6),
            (Mode::Enforce, Charge::on_failure(), 0),
            (Mode::Enforce, Charge::unless_server_error(), 6),
        ] {
            let store = memory();
            let quota =
                if algorithm == Algorithm::Gcra { Quota::once(100) } else { Quota::per_day(100) };
            let policy = Policy::new("tokens", quota).algorithm(algorithm).cost(ESTIMATE);
            let policy = policy.settle(Settle::reported()).mode(mode).charge(charge.clone());
            let layer = RateLimitLayer::builder().memory(store.clone()).policy(policy);
            let service = layer.build().unwrap().layer(talks(None, &[6]));
            let response = service.oneshot(Request::new(())).await.unwrap();
            response.into_body().collect().await.unwrap();
            let left = left(&store, algorithm).await;
            assert_eq!(left, 100 - expected, "{algorithm} {mode:?} {charge:?}");
        }
    }
}

#[tokio::test]
async fn layers_share_one_report_and_other_policies_have_none() {
    let (outer, inner) = (memory(), memory());
    let service = layer(&inner).layer(talks(Some(7), &[]));
    let service = layer(&outer).layer(service);
    let response = service.oneshot(Request::new(())).await.unwrap();
    response.into_body().collect().await.unwrap();
    assert_eq!(left(&outer, Algorithm::Gcra).await, 93);
    assert_eq!(left(&inner, Algorithm::Gcra).await, 93);

    let plain = RateLimitLayer::builder().policy(Policy::new("p", Quota::per_second(9)));
    let service =
        plain.build().unwrap().layer(tower::service_fn(|request: Request<()>| async move {
            assert!(request.extensions().get::<Usage>().is_none());
            Ok::<_, Infallible>(Response::new(String::new()))
        }));
    assert_eq!(service.oneshot(Request::new(())).await.unwrap().status(), 200);
}

#[tokio::test]
async fn reports_add_up_and_are_bounded() {
    let store = memory();
    let service = tower::service_fn(|request: Request<()>| async move {
        let usage = request.extensions().get::<Usage>().unwrap();
        assert_eq!((usage.reported(), format!("{usage:?}")), (None, "Usage(None)".to_owned()));
        usage.add(0);
        assert_eq!(usage.reported(), Some(0));
        usage.add(3);
        usage.clone().add(4);
        assert_eq!(usage.reported(), Some(7));
        usage.set(2);
        assert_eq!(
            (usage.reported(), format!("{usage:?}")),
            (Some(2), "Usage(Some(2))".to_owned())
        );
        usage.set(u64::MAX);
        assert_eq!(usage.reported(), Some(u64::MAX - 1));
        usage.add(u64::MAX);
        assert_eq!(usage.reported(), Some(u64::MAX - 1));
        Ok::<_, Infallible>(Response::new(String::new()))
    });
    let response = layer(&store).layer(service).oneshot(Request::new(())).await;
    drop(response.unwrap());
    assert_eq!(left(&store, Algorithm::Gcra).await, 0, "as far as a debt goes");
}
