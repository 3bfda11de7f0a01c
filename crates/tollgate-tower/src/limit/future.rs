//! The future of a request that passes the limits, waits for them, or is refused.

use super::{
    body::LimitBody,
    ticket::{Taken, Ticket},
    turn::Turn,
};
use crate::{queued, timer};
use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::{task::JoinHandle, time::Timeout};
use tower_service::Service;

pin_project! {
    /// The response future of [`RateLimit`](super::RateLimit).
    pub struct LimitFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        // The ticket reads the state that the future leaves: fields are dropped in this order.
        #[pin]
        future: Option<S::Future>,
        ticket: Ticket,
        // In a box, so that the rare cases do not make the usual future large.
        rare: Option<Box<Rare<S, S::Response, B>>>,
    }

    impl<S, B> PinnedDrop for LimitFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        fn drop(this: Pin<&mut Self>) {
            if let Some(rare) = this.project().rare
                && let Rare::Asks(_, Some(held)) = &**rare
            {
                queued::leave(held.request.extensions());
            }
        }
    }
}

/// The cases of a request that does not just run.
#[allow(clippy::large_enum_variant, reason = "it is in a box of its own")]
enum Rare<S, R, B> {
    Refused(Option<Response<Bytes>>),
    Asks(Turn, Option<Held<S, B>>),
    Settles(Settling, Option<R>),
}

/// A correction to wait for.
type Settling = Pin<Box<Timeout<JoinHandle<()>>>>;

/// A call that waits for the decision of a store.
pub(super) struct Held<S, B> {
    /// The service that was polled ready.
    pub(super) service: S,
    pub(super) request: Request<B>,
}

/// The result of a wait.
enum Came<F, R> {
    Response(Response<LimitBody<R>>),
    Runs(F),
}

impl<S, B> LimitFuture<S, B>
where
    S: Service<Request<B>>,
{
    /// A request that runs. Inlined: a future is large, and would be moved once more.
    #[inline(always)]
    pub(super) const fn runs(future: S::Future, ticket: Ticket) -> Self {
        Self { future: Some(future), ticket, rare: None }
    }

    pub(super) fn refused(response: Response<Bytes>, ticket: Ticket) -> Self {
        let rare = Some(Box::new(Rare::Refused(Some(response))));
        Self { future: None, ticket, rare }
    }

    pub(super) fn asks(turn: Turn, held: Held<S, B>, ticket: Ticket) -> Self {
        let rare = Some(Box::new(Rare::Asks(turn, Some(held))));
        Self { future: None, ticket, rare }
    }
}

impl<S, R, B> Rare<S, Response<R>, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    fn poll(&mut self, ticket: &mut Ticket, context: &mut Context<'_>) -> Poll<Came<S::Future, R>> {
        let came = match self {
            Self::Refused(response) => {
                response.take().map(|response| Came::Response(response.map(LimitBody::refusal)))
            }
            Self::Settles(settling, response) => {
                let _in_time = ready!(settling.as_mut().poll(context));
                let response = response.take();
                response.map(|it| Came::Response(it.map(|body| LimitBody::service(body, None))))
            }
            Self::Asks(turn, held) => {
                let pass = ready!(turn.poll(context));
                held.take().map(|Held { mut service, mut request }| {
                    ticket.taken = Taken::Pass(pass);
                    match ticket.answer(&mut request) {
                        Some(response) => Came::Response(response.map(LimitBody::refusal)),
                        None => Came::Runs(service.call(request)),
                    }
                })
            }
        };
        debug_assert!(came.is_some(), "it is there until it has come");
        came.map_or(Poll::Pending, Poll::Ready)
    }
}

impl<S, B, R> LimitFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    /// Polls for a response; `wrap` makes its body.
    #[inline]
    pub(super) fn poll_with<T>(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        wrap: impl FnOnce(LimitBody<R>) -> T,
    ) -> Poll<Result<Response<T>, S::Error>> {
        let mut this = self.project();
        loop {
            if let Some(rare) = this.rare {
                let came = ready!(rare.poll(this.ticket, context));
                *this.rare = None;
                match came {
                    Came::Response(response) => return Poll::Ready(Ok(response.map(wrap))),
                    Came::Runs(future) => this.future.set(Some(future)),
                }
            }
            let Some(future) = this.future.as_mut().as_pin_mut() else {
                debug_assert!(false, "polled after it was ready");
                return Poll::Pending;
            };
            let is_first = !std::mem::replace(&mut this.ticket.has_run, true);
            let mut response = ready!(future.poll(context))?;
            if this.ticket.finish_light(is_first, &mut response) {
                let response = response.map(|body| wrap(LimitBody::service(body, None)));
                return Poll::Ready(Ok(response));
            }
            let (response, meter, amended) = this.ticket.finish(response);
            // Clients get figures that are already settled, unless settling takes too long.
            let longest = this.ticket.gate.store_timeout;
            let Some(settling) = amended.and_then(|task| timer::timeout(longest, task).ok()) else {
                let response = response.map(|body| wrap(LimitBody::service(body, meter)));
                return Poll::Ready(Ok(response));
            };
            this.future.set(None);
            *this.rare = Some(Box::new(Rare::Settles(Box::pin(settling), Some(response))));
        }
    }
}

impl<S, B, R> Future for LimitFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<LimitBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_with(context, |body| body)
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
