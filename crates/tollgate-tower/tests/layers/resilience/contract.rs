//! The contract of all layers around a call: readiness, clones, errors, drops.

use super::*;
use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt;
use tollgate::{hedge::HedgePolicy, self_throttle::SelfThrottle};
use tollgate_tower::{
    FallbackLayer, TimeoutLayer,
    client::{HedgeLayer, SelfThrottleLayer},
};
use tower::limit::ConcurrencyLimitLayer;

fn breaker() -> BreakerLayer {
    BreakerLayer::builder(Breaker::builder().build().unwrap()).until_body().build().unwrap()
}

fn timeout() -> TimeoutLayer {
    let bounds = TimeoutLayer::builder().head(SECOND).body_idle(SECOND).total(9 * SECOND);
    bounds.clock(Clock::tokio()).build().unwrap()
}

fn fallback() -> FallbackLayer {
    let value = Response::new(Bytes::from_static(b"instead"));
    FallbackLayer::value(value).when(|_| false).when_error(|_: &String| false).build().unwrap()
}

fn hedge() -> HedgeLayer {
    let policy = HedgePolicy::after(SECOND).clock(Clock::tokio()).build().unwrap();
    HedgeLayer::builder(policy).build().unwrap()
}

fn self_throttle() -> SelfThrottleLayer {
    SelfThrottleLayer::builder(SelfThrottle::builder().build().unwrap()).build().unwrap()
}

/// The inner service panics if it is called without having been polled ready itself.
async fn calls_what_is_ready<L>(layer: L)
where
    L: Layer<Inner>,
    L::Service: Service<Request<String>, Response: Sized, Error = String> + Clone,
{
    let (mut service, mut senders) = limited(&layer);
    service.ready().await.unwrap();
    // A clone of a ready service is not ready.
    let mut clone = service.clone();
    assert!(clone.ready().await.unwrap().call(request("/")).await.is_ok());
    assert!(service.call(request("/")).await.is_ok());
    for _ in 0..2 {
        assert!(service.ready().await.unwrap().call(request("/")).await.is_ok());
    }
    assert_eq!(
        service.ready().await.unwrap().call(request("/fails")).await.err().unwrap(),
        "it failed"
    );
    assert_eq!(std::iter::from_fn(|| senders.try_recv().ok()).count(), 5);
}

#[tokio::test]
async fn the_service_that_was_polled_ready_is_called_and_errors_stay() {
    calls_what_is_ready(breaker()).await;
    calls_what_is_ready(timeout()).await;
    calls_what_is_ready(fallback()).await;
    calls_what_is_ready(hedge()).await;
    calls_what_is_ready(self_throttle()).await;
}

/// Each clone waits until its inner service is ready.
async fn waits_until_it_is_ready<L, B>(layer: L)
where
    L: Layer<tower::limit::ConcurrencyLimit<Inner>>,
    L::Service: Service<Request<String>, Response = Response<B>, Error = String> + Clone,
{
    let (inner, _senders) = limited(&ConcurrencyLimitLayer::new(1));
    let mut service = layer.layer(inner);
    let mut other = service.clone();
    let running = call(&mut service, request("/hangs")).await;
    let mut readying = Box::pin(other.ready());
    assert!(poll_once(&mut readying).is_pending(), "the slot is taken");
    drop(running);
    assert!(poll_once(&mut readying).is_ready(), "a call that is dropped frees it");
}

#[tokio::test]
async fn readiness_is_that_of_the_inner_service() {
    waits_until_it_is_ready(breaker()).await;
    waits_until_it_is_ready(timeout()).await;
    waits_until_it_is_ready(fallback()).await;
    waits_until_it_is_ready(hedge()).await;
    waits_until_it_is_ready(self_throttle()).await;
}

/// The sender of a body notices when the inner future, or its body, is gone.
async fn drops_what_is_dropped<L, B>(layer: L)
where
    L: Layer<Inner>,
    L::Service: Service<Request<String>, Response = Response<B>, Error = String> + Clone,
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::fmt::Debug,
{
    let (mut service, mut senders) = limited(&layer);
    for point in ["before its first poll", "while it runs", "with its body unread", "in its body"] {
        let path = if point == "while it runs" { "/hangs" } else { "/" };
        let mut running = call(&mut service, request(path)).await;
        let sender = senders.recv().await.unwrap();
        assert!(!sender.is_closed(), "{point}");
        match point {
            "before its first poll" => drop(running),
            "while it runs" => {
                assert!(poll_once(&mut running).is_pending());
                drop(running);
            }
            _ => {
                let mut response = running.await.unwrap();
                sender.send(Ok("half")).unwrap();
                if point == "in its body" {
                    let frame = response.body_mut().frame().await.unwrap().unwrap();
                    assert_eq!(frame.into_data().unwrap(), "half");
                }
                assert!(!sender.is_closed(), "{point}");
                drop(response);
            }
        }
        assert!(sender.is_closed(), "{point}: the inner call is gone");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_at_any_point_drops_the_inner_one() {
    drops_what_is_dropped(breaker()).await;
    drops_what_is_dropped(timeout()).await;
    drops_what_is_dropped(fallback()).await;
    drops_what_is_dropped(hedge()).await;
    drops_what_is_dropped(self_throttle()).await;
}

/// Bodies, trailers and heads come through as they are.
async fn leaves_responses_alone<L, B>(layer: L)
where
    L: Layer<Inner>,
    L::Service: Service<Request<String>, Response = Response<B>, Error = String> + Clone,
    B: Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let (service, mut senders) = limited(&layer);
    let head = head(206, &[("x-some", "value")]);
    let response = once(&service, answered(head)).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["x-some"]),
        (206, &"value".parse().unwrap())
    );
    assert_eq!(response.headers().len(), 1, "no header is added");
    let sender = senders.recv().await.unwrap();
    for text in ["one", "two"] {
        sender.send(Ok(text)).unwrap();
    }
    drop(sender);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "onetwo");
}

#[tokio::test(start_paused = true)]
async fn responses_come_through_as_they_are() {
    leaves_responses_alone(breaker()).await;
    leaves_responses_alone(timeout()).await;
    leaves_responses_alone(fallback()).await;
    leaves_responses_alone(hedge()).await;
    leaves_responses_alone(self_throttle()).await;
}

#[test]
fn layers_services_and_futures_can_be_sent() {
    fn is_sent<T: Send + Sync>() {}
    fn is_future<F: Send>() {}
    type Call<S> = <S as Service<Request<String>>>::Future;
    is_sent::<BreakerLayer>();
    is_sent::<TimeoutLayer>();
    is_sent::<FallbackLayer>();
    is_sent::<HedgeLayer>();
    is_sent::<SelfThrottleLayer>();
    is_future::<Call<<BreakerLayer as Layer<Inner>>::Service>>();
    is_future::<Call<<TimeoutLayer as Layer<Inner>>::Service>>();
    is_future::<Call<<FallbackLayer as Layer<Inner>>::Service>>();
    is_future::<Call<<HedgeLayer as Layer<Inner>>::Service>>();
    is_future::<Call<<SelfThrottleLayer as Layer<Inner>>::Service>>();
    is_sent::<tollgate_tower::breaker::BreakerBody<String>>();
    is_sent::<tollgate_tower::fallback::FallbackBody<String>>();
    is_sent::<tollgate_tower::timeout::TimeoutBody<String>>();
}
