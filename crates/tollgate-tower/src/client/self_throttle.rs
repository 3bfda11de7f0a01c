//! The layer that sends less to a server that refuses for overload.

mod builder;
mod future;

pub use builder::SelfThrottleLayerBuilder;
pub use future::{SelfThrottleBody, SelfThrottleFuture};

use crate::{
    Info, RefusedBy, classify::Classify, concurrency::PrioritySource, refusal::RefusalFormat,
};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};
use tollgate::{
    observe::{Collector, Samples, WeakCollector},
    self_throttle::{SelfThrottle, Throttled},
};
use tower_layer::Layer;
use tower_service::Service;

/// Refuses a share of the calls to a server that refuses many of them. Clones, and all services that
/// it makes, share one [`SelfThrottle`].
///
/// | where | what happens |
/// |---|---|
/// | `poll_ready` | that of the inner service, and nothing else |
/// | `call` | lets the call pass, or refuses it with 503 (UNAVAILABLE in gRPC) at random |
/// | the head of the response | counts: accepted, unless its outcome is [`Overload`](tollgate::CallOutcome::Overload) |
/// | an error of the inner service | counts as refused for overload ([`on_error`](SelfThrottleLayerBuilder::on_error)); the error stays as it is |
/// | the future is dropped | the call counts for nothing |
///
/// A refusal is a response with [`NotRun`](crate::NotRun) and [`RefusedBy`] in its extensions. It
/// names no time, so [`RetryLayer`](super::RetryLayer) does not repeat it: the server would refuse
/// it. Outcomes are those of [`AdaptiveLayer`](crate::AdaptiveLayer), for event streams and gRPC,
/// too; a gRPC status that comes after messages is not seen, as the server has accepted such a
/// call. Refusals of layers further in count for nothing.
///
/// The priority of a call is what [`priority_by`](SelfThrottleLayerBuilder::priority_by) says, else a
/// [`Priority`](tollgate::Priority) in the extensions of the request, else normal.
///
/// Put it inside of [`RetryLayer`](super::RetryLayer) and [`HedgeLayer`](super::HedgeLayer), so that
/// each attempt counts, and outside of everything that costs something: pacing, a breaker, a
/// concurrency limit.
///
/// # Examples
///
/// ```
/// use tollgate::{Priority, self_throttle::SelfThrottle};
/// use tollgate_tower::client::SelfThrottleLayer;
/// use tower_layer::Layer;
/// # let client = ();
///
/// let throttle = SelfThrottle::builder().build()?;
/// let Ok(layer) = SelfThrottleLayer::builder(throttle.clone())
///     .priority_by(|info| info.uri().path().starts_with("/pay").then_some(Priority::CRITICAL))
///     .build();
/// let client = layer.layer(client);
/// assert_eq!(throttle.refusal_probability(Priority::NORMAL), 0.0); // the clone is the handle
/// # let _ = client;
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone)]
#[doc(alias = "adaptive throttling")]
#[doc(alias = "admission control")]
pub struct SelfThrottleLayer {
    shared: Arc<SharedThrottle>,
}

/// A service whose client throttles itself; made by [`SelfThrottleLayer`].
#[derive(Clone)]
pub struct SelfThrottleService<S> {
    inner: S,
    shared: Arc<SharedThrottle>,
}

/// State that all services of a layer share.
struct SharedThrottle {
    throttle: SelfThrottle,
    priority: PrioritySource,
    classify: Classify,
    refusals: RefusalFormat,
}

impl SelfThrottleLayer {
    /// Starts a layer. Keep a clone of the throttle to observe it.
    pub fn builder(throttle: SelfThrottle) -> SelfThrottleLayerBuilder {
        SelfThrottleLayerBuilder::new(throttle)
    }

    /// Returns the throttle.
    #[must_use]
    pub fn throttle(&self) -> &SelfThrottle {
        &self.shared.throttle
    }
}

impl SharedThrottle {
    fn refusal(&self, throttled: &Throttled, info: &Info<'_>) -> Response<Bytes> {
        tracing::trace!(%throttled, "call refused");
        let why = "the server is overloaded, so this client sends it fewer calls";
        let refused = RefusedBy::new("self-throttle", why, None);
        self.refusals.write_unavailable(refused, self.throttle.clock(), info)
    }
}

/// Reports what its throttle reports.
impl Collector for SelfThrottleLayer {
    fn collect(&self, samples: &mut Samples) {
        self.shared.throttle.collect(samples);
    }

    fn weak(&self) -> WeakCollector {
        self.shared.throttle.weak()
    }
}

impl<S> Layer<S> for SelfThrottleLayer {
    type Service = SelfThrottleService<S>;

    fn layer(&self, inner: S) -> SelfThrottleService<S> {
        SelfThrottleService { inner, shared: Arc::clone(&self.shared) }
    }
}

impl<S, B, R> Service<Request<B>> for SelfThrottleService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    S::Error: 'static,
    R: Body,
{
    type Response = Response<SelfThrottleBody<R>>;
    type Error = S::Error;
    type Future = SelfThrottleFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let info = Info::of(&request);
        match self.shared.throttle.try_pass(self.shared.priority.of(&info)) {
            Ok(pass) => {
                let future = self.inner.call(request);
                SelfThrottleFuture::runs(future, pass, Arc::clone(&self.shared))
            }
            Err(throttled) => {
                let refusal = self.shared.refusal(&throttled, &info);
                // A ready service may hold a slot of its own: other calls need it.
                self.inner = self.inner.clone();
                SelfThrottleFuture::refused(refusal)
            }
        }
    }
}

impl fmt::Debug for SelfThrottleLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SelfThrottleLayer").field(&self.shared.throttle).finish()
    }
}

impl<S: fmt::Debug> fmt::Debug for SelfThrottleService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SelfThrottleService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
