//! A request on its way through the limits.

use super::{
    NotRun,
    body::{LimitBody, Meter},
    gate::Gate,
    pass::Pass,
    turn::Turn,
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
}

pin_project! {
    #[project = StageProjection]
    enum Stage<S, F, B> {
        Refused { response: Option<Box<Response<Bytes>>> },
        // In boxes: what is rare shall not make the usual future large.
        Asks { asks: Box<(Turn, Option<Held<S, B>>)> },
        Runs { #[pin] future: F, ticket: Ticket },
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

    /// Adds to a response what the client is told, and settles what it has cost.
    fn finish<B>(&mut self, response: Response<B>) -> Response<LimitBody<B>> {
        let Some(pass) = self.pass.take() else {
            return response.map(|body| LimitBody::service(body, None));
        };
        let (mut head, body) = response.into_parts();
        self.gate.decorate(&pass, &mut head);
        if head.extensions.get::<NotRun>().is_some() {
            self.gate.give_back(pass);
            return Response::from_parts(head, LimitBody::service(body, None));
        }
        let mut meter = None;
        if let Some(actual) = self.gate.actual(&pass, &head) {
            if actual.is_by_body() {
                let gate = Arc::clone(&self.gate);
                meter = Some(Box::new(Meter { gate, pass, actual, sent: 0 }));
            } else {
                self.gate.settle(&pass, &actual, 0);
            }
        }
        Response::from_parts(head, LimitBody::service(body, meter))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(pass) = self.pass.take().filter(|_| !self.has_run) {
            self.gate.give_back(pass);
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
                    return Poll::Ready(Ok(ticket.finish(response)));
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
