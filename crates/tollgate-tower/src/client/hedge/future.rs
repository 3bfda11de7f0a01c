//! The future of a call that may be sent twice.

use super::SharedHedge;
use crate::{Info, client::Repeat};
use http::{HeaderName, Request, Response, response::Parts};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tollgate::{
    CallOutcome,
    hedge::{HedgePolicy, HedgedCall},
};
use tower_service::Service;

pin_project! {
    /// The response future of [`Hedge`](super::Hedge).
    ///
    /// # Cancel safety
    ///
    /// It may be dropped at any time, and drops all attempts.
    #[must_use = "a future does nothing until it is polled or awaited"]
    pub struct HedgeFuture<S, B, R, C>
    where
        S: Service<Request<B>, Response = Response<R>>,
    {
        #[pin]
        stage: Stage<S, B, R, C>,
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<S, B, R, C>
    where
        S: Service<Request<B>, Response = Response<R>>,
    {
        Once { #[pin] future: S::Future },
        Hedged { call: HedgedCall<Attempt<S, S::Future, B>>, next: NextAttempt<S, B, C> },
    }
}

const PREVIOUS_ATTEMPTS: HeaderName = HeaderName::from_static("grpc-previous-rpc-attempts");

/// The parts from which hedges are made.
struct NextAttempt<S, B, C> {
    /// Cloned for each hedge: the original is not polled ready.
    service: S,
    spare: Option<Request<B>>,
    made: u64,
    shared: Arc<SharedHedge<C>>,
}

impl<S, B, R, C> HedgeFuture<S, B, R, C>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    pub(super) const fn once(future: S::Future) -> Self {
        Self { stage: Stage::Once { future } }
    }

    /// Calls the service, which is ready.
    pub(super) fn hedged(
        mut service: S,
        (request, spare): (Request<B>, Request<B>),
        policy: &HedgePolicy,
        shared: Arc<SharedHedge<C>>,
    ) -> Self {
        let first = Attempt::Runs { future: service.call(request) };
        let call = HedgedCall::new(policy, first);
        let next = NextAttempt { service, spare: Some(spare), made: 1, shared };
        Self { stage: Stage::Hedged { call, next } }
    }
}

impl<S, B, C> NextAttempt<S, B, C>
where
    S: Service<Request<B>> + Clone,
    C: Repeat<B, Spare = Request<B>>,
{
    fn attempt(&mut self) -> Option<Attempt<S, S::Future, B>> {
        let (mut request, spare) = self.shared.repeat.again(self.spare.take()?);
        self.spare = spare;
        if Info::of(&request).is_grpc() {
            // A retry layer has written how many attempts there were before this call.
            let before = request.headers().get(PREVIOUS_ATTEMPTS).and_then(|it| it.to_str().ok());
            let before: u64 = before.and_then(|it| it.parse().ok()).unwrap_or(0);
            let count = before.saturating_add(self.made);
            request.headers_mut().insert(PREVIOUS_ATTEMPTS, count.into());
        }
        self.made += 1;
        Some(Attempt::Readies { service: self.service.clone(), request: Some(request) })
    }
}

impl<S, B, R, C> Future for HedgeFuture<S, B, R, C>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    C: Repeat<B, Spare = Request<B>>,
{
    type Output = Result<Response<R>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().stage.project() {
            StageProjection::Once { future } => future.poll(context),
            StageProjection::Hedged { call, next } => {
                let shared = Arc::clone(&next.shared);
                let classify = |answer: &Result<(Parts, R), S::Error>| match answer {
                    Ok((head, _)) => shared.classify.outcome(head),
                    Err(_) => CallOutcome::Failure,
                };
                let answer = ready!(call.poll_with(context, || next.attempt(), classify));
                Poll::Ready(answer.map(|(head, body)| Response::from_parts(head, body)))
            }
        }
    }
}

pin_project! {
    /// One attempt: a hedge waits until its service is ready.
    #[project = AttemptProjection]
    enum Attempt<S, F, B> {
        Readies { service: S, request: Option<Request<B>> },
        Runs { #[pin] future: F },
    }
}

impl<S, B, R> Future for Attempt<S, S::Future, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<(Parts, R), S::Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let future = match self.as_mut().project() {
                AttemptProjection::Runs { future } => {
                    return future.poll(context).map_ok(Response::into_parts);
                }
                AttemptProjection::Readies { service, request } => {
                    ready!(service.poll_ready(context))?;
                    // INVARIANT: it is there until the service is called.
                    let Some(request) = request.take() else { return Poll::Pending };
                    service.call(request)
                }
            };
            self.set(Self::Runs { future });
        }
    }
}

impl<S, B, R, C> fmt::Debug for HedgeFuture<S, B, R, C>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HedgeFuture")
    }
}
