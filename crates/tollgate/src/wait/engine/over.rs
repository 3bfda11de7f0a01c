//! The end of an engine: who waits for it, and what it waits for.

use super::{
    super::{action::Action, end::Ending},
    Inner, Machine,
};
#[cfg(feature = "tokio")]
use super::{
    super::{
        action::{Panicked, Running, to_end},
        driver::Kind,
    },
    Phase,
};
use crate::sync::thread;
#[cfg(feature = "tokio")]
use std::sync::Arc;
use std::task::{Poll, Waker};

/// What is dropped and who is woken when all is over, without a lock.
pub(super) struct Over<J> {
    pub(super) action: Option<Action<J>>,
    pub(super) wakers: Vec<Waker>,
}

impl<J> Over<J> {
    pub(super) fn tell(self) {
        drop(self.action);
        self.wakers.into_iter().for_each(Waker::wake);
    }
}

impl<M: Machine> Ending for Inner<M> {
    fn poll_ended(&self, ticket: &mut Option<u64>, waker: &Waker) -> Poll<()> {
        let mut state = self.lock();
        if state.has_ended() {
            return Poll::Ready(());
        }
        let number = match *ticket {
            Some(number) => number,
            None => *ticket.insert(state.number()),
        };
        state.ending.retain(|(other, _)| *other != number);
        state.ending.push((number, waker.clone()));
        Poll::Pending
    }

    fn leave(&self, ticket: u64) {
        self.lock().ending.retain(|(other, _)| *other != ticket);
    }

    fn is_inside(&self) -> bool {
        let running = self.lock().running;
        running.is_some_and(|running| running.inside == Some(thread::current().id()))
    }
}

/// A job that runs as a task of its own. The end waits for it, as for one that runs on the worker.
#[cfg(feature = "tokio")]
struct Detached<M: Machine> {
    inner: Arc<Inner<M>>,
}

#[cfg(feature = "tokio")]
impl<M: Machine> Inner<M> {
    /// Lets a job run as a task of its own.
    pub(super) fn detach(this: &Arc<Self>, running: Running) {
        let Kind::Tokio(runtime) = &this.driver.kind else { return };
        this.lock().detached += 1; // OVERFLOW: a task takes memory, so 2^64 do not fit.
        let detached = Detached { inner: Arc::clone(this) };
        drop(runtime.spawn(async move {
            let result = to_end(running).await;
            detached.note(&result);
        }));
    }
}

#[cfg(feature = "tokio")]
impl<M: Machine> Detached<M> {
    fn note(&self, result: &Result<(), Panicked>) {
        self.inner.report(result);
        self.inner.lock().panics += u64::from(result.is_err());
    }
}

#[cfg(feature = "tokio")]
impl<M: Machine> Drop for Detached<M> {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        state.detached -= 1; // OVERFLOW: `detach` has counted this one.
        if state.phase == Phase::Stopped {
            let over = state.over();
            drop(state);
            over.tell();
        }
    }
}
