//! The future of a call that may be repeated.

use super::{Learned, Repeat, Repeatable, Shared};
use crate::{Deadline, Info, RefusedBy, client::grpc, timer::Timer};
use http::{Request, Response};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tollgate::{Attempts, ShouldRetry, Tick};
use tower_service::Service;

pin_project! {
    /// Calls, and repeats the call if it is refused; made by [`Retry`](super::Retry).
    #[must_use = "a future does nothing until it is polled or awaited"]
    pub struct RetryFuture<S, B, C>
    where
        S: Service<Request<B>>,
        C: Repeat<B>,
    {
        shared: Arc<Shared<C>>,
        service: S,
        // The request to send next, as far as it is kept.
        spare: Option<C::Spare>,
        repeatable: Repeatable,
        attempts: Attempts,
        // No attempt starts after this.
        deadline: Tick,
        // When to send it; only read between calls.
        due: Tick,
        timer: Timer,
        #[pin]
        call: Option<S::Future>,
    }
}

impl<S, B, C> RetryFuture<S, B, C>
where
    S: Service<Request<B>>,
    C: Repeat<B>,
{
    pub(super) fn new(mut service: S, request: Request<B>, shared: Arc<Shared<C>>) -> Self {
        let now = shared.policy.clock().now();
        let attempts = shared.policy.start(now);
        let deadline = request.extensions().get::<Deadline>();
        let deadline = deadline.map_or(Tick::MAX, |deadline| deadline.on(shared.policy.clock()));
        let repeatable = Repeatable::of(&request);
        let (request, spare) = if shared.policy.max_attempts() > 1 {
            shared.repeat.keep(request)
        } else {
            (request, None)
        };
        let call = Some(service.call(request));
        let (due, timer) = (now, Timer::default());
        Self { shared, service, spare, repeatable, attempts, deadline, due, timer, call }
    }
}

impl<S, B, R, C> Future for RetryFuture<S, B, C>
where
    S: Service<Request<B>, Response = Response<R>>,
    C: Repeat<B>,
{
    type Output = Result<Response<R>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let shared = &**this.shared;
        let clock = shared.policy.clock();
        loop {
            if let Some(call) = this.call.as_mut().as_pin_mut() {
                let response = match ready!(call.poll(context)) {
                    Ok(response) => response,
                    Err(error) => return Poll::Ready(Err(error)),
                };
                this.call.set(None);
                let spare = this.spare.as_ref().filter(|spare| shared.repeat.is_whole(spare));
                let learned = shared.learn(&response);
                let due = shared.due(
                    &response,
                    &learned,
                    (*this.repeatable, *this.deadline, this.attempts),
                );
                let due = due.filter(|_| spare.is_some());
                let due = due.filter(|due| this.timer.set(clock, *due).is_ok());
                // A call that cannot be repeated takes nothing from the budget. So the budget comes
                // after the timer, and before the recall, which fails only if too much of the body
                // was read just now.
                let due = due.filter(|_| shared.policy.withdraw());
                let due = due.filter(|_| spare.is_some_and(|spare| shared.repeat.recall(spare)));
                let Some(due) = due else {
                    // Nothing has to be kept any more.
                    *this.spare = None;
                    // Without a spare the budget still learns of successes.
                    shared.note(&response, &learned);
                    return Poll::Ready(Ok(response));
                };
                // The refusal is dropped: other calls can use its connection.
                *this.due = due;
            }
            // The timer could be set, so there are timers. If they are gone, the wait is over.
            let _over = ready!(this.timer.poll(clock, *this.due, context));
            ready!(this.service.poll_ready(context))?;
            let spare = this.spare.take().expect("a repeat has a request");
            let mut request;
            let made = this.attempts.made();
            if made < shared.policy.max_attempts() {
                (request, *this.spare) = shared.repeat.again(spare);
            } else {
                request = shared.repeat.last(spare);
            }
            if Info::of(&request).is_grpc() {
                request.headers_mut().insert("grpc-previous-rpc-attempts", (made - 1).into());
            }
            this.call.set(Some(this.service.call(request)));
        }
    }
}

impl<C> Shared<C> {
    /// Pays into the budget for a success.
    fn note<R>(&self, response: &Response<R>, learned: &Learned) {
        let is_error = response.status().is_server_error();
        let is_error = is_error || grpc::status(response.headers()).is_some_and(|code| code != 0);
        if !is_error && learned.refusal.is_none() {
            self.policy.succeeded();
        }
    }

    /// Returns when to repeat a call that had this response, or `None` if it is not repeated.
    fn due<R>(
        &self,
        response: &Response<R>,
        learned: &Learned,
        (repeatable, deadline, attempts): (Repeatable, Tick, &mut Attempts),
    ) -> Option<Tick> {
        let is_grpc = grpc::status(response.headers()).is_some();
        let refused = response.extensions().get::<RefusedBy>();
        let should_retry = match refused.and_then(RefusedBy::retry_after) {
            // Another layer refused the call: it was not sent, so any method may be repeated.
            Some(wait) => ShouldRetry::After(wait),
            None => self.should_retry(learned, is_grpc, repeatable)?,
        };
        let policy = self.policy.until(deadline);
        policy.next_attempt(attempts, policy.clock().now(), should_retry)
    }
}

impl<S: Service<Request<B>>, B, C: Repeat<B>> fmt::Debug for RetryFuture<S, B, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryFuture")
            .field("attempts", &self.attempts.made())
            .finish_non_exhaustive()
    }
}
