//! A call that a client has sent, or has refused itself.

use super::SharedThrottle;
use crate::GuardedBody;
use bytes::Bytes;
use http::Response;
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tollgate::self_throttle::ThrottlePass;

/// The body of a response of [`SelfThrottleService`](super::SelfThrottleService).
pub type SelfThrottleBody<B> = GuardedBody<B, ()>;

pin_project! {
    /// The response future of [`SelfThrottleService`](super::SelfThrottleService).
    ///
    /// # Cancel safety
    ///
    /// It may be dropped at any time: the call counts for nothing.
    #[must_use = "a future does nothing until it is polled or awaited"]
    pub struct SelfThrottleFuture<F> {
        #[pin]
        stage: Stage<F>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<F> {
        Refused { response: Option<Response<Bytes>> },
        Runs { #[pin] future: F, pass: Option<ThrottlePass>, shared: Arc<SharedThrottle> },
    }
}

impl<F> SelfThrottleFuture<F> {
    pub(super) const fn refused(response: Response<Bytes>) -> Self {
        Self { stage: Stage::Refused { response: Some(response) } }
    }

    pub(super) const fn runs(future: F, pass: ThrottlePass, shared: Arc<SharedThrottle>) -> Self {
        Self { stage: Stage::Runs { future, pass: Some(pass), shared } }
    }
}

impl<F, R, E> Future for SelfThrottleFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    E: 'static,
{
    type Output = Result<Response<SelfThrottleBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().stage.project() {
            StageProjection::Refused { response } => {
                let response = response.take().unwrap_or_default();
                Poll::Ready(Ok(response.map(SelfThrottleBody::refusal)))
            }
            StageProjection::Runs { future, pass, shared } => {
                let answer = ready!(future.poll(context)).map(Response::into_parts);
                let outcome = match &answer {
                    Ok((head, _)) => shared.classify.outcome(head),
                    Err(error) => shared.classify.outcome_of_error(error),
                };
                pass.take().into_iter().for_each(|pass| pass.end(outcome));
                Poll::Ready(answer.map(|(head, body)| {
                    Response::from_parts(head, SelfThrottleBody::service(body, None))
                }))
            }
        }
    }
}

impl<F> fmt::Debug for SelfThrottleFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SelfThrottleFuture")
    }
}
