//! Tokio's timers, if there are any.
//!
//! Outside of a runtime, and in one that was built without timers, tokio panics. The functions here
//! return [`NoTimers`] instead, so that callers can do without.

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

/// Gives a future a time limit, if there are timers.
///
/// A runtime does not say whether it was built with timers: it panics when one is made. This
/// function catches that panic. The panic hook still prints a message, and the panic still ends a
/// process that is built with `panic = "abort"`.
pub(crate) fn timeout<F: Future>(longest: Duration, future: F) -> Result<Timeout<F>, NoTimers> {
    if Handle::try_current().is_err() {
        return Err(NoTimers);
    }
    // UNWIND: the future was not polled here, and is dropped.
    let timeout = catch_unwind(AssertUnwindSafe(|| tokio::time::timeout(longest, future)));
    timeout.map_err(|_| NoTimers)
}

/// Tells whether a wait can be ended here.
pub(crate) fn has_timers() -> bool {
    timeout(Duration::ZERO, std::future::pending::<()>()).is_ok()
}

/// A delay, as a tokio timer.
type Sleep = Timeout<Pending<()>>;

/// A timer that costs nothing until it is set.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    set: Option<(Tick, Pin<Box<Sleep>>)>,
}

impl Timer {
    /// Sets it to `due`, unless that time has come.
    pub(crate) fn set(&mut self, clock: &Clock, due: Tick) -> Result<(), NoTimers> {
        let now = clock.now();
        self.set = None;
        if now < due {
            let sleep = timeout(due.since(now), std::future::pending())?;
            self.set = Some((due, Box::pin(sleep)));
        }
        Ok(())
    }

    /// Becomes ready from `due` on, or at once if there are no timers.
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
            // The runtime's clock and ours may differ a little: check again.
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
