//! The task that serves those who wait: one timer, for the first who is due.
//!
//! There is one in each runtime in which somebody waits. It lives while somebody waits and a second
//! longer, so that a queue that fills and empties all the time starts no task each time. If its runtime shuts down, those who wait elsewhere are woken
//! and start another.

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

/// Whose queues a task serves.
pub(crate) trait Driven: Clone + Send + Sync + 'static {
    fn clock(&self) -> &Clock;
    /// Serves who is due, and returns when to come again. Notes the waker for whoever comes earlier.
    fn drive(&self, runtime: RuntimeId, waker: &Waker) -> Option<Tick>;
    /// Ends the task if nobody waits.
    fn dismiss(&self, runtime: RuntimeId) -> bool;
    /// The task is gone, with its runtime or by a panic: then the runtime has no timers.
    fn abandon(&self, runtime: RuntimeId, has_panicked: bool);
}

/// Starts the task in this runtime.
pub(crate) fn start<D: Driven>(host: &D) {
    // INVARIANT: whoever was told to start it is in a runtime.
    if let Ok(runtime) = Handle::try_current() {
        let guard = Guard { host: host.clone(), runtime: runtime.id(), has_ended: false };
        drop(runtime.spawn(drive(guard)));
    }
}

async fn drive<D: Driven>(mut guard: Guard<D>) {
    let (host, runtime) = (guard.host.clone(), guard.runtime);
    let clock = host.clock();
    let mut sleeper = pin!(Sleeper::task());
    let mut idle_until = None;
    std::future::poll_fn(|context| {
        loop {
            let target = host.drive(runtime, context.waker());
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
            if target.is_none() && host.dismiss(runtime) {
                guard.has_ended = true;
                return Poll::Ready(());
            }
        }
    })
    .await;
}

/// Sees that a task that is dropped is missed.
struct Guard<D: Driven> {
    host: D,
    runtime: RuntimeId,
    has_ended: bool,
}

impl<D: Driven> Drop for Guard<D> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.host.abandon(self.runtime, std::thread::panicking());
        }
    }
}
