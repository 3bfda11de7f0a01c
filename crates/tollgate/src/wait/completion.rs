//! Waiting until an action has ended.

use super::{NoRuntime, action::guarded, parked::block_until, sleeper::Sleeper};
use crate::{Clock, Tick};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

/// Something that ends.
pub(super) trait Completion: Send + Sync {
    /// Is ready when it is stopped and nothing runs, or when its own action asks; before that,
    /// leaves the waker under a number.
    fn poll_completion(
        &self,
        number: &mut Option<u64>,
        waker: &Waker,
    ) -> Poll<Result<(), CalledInside>>;
    /// Takes the waker of a number out.
    fn remove_waker(&self, number: u64);
}

/// An action asks for its own end.
pub(super) struct CalledInside;

struct Registration {
    engine: Arc<dyn Completion>,
    number: Option<u64>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.engine.remove_waker(number);
        }
    }
}

pin_project! {
    /// Waits until all is over, at most for a given time: no action runs, and it is dropped.
    ///
    /// The stop has happened already when this is made; dropping this only ends the waiting. Await
    /// it in a task (feature `tokio`), or [`block`](Self::block) a thread.
    #[must_use = "await it, or call `block`; to stop without waiting, use `stop`"]
    pub struct StopAndWait {
        registration: Registration,
        clock: Clock,
        until: Tick,
        within: Duration,
        #[pin]
        sleeper: Sleeper,
    }
}

impl StopAndWait {
    pub(super) fn new(engine: Arc<dyn Completion>, clock: Clock, within: Duration) -> Self {
        let registration = Registration { engine, number: None };
        let until = clock.now().saturating_add(within);
        Self { registration, clock, until, within, sleeper: Sleeper::ANY }
    }

    /// Waits on this thread. On a manual clock the time is over when its hand says so.
    ///
    /// # Errors
    ///
    /// [`StillRunning`] if the action has not ended in time, or if it is the one that asks.
    pub fn block(mut self) -> Result<(), StillRunning> {
        self.sleeper = Sleeper::thread();
        let (clock, until) = (self.clock.clone(), self.until);
        let mut this = pin!(self);
        block_until(&clock, |context| match this.as_mut().poll_end(context) {
            Poll::Ready(answer) => Ok(answer),
            Poll::Pending => Err(Some(until)),
        })
    }

    fn poll_end(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), StillRunning>> {
        let this = self.project();
        let Registration { engine, number } = this.registration;
        let within = *this.within;
        if let Poll::Ready(ended) = engine.poll_completion(number, context.waker()) {
            return Poll::Ready(ended.map_err(|CalledInside| StillRunning {
                within,
                why: StillRunningReason::CalledInside,
            }));
        }
        let (sleeper, clock, until) = (this.sleeper, this.clock, *this.until);
        // Tokio panics if its runtime has no timers.
        let why = match guarded(|| sleeper.poll_until(clock, until, context)) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(Ok(()))) => StillRunningReason::Late,
            Ok(Poll::Ready(Err(NoRuntime))) | Err(_) => StillRunningReason::NoRuntime,
        };
        Poll::Ready(Err(StillRunning { within, why }))
    }
}

#[cfg(feature = "tokio")]
impl Future for StopAndWait {
    type Output = Result<(), StillRunning>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_end(context)
    }
}

impl fmt::Debug for StopAndWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StopAndWait").field("within", &self.within).finish_non_exhaustive()
    }
}

/// It is stopped, but an action that had started has not ended yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillRunning {
    within: Duration,
    why: StillRunningReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StillRunningReason {
    Late,
    CalledInside,
    NoRuntime,
}

impl StillRunning {
    /// Tells whether the action asked for its own end, which cannot come before it returns.
    #[must_use]
    pub const fn is_inside(&self) -> bool {
        matches!(self.why, StillRunningReason::CalledInside)
    }
}

impl fmt::Display for StillRunning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why {
            StillRunningReason::Late => write!(
                f,
                "the action still runs after {:?}; nothing new starts, so wait longer for it to \
                 finish, or continue without it",
                self.within
            ),
            StillRunningReason::CalledInside => f.write_str(
                "the action waits for itself to finish; call `stop` inside an action, and wait \
                 outside",
            ),
            StillRunningReason::NoRuntime => write!(f, "the action still runs, and {NoRuntime}"),
        }
    }
}

impl std::error::Error for StillRunning {}
