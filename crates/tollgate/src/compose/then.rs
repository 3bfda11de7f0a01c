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
    /// What the last job replaced, until it is taken out to be dropped.
    spent: Option<B::Spent>,
    /// The first machine was told that the end has come, and the second was not yet.
    is_ending: bool,
}

impl<A: Machine, B: Accept<A::Job>> Then<A, B> {
    pub(crate) const fn new(first: A, second: B) -> Self {
        Self { first, second, spent: None, is_ending: false }
    }
}

impl<A: Machine, B: Accept<A::Job>> Machine for Then<A, B> {
    type Job = B::Job;

    fn due(&self) -> Option<Tick> {
        if self.is_ending {
            return Some(Tick::ZERO);
        }
        match (self.first.due(), self.second.due()) {
            (Some(first), Some(second)) => Some(first.min(second)),
            (first, second) => first.or(second),
        }
    }

    fn next(&mut self, now: Tick) -> Option<Self::Job> {
        // One at a time, so that what each of them leaves over is taken out before the next. If
        // there are more, the first machine is due and this is called again.
        if let Some(job) = self.first.next(now) {
            self.spent = self.second.accept(now, job);
        }
        if self.is_ending && self.first.due().is_none() {
            self.is_ending = false;
            self.second.finish(now);
        }
        self.second.next(now)
    }

    fn finish(&mut self, now: Tick) {
        self.first.finish(now);
        self.is_ending = true;
    }

    fn waste(&mut self) -> impl Sized + use<A, B> {
        (self.first.waste(), self.second.waste(), self.spent.take())
    }

    fn clear(&mut self) -> impl Sized + use<A, B> {
        self.is_ending = false;
        (self.first.clear(), self.second.clear(), self.spent.take())
    }
}
