//! One machine behind another: the jobs of the first are the events of the second.
//!
//! The pair is a machine itself, so one engine drives both. A job goes from the first to the second
//! at the tick at which it is due, whether the second lets it out then or holds it.

use crate::{Tick, wait::Machine};

/// A machine that takes the jobs of another as events.
pub(crate) trait Accept<J>: Machine {
    /// What a job may replace.
    type Spent: Send + 'static;

    /// An event. Returns what it replaces, to be dropped without a lock.
    fn accept(&mut self, now: Tick, job: J) -> Option<Self::Spent>;
}

pub(crate) struct Then<A: Machine, B: Accept<A::Job>> {
    pub(crate) first: A,
    pub(crate) second: B,
    /// What was replaced where nothing could be dropped. It leaves with the next event or job: each
    /// entry took an event of the first machine, so there are only a few.
    spent: Vec<B::Spent>,
}

/// A job of the second machine, and what it replaced.
pub(crate) struct Passed<J, S> {
    job: J,
    spent: Vec<S>,
}

impl<J, S> Passed<J, S> {
    /// Drops what was replaced, and returns the job.
    pub(crate) fn open(self) -> J {
        drop(self.spent);
        self.job
    }
}

impl<A: Machine, B: Accept<A::Job>> Then<A, B> {
    pub(crate) const fn new(first: A, second: B) -> Self {
        Self { first, second, spent: Vec::new() }
    }

    /// Hands on what the first machine has ready at `now`.
    pub(crate) fn hand_on(&mut self, now: Tick) {
        while let Some(job) = self.first.next(now) {
            self.spent.extend(self.second.accept(now, job));
        }
    }

    /// Takes out what was replaced, to be dropped without a lock.
    pub(crate) fn take_spent(&mut self) -> Vec<B::Spent> {
        std::mem::take(&mut self.spent)
    }
}

impl<A: Machine, B: Accept<A::Job>> Machine for Then<A, B> {
    type Job = Passed<B::Job, B::Spent>;

    fn due(&self) -> Option<Tick> {
        match (self.first.due(), self.second.due()) {
            (Some(first), Some(second)) => Some(first.min(second)),
            (first, second) => first.or(second),
        }
    }

    fn next(&mut self, now: Tick) -> Option<Self::Job> {
        self.hand_on(now);
        let job = self.second.next(now)?;
        Some(Passed { job, spent: self.take_spent() })
    }

    fn finish(&mut self, now: Tick) {
        self.first.finish(now);
        self.hand_on(now);
        self.second.finish(now);
    }

    fn clear(&mut self) -> impl Sized + use<A, B> {
        (self.first.clear(), self.second.clear(), self.take_spent())
    }
}
