//! The future of a call that may be repeated.

use super::{Repeat, Repeatable, Shared};
use crate::{Info, client::grpc, timer::Timer};
use http::{Request, Response};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tollgate::Tick;
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
        // What is to be sent next.
        spare: Option<C::Spare>,
        repeatable: Repeatable,
        tries: u32,
        since: Tick,
        // When to send it; only looked at between calls.
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
        let since = shared.clock.now();
        let repeatable = Repeatable::of(&request);
        let (request, spare) =
            if shared.max_attempts > 1 { shared.repeat.keep(request) } else { (request, None) };
        let call = Some(service.call(request));
        let (due, timer) = (since, Timer::default());
        Self { shared, service, spare, repeatable, tries: 1, since, due, timer, call }
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
        loop {
            if let Some(call) = this.call.as_mut().as_pin_mut() {
                let response = match ready!(call.poll(context)) {
                    Ok(response) => response,
                    Err(error) => return Poll::Ready(Err(error)),
                };
                this.call.set(None);
                let spare = this.spare.as_ref().filter(|spare| shared.repeat.is_whole(spare));
                let facts = (*this.repeatable, *this.tries, *this.since);
                let due = spare.and_then(|_| shared.due(&response, facts));
                let due = due.filter(|due| this.timer.set(&shared.clock, *due).is_ok());
                // Who does not repeat pays nothing, and is not stopped: so the budget comes behind
                // the timer, and before the recall, which fails only if just now too much was read.
                let due = due.filter(|_| shared.budget.withdraw());
                let due = due.filter(|_| spare.is_some_and(|spare| shared.repeat.recall(spare)));
                let Some(due) = due else {
                    // Nothing has to be kept any more.
                    *this.spare = None;
                    // Without a spare the budget still learns of successes.
                    shared.note(&response);
                    return Poll::Ready(Ok(response));
                };
                // The refusal is dropped: its connection is of more use to others.
                *this.due = due;
            }
            // It could be set, so there are timers. If there are none any more, the wait is over.
            let _over = ready!(this.timer.poll(&shared.clock, *this.due, context));
            ready!(this.service.poll_ready(context))?;
            let spare = this.spare.take().expect("a repeat has a request");
            let mut request;
            if *this.tries + 1 < shared.max_attempts {
                (request, *this.spare) = shared.repeat.again(spare);
            } else {
                request = shared.repeat.last(spare);
            }
            if Info::of(&request).is_grpc() {
                request.headers_mut().insert("grpc-previous-rpc-attempts", (*this.tries).into());
            }
            *this.tries += 1;
            this.call.set(Some(this.service.call(request)));
        }
    }
}

impl<C> Shared<C> {
    /// Pays into the budget for a success.
    fn note<R>(&self, response: &Response<R>) {
        let is_error = response.status().is_server_error();
        let is_error = is_error || grpc::status(response.headers()).is_some_and(|code| code != 0);
        if !is_error && self.learn(response).refusal.is_none() {
            self.budget.deposit();
        }
    }

    /// Returns when to repeat a call that had this answer after so many tries, if at all.
    fn due<R>(
        &self,
        response: &Response<R>,
        (repeatable, tries, since): (Repeatable, u32, Tick),
    ) -> Option<Tick> {
        let learned = self.learn(response);
        let is_grpc = grpc::status(response.headers()).is_some();
        let least: Duration = self.retry_after(&learned, is_grpc, repeatable)?;
        let latest = since.saturating_add(self.max_elapsed);
        let now = self.clock.now();
        if tries >= self.max_attempts || now.saturating_add(least) > latest {
            return None;
        }
        let pause = least.saturating_add(self.backoff.pause(tries));
        // Chance must not be what makes it too late.
        Some(now.saturating_add(pause).min(latest))
    }
}

impl<S: Service<Request<B>>, B, C: Repeat<B>> fmt::Debug for RetryFuture<S, B, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryFuture").field("tries", &self.tries).finish_non_exhaustive()
    }
}
