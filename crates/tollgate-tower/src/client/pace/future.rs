//! The future of a paced call.

use super::{PaceError, Shared};
use crate::{
    Info,
    client::turn::{Flight, Line, Turn},
};
use http::{Request, Response};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tollgate::{Limiter, Tick, Wait};
use tower_service::Service;

pin_project! {
    /// Waits its turn, and then calls; made by [`Pace`](super::Pace).
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
    }
}

/// A call that is not sent yet. Dropped, it gives back what it has.
struct Job<S, B> {
    service: S,
    request: Request<B>,
    line: Option<Arc<Line>>,
    turn: Option<Turn>,
    since: Option<Tick>,
    has_waited: bool,
    spent: Option<Spent>,
}

/// Permits of one's own quota, given back when dropped.
struct Spent {
    limiter: Limiter,
    cost: u64,
}

impl Drop for Spent {
    fn drop(&mut self) {
        self.limiter.refund(self.cost);
    }
}

impl<S: Service<Request<B>>, B> PaceFuture<S, B> {
    pub(super) fn new(service: S, request: Request<B>, shared: Arc<Shared>) -> Self {
        let info = Info::of(&request);
        let line = shared.line(&info);
        let cost = shared.quota.as_ref().map(|limiter| (limiter, shared.cost(&info)));
        let quota = cost.map(|(limiter, cost)| limiter.acquire_n(cost).within(shared.max_wait));
        let job =
            Job { service, request, line, turn: None, since: None, has_waited: false, spent: None };
        Self { shared, job: Some(job), quota, call: None, flight: None }
    }
}

impl<S, B, R> Future for PaceFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<R>, PaceError<S::Error>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let shared = &**this.shared;
        loop {
            if let Some(call) = this.call.as_mut().as_pin_mut() {
                let result = ready!(call.poll(context));
                this.call.set(None);
                // Without an answer the flight is dropped, which counts as lost.
                let flight = this.flight.take();
                if let (Ok(response), Some(flight)) = (&result, flight) {
                    let has_stopped = flight.answer(&shared.learn(response));
                    shared.counts.stops.add(has_stopped.into());
                }
                return Poll::Ready(result.map_err(PaceError::Inner));
            }
            let job = this.job.as_mut().expect("a future is not polled after it was ready");
            let since = *job.since.get_or_insert_with(|| shared.clock.now());
            if let Some(wait) = this.quota.as_mut().as_pin_mut() {
                let cost = wait.cost();
                let Poll::Ready(passed) = wait.poll(context) else {
                    job.has_waited = true;
                    return Poll::Pending;
                };
                this.quota.set(None);
                if let Err(refused) = passed {
                    *this.job = None;
                    shared.counts.refused.add(1);
                    return Poll::Ready(Err(PaceError::Quota(refused)));
                }
                job.spent = shared.quota.clone().map(|limiter| Spent { limiter, cost });
            }
            if let Some(line) = job.line.take() {
                job.turn = Some(Turn::new(line, since.saturating_add(shared.max_wait)));
            }
            if let Some(turn) = &mut job.turn {
                match turn.poll(context) {
                    Poll::Pending => {
                        job.has_waited = true;
                        return Poll::Pending;
                    }
                    Poll::Ready(Ok(flight)) => *this.flight = Some(flight),
                    Poll::Ready(Err(no)) => {
                        *this.job = None;
                        shared.counts.refused.add(1);
                        return Poll::Ready(Err(PaceError::of(no, shared.max_wait)));
                    }
                }
            }
            if let Some(job) = this.job.take() {
                shared.counts.sent.add(1);
                shared.counts.waited.add(job.has_waited.into());
                this.call.set(Some(job.send()));
            }
        }
    }
}

impl<S: Service<Request<B>>, B> Job<S, B> {
    fn send(mut self) -> S::Future {
        if let Some(spent) = self.spent.take() {
            spent.keep();
        }
        // The next in line looks before this call is made, which may take its time.
        self.turn = None;
        self.service.call(self.request)
    }
}

impl Spent {
    /// The permits stay spent.
    fn keep(mut self) {
        self.cost = 0;
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for PaceFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PaceFuture").field("is_sent", &self.job.is_none()).finish_non_exhaustive()
    }
}
