//! Jobs that a pacer runs.

use super::{Pacer, Rejected, error::OverflowKind, machine::PacerMachine};
#[cfg(feature = "tokio")]
use crate::wait::Running;
use crate::{
    Driver, Tick,
    wait::{Action, WeakEngine},
};
use std::time::Duration;

/// A job in the queue.
pub(super) enum Work {
    Call(Box<dyn FnOnce() + Send>),
    #[cfg(feature = "tokio")]
    Task(Running),
}

/// Returns what a worker does with jobs.
pub(super) fn action(driver: &Driver) -> Action<Work> {
    #[cfg(feature = "tokio")]
    if driver.is_async() {
        return Action::Detach(Box::new(|work| match work {
            Work::Call(call) => {
                call();
                None
            }
            Work::Task(running) => Some(running),
        }));
    }
    let _ = driver;
    Action::Call(Box::new(|work| match work {
        Work::Call(call) => call(),
        // INVARIANT: `run_async` queues none where no runtime is.
        #[cfg(feature = "tokio")]
        Work::Task(running) => drop(running),
    }))
}

impl Pacer {
    /// Runs a closure at the next slot.
    ///
    /// Closures run on the worker one by one, a panic is caught and counted, and a job may run
    /// further jobs. With a manual driver a job whose slot is now runs inside this call. With a tokio
    /// driver it runs on a thread of the runtime, so it must not block for long.
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the closure, if the queue is full or the pacer is stopped.
    pub fn run<J: FnOnce() + Send + 'static>(&self, job: J) -> Result<Paced, Rejected<J>> {
        self.run_n(1, job)
    }

    /// Runs a closure that takes `cost` slots at the first of them.
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the closure, if the queue is full, the pacer is stopped, or the cost can
    /// never fit.
    pub fn run_n<J: FnOnce() + Send + 'static>(
        &self,
        cost: u64,
        job: J,
    ) -> Result<Paced, Rejected<J>> {
        self.queue(cost, job, |job| Work::Call(Box::new(job)))
    }

    /// Runs a future at the next slot, as a task of its own: a slow one delays no other job.
    ///
    /// There is no bound on how many run at a time; a [`Concurrency`](crate::Concurrency) limit
    /// inside the future sets one.
    ///
    /// # Errors
    ///
    /// [`Rejected`], with the future, if the queue is full, the pacer is stopped, or its driver is
    /// not tokio.
    #[cfg(feature = "tokio")]
    pub fn run_async<J>(&self, job: J) -> Result<Paced, Rejected<J>>
    where
        J: Future<Output = ()> + Send + 'static,
    {
        self.run_async_n(1, job)
    }

    /// Runs a future that takes `cost` slots at the first of them, as a task of its own.
    ///
    /// # Errors
    ///
    /// As [`run_async`](Self::run_async), and if the cost can never fit.
    #[cfg(feature = "tokio")]
    pub fn run_async_n<J>(&self, cost: u64, job: J) -> Result<Paced, Rejected<J>>
    where
        J: Future<Output = ()> + Send + 'static,
    {
        if !self.engine.driver().is_async() {
            return Err(Rejected { job, overflow: self.refusal(cost, OverflowKind::NotAsync) });
        }
        self.queue(cost, job, |job| Work::Task(Box::pin(job)))
    }

    fn queue<J>(
        &self,
        cost: u64,
        job: J,
        work: impl FnOnce(J) -> Work,
    ) -> Result<Paced, Rejected<J>> {
        // It stays here if the machine refuses it.
        let mut kept = Some(job);
        let queued =
            self.engine.event(|machine, now| machine.queue(now, cost, || kept.take().map(work)));
        let Some(job) = kept else {
            // INVARIANT: the job is taken only once it has a slot.
            let at = queued.and_then(Result::ok).unwrap_or_default();
            return Ok(Paced { engine: self.engine.downgrade(), at, cost });
        };
        let refused = queued.and_then(Result::err);
        let overflow = refused.unwrap_or_else(|| self.refusal(cost, OverflowKind::Stopped));
        Err(Rejected { job, overflow })
    }
}

/// A job in the queue of a [`Pacer`]. Dropping this changes nothing: the job runs.
#[derive(Debug)]
pub struct Paced {
    engine: WeakEngine<PacerMachine<Work>>,
    at: Tick,
    cost: u64,
}

impl Paced {
    /// Returns the slot of the job, by the clock of the pacer.
    #[must_use]
    pub const fn at(&self) -> Tick {
        self.at
    }

    /// Returns how long it is from `now` to the slot; zero if it has come.
    #[must_use]
    pub const fn delay(&self, now: Tick) -> Duration {
        self.at.since(now)
    }

    /// Returns how many slots it takes.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Tells whether the job still waits for its slot; it has started, or was dropped, if not.
    #[must_use]
    pub fn is_queued(&self) -> bool {
        let engine = self.engine.upgrade();
        engine.is_some_and(|engine| engine.look(|machine, _| machine.jobs.contains_key(&self.at)))
    }

    /// Takes the job out of the queue and drops it; tells whether it was there. If so it never
    /// starts, and its slot is given back as by [`Slot::cancel`](super::Slot::cancel).
    #[allow(clippy::must_use_candidate, reason = "cancelling is the point")]
    pub fn cancel(self) -> bool {
        let Some(engine) = self.engine.upgrade() else { return false };
        let job = engine.amend(|machine, now| machine.cancel_job(now, self.at)).flatten();
        // No lock is held: what the job owns is dropped here.
        job.is_some()
    }
}
