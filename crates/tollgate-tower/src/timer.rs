//! Timers of tokio, where there are any.
//!
//! Outside of a runtime, and in one that was built without timers, tokio panics. Whoever waits here
//! is told instead, and can do without.

use std::{
    future::Pending,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{runtime::Handle, time::Timeout};
use tollgate::{Clock, Tick};

/// There is no tokio runtime with timers here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoTimers;

/// Gives a future so much time, if there are timers.
pub(crate) fn timeout<F: Future>(longest: Duration, future: F) -> Result<Timeout<F>, NoTimers> {
    if Handle::try_current().is_err() {
        return Err(NoTimers);
    }
    // A runtime says in no other way that it has no timers.
    let timeout = catch_unwind(AssertUnwindSafe(|| tokio::time::timeout(longest, future)));
    timeout.map_err(|_| NoTimers)
}

/// Time that passes, in tokio's words.
type Sleep = Timeout<Pending<()>>;

/// A timer that costs nothing until it is set.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    set: Option<(Tick, Pin<Box<Sleep>>)>,
}

impl Timer {
    /// Sets it to `due`, unless that has come.
    pub(crate) fn set(&mut self, clock: &Clock, due: Tick) -> Result<(), NoTimers> {
        let now = clock.now();
        self.set = None;
        if now < due {
            let sleep = timeout(due.since(now), std::future::pending())?;
            self.set = Some((due, Box::pin(sleep)));
        }
        Ok(())
    }

    /// Is ready from `due` on, or at once if there are no timers.
    pub(crate) fn poll(
        &mut self,
        clock: &Clock,
        due: Tick,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), NoTimers>> {
        loop {
            if self.set.as_ref().is_none_or(|(set, _)| *set != due) {
                self.set(clock, due)?;
            }
            let Some((_, sleep)) = &mut self.set else { return Poll::Ready(Ok(())) };
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            // The runtime's clock and ours may differ by a little: look again.
            self.set = None;
        }
    }
}
