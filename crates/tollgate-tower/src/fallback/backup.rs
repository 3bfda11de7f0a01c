//! The fallbacks that answer instead of the service.

use super::{FallbackBody, FallbackCause};
use crate::client::{CloneBody, Repeat};
use bytes::Bytes;
use http::{Request, Response, request};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::{Ready, ready},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready as ready_or_pending},
};
use tower_service::Service;

/// The source of a [`FallbackLayer`](super::FallbackLayer)'s answers: [`FallbackResponse`] or
/// [`FallbackService`]. Other types need not implement it.
pub trait Backup<B, R, E> {
    /// The parts of a request that are kept while it runs.
    type Kept;
    /// The fallback that runs.
    type Future: Future<Output = Result<Response<FallbackBody<R>>, E>>;

    /// Returns the request to send, and the parts to keep: `None` if it has no fallback.
    fn keep(&self, request: Request<B>) -> (Request<B>, Option<Self::Kept>);

    /// Starts the fallback; `None` if the kept parts do not suffice.
    fn start(&self, kept: Self::Kept, cause: &FallbackCause<'_>) -> Option<Self::Future>;
}

type MakeResponse =
    Arc<dyn Fn(&request::Parts, &FallbackCause<'_>) -> Response<Bytes> + Send + Sync>;

/// Responses that the layer makes.
pub struct FallbackResponse(pub(super) Make);

pub(super) enum Make {
    /// Copies of one response.
    Value(Response<Bytes>),
    /// The results of a function.
    Function(MakeResponse),
}

impl<B, R, E> Backup<B, R, E> for FallbackResponse {
    /// The head of the request, for a function.
    type Kept = Option<request::Parts>;
    type Future = Ready<Result<Response<FallbackBody<R>>, E>>;

    fn keep(&self, request: Request<B>) -> (Request<B>, Option<Self::Kept>) {
        match &self.0 {
            Make::Value(_) => (request, Some(None)),
            Make::Function(_) => {
                let (head, body) = request.into_parts();
                (Request::from_parts(head.clone(), body), Some(Some(head)))
            }
        }
    }

    fn start(&self, kept: Self::Kept, cause: &FallbackCause<'_>) -> Option<Self::Future> {
        let response = match &self.0 {
            Make::Value(response) => response.clone(),
            Make::Function(make) => make(&kept?, cause),
        };
        Some(ready(Ok(response.map(FallbackBody::refusal))))
    }
}

impl fmt::Debug for FallbackResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Make::Value(_) => "Value",
            Make::Function(_) => "Function",
        })
    }
}

/// Another service, and how requests are kept for it.
#[derive(Debug)]
pub struct FallbackService<T, C = CloneBody> {
    pub(super) backup: T,
    pub(super) repeat: C,
}

impl<T, C, B, R> Backup<B, R, T::Error> for FallbackService<T, C>
where
    T: Service<Request<B>, Response = Response<R>> + Clone,
    C: Repeat<B>,
{
    type Kept = C::Spare;
    type Future = BackupFuture<T, B>;

    fn keep(&self, request: Request<B>) -> (Request<B>, Option<Self::Kept>) {
        self.repeat.keep(request)
    }

    fn start(&self, kept: Self::Kept, _: &FallbackCause<'_>) -> Option<Self::Future> {
        if !self.repeat.is_whole(&kept) || !self.repeat.recall(&kept) {
            return None;
        }
        let call = Some((self.backup.clone(), self.repeat.last(kept)));
        Some(BackupFuture { call, future: None })
    }
}

pin_project! {
    /// The call of a backup service: it waits until the service is ready, and calls it.
    pub struct BackupFuture<T, B>
    where
        T: Service<Request<B>>,
    {
        call: Option<(T, Request<B>)>,
        #[pin]
        future: Option<T::Future>,
    }
}

impl<T, B, R> Future for BackupFuture<T, B>
where
    T: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<FallbackBody<R>>, T::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some((service, _)) = this.call {
            ready_or_pending!(service.poll_ready(context))?;
        }
        if let Some((mut service, request)) = this.call.take() {
            this.future.set(Some(service.call(request)));
        }
        let Some(future) = this.future.as_mut().as_pin_mut() else {
            debug_assert!(false, "polled after it was ready");
            return Poll::Pending;
        };
        let response = ready_or_pending!(future.poll(context))?;
        this.future.set(None);
        Poll::Ready(Ok(response.map(|body| FallbackBody::service(body, None))))
    }
}

impl<T, B> fmt::Debug for BackupFuture<T, B>
where
    T: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BackupFuture")
    }
}
