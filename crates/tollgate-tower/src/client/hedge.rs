//! The layer that sends slow calls a second time.

mod builder;
mod future;

pub use builder::HedgeLayerBuilder;
pub use future::HedgeFuture;

use super::{CloneBody, Repeat};
use crate::{Deadline, Info, classify::Classify};
use http::{Request, Response};
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};
use tollgate::{
    hedge::{HedgeCounts, HedgePolicy},
    observe::{Collector, Samples, WeakCollector},
};
use tower_layer::Layer;
use tower_service::Service;

/// Sends slow calls a second time, and returns the first success. Clones, and all services that it
/// makes, share one [`HedgePolicy`].
///
/// | where | what happens |
/// |---|---|
/// | `poll_ready` | that of the inner service, and nothing else |
/// | `call` | calls the service that was ready, and keeps a clone of the request |
/// | the delay of the policy is over | a clone of the service becomes ready and is called with the clone |
/// | a response whose outcome is [`Success`](tollgate::CallOutcome::Success) | is returned; the other attempts are dropped first |
/// | another response, or an error | waits for the other attempts; if none succeeds, that of the first is returned as it came |
/// | the future is dropped | drops all attempts |
///
/// Which calls are hedged:
///
/// | call | hedged |
/// |---|---|
/// | GET, HEAD, PUT, DELETE, OPTIONS, TRACE, or with an `Idempotency-Key` | yes |
/// | other methods, and so all of gRPC | if [`hedge_if`](HedgeLayerBuilder::hedge_if) says so |
/// | whose body is not `Clone` | as far as [`clone_with`](HedgeLayerBuilder::clone_with) clones it: two attempts run at once, so what one has read cannot be kept for the other. Bodies of tonic and reqwest can only be read once: hedge such calls with [`tollgate::hedge()`] |
/// | whose hedge would start at or after its [`Deadline`](crate::Deadline) | no |
///
/// The server does the work of both attempts. A loser that is dropped resets its stream in HTTP/2; in
/// HTTP/1 it costs its connection. Hedges of gRPC have `grpc-previous-rpc-attempts`. Timers need a
/// tokio runtime; without one nothing is hedged.
///
/// Put it inside of [`RetryLayer`](super::RetryLayer), with its budget
/// ([`shared_budget`](tollgate::hedge::HedgePolicyBuilder::shared_budget)), and outside of all
/// layers that count attempts: pacing, a breaker, a concurrency limit. Name the last two to the
/// policy.
///
/// # Examples
///
/// ```
/// use tollgate::{Breaker, hedge::HedgePolicy};
/// use tollgate_tower::client::{HedgeLayer, RetryLayer};
/// use tower_layer::Layer;
/// # let client = ();
///
/// let retry = RetryLayer::builder().build()?;
/// let breaker = Breaker::builder().build()?;
/// let policy = HedgePolicy::at_percentile(95.0)
///     .shared_budget(retry.budget().clone())
///     .breaker(&breaker)
///     .build()?;
/// let Ok(hedge) = HedgeLayer::builder(policy).build();
/// let client = retry.layer(hedge.layer(client));
/// assert_eq!(hedge.counts().hedges, 0);
/// # let _ = client;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HedgeLayer<C = CloneBody> {
    shared: Arc<SharedHedge<C>>,
}

/// A service whose slow calls are sent a second time; made by [`HedgeLayer`].
pub struct Hedge<S, C = CloneBody> {
    inner: S,
    shared: Arc<SharedHedge<C>>,
}

type HedgeIf = Box<dyn Fn(&Info<'_>) -> bool + Send + Sync>;

/// State that all services of a layer share.
struct SharedHedge<C> {
    policy: HedgePolicy,
    repeat: C,
    hedge_if: HedgeIf,
    classify: Classify,
}

impl HedgeLayer {
    /// Starts a layer. Keep a clone of the policy to observe it.
    pub fn builder(policy: HedgePolicy) -> HedgeLayerBuilder {
        HedgeLayerBuilder::new(policy)
    }
}

impl<C> HedgeLayer<C> {
    /// Returns the policy.
    #[must_use]
    pub fn policy(&self) -> &HedgePolicy {
        &self.shared.policy
    }

    /// Returns how many calls were hedged, and why others were not.
    #[must_use]
    pub fn counts(&self) -> HedgeCounts {
        self.shared.policy.counts()
    }
}

/// Reports what its policy reports.
impl<C> Collector for HedgeLayer<C> {
    fn collect(&self, samples: &mut Samples) {
        self.shared.policy.collect(samples);
    }

    fn weak(&self) -> WeakCollector {
        self.shared.policy.weak()
    }
}

impl<S, C> Layer<S> for HedgeLayer<C> {
    type Service = Hedge<S, C>;

    fn layer(&self, inner: S) -> Hedge<S, C> {
        Hedge { inner, shared: Arc::clone(&self.shared) }
    }
}

impl<S, B, R, C> Service<Request<B>> for Hedge<S, C>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    C: Repeat<B, Spare = Request<B>>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = HedgeFuture<S, B, R, C>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if !(self.shared.hedge_if)(&Info::of(&request)) {
            return HedgeFuture::once(self.inner.call(request));
        }
        let (request, spare) = self.shared.repeat.keep(request);
        let Some(spare) = spare else { return HedgeFuture::once(self.inner.call(request)) };
        let policy = &self.shared.policy;
        let policy = match request.extensions().get::<Deadline>() {
            Some(deadline) => policy.until(deadline.on(policy.clock())),
            None => policy.clone(),
        };
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone);
        HedgeFuture::hedged(ready, (request, spare), &policy, Arc::clone(&self.shared))
    }
}

impl<C> Clone for HedgeLayer<C> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S: Clone, C> Clone for Hedge<S, C> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<C> fmt::Debug for HedgeLayer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HedgeLayer").field(&self.shared.policy).finish()
    }
}

impl<S: fmt::Debug, C> fmt::Debug for Hedge<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hedge").field("inner", &self.inner).finish_non_exhaustive()
    }
}
