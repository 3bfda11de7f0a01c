//! The task that serves waiting callers: one timer, for the first that is due.
//!
//! Each runtime in which a caller waits has one. It lives while callers wait and a second longer, so
//! that a queue that fills and empties all the time starts no task each time. If its runtime shuts
//! down, callers who wait elsewhere are woken and start another.

use super::RuntimeId;
use crate::{Clock, Tick, wait::Sleeper};
use std::{
    pin::pin,
    task::{Poll, Waker},
    time::Duration,
};
use tokio::runtime::Handle;

/// How long the task outlives the queue.
const LINGER: Duration = Duration::from_secs(1);

/// The owner of queues that a task serves.
pub(crate) trait TimerHost: Clone + Send + Sync + 'static {
    fn clock(&self) -> &Clock;
    /// Serves the callers who are due, and returns the next due time. Keeps the waker, for an event
    /// that brings an earlier one.
    fn serve(&self, runtime: RuntimeId, waker: &Waker) -> Option<Tick>;
    /// Removes the task if no caller waits; tells whether it did.
    fn remove_if_idle(&self, runtime: RuntimeId) -> bool;
    /// Handles the loss of the task: its runtime has shut down, or it has panicked because the runtime
    /// has no timers.
    fn abandon(&self, runtime: RuntimeId, has_panicked: bool);
}

/// Starts the task in this runtime.
pub(crate) fn start<H: TimerHost>(host: &H) {
    // INVARIANT: the caller is in a runtime: `QueueTimer::needs_task` said so.
    if let Ok(runtime) = Handle::try_current() {
        let guard = Guard { host: host.clone(), runtime: runtime.id(), has_ended: false };
        drop(runtime.spawn(run(guard)));
    }
}

async fn run<H: TimerHost>(mut guard: Guard<H>) {
    let (host, runtime) = (guard.host.clone(), guard.runtime);
    let clock = host.clock();
    let mut sleeper = pin!(Sleeper::ANY);
    let mut idle_until = None;
    std::future::poll_fn(|context| {
        loop {
            let target = host.serve(runtime, context.waker());
            let until = match target {
                Some(target) => {
                    idle_until = None;
                    target
                }
                None => *idle_until.get_or_insert_with(|| clock.now().saturating_add(LINGER)),
            };
            if sleeper.as_mut().poll_until(clock, until, context).is_pending() {
                return Poll::Pending;
            }
            if target.is_none() && host.remove_if_idle(runtime) {
                guard.has_ended = true;
                return Poll::Ready(());
            }
        }
    })
    .await;
}

/// Reports a task that is dropped before its end.
struct Guard<H: TimerHost> {
    host: H,
    runtime: RuntimeId,
    has_ended: bool,
}

impl<H: TimerHost> Drop for Guard<H> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.host.abandon(self.runtime, std::thread::panicking());
        }
    }
}
