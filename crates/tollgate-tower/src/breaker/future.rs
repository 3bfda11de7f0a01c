//! A call that a breaker has let pass, or has refused.

use super::SharedBreaker;
use crate::{
    body::{BodyGuard, GuardedBody},
    classify::Classify,
};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, response::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tollgate::{CallOutcome, Pass};
use tower_service::Service;

pin_project! {
    /// The response future of [`BreakerService`](super::BreakerService).
    ///
    /// # Cancel safety
    ///
    /// It may be dropped at any time: the call counts for nothing, and a trial call frees its place
    /// for another.
    #[must_use = "a future does nothing until it is polled or awaited"]
    pub struct BreakerFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        stage: Stage<S, S::Future, B>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<S, F, B> {
        Refused { response: Option<Response<Bytes>> },
        Readies { call: Option<(S, Request<B>)>, running: Option<Running> },
        // The pass ends after the work: fields are dropped in this order.
        Runs { #[pin] future: F, running: Option<Running> },
        Over,
    }
}

/// A call that passed.
struct Running {
    pass: Pass<'static>,
    shared: Arc<SharedBreaker>,
}

impl Running {
    /// Ends the pass by the head of the response, or returns it for the body.
    fn end_head(self, head: &Parts, is_body_over: bool) -> Option<HeldPass> {
        let Self { pass, shared } = self;
        let outcome = shared.classify.outcome(head);
        let has_failed = matches!(outcome, CallOutcome::Failure | CallOutcome::Overload);
        let clock = shared.breakers.clock();
        if let Some(reader) = shared.reader.filter(|_| has_failed) {
            let now = clock.now();
            let learned = reader.read(head.status, &head.headers, clock.to_wall(now));
            if let Some(wait) = learned.named() {
                pass.end_until(outcome, now.saturating_add(wait));
                return None;
            }
        }
        // A head that reports a failure ends the call: callers often drop the rest unread.
        let is_open = outcome == CallOutcome::Success && !is_body_over;
        if shared.classify.until_body && is_open {
            return Some(HeldPass {
                pass: Some(pass),
                outcome,
                on_error: shared.classify.on_error,
            });
        }
        pass.end(outcome);
        None
    }

    fn end_error<E: 'static>(self, error: &E) {
        self.pass.end(self.shared.classify.outcome_of_error(error));
    }
}

/// The body of a response of [`BreakerService`](super::BreakerService). If the layer was built with
/// `until_body`, the end of the body ends the call.
pub type BreakerBody<B> = GuardedBody<B, HeldPass>;

/// The pass of a call whose body is still to come.
pub struct HeldPass {
    pass: Option<Pass<'static>>,
    outcome: CallOutcome,
    on_error: CallOutcome,
}

impl BodyGuard for HeldPass {
    /// gRPC reports here how a call went.
    fn trailers(&mut self, trailers: &HeaderMap) {
        if let Some(outcome) = Classify::outcome_of_trailers(trailers) {
            self.outcome = outcome;
        }
    }

    fn ended(&mut self) {
        self.pass.take().into_iter().for_each(|pass| pass.end(self.outcome));
    }

    fn failed(&mut self) {
        self.pass.take().into_iter().for_each(|pass| pass.end(self.on_error));
    }
}

impl fmt::Debug for HeldPass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldPass").field("outcome", &self.outcome).finish_non_exhaustive()
    }
}

impl<S, B> BreakerFuture<S, B>
where
    S: Service<Request<B>>,
{
    pub(super) const fn refused(response: Response<Bytes>) -> Self {
        Self { stage: Stage::Refused { response: Some(response) } }
    }

    pub(super) const fn runs(
        future: S::Future,
        pass: Pass<'static>,
        shared: Arc<SharedBreaker>,
    ) -> Self {
        Self { stage: Stage::Runs { future, running: Some(Running { pass, shared }) } }
    }

    pub(super) const fn readies(
        call: (S, Request<B>),
        pass: Pass<'static>,
        shared: Arc<SharedBreaker>,
    ) -> Self {
        let running = Some(Running { pass, shared });
        Self { stage: Stage::Readies { call: Some(call), running } }
    }
}

impl<S, B, R> Future for BreakerFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Error: 'static,
    R: Body,
{
    type Output = Result<Response<BreakerBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            match stage.as_mut().project() {
                StageProjection::Refused { response } => {
                    let response = response.take().unwrap_or_default();
                    return Poll::Ready(Ok(response.map(BreakerBody::refusal)));
                }
                StageProjection::Readies { call, running } => {
                    if let Some((service, _)) = call
                        && let Err(error) = ready!(service.poll_ready(context))
                    {
                        running.take().into_iter().for_each(|running| running.end_error(&error));
                        stage.set(Stage::Over);
                        return Poll::Ready(Err(error));
                    }
                    // INVARIANT: both are there until the service is ready.
                    let Some((mut service, request)) = call.take() else { return Poll::Pending };
                    let running = running.take();
                    stage.set(Stage::Runs { future: service.call(request), running });
                }
                StageProjection::Runs { future, running } => {
                    let answer = ready!(future.poll(context));
                    let running = running.take();
                    // The future drops what it still holds before the pass ends.
                    stage.set(Stage::Over);
                    let response = match answer {
                        Ok(response) => response,
                        Err(error) => {
                            running.into_iter().for_each(|running| running.end_error(&error));
                            return Poll::Ready(Err(error));
                        }
                    };
                    let (head, body) = response.into_parts();
                    let is_over = body.is_end_stream();
                    let held = running.and_then(|running| running.end_head(&head, is_over));
                    let body = BreakerBody::service(body, held);
                    return Poll::Ready(Ok(Response::from_parts(head, body)));
                }
                StageProjection::Over => {
                    debug_assert!(false, "polled after it was ready");
                    return Poll::Pending;
                }
            }
        }
    }
}

impl<S, B> fmt::Debug for BreakerFuture<S, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BreakerFuture")
    }
}
