//! Answers calls that are not sent, so that the error type stays.

use super::{Pace, PaceError, PaceFuture, PaceLayer};
use crate::{Info, NotRun, RefusedBy, body::GuardedBody};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};
use tower_layer::Layer;
use tower_service::Service;

/// Paces calls, and answers those it does not send; made by [`PaceLayer::answering`].
#[derive(Clone, Debug)]
pub struct PaceAnswerLayer {
    layer: PaceLayer,
}

/// A service whose calls are paced and which answers those it does not send; made by
/// [`PaceAnswerLayer`].
#[derive(Clone, Debug)]
pub struct PaceAnswer<S> {
    inner: Pace<S>,
}

/// Marks a response that [`PaceAnswer`] made up: the call was not sent. It is in the extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsent;

impl PaceAnswerLayer {
    pub(super) const fn new(layer: PaceLayer) -> Self {
        Self { layer }
    }
}

impl<S> Layer<S> for PaceAnswerLayer {
    type Service = PaceAnswer<S>;

    fn layer(&self, inner: S) -> Self::Service {
        PaceAnswer { inner: self.layer.layer(inner) }
    }
}

impl<S, B, R> Service<Request<B>> for PaceAnswer<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Response = Response<GuardedBody<R, ()>>;
    type Error = S::Error;
    type Future = PaceAnswerFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let is_grpc = Info::of(&request).is_grpc();
        PaceAnswerFuture { is_grpc, inner: self.inner.call(request) }
    }
}

pin_project! {
    /// Waits until the call may start, and then calls, or answers; made by [`PaceAnswer`].
    #[must_use = "a future does nothing until it is polled or awaited"]
    pub struct PaceAnswerFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        is_grpc: bool,
        #[pin]
        inner: PaceFuture<S, B>,
    }
}

impl<S, B, R> Future for PaceAnswerFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Output = Result<Response<GuardedBody<R, ()>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        Poll::Ready(match ready!(this.inner.poll(context)) {
            Ok(response) => Ok(response.map(|body| GuardedBody::service(body, None))),
            Err(PaceError::Inner(error)) => Err(error),
            Err(unsent) => Ok(answer(unsent.retry_after(), *this.is_grpc)),
        })
    }
}

/// Makes the answer to a call that was not sent.
fn answer<R>(retry_after: Option<Duration>, is_grpc: bool) -> Response<GuardedBody<R, ()>> {
    let mut response = Response::new(GuardedBody::refusal(Bytes::new()));
    let why = "the server's limits or the client's quota leave no room";
    response.extensions_mut().insert(Unsent);
    response.extensions_mut().insert(NotRun);
    response.extensions_mut().insert(RefusedBy::new("pace", why, retry_after));
    let ms = retry_after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
    let headers = response.headers_mut();
    if is_grpc {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static("8"));
        let message = HeaderValue::from_static("not sent: the client paces itself");
        headers.insert("grpc-message", message);
        if let Some(ms) = ms {
            // OVERFLOW: only a wait of 584 million years is cut short.
            headers.insert("grpc-retry-pushback-ms", ms.saturating_add(1).into());
        }
        return response;
    }
    if let Some(after) = retry_after {
        let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
        headers.insert(header::RETRY_AFTER, seconds.max(1).into());
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    response
}

impl<S: Service<Request<B>>, B> fmt::Debug for PaceAnswerFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PaceAnswerFuture").field("inner", &self.inner).finish_non_exhaustive()
    }
}
