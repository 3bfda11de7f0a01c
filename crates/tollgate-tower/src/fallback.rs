//! The layer that answers when the service cannot: [`FallbackLayer`].
//!
//! `fallback/backup.rs` has the kinds of fallbacks, `fallback/future.rs` runs the call and then its
//! fallback.

mod backup;
mod builder;
mod future;

pub use backup::{Backup, BackupFuture, FallbackResponse, FallbackService};
pub use builder::{FallbackLayerBuilder, FallbackLayerError};
pub use future::FallbackFuture;

use crate::{
    RefusedBy, TimeoutError,
    body::GuardedBody,
    client::{CloneBody, counts::Count},
    observe::metric,
};
use backup::Make;
use bytes::Bytes;
use http::{Request, Response, request, response::Parts};
use std::{
    any::Any,
    fmt,
    sync::Arc,
    task::{Context, Poll},
};
use tollgate::observe::{Collector, Samples, WeakCollector};
use tower_layer::Layer;
use tower_service::Service;

/// Answers calls that fail with a fallback, marked [`Degraded`]. Clones share a counter.
///
/// | fallback | by |
/// |---|---|
/// | one response for all | [`value`](Self::value) |
/// | a response by the request and the reason | [`function`](Self::function) |
/// | the response of another service | [`service`](Self::service) |
///
/// By default it is used for every error, for every refusal of a layer further in, and for responses
/// that a [`BreakerLayer`](crate::BreakerLayer) counts as failed: 5xx except 501 and 505, 429, and their
/// relatives in gRPC.
///
/// * `poll_ready` is that of the inner service. A backup service is polled after a call has failed,
///   and each time anew: while nothing fails, it holds nothing.
/// * The failed response is dropped before the fallback starts.
/// * If a backup service fails, its error is returned instead of the first one, and its response is
///   returned whatever its status is: there is no second fallback.
/// * A future that is dropped drops the call, or the fallback.
///
/// Put it outside of all other layers: their refusals and timeouts are what it is for.
///
/// # Examples
///
/// ```
/// use bytes::Bytes;
/// use http::Response;
/// use tollgate_tower::{FallbackLayer, RefusedBy};
///
/// let empty = Response::new(Bytes::from_static(b"[]"));
/// let recommendations = FallbackLayer::value(empty).degraded_header().build()?;
///
/// let layer = FallbackLayer::function(|request, cause| {
///     let refused = cause.refused_by().map(RefusedBy::to_string).unwrap_or_default();
///     Response::new(Bytes::from(format!("{} is not available {refused}", request.uri.path())))
/// });
/// # let _ = (recommendations, layer.build()?);
/// # Ok::<(), tollgate_tower::fallback::FallbackLayerError>(())
/// ```
pub struct FallbackLayer<K = FallbackResponse> {
    shared: Arc<SharedFallback<K>>,
}

impl FallbackLayer {
    /// Starts a layer that answers with a copy of this response.
    pub fn value(response: Response<Bytes>) -> FallbackLayerBuilder {
        FallbackLayerBuilder::new(FallbackResponse(Make::Value(response)))
    }

    /// Starts a layer that answers with the response of a function. The layer clones the head of
    /// every request for it.
    pub fn function(
        make: impl Fn(&request::Parts, &FallbackCause<'_>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> FallbackLayerBuilder {
        FallbackLayerBuilder::new(FallbackResponse(Make::Function(Arc::new(make))))
    }

    /// Starts a layer that calls another service, with the same types of responses and errors.
    ///
    /// The layer clones every request for it. For bodies that are not `Clone`, see
    /// [`clone_with`](FallbackLayerBuilder::clone_with) and [`replay`](FallbackLayerBuilder::replay).
    pub fn service<T>(backup: T) -> FallbackLayerBuilder<FallbackService<T>> {
        FallbackLayerBuilder::new(FallbackService { backup, repeat: CloneBody })
    }
}

impl<K> FallbackLayer<K> {
    /// Returns how many calls were answered by the fallback.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.shared.used.get()
    }
}

/// A mark on a response (in its extensions): a [`FallbackLayer`] made it, so it may be stale or
/// incomplete, and caches further out should not keep it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degraded;

/// Why a fallback is used.
#[derive(Clone, Copy)]
pub struct FallbackCause<'a> {
    response: Option<&'a Parts>,
    error: Option<&'a dyn Any>,
}

impl<'a> FallbackCause<'a> {
    /// Returns the head of the failed response; `None` if the call ended with an error.
    #[must_use]
    pub const fn response(&self) -> Option<&'a Parts> {
        self.response
    }

    /// Returns the error; `None` if there is none, or it has another type.
    #[must_use]
    pub fn error<E: 'static>(&self) -> Option<&'a E> {
        self.error.and_then(<dyn Any>::downcast_ref)
    }

    /// Returns which layer refused the call, if one did.
    #[must_use]
    pub fn refused_by(&self) -> Option<&'a RefusedBy> {
        self.response.and_then(|head| head.extensions.get())
    }

    /// Returns which timeout ended the call, if one did.
    #[must_use]
    pub fn timeout(&self) -> Option<&'a TimeoutError> {
        self.response.and_then(|head| head.extensions.get())
    }
}

impl fmt::Debug for FallbackCause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallbackCause")
            .field("response", &self.response)
            .field("is_error", &self.error.is_some())
            .finish()
    }
}

type WhenResponse = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
/// `None` if the error has another type.
type WhenError = Arc<dyn Fn(&dyn Any) -> Option<bool> + Send + Sync>;

/// State that all services of a layer share.
struct SharedFallback<K> {
    backup: K,
    when_response: WhenResponse,
    when_error: WhenError,
    has_header: bool,
    used: Count,
}

impl<K> SharedFallback<K> {
    /// Tells whether a call that ended so is answered by the fallback.
    fn is_for(&self, cause: &FallbackCause<'_>) -> bool {
        let by_response = cause.response.is_some_and(|head| (self.when_response)(head));
        by_response || cause.error.is_some_and(|error| (self.when_error)(error).unwrap_or(true))
    }
}

impl<K: Send + Sync + 'static> Collector for FallbackLayer<K> {
    fn collect(&self, samples: &mut Samples) {
        samples.kind("fallback_layer");
        samples.count(&metric::FALLBACKS, self.used());
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.shared, |shared| Self { shared })
    }
}

impl<S, K> Layer<S> for FallbackLayer<K> {
    type Service = Fallback<S, K>;

    fn layer(&self, inner: S) -> Fallback<S, K> {
        Fallback { inner, shared: Arc::clone(&self.shared) }
    }
}

impl<K> Clone for FallbackLayer<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K> fmt::Debug for FallbackLayer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallbackLayer").field("used", &self.used()).finish_non_exhaustive()
    }
}

/// The body of a response of [`Fallback`]: that of a service, or of a response made by the layer.
pub type FallbackBody<B> = GuardedBody<B, ()>;

/// A service with a fallback; made by [`FallbackLayer`].
pub struct Fallback<S, K = FallbackResponse> {
    inner: S,
    shared: Arc<SharedFallback<K>>,
}

impl<S, B, R, K> Service<Request<B>> for Fallback<S, K>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: 'static,
    K: Backup<B, R, S::Error>,
{
    type Response = Response<FallbackBody<R>>;
    type Error = S::Error;
    type Future = FallbackFuture<S, B, R, K>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (request, kept) = self.shared.backup.keep(request);
        FallbackFuture::new(self.inner.call(request), kept, Arc::clone(&self.shared))
    }
}

impl<S: Clone, K> Clone for Fallback<S, K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<S: fmt::Debug, K> fmt::Debug for Fallback<S, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fallback").field("inner", &self.inner).finish_non_exhaustive()
    }
}
