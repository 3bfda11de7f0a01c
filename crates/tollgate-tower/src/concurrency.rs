//! The layer that limits how many requests are in flight.
//!
//! A rate says how many may start; it does not say how many run. When the work behind a service
//! gets slow, the same rate piles up more and more of it. This limit counts what runs: a request
//! holds a slot from the call until the end of its response's body, since a response that is still
//! being sent still takes memory, a connection and often a place in a database.

mod body;
mod builder;
mod future;
mod shared;

pub use body::ConcurrencyBody;
pub use builder::{ConcurrencyLayerBuilder, ConcurrencyLayerError};
pub use future::ConcurrencyFuture;

use crate::{Info, Key, queued};
use future::Held;
use http::{Request, Response};
use shared::{Entered, SharedLimit, Slots};
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};
use tollgate::{Concurrency, KeyedConcurrency};
use tower_layer::Layer;
use tower_service::Service;

/// Limits how many requests are in flight. Clones, and all services that it makes, share one limit.
///
/// | where | what happens |
/// |---|---|
/// | `poll_ready` | that of the inner service, and nothing else: an idle connection holds no slot |
/// | `call` | takes a slot, or a place in the queue, or refuses |
/// | the response | keeps the slot until its body has ended, has failed or is dropped |
/// | an error of the inner service | frees the slot; the error stays as it is |
/// | the future is dropped | frees the slot, or leaves the queue |
///
/// Whoever finds no slot is refused at once: 503, or UNAVAILABLE in gRPC, where all share one limit,
/// and 429, or RESOURCE_EXHAUSTED, where each key has its own; with a
/// [`NotRun`](crate::NotRun) in the extensions of the response, so that a
/// [`RateLimitLayer`](crate::RateLimitLayer) further out gives back what it has charged. With
/// [`max_wait`](ConcurrencyLayerBuilder::max_wait) it waits in the queue of the limit instead.
///
/// A connection that is upgraded (a web socket) frees its slot when the response to the upgrade
/// ends.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Concurrency, KeyedConcurrency};
/// use tollgate_tower::{ConcurrencyLayer, Key};
///
/// let all = Concurrency::builder(200).max_waiting(50).build()?;
/// let all = ConcurrencyLayer::builder(all).max_wait(Duration::from_millis(500)).build()?;
///
/// let each = ConcurrencyLayer::keyed(KeyedConcurrency::new(4)?, Key::peer()).build()?;
/// # let _ = (all, each);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ConcurrencyLayer {
    shared: Arc<SharedLimit>,
}

impl ConcurrencyLayer {
    /// Starts a layer with one limit for all requests. Keep a clone of the limit to watch it, to
    /// change it, or to close it.
    pub fn builder(limit: Concurrency) -> ConcurrencyLayerBuilder {
        ConcurrencyLayerBuilder::new(Slots::All(limit))
    }

    /// Starts a layer with a limit for each key. Whoever has its share is told so with 429.
    pub fn keyed(limit: KeyedConcurrency<[u8]>, key: Key) -> ConcurrencyLayerBuilder {
        ConcurrencyLayerBuilder::new(Slots::Each(limit, key))
    }
}

impl<S> Layer<S> for ConcurrencyLayer {
    type Service = ConcurrencyLimit<S>;

    fn layer(&self, inner: S) -> ConcurrencyLimit<S> {
        ConcurrencyLimit { inner, shared: Arc::clone(&self.shared) }
    }
}

impl fmt::Debug for ConcurrencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConcurrencyLayer").field(&self.shared.slots).finish()
    }
}

/// A service in which only so many requests are at once; made by [`ConcurrencyLayer`].
#[derive(Clone)]
pub struct ConcurrencyLimit<S> {
    inner: S,
    shared: Arc<SharedLimit>,
}

impl<S, B, R> Service<Request<B>> for ConcurrencyLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Response = Response<ConcurrencyBody<R>>;
    type Error = S::Error;
    type Future = ConcurrencyFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (is_grpc, entered) = {
            let info = Info::of(&request);
            (info.is_grpc(), self.shared.enter(&info))
        };
        match entered {
            Entered::Inside(permit) => {
                queued::pass(request.extensions());
                ConcurrencyFuture::runs(self.inner.call(request), permit)
            }
            Entered::Refused(why) => {
                // What it holds in readiness is for others.
                drop(self.take_ready());
                ConcurrencyFuture::refused(self.shared.refusal(why, is_grpc))
            }
            Entered::Waits(waiting) => {
                let service = self.take_ready();
                let shared = Arc::clone(&self.shared);
                ConcurrencyFuture::waits(waiting, Held { shared, service, request, is_grpc })
            }
        }
    }
}

impl<S: Clone> ConcurrencyLimit<S> {
    /// Takes out the service that was polled ready, and leaves another one.
    fn take_ready(&mut self) -> S {
        let other = self.inner.clone();
        std::mem::replace(&mut self.inner, other)
    }
}

impl<S: fmt::Debug> fmt::Debug for ConcurrencyLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConcurrencyLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}
