//! The check of a breaker without a pass, for stacks.

use super::{BreakerLayer, SharedBreaker};
use crate::{Info, body::GuardedBody};
use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tower_layer::Layer;
use tower_service::Service;

/// Refuses calls while a breaker is open, and takes no pass: the outer half of a
/// [`ClientStack`](crate::ClientStack)'s breaker. The layers between it and the [`BreakerLayer`]
/// wait or count.
///
/// With a breaker for each key it lets every call pass: only a pass reveals the state of a key's
/// breaker.
#[derive(Clone, Debug)]
pub struct BreakerCheckLayer {
    layer: BreakerLayer,
}

impl BreakerCheckLayer {
    pub(crate) const fn new(layer: BreakerLayer) -> Self {
        Self { layer }
    }
}

impl<S> Layer<S> for BreakerCheckLayer {
    type Service = BreakerCheck<S>;

    fn layer(&self, inner: S) -> BreakerCheck<S> {
        BreakerCheck { inner, shared: Arc::clone(&self.layer.shared) }
    }
}

/// A service that is called only while a breaker is not open; made by [`BreakerCheckLayer`].
#[derive(Clone)]
pub struct BreakerCheck<S> {
    inner: S,
    shared: Arc<SharedBreaker>,
}

impl<S, B, R> Service<Request<B>> for BreakerCheck<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Response = Response<GuardedBody<R, ()>>;
    type Error = S::Error;
    type Future = BreakerCheckFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let info = Info::of(&request);
        // A refused pass is a refusal of the breaker, and is counted there. If the breaker admits
        // the call after all, the pass is dropped, and the layer further in takes another.
        let refused = self.shared.refuses_all().then(|| self.shared.try_pass(&info).err());
        match refused.flatten() {
            None => BreakerCheckFuture::Runs { future: self.inner.call(request) },
            Some(open) => {
                let response = Some(self.shared.refusal(&open, &info));
                // A ready service may hold a slot of its own: other calls need it.
                self.inner = self.inner.clone();
                BreakerCheckFuture::Refused { response }
            }
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for BreakerCheck<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BreakerCheck").field("inner", &self.inner).finish_non_exhaustive()
    }
}

pin_project! {
    /// The response future of [`BreakerCheck`].
    #[project = CheckProjection]
    #[must_use = "a future does nothing until it is polled or awaited"]
    pub enum BreakerCheckFuture<F> {
        /// The call runs.
        #[doc(hidden)]
        Runs { #[pin] future: F },
        /// The call is refused.
        #[doc(hidden)]
        Refused { response: Option<Response<Bytes>> },
    }
}

impl<F, R, E> Future for BreakerCheckFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<GuardedBody<R, ()>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            CheckProjection::Runs { future } => {
                let answer = ready!(future.poll(context));
                Poll::Ready(answer.map(|it| it.map(|body| GuardedBody::service(body, None))))
            }
            CheckProjection::Refused { response } => {
                let response = response.take().unwrap_or_default();
                Poll::Ready(Ok(response.map(GuardedBody::refusal)))
            }
        }
    }
}

impl<F> fmt::Debug for BreakerCheckFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BreakerCheckFuture")
    }
}

impl BreakerLayer {
    pub(crate) fn check(&self) -> BreakerCheckLayer {
        BreakerCheckLayer::new(self.clone())
    }

    /// Returns the breaker; `None` if each key has its own.
    pub(crate) fn breaker(&self) -> Option<&tollgate::Breaker> {
        match &self.shared.breakers {
            super::Breakers::One(breaker) => Some(breaker),
            super::Breakers::Each { .. } => None,
        }
    }

    /// Returns the settings in one line.
    pub(crate) fn summary(&self) -> String {
        match self.breaker() {
            Some(breaker) => breaker.summary(),
            None => "one for each key".to_owned(),
        }
    }
}
