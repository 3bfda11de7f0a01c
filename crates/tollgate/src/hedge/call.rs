//! The attempts of one call.

use super::{HedgePolicy, HedgedAttempts};
use crate::{CallOutcome, wait::Sleeper};
use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

/// Makes a call, and makes it once more if it is slow, as the policy allows; returns the first
/// success.
///
/// An error before a hedge was sent is returned at once: [`retry`](crate::retry) is what repeats
/// errors. After that it waits for the other attempts; if all fail, the error of the first attempt
/// is returned.
///
/// # Errors
///
/// The error of the first attempt, if no other succeeds. Outside of a tokio runtime nothing can be
/// timed, so nothing is hedged, unless the clock is manual.
///
/// # Cancel safety
///
/// Attempts run inside of this future, and are dropped with it. Those that lose are dropped before
/// the answer is returned. A hedge that was taken from the budget stays spent.
///
/// # Examples
///
/// ```
/// use std::{future::pending, time::Duration};
/// use tollgate::{hedge, hedge::HedgePolicy};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let clock = tollgate::Clock::tokio();
/// let policy = HedgePolicy::after(Duration::from_millis(50));
/// # let policy = policy.clock(clock);
/// let policy = policy.build()?;
/// let mut attempts = 0;
/// let answer = hedge(&policy, || {
///     attempts += 1;
///     let hangs = attempts == 1;
///     async move { if hangs { pending().await } else { Ok::<_, std::io::Error>(42) } }
/// });
/// assert_eq!(answer.await?, 42);
/// assert_eq!(policy.counts().wins, 1);
/// # Ok(())
/// # }
/// ```
pub async fn hedge<T, E, F>(policy: &HedgePolicy, mut call: impl FnMut() -> F) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let mut hedged = HedgedCall::new(policy, call());
    let classify = |result: &Result<T, E>| match result {
        Ok(_) => CallOutcome::Success,
        Err(_) => CallOutcome::Failure,
    };
    poll_fn(|context| hedged.poll_with(context, || Some(call()), classify)).await
}

/// The attempts of one hedged call, for middleware; [`hedge`] is easier to use.
///
/// It polls all attempts from one task, and drops those that lose before it returns the answer.
///
/// # Examples
///
/// ```
/// use std::{future::{Ready, poll_fn, ready}, time::Duration};
/// use tollgate::{CallOutcome, hedge::{HedgePolicy, HedgedCall}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let policy = HedgePolicy::after(Duration::from_millis(50)).build()?;
/// let mut call: HedgedCall<Ready<u16>> = HedgedCall::new(&policy, ready(200));
/// let classify = |status: &u16| match status {
///     ..500 => CallOutcome::Success,
///     _ => CallOutcome::Failure,
/// };
/// let status = poll_fn(|context| call.poll_with(context, || Some(ready(200)), classify)).await;
/// assert_eq!(status, 200);
/// # Ok(())
/// # }
/// ```
#[must_use = "it does nothing until it is polled"]
pub struct HedgedCall<F: Future> {
    policy: HedgePolicy,
    attempts: HedgedAttempts,
    running: Vec<Attempt<F>>,
    /// The answer of the earliest attempt that has failed, and its number.
    failed: Option<(u32, F::Output)>,
    /// Made when the first attempt has to be waited for.
    timer: Option<Pin<Box<Sleeper>>>,
}

struct Attempt<F> {
    number: u32,
    future: Pin<Box<F>>,
}

impl<F: Future> HedgedCall<F> {
    /// Starts a call with its first attempt.
    pub fn new(policy: &HedgePolicy, first: F) -> Self {
        let attempts = policy.start(policy.clock().now());
        let running = vec![Attempt { number: 0, future: Box::pin(first) }];
        Self { policy: policy.clone(), attempts, running, failed: None, timer: None }
    }

    /// Polls the attempts, and makes a hedge when one is due.
    ///
    /// `next` makes an attempt; if it returns `None`, the call is not hedged any more. `classify`
    /// tells how an attempt ended: only a success ends the call while others run.
    pub fn poll_with(
        &mut self,
        context: &mut Context<'_>,
        mut next: impl FnMut() -> Option<F>,
        mut classify: impl FnMut(&F::Output) -> CallOutcome,
    ) -> Poll<F::Output> {
        loop {
            if let Some(answer) = self.poll_attempts(context, &mut classify) {
                // Losers go before the caller sees the answer.
                self.running.clear();
                self.failed = None;
                return Poll::Ready(answer);
            }
            if self.running.is_empty() {
                // INVARIANT: an attempt that has ended left its answer here; polled after it was
                // ready, there is none.
                return self.failed.take().map_or(Poll::Pending, |(_, answer)| Poll::Ready(answer));
            }
            let Some(due) = self.attempts.next_due() else { return Poll::Pending };
            let clock = self.policy.clock();
            let timer = self.timer.get_or_insert_with(|| Box::pin(Sleeper::ANY));
            match timer.as_mut().poll_until(clock, due, context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(crate::NoRuntime)) => {
                    self.attempts.stop();
                    return Poll::Pending;
                }
                Poll::Ready(Ok(())) => {}
            }
            let now = clock.now();
            let number = self.attempts.made();
            if !self.policy.try_hedge(&mut self.attempts, now) {
                return Poll::Pending;
            }
            let Some(future) = next() else {
                self.attempts.stop();
                return Poll::Pending;
            };
            self.running.push(Attempt { number, future: Box::pin(future) });
        }
    }

    /// Polls every attempt once; returns the answer that ends the call.
    fn poll_attempts(
        &mut self,
        context: &mut Context<'_>,
        classify: &mut impl FnMut(&F::Output) -> CallOutcome,
    ) -> Option<F::Output> {
        let mut index = 0;
        while let Some(attempt) = self.running.get_mut(index) {
            let Poll::Ready(answer) = attempt.future.as_mut().poll(context) else {
                index += 1;
                continue;
            };
            let number = attempt.number;
            drop(self.running.remove(index));
            let (now, outcome) = (self.policy.clock().now(), classify(&answer));
            if self.policy.ended(&mut self.attempts, number, now, outcome) {
                return Some(answer);
            }
            if self.failed.as_ref().is_none_or(|(earliest, _)| number < *earliest) {
                self.failed = Some((number, answer));
            }
        }
        None
    }
}

// Attempts are pinned in boxes, and answers are never pinned.
impl<F: Future> Unpin for HedgedCall<F> {}

impl<F: Future> fmt::Debug for HedgedCall<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HedgedCall")
            .field("attempts", &self.attempts)
            .field("running", &self.running.len())
            .finish_non_exhaustive()
    }
}
