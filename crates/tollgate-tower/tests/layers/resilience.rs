//! Breaker, timeouts and fallback: each alone, and with the other layers.

mod breaker;
mod breaker_outcome;
mod contract;
mod fallback;
mod model;
mod timeout;
mod wire;

use crate::concurrency::{Fed, Head, Inner, Sender, limited, request};
use http::{Request, Response};
use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::sync::mpsc;
use tollgate::{Breaker, BreakerBuilder, Clock, ManualClock, Trip};
use tollgate_tower::{
    BreakerLayer, RefusedBy,
    breaker::{BreakerLayerBuilder, BreakerService},
};
use tower::{Layer, Service, ServiceExt};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

type Senders = mpsc::UnboundedReceiver<Sender>;

/// A service behind a breaker on a manual clock. It opens at the second failure in a row, for 5 s,
/// and closes after one trial.
struct Scene {
    hand: ManualClock,
    breaker: Breaker,
    service: BreakerService<Inner>,
    senders: Senders,
}

fn settings(clock: Clock) -> BreakerBuilder {
    let settings = Breaker::builder().trip(Trip::consecutive(2)).trials(1).jitter(0).clock(clock);
    settings.open_for(5 * SECOND)
}

fn scene(change: impl FnOnce(BreakerLayerBuilder) -> BreakerLayerBuilder) -> Scene {
    let (clock, hand) = Clock::manual();
    let breaker = settings(clock).build().unwrap();
    let layer = change(BreakerLayer::builder(breaker.clone())).build().unwrap();
    let (service, senders) = limited(&layer);
    Scene { hand, breaker, service, senders }
}

impl Scene {
    /// Opens the breaker.
    async fn open(&self) {
        for _ in 0..2 {
            let _failed = once(&self.service, answered(head(500, &[]))).await.unwrap();
        }
        assert_eq!(self.breaker.state().name(), "open");
    }

    /// Returns how many calls reached the target since the last time.
    fn calls(&mut self) -> usize {
        std::iter::from_fn(|| self.senders.try_recv().ok()).count()
    }
}

/// A request that the inner service answers with this head.
fn answered(head: Response<()>) -> Request<String> {
    let mut request = request("/");
    request.extensions_mut().insert(Head(head));
    request
}

fn head(status: u16, fields: &[(&'static str, &str)]) -> Response<()> {
    let mut response = Response::builder().status(status);
    for (name, value) in fields {
        response = response.header(*name, *value);
    }
    response.body(()).unwrap()
}

async fn once<S: Service<Request<String>> + Clone>(
    service: &S,
    request: Request<String>,
) -> Result<S::Response, S::Error> {
    service.clone().oneshot(request).await
}

/// Makes a service ready and calls it.
async fn call<S: Service<Request<String>>>(
    service: &mut S,
    request: Request<String>,
) -> Pin<Box<S::Future>> {
    let Ok(service) = service.ready().await else { panic!("it does not get ready") };
    Box::pin(service.call(request))
}

fn poll_once<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns which part refused a call, and for how long.
fn refused_by<B>(response: &Response<B>) -> Option<(&'static str, Option<Duration>)> {
    let refused = response.extensions().get::<RefusedBy>();
    refused.map(|refused| (refused.part(), refused.retry_after()))
}
