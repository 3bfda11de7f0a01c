//! The layer that leaves the type of the body as it is.
//!
//! If the body of a response has another type than axum's own, axum allocates a box for it,
//! although the body was boxed already. Nearly always there is nothing to settle at the end of a
//! body, so it can be passed on as it came. Only a body with a settlement, or a body of our own,
//! needs the box.

use super::{LimitBody, LimitFuture, RateLimit, RateLimitLayer};
use http::{Request, Response};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};
use tower_layer::Layer;
use tower_service::Service;

/// A [`RateLimitLayer`] whose responses have the body of the service; made by
/// [`RateLimitLayer::same_body`].
#[derive(Clone, Debug)]
pub struct SameBodyLayer {
    layer: RateLimitLayer,
}

impl SameBodyLayer {
    pub(super) const fn new(layer: RateLimitLayer) -> Self {
        Self { layer }
    }
}

impl<S> Layer<S> for SameBodyLayer {
    type Service = SameBody<S>;

    fn layer(&self, inner: S) -> SameBody<S> {
        SameBody { inner: self.layer.layer(inner) }
    }
}

/// A service behind limits, whose responses keep their body type; made by [`SameBodyLayer`].
#[derive(Clone, Debug)]
pub struct SameBody<S> {
    inner: RateLimit<S>,
}

impl<S, B, R> Service<Request<B>> for SameBody<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: From<LimitBody<R>>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = SameBodyFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        SameBodyFuture { inner: self.inner.call(request) }
    }
}

pin_project! {
    /// The response future of [`SameBody`].
    pub struct SameBodyFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        inner: LimitFuture<S, B>,
    }
}

impl<S, B, R> Future for SameBodyFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: From<LimitBody<R>>,
{
    type Output = Result<Response<R>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().inner.poll_with(context, LimitBody::into_service)
    }
}

impl<S, B> fmt::Debug for SameBodyFuture<S, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SameBodyFuture")
    }
}

#[cfg(feature = "axum")]
impl From<LimitBody<Self>> for axum::body::Body {
    fn from(body: LimitBody<Self>) -> Self {
        Self::new(body)
    }
}

#[cfg(feature = "tonic")]
impl From<LimitBody<Self>> for tonic::body::Body {
    fn from(body: LimitBody<Self>) -> Self {
        Self::new(body)
    }
}
