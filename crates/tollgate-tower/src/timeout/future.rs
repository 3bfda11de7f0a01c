//! A call that has to respond in time.

use super::{Bound, SharedTimeouts, TimeoutBody, TimeoutError};
use crate::{NotRun, RefusedBy, timer::Timer};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

pin_project! {
    /// The response future of [`TimeoutService`](super::TimeoutService).
    #[must_use = "a future does nothing until it is polled or awaited"]
    pub struct TimeoutFuture<F> {
        // Without a future the deadline had passed before the call.
        #[pin]
        future: Option<F>,
        shared: Arc<SharedTimeouts>,
        head: Option<Bound>,
        whole: Option<Bound>,
        timer: Timer,
        is_grpc: bool,
    }
}

impl<F> TimeoutFuture<F> {
    pub(super) fn runs(
        future: F,
        shared: Arc<SharedTimeouts>,
        (head, whole): (Option<Bound>, Option<Bound>),
        is_grpc: bool,
    ) -> Self {
        Self { future: Some(future), shared, head, whole, timer: Timer::default(), is_grpc }
    }

    pub(super) fn not_run(shared: Arc<SharedTimeouts>, is_grpc: bool) -> Self {
        let timer = Timer::default();
        Self { future: None, shared, head: None, whole: None, timer, is_grpc }
    }
}

impl<F, R, E> Future for TimeoutFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<TimeoutBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Some(future) = this.future.as_mut().as_pin_mut() else {
            let mut response = late(*this.is_grpc);
            let refused = RefusedBy::new("timeout", "the deadline had passed", None);
            response.extensions_mut().insert(NotRun);
            response.extensions_mut().insert(refused);
            return Poll::Ready(Ok(response.map(TimeoutBody::refusal)));
        };
        if let Poll::Ready(answer) = future.poll(context) {
            let (shared, whole) = (Arc::clone(this.shared), *this.whole);
            let wrap = |body| TimeoutBody::service(body, shared, whole);
            return Poll::Ready(answer.map(|response| response.map(wrap)));
        }
        let Some(Bound { due, error }) = *this.head else { return Poll::Pending };
        match this.timer.poll(&this.shared.clock, due, context) {
            Poll::Ready(Ok(())) => {}
            // Without timers the call continues.
            Poll::Pending | Poll::Ready(Err(_)) => return Poll::Pending,
        }
        // The inner future drops its resources before the response reports the timeout.
        this.future.set(None);
        this.shared.count(error.phase());
        Poll::Ready(Ok(timed_out(error, *this.is_grpc).map(TimeoutBody::refusal)))
    }
}

/// Returns the response to a call that took too long.
fn timed_out(error: TimeoutError, is_grpc: bool) -> Response<Bytes> {
    let mut response = late(is_grpc);
    response.extensions_mut().insert(error);
    response
}

/// Returns a response that says that the call took too long.
fn late(is_grpc: bool) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if is_grpc {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static("4"));
        headers.insert("grpc-message", HeaderValue::from_static("the call took too long"));
        return response;
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    *response.status_mut() = StatusCode::GATEWAY_TIMEOUT;
    let problem = br#"{"type":"about:blank","title":"Gateway Timeout","status":504}"#;
    *response.body_mut() = Bytes::from_static(problem);
    response
}

impl<F> fmt::Debug for TimeoutFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TimeoutFuture")
    }
}
