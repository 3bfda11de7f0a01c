//! The future of a paced call.

use super::{PaceError, Shared};
use crate::{
    Info, RefusedBy,
    classify::is_refusal,
    client::turn::{Flight, Line, NoTurn, Turn},
};
use http::{Request, Response};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tollgate::{Limiter, Reservation, Tick, Wait};
use tower_service::Service;

pin_project! {
    /// Waits until the call may start, and then calls; made by [`Pace`](super::Pace).
    #[must_use = "a future does nothing until it is polled or awaited"]
    pub struct PaceFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        shared: Arc<Shared>,
        // Before the call.
        job: Option<Job<S, B>>,
        #[pin]
        quota: Option<Wait>,
        // From the call on.
        #[pin]
        call: Option<S::Future>,
        flight: Option<Flight>,
        // The cost of the call to the client's own quota.
        cost: u64,
    }
}

/// A call that is not sent yet. Dropping it gives back what it holds.
struct Job<S, B> {
    service: S,
    /// Whether the service was not polled yet, so that it holds no place further in.
    is_fresh: bool,
    request: Request<B>,
    /// The cost of the call to the client's own quota.
    cost: u64,
    line: Option<Arc<Line>>,
    turn: Option<Turn>,
    deadline: Option<Tick>,
    has_waited: bool,
    spent: Option<Spent>,
}

/// Permits of the client's own quota. Dropping them gives back those that have not refilled
/// already.
struct Spent(Option<Reservation>);

impl Spent {
    /// Takes permits, if they are free now.
    fn at_once(limiter: &Limiter, cost: u64) -> Option<Self> {
        let now = limiter.now();
        // A reservation that fails would count as a refusal, but this call is not refused: it may
        // wait.
        if !limiter.peek_at(now, cost).is_allowed() {
            return None;
        }
        let taken = limiter.reserve_at(now, cost, Duration::ZERO).ok()?;
        Some(Self(Some(taken)))
    }

    /// The permits stay spent.
    fn keep(mut self) {
        self.0.take().into_iter().for_each(Reservation::keep);
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        if let Some(taken) = self.0.take() {
            taken.cancel();
        }
    }
}

impl<S: Service<Request<B>>, B> PaceFuture<S, B> {
    pub(super) fn new(service: S, request: Request<B>, shared: Arc<Shared>) -> Self {
        let info = Info::of(&request);
        let line = shared.line(&info);
        let cost = if shared.quota.is_some() { shared.cost(&info) } else { 0 };
        let job = Job {
            service,
            is_fresh: false,
            request,
            cost,
            line,
            turn: None,
            deadline: None,
            has_waited: false,
            spent: None,
        };
        Self { shared, job: Some(job), quota: None, call: None, flight: None, cost }
    }
}

impl<S, B, R> Future for PaceFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Output = Result<Response<R>, PaceError<S::Error>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.job.is_some() {
            let sent = ready!(self.as_mut().poll_send(context));
            if let Err(error) = sent {
                let this = self.project();
                *this.job = None;
                this.shared.counts.refused.add(error.is_unsent().into());
                return Poll::Ready(Err(error));
            }
        }
        let mut this = self.project();
        let call = this.call.as_mut().as_pin_mut();
        let result = ready!(call.expect("a future is not polled after it was ready").poll(context));
        this.call.set(None);
        // Without an answer the flight is dropped, which counts as lost.
        let flight = this.flight.take();
        if result.as_ref().is_ok_and(was_not_sent) {
            this.shared.quota.iter().for_each(|quota| _ = quota.refund(*this.cost));
        } else if let Ok(response) = &result {
            let learned = this.shared.learn(response);
            let has_stopped = flight.is_some_and(|flight| flight.answer(&learned));
            this.shared.counts.stops.add(has_stopped.into());
        }
        Poll::Ready(result.map_err(PaceError::Inner))
    }
}

impl<S: Service<Request<B>> + Clone, B> PaceFuture<S, B> {
    /// Waits for the quota, the queue and the service, and sends the call.
    fn poll_send(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), PaceError<S::Error>>> {
        let mut this = self.project();
        let shared = &**this.shared;
        let Some(job) = this.job else { return Poll::Ready(Ok(())) };
        if job.deadline.is_none() {
            let refused = |no| PaceError::of(no, shared.max_wait);
            let wait = job.enter(shared).map_err(refused)?;
            this.quota.set(wait);
        }
        if let Some(wait) = this.quota.as_mut().as_pin_mut() {
            let Poll::Ready(passed) = wait.poll(context) else {
                job.rest();
                return Poll::Pending;
            };
            this.quota.set(None);
            passed.map_err(PaceError::Quota)?;
        }
        *this.flight = ready!(job.poll_turn(shared.max_wait, context))?;
        if let Some(job) = this.job.take() {
            shared.counts.sent.add(1);
            shared.counts.waited.add(job.has_waited.into());
            this.call.set(Some(job.send()));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Service<Request<B>> + Clone, B> Job<S, B> {
    /// Takes permits of the client's own quota, or returns the wait for them. A call that the
    /// server does not accept in time takes none.
    fn enter(&mut self, shared: &Shared) -> Result<Option<Wait>, NoTurn> {
        let deadline = shared.clock.now().saturating_add(shared.max_wait);
        self.deadline = Some(deadline);
        let line = self.line.take();
        let mut wait = None;
        if let Some(limiter) = &shared.quota {
            if let Some(no) = line.as_ref().and_then(|line| line.too_long(deadline)) {
                return Err(no);
            }
            self.spent = Spent::at_once(limiter, self.cost);
            if self.spent.is_none() {
                wait = Some(limiter.acquire_n(self.cost).within(shared.max_wait));
            }
        }
        self.turn = line.map(|line| Turn::new(line, deadline));
        Ok(wait)
    }

    /// Waits for its place in the queue, and then for the service. Starts a flight if there is a
    /// lane.
    fn poll_turn(
        &mut self,
        max_wait: Duration,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Flight>, PaceError<S::Error>>> {
        loop {
            if let Some(turn) = &mut self.turn {
                let Poll::Ready(turn) = turn.poll(context) else {
                    self.rest();
                    return Poll::Pending;
                };
                turn.map_err(|no| PaceError::of(no, max_wait))?;
            }
            self.is_fresh = false;
            ready!(self.service.poll_ready(context)).map_err(PaceError::Inner)?;
            let Some(turn) = &self.turn else { return Poll::Ready(Ok(None)) };
            if let Some(flight) = turn.start() {
                return Poll::Ready(Ok(Some(flight)));
            }
        }
    }

    /// Releases its place further in while it waits here.
    fn rest(&mut self) {
        self.has_waited = true;
        if !std::mem::replace(&mut self.is_fresh, true) {
            self.service = self.service.clone();
        }
    }
}

impl<S: Service<Request<B>>, B> Job<S, B> {
    fn send(mut self) -> S::Future {
        if let Some(spent) = self.spent.take() {
            spent.keep();
        }
        // The next call in the queue looks before this call is made, which may take time.
        self.turn = None;
        self.service.call(self.request)
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for PaceFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PaceFuture").field("is_sent", &self.job.is_none()).finish_non_exhaustive()
    }
}

/// Tells whether a layer further in has refused the call, so that it was not sent and the server
/// said nothing. A rate limit in the same process counts as a server to follow.
fn was_not_sent<R>(response: &Response<R>) -> bool {
    let refused = response.extensions().get::<RefusedBy>();
    is_refusal(response.extensions()) && refused.is_none_or(|it| it.part() != "rate limit")
}
