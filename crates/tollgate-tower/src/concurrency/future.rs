//! A request on its way to a slot, and in it.

use super::{
    body::ConcurrencyBody,
    shared::{SharedLimit, Waiting},
};
use crate::queued;
use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tollgate::Permit;
use tower_service::Service;

pin_project! {
    /// The response to come, of [`ConcurrencyLimit`](super::ConcurrencyLimit).
    ///
    /// # Cancel safety
    ///
    /// It may be dropped at any time: its slot, or its place in the queue, goes to the next.
    pub struct ConcurrencyFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        stage: Stage<S, S::Future, B>,
    }

    impl<S, B> PinnedDrop for ConcurrencyFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        fn drop(this: Pin<&mut Self>) {
            if let StageProjection::Waits { held: Some(held), .. } = this.project().stage.project() {
                queued::leave(held.request.extensions());
            }
        }
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<S, F, B> {
        Refused { response: Option<Response<Bytes>> },
        Waits { waiting: Waiting, held: Option<Held<S, B>> },
        // The slot is free after the work has ended: fields are dropped in this order.
        Runs { #[pin] future: F, permit: Option<Permit> },
        Over,
    }
}

/// What waits for a slot.
pub(super) struct Held<S, B> {
    pub(super) shared: Arc<SharedLimit>,
    /// The service that was polled ready.
    pub(super) service: S,
    pub(super) request: Request<B>,
    pub(super) is_grpc: bool,
}

impl<S, B> ConcurrencyFuture<S, B>
where
    S: Service<Request<B>>,
{
    pub(super) const fn refused(response: Response<Bytes>) -> Self {
        Self { stage: Stage::Refused { response: Some(response) } }
    }

    pub(super) const fn runs(future: S::Future, permit: Option<Permit>) -> Self {
        Self { stage: Stage::Runs { future, permit } }
    }

    pub(super) const fn waits(waiting: Waiting, held: Held<S, B>) -> Self {
        Self { stage: Stage::Waits { waiting, held: Some(held) } }
    }
}

impl<S, B, R> Future for ConcurrencyFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<ConcurrencyBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            match stage.as_mut().project() {
                StageProjection::Refused { response } => {
                    let response = response.take().unwrap_or_default();
                    return Poll::Ready(Ok(response.map(ConcurrencyBody::told)));
                }
                StageProjection::Runs { future, permit } => {
                    let answer = ready!(future.poll(context));
                    let permit = permit.take();
                    // Whatever the future still holds is gone before the slot is.
                    stage.set(Stage::Over);
                    let response = answer?;
                    return Poll::Ready(Ok(
                        response.map(|body| ConcurrencyBody::service(body, permit))
                    ));
                }
                StageProjection::Waits { waiting, held } => {
                    let answer = ready!(waiting.poll(context));
                    // INVARIANT: it is there until there is an answer.
                    let Some(mut held) = held.take() else { return Poll::Pending };
                    held.shared.waited(waiting, &answer);
                    let next = match answer {
                        Ok(permit) => {
                            queued::pass(held.request.extensions());
                            let future = held.service.call(held.request);
                            Stage::Runs { future, permit: Some(permit) }
                        }
                        Err(why) => {
                            let response = held.shared.refusal(why, held.is_grpc);
                            Stage::Refused { response: Some(response) }
                        }
                    };
                    stage.set(next);
                }
                StageProjection::Over => {
                    debug_assert!(false, "polled after it was ready");
                    return Poll::Pending;
                }
            }
        }
    }
}

impl<S, B> fmt::Debug for ConcurrencyFuture<S, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ConcurrencyFuture")
    }
}
