//! The state of an engine, and where its action runs.

use super::{
    super::action::{Action, Duty, Panicked, Reporter},
    Machine,
};
use crate::{Tick, TimerId, sync::thread};
use std::task::Waker;

pub(super) struct State<M: Machine> {
    pub(super) machine: M,
    pub(super) phase: Phase,
    /// Taken out while it runs; none once all is over.
    duty: Option<Duty<M::Job>>,
    busy: Option<Busy>,
    /// How many jobs run as tasks of their own.
    pub(super) detached: u64,
    pub(super) worker: Worker,
    /// The callers who wait for the end.
    completion_wakers: Vec<(u64, Waker)>,
    /// The last number given to a waiting caller or a timer.
    next_number: u64,
    pub(super) panics: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// No event any more, but what is left still runs.
    Draining,
    Stopped,
}

/// The action is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    Running(Place),
    /// The engine has ended, and drops it.
    Releasing(Place),
}

/// Where the action is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On the stack of a thread.
    Thread(thread::ThreadId),
    /// In a task, which no thread owns.
    #[cfg(feature = "tokio")]
    Task(Option<tokio::task::Id>),
}

impl Place {
    fn here<J>(action: &Action<J>) -> Self {
        #[cfg(feature = "tokio")]
        if matches!(action, Action::Async(_)) {
            return Self::Task(tokio::task::try_id());
        }
        let _ = action;
        Self::this_thread()
    }

    fn this_thread() -> Self {
        Self::Thread(thread::current().id())
    }

    fn is_here(self) -> bool {
        match self {
            Self::Thread(id) => id == thread::current().id(),
            #[cfg(feature = "tokio")]
            Self::Task(id) => id.is_some() && id == tokio::task::try_id(),
        }
    }
}

/// The worker that serves the deadline.
pub(super) enum Worker {
    None,
    Awake,
    Asleep {
        until: Tick,
        waker: Waker,
    },
    /// A timer of the hand of a manual clock.
    Timer {
        until: Tick,
        id: TimerId,
        number: u64,
    },
}

/// What a worker does next.
pub(super) enum Step<J> {
    Run(Duty<J>, J),
    Sleep(Tick),
    /// It has given up its place.
    Exit,
}

/// A step to take once the lock is released.
pub(super) enum Rouse {
    Nothing,
    Wake(Waker),
    Start,
}

/// A step to take without the lock when the engine has ended.
pub(super) enum Over<J> {
    No,
    /// The action is dropped first.
    Release(Duty<J>),
    Wake(Vec<Waker>),
}

impl<M: Machine> State<M> {
    pub(super) fn new(machine: M, duty: Duty<M::Job>) -> Self {
        Self {
            machine,
            phase: Phase::Open,
            duty: Some(duty),
            busy: None,
            detached: 0,
            worker: Worker::None,
            completion_wakers: Vec::new(),
            next_number: 0,
            panics: 0,
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.next_number += 1; // OVERFLOW: 2^64 take centuries.
        self.next_number
    }

    /// Returns when the machine has something to do. At the end of time it has nothing any more.
    pub(super) fn due(&self) -> Option<Tick> {
        self.machine.due().filter(|due| *due < Tick::MAX)
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.busy, Some(Busy::Running(_)))
    }

    /// Tells whether the caller is the action, or its drop.
    pub(super) fn is_inside(&self) -> bool {
        match self.busy {
            Some(Busy::Running(place) | Busy::Releasing(place)) => place.is_here(),
            None => false,
        }
    }

    /// Tells whether it is stopped and nothing runs.
    pub(super) fn has_ended(&self) -> bool {
        self.phase == Phase::Stopped && self.busy.is_none() && self.detached == 0
    }

    /// Tells whether it was to end after what was left, and nothing is left to start.
    pub(super) fn is_drained(&self) -> bool {
        self.phase == Phase::Draining && !self.is_running() && self.due().is_none()
    }

    /// Takes the action out to run a job.
    pub(super) fn begin(&mut self, job: M::Job) -> Step<M::Job> {
        // INVARIANT: there is one worker, and it has put the action back before it asks again.
        let Some(duty) = self.duty.take() else {
            debug_assert!(false, "the action is missing");
            return Step::Exit;
        };
        self.busy = Some(Busy::Running(Place::here(&duty.action)));
        Step::Run(duty, job)
    }

    /// Counts a job that was lost before it could begin. Returns the reporter to call.
    pub(super) fn missed(&mut self) -> Option<Reporter> {
        self.panics += 1;
        self.duty.as_ref().and_then(|duty| duty.report.clone())
    }

    /// Puts the action back after a job.
    pub(super) fn end(&mut self, duty: Duty<M::Job>, result: &Result<(), Panicked>) {
        self.panics += u64::from(result.is_err());
        self.busy = None;
        self.duty = Some(duty);
    }

    /// The task that ran the action was dropped, and the action with it.
    #[must_use = "it is dropped without the lock"]
    pub(super) fn lost(&mut self) -> impl Sized + use<M> {
        self.phase = Phase::Stopped;
        if self.is_running() {
            self.busy = None;
        }
        self.machine.clear()
    }

    /// Returns what to drop and wake once the engine is stopped and nothing runs.
    pub(super) fn over(&mut self) -> Over<M::Job> {
        if !self.has_ended() {
            return Over::No;
        }
        match self.duty.take() {
            Some(duty) => {
                self.busy = Some(Busy::Releasing(Place::this_thread()));
                Over::Release(duty)
            }
            None => Over::Wake(self.take_completion_wakers()),
        }
    }

    /// The action is dropped. Returns the wakers of the callers who wait for that.
    pub(super) fn released(&mut self, released: &Result<(), Panicked>) -> Vec<Waker> {
        self.panics += u64::from(released.is_err());
        self.busy = None;
        self.take_completion_wakers()
    }

    fn take_completion_wakers(&mut self) -> Vec<Waker> {
        self.completion_wakers.drain(..).map(|(_, waker)| waker).collect()
    }

    /// Leaves a waker under a number. Returns the one it replaces.
    pub(super) fn register_waker(
        &mut self,
        number: &mut Option<u64>,
        waker: Waker,
    ) -> Option<Waker> {
        let number = match *number {
            Some(number) => number,
            None => *number.insert(self.number()),
        };
        let old = self.remove_waker(number);
        self.completion_wakers.push((number, waker));
        old
    }

    /// Takes out the waker of a number.
    pub(super) fn remove_waker(&mut self, number: u64) -> Option<Waker> {
        let at = self.completion_wakers.iter().position(|(known, _)| *known == number)?;
        Some(self.completion_wakers.swap_remove(at).1)
    }
}
