//! A call, and then its fallback.

use super::{Backup, Degraded, FallbackBody, FallbackCause, SharedFallback};
use http::{HeaderValue, Request, Response};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tower_service::Service;

pin_project! {
    /// The response future of [`Fallback`](super::Fallback).
    #[must_use = "a future does nothing until it is polled or awaited"]
    pub struct FallbackFuture<S, B, R, K>
    where
        S: Service<Request<B>>,
        K: Backup<B, R, S::Error>,
    {
        #[pin]
        stage: Stage<S::Future, K::Kept, K::Future>,
        shared: Arc<SharedFallback<K>>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<F, T, G> {
        Primary { #[pin] future: F, kept: Option<T> },
        Backup { #[pin] future: G },
        Over,
    }
}

impl<S, B, R, K> FallbackFuture<S, B, R, K>
where
    S: Service<Request<B>>,
    K: Backup<B, R, S::Error>,
{
    pub(super) const fn new(
        future: S::Future,
        kept: Option<K::Kept>,
        shared: Arc<SharedFallback<K>>,
    ) -> Self {
        Self { stage: Stage::Primary { future, kept }, shared }
    }
}

impl<S, B, R, K> Future for FallbackFuture<S, B, R, K>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: 'static,
    K: Backup<B, R, S::Error>,
{
    type Output = Result<Response<FallbackBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (mut stage, shared) = (this.stage, this.shared);
        loop {
            match stage.as_mut().project() {
                StageProjection::Primary { future, kept } => {
                    let answer = ready!(future.poll(context)).map(Response::into_parts);
                    let kept = kept.take();
                    stage.set(Stage::Over);
                    let cause = match &answer {
                        Ok((head, _)) => FallbackCause { response: Some(head), error: None },
                        Err(error) => FallbackCause { response: None, error: Some(error) },
                    };
                    let kept = kept.filter(|_| shared.is_for(&cause));
                    match kept.and_then(|kept| shared.backup.start(kept, &cause)) {
                        Some(future) => {
                            // The failed response is dropped: other calls can use its connection.
                            drop(answer);
                            stage.set(Stage::Backup { future });
                        }
                        None => {
                            return Poll::Ready(answer.map(|(head, body)| {
                                Response::from_parts(head, FallbackBody::service(body, None))
                            }));
                        }
                    }
                }
                StageProjection::Backup { future } => {
                    let answer = ready!(future.poll(context));
                    stage.set(Stage::Over);
                    return Poll::Ready(answer.map(|mut response| {
                        shared.used.add(1);
                        response.extensions_mut().insert(Degraded);
                        if shared.has_header {
                            let name = "tollgate-degraded";
                            response.headers_mut().insert(name, HeaderValue::from_static("1"));
                        }
                        response
                    }));
                }
                StageProjection::Over => {
                    debug_assert!(false, "polled after it was ready");
                    return Poll::Pending;
                }
            }
        }
    }
}

impl<S, B, R, K> fmt::Debug for FallbackFuture<S, B, R, K>
where
    S: Service<Request<B>>,
    K: Backup<B, R, S::Error>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FallbackFuture")
    }
}
