//! The worker of an engine, as a thread and as a task.

use super::{super::parked, Inner, Kind, Machine, Step, Worker};
#[cfg(feature = "tokio")]
use crate::wait::Sleeper;
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::{
    pin::{Pin, pin},
    task::{Context, Poll},
};

/// A worker. If it is dropped before its end its place is free again.
pub(super) struct Working<M: Machine> {
    inner: Arc<Inner<M>>,
    has_ended: bool,
}

impl<M: Machine> Working<M> {
    pub(super) fn new(inner: &Arc<Inner<M>>) -> Self {
        Self { inner: Arc::clone(inner), has_ended: false }
    }

    fn end(mut self) {
        self.has_ended = true;
    }

    pub(super) fn work_on_this_thread(self) {
        let waker = parked::waker();
        let clock = self.inner.driver.clock();
        loop {
            match self.inner.step() {
                Step::Run(mut duty, job) => {
                    let result = duty.action.run(job);
                    self.inner.done(duty, &result);
                }
                Step::Sleep(due) => {
                    while self.inner.poll_rest(due, &waker).is_pending() {
                        let now = clock.now();
                        if now >= due {
                            break;
                        }
                        parked::park(Some(due.since(now)));
                    }
                    self.inner.rise();
                }
                Step::Exit => return self.end(),
            }
        }
    }

    /// Works as a task.
    #[cfg(feature = "tokio")]
    pub(super) async fn work(self) {
        let inner = Arc::clone(&self.inner);
        let clock = inner.driver.clock();
        let mut sleeper = pin!(Sleeper::ANY);
        loop {
            match inner.step() {
                Step::Run(mut duty, job) => {
                    let result = duty.action.run_async(job).await.map(|running| {
                        if let Some(running) = running {
                            Inner::detach(&inner, running, duty.report.clone());
                        }
                    });
                    inner.done(duty, &result);
                    // An action that is never pending would keep the thread for as long as there
                    // are jobs: this lets the other tasks have their turn.
                    tokio::task::coop::consume_budget().await;
                }
                Step::Sleep(due) => {
                    let rest = |context: &mut Context<'_>| {
                        if inner.poll_rest(due, context.waker()).is_ready() {
                            return Poll::Ready(());
                        }
                        let sleeper: Pin<&mut Sleeper> = sleeper.as_mut();
                        // A task of tokio has a runtime.
                        sleeper.poll_until(clock, due, context).map(drop)
                    };
                    std::future::poll_fn(rest).await;
                    inner.rise();
                }
                Step::Exit => return self.end(),
            }
        }
    }
}

impl<M: Machine> Drop for Working<M> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        // A task is dropped before its end only by a runtime that shuts down, and a thread only if
        // the system has none left. The one never runs anything again, the other may.
        let is_lost = !matches!(self.inner.driver.kind, Kind::Thread);
        let mut state = self.inner.lock();
        let old = std::mem::replace(&mut state.worker, Worker::None);
        let held = (is_lost || state.is_running()).then(|| state.lost());
        self.inner.conclude(state);
        drop((old, held));
    }
}
