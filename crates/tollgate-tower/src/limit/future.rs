//! A request on its way through the limits.

use super::{
    NotRun,
    body::{LimitBody, Meter},
    correct::{Actual, Amended, End},
    gate::Gate,
    pass::Pass,
    turn::Turn,
};
use crate::{
    queued::{self, Mark},
    timer,
};
use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::{task::JoinHandle, time::Timeout};
use tower_service::Service;

pin_project! {
    /// The response to come, of [`RateLimit`](super::RateLimit).
    pub struct LimitFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        stage: Stage<S, S::Future, S::Response, B>,
    }

    impl<S, B> PinnedDrop for LimitFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        fn drop(this: Pin<&mut Self>) {
            if let StageProjection::Asks { asks } = this.project().stage.project()
                && let Some(held) = &asks.1
            {
                queued::leave(held.request.extensions());
            }
        }
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<S, F, R, B> {
        Refused { response: Option<Box<Response<Bytes>>> },
        // In boxes: what is rare shall not make the usual future large.
        Asks { asks: Box<(Turn, Option<Held<S, B>>)> },
        // The ticket looks at what the future has left behind: fields are dropped in this order.
        Runs { #[pin] future: F, ticket: Ticket },
        Settles { settles: Box<(Settling, Option<R>)> },
        Over,
    }
}

/// A correction that is waited for.
type Settling = Pin<Box<Timeout<JoinHandle<()>>>>;

/// What waits for the answer of a store.
pub(super) struct Held<S, B> {
    pub(super) gate: Arc<Gate>,
    /// The service that was polled ready.
    pub(super) service: S,
    pub(super) request: Request<B>,
}

/// What a request that passes has taken; given back if it never runs.
pub(super) struct Ticket {
    gate: Arc<Gate>,
    pass: Option<Pass>,
    has_run: bool,
}

impl Ticket {
    pub(super) const fn new(gate: Arc<Gate>, pass: Option<Pass>) -> Self {
        Self { gate, pass, has_run: false }
    }

    /// Returns the response to a request that is refused. It is charged already, if it passes: it is
    /// given back even if those who watch panic here, or the service does.
    pub(super) fn answer<B>(&mut self, request: &mut Request<B>) -> Option<Response<Bytes>> {
        self.gate.answer(self.pass.as_mut()?, request)
    }

    /// Adds to a response what the client is told, and settles what it has cost, or will when its
    /// body has ended.
    fn finish<B>(
        &mut self,
        mut response: Response<B>,
    ) -> (Response<B>, Option<Box<Meter>>, Amended) {
        let Some(pass) = &mut self.pass else { return (response, None, None) };
        let gate = &self.gate;
        let has_run = response.extensions().get::<NotRun>().is_none();
        if has_run && !pass.is_reserved() {
            gate.decorate(pass, &mut response);
            self.pass = None;
            return (response, None, None);
        }
        let (head, body) = response.into_parts();
        // A closure of the user may panic here: the ticket still has the pass.
        let actual = match has_run {
            true => gate.actual(pass, &head),
            false => Actual::nothing(pass.parts.len()),
        };
        let mut response = Response::from_parts(head, body);
        let taken: Vec<_> = pass.parts.iter().map(|part| part.decision).collect();
        gate.correct(pass, &actual);
        gate.decorate(pass, &mut response);
        // What was told is not what was taken.
        for (part, decision) in pass.parts.iter_mut().zip(taken) {
            part.decision = decision;
        }
        let Some(pass) = self.pass.take() else { return (response, None, None) };
        let (mut meter, mut amended) = (None, None);
        if !has_run {
            amended = gate.give_back(pass);
        } else if actual.is_by_body() {
            let (gate, pass, end) = (Arc::clone(gate), Some(pass), End::default());
            meter = Some(Box::new(Meter { gate, pass, actual, end }));
        } else {
            amended = gate.settle(pass, &actual, End::default());
        }
        (response, meter, amended)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some(pass) = self.pass.take() else { return };
        if self.has_run && !pass.mark.as_ref().is_some_and(Mark::never_ran) {
            self.gate.keep(pass);
        } else {
            let _beside = self.gate.give_back(pass);
        }
    }
}

impl<S, B> LimitFuture<S, B>
where
    S: Service<Request<B>>,
{
    pub(super) fn refused(response: Response<Bytes>) -> Self {
        Self { stage: Stage::Refused { response: Some(Box::new(response)) } }
    }

    pub(super) const fn runs(future: S::Future, ticket: Ticket) -> Self {
        Self { stage: Stage::Runs { future, ticket } }
    }

    pub(super) fn asks(turn: Turn, held: Held<S, B>) -> Self {
        Self { stage: Stage::Asks { asks: Box::new((turn, Some(held))) } }
    }
}

impl<S, B, R> Future for LimitFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<LimitBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            match stage.as_mut().project() {
                StageProjection::Refused { response } => {
                    let response = response.take().map(|response| *response).unwrap_or_default();
                    return Poll::Ready(Ok(response.map(LimitBody::told)));
                }
                StageProjection::Runs { future, ticket } => {
                    ticket.has_run = true;
                    let response = ready!(future.poll(context))?;
                    let (response, meter, amended) = ticket.finish(response);
                    // What a client is told is so when it is told, unless that takes too long.
                    let longest = ticket.gate.store_timeout;
                    let settling = amended.and_then(|task| timer::timeout(longest, task).ok());
                    let Some(settling) = settling else {
                        return Poll::Ready(Ok(
                            response.map(|body| LimitBody::service(body, meter))
                        ));
                    };
                    let settles = Box::new((Box::pin(settling), Some(response)));
                    stage.set(Stage::Settles { settles });
                }
                StageProjection::Settles { settles } => {
                    let _in_time = ready!(settles.0.as_mut().poll(context));
                    let response = settles.1.take();
                    let response = response.map(|it| it.map(|body| LimitBody::service(body, None)));
                    stage.set(Stage::Over);
                    return response.map_or(Poll::Pending, |response| Poll::Ready(Ok(response)));
                }
                StageProjection::Over => {
                    debug_assert!(false, "polled after it was ready");
                    return Poll::Pending;
                }
                StageProjection::Asks { asks } => {
                    let (turn, held) = &mut **asks;
                    let pass = ready!(turn.poll(context));
                    // INVARIANT: it is there until the answer is.
                    let Some(Held { gate, mut service, mut request }) = held.take() else {
                        return Poll::Pending;
                    };
                    let mut ticket = Ticket::new(gate, Some(pass));
                    let next = match ticket.answer(&mut request) {
                        Some(response) => Stage::Refused { response: Some(Box::new(response)) },
                        None => Stage::Runs { future: service.call(request), ticket },
                    };
                    stage.set(next);
                }
            }
        }
    }
}

impl<S, B> fmt::Debug for LimitFuture<S, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LimitFuture")
    }
}
