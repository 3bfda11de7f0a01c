//! The layers that limit how many requests are in flight: with a fixed limit, or one that adapts.
//!
//! A rate limits how many requests start, not how many run. When the work behind a service gets
//! slow, the same rate accumulates more and more of it. This limit counts running requests: a
//! request holds a slot from the call until the end of its response's body, since a response that
//! is still being sent still takes memory, a connection and often a database connection.
//!
//! `slot.rs` has the kinds of slots, `shared.rs` decides, `refusal.rs` writes the refusals;
//! `priority.rs`, `shed.rs` and `recent.rs` each hold a part of the decision.

mod adaptive;
mod builder;
mod error;
mod future;
mod handle;
mod priority;
mod recent;
mod refusal;
mod shared;
mod shed;
mod slot;

pub use adaptive::{AdaptiveLayer, AdaptiveLayerBuilder};
pub use builder::ConcurrencyLayerBuilder;
pub use error::ConcurrencyLayerError;
pub use future::ConcurrencyFuture;
pub(crate) use priority::PrioritySource;
pub use recent::Degradation;
pub use shed::Shedding;
pub use slot::ConcurrencyBody;

pub(crate) use handle::LimitHandle;

use crate::{Info, Key, queued};
use future::Held;
use http::{Request, Response};
use http_body::Body;
use shared::{Entered, SharedLimit};
use slot::Slots;
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};
use tollgate::{Concurrency, KeyedConcurrency};
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
/// A request that finds no slot is refused at once: with 503 (UNAVAILABLE in gRPC) where all share
/// one limit, and with 429 (RESOURCE_EXHAUSTED) where each key has its own. The response has a
/// [`NotRun`](crate::NotRun) in its extensions, so that a
/// [`RateLimitLayer`](crate::RateLimitLayer) further out gives back what it has charged. With
/// [`max_wait`](ConcurrencyLayerBuilder::max_wait) the request waits in the queue of the limit
/// instead. For a limit that finds its own value, see [`AdaptiveLayer`].
///
/// A connection that is upgraded (a web socket) frees its slot when the response to the upgrade
/// ends.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Concurrency, KeyedConcurrency, observe::Health};
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
    /// Starts a layer with one limit for all requests. Keep a clone of the limit to observe it, to
    /// change it, or to close it.
    pub fn builder(limit: Concurrency) -> ConcurrencyLayerBuilder {
        ConcurrencyLayerBuilder::new(Slots::All(limit))
    }

    /// Starts a layer with a limit for each key. A key whose share is all in flight gets 429.
    pub fn keyed(limit: KeyedConcurrency<[u8]>, key: Key) -> ConcurrencyLayerBuilder {
        ConcurrencyLayerBuilder::new(Slots::Each(limit, key))
    }
}

/// A service with a limited number of requests in flight; made by [`ConcurrencyLayer`] or
/// [`AdaptiveLayer`].
#[derive(Clone)]
pub struct ConcurrencyLimit<S> {
    inner: S,
    shared: Arc<SharedLimit>,
}

impl<S, B, R> Service<Request<B>> for ConcurrencyLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: Body,
{
    type Response = Response<ConcurrencyBody<R>>;
    type Error = S::Error;
    type Future = ConcurrencyFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.shared.enter(&Info::of(&request)) {
            Entered::Inside(slot) => {
                queued::pass(request.extensions());
                let reads = self.shared.reads_responses();
                let shared = reads.then(|| Arc::clone(&self.shared));
                ConcurrencyFuture::runs(self.inner.call(request), slot, shared)
            }
            Entered::Refused(why) => {
                // A ready service may hold a slot of its own: other calls need it.
                drop(self.take_ready());
                ConcurrencyFuture::refused(self.shared.refusal(why, &Info::of(&request)))
            }
            Entered::Waits(waiting) => {
                let service = self.take_ready();
                let shared = Arc::clone(&self.shared);
                ConcurrencyFuture::waits(waiting, Held { shared, service, request })
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
