//! A request on its way through the limits.

use super::{
    NotRun,
    body::{LimitBody, Meter},
    correct::End,
    gate::Gate,
    pass::Pass,
    turn::Turn,
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
use tower_service::Service;

pin_project! {
    /// The response to come, of [`RateLimit`](super::RateLimit).
    pub struct LimitFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        stage: Stage<S, S::Future, B>,
    }

    impl<S, B> PinnedDrop for LimitFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        fn drop(this: Pin<&mut Self>) {
            this.project().stage.leave();
        }
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<S, F, B> {
        Refused { response: Option<Box<Response<Bytes>>> },
        // In boxes: what is rare shall not make the usual future large.
        Asks { asks: Box<(Turn, Option<Held<S, B>>)> },
        Runs { #[pin] future: F, ticket: Ticket },
        Over,
    }
}

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

    /// Returns what is left to be seen to.
    fn leave(&mut self) -> Option<Self> {
        let pass = self.pass.take()?;
        Some(Self { gate: Arc::clone(&self.gate), pass: Some(pass), has_run: self.has_run })
    }

    /// Adds to a response what the client is told, and settles what it has cost.
    fn finish<B>(&mut self, mut response: Response<B>) -> Response<LimitBody<B>> {
        let Some(mut pass) = self.pass.take() else {
            return response.map(|body| LimitBody::service(body, None));
        };
        let has_run = response.extensions().get::<NotRun>().is_none();
        if !has_run || !pass.is_reserved() {
            self.gate.decorate(&pass, &mut response);
            if !has_run {
                self.gate.give_back(pass);
            }
            return response.map(|body| LimitBody::service(body, None));
        }
        let (head, body) = response.into_parts();
        let actual = self.gate.actual(&pass, &head);
        let mut response = Response::from_parts(head, body);
        self.gate.correct(&mut pass, &actual);
        self.gate.decorate(&pass, &mut response);
        let (gate, end) = (Arc::clone(&self.gate), End::default());
        let meter = if actual.is_by_body() {
            Some(Box::new(Meter { gate, pass, actual, end }))
        } else {
            gate.settle(&pass, &actual, end);
            None
        };
        response.map(|body| LimitBody::service(body, meter))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        match self.pass.take() {
            Some(pass) if !self.has_run => self.gate.give_back(pass),
            Some(pass) => self.gate.keep(&pass),
            None => {}
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

impl<S, F, B> Stage<S, F, B> {
    /// Ends a request that nobody waits for any more.
    fn leave(mut self: Pin<&mut Self>) {
        let ticket = match self.as_mut().project() {
            StageProjection::Runs { ticket, .. } => ticket.leave(),
            StageProjection::Asks { asks } => {
                let request = asks.1.as_ref().map(|held| &held.request);
                request.into_iter().for_each(|request| queued::leave(request.extensions()));
                None
            }
            _ => None,
        };
        let Some(mut ticket) = ticket else { return };
        // Whoever it waits for further in says so while it goes.
        if queued::was_left(|| self.set(Self::Over)) {
            ticket.has_run = false;
        }
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
                    return Poll::Ready(Ok(ticket.finish(response)));
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
                    let next = match gate.answer(&pass, &mut request) {
                        Some(response) => Stage::Refused { response: Some(Box::new(response)) },
                        None => {
                            // Charged from here on: it is given back even if the service panics.
                            let ticket = Ticket::new(gate, Some(pass));
                            Stage::Runs { future: service.call(request), ticket }
                        }
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
