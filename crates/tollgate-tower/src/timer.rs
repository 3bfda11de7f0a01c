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
///
/// A runtime does not tell whether it was built with timers: it panics when one is made. That panic
/// ends here. It leaves a message of the panic hook, and it still ends a process that is built with
/// `panic = "abort"`.
pub(crate) fn timeout<F: Future>(longest: Duration, future: F) -> Result<Timeout<F>, NoTimers> {
    if Handle::try_current().is_err() {
        return Err(NoTimers);
    }
    // UNWIND: the future was not polled here, and is dropped.
    let timeout = catch_unwind(AssertUnwindSafe(|| tokio::time::timeout(longest, future)));
    timeout.map_err(|_| NoTimers)
}

/// Tells whether a wait could be ended here.
pub(crate) fn has_timers() -> bool {
    timeout(Duration::ZERO, std::future::pending::<()>()).is_ok()
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    #[test]
    fn a_timer_is_made_only_where_there_are_some() {
        let one = || timeout(Duration::from_millis(1), pending::<()>());
        assert!(one().is_err(), "no runtime");
        let mut builder = tokio::runtime::Builder::new_current_thread();
        assert!(builder.build().unwrap().block_on(async { one() }).is_err(), "no timers");
        let with_timers = builder.enable_time().build().unwrap();
        assert!(with_timers.block_on(async { one().unwrap().await }).is_err(), "the time is over");
    }
}
