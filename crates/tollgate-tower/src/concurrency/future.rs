//! A request that waits for a slot, and then runs.

use super::{
    refusal::Why,
    shared::SharedLimit,
    slot::{ConcurrencyBody, HeldSlot, Slot, Waiting},
};
use crate::{Info, queued};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tower_service::Service;

pin_project! {
    /// The response future of [`ConcurrencyLimit`](super::ConcurrencyLimit).
    ///
    /// # Cancel safety
    ///
    /// It may be dropped at any time: its slot, or its place in the queue, goes to the next
    /// request.
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
        Runs { #[pin] future: F, slot: Option<Slot>, shared: Option<Arc<SharedLimit>> },
        Over,
    }
}

/// The call that waits for a slot.
pub(super) struct Held<S, B> {
    pub(super) shared: Arc<SharedLimit>,
    /// The service that was polled ready.
    pub(super) service: S,
    pub(super) request: Request<B>,
}

impl<S, B> ConcurrencyFuture<S, B>
where
    S: Service<Request<B>>,
{
    pub(super) const fn refused(response: Response<Bytes>) -> Self {
        Self { stage: Stage::Refused { response: Some(response) } }
    }

    /// The response goes through `shared` if that is given.
    pub(super) const fn runs(
        future: S::Future,
        slot: Option<Slot>,
        shared: Option<Arc<SharedLimit>>,
    ) -> Self {
        Self { stage: Stage::Runs { future, slot, shared } }
    }

    pub(super) const fn waits(waiting: Waiting, held: Held<S, B>) -> Self {
        Self { stage: Stage::Waits { waiting, held: Some(held) } }
    }
}

impl<S, B, R> Future for ConcurrencyFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
{
    type Output = Result<Response<ConcurrencyBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            match stage.as_mut().project() {
                StageProjection::Refused { response } => {
                    let response = response.take().unwrap_or_default();
                    return Poll::Ready(Ok(response.map(ConcurrencyBody::refusal)));
                }
                StageProjection::Runs { future, slot, shared } => {
                    let answer = ready!(future.poll(context));
                    let (slot, shared) = (slot.take(), shared.take());
                    // The future drops what it still holds before the slot is free.
                    stage.set(Stage::Over);
                    let Some(shared) = shared else {
                        let held = slot.map(HeldSlot::unmeasured);
                        let answer = answer.map(|response| {
                            response.map(|body| ConcurrencyBody::service(body, held))
                        });
                        return Poll::Ready(answer);
                    };
                    return Poll::Ready(shared.ended(answer, slot));
                }
                StageProjection::Waits { waiting, held } => {
                    let answer = ready!(waiting.acquire.poll(context)).map_err(Why::from);
                    // INVARIANT: the call is there until the wait has ended.
                    let Some(mut held) = held.take() else { return Poll::Pending };
                    held.shared.waited(waiting, &answer, &Info::of(&held.request));
                    let next = match answer {
                        Ok(slot) => {
                            queued::pass(held.request.extensions());
                            let future = held.service.call(held.request);
                            let shared = held.shared.reads_responses().then_some(held.shared);
                            Stage::Runs { future, slot: Some(slot), shared }
                        }
                        Err(why) => {
                            let response = held.shared.refusal(why, &Info::of(&held.request));
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
