//! Puts a machine, its action and a driver together.
//!
//! The rules, whoever drives:
//!
//! - events change the machine under one short lock; actions run outside it, one at a time;
//! - a worker (thread, task, or the hand of a manual clock) exists only while the machine has a
//!   deadline. An event wakes it only if the deadline came closer: a debouncer that is triggered
//!   again and again pushes its deadline away and wakes nobody;
//! - a job is taken out of the machine and marked as running under the same lock under which
//!   [`Engine::stop`] marks the end. So after `stop` has returned no action starts, and whoever
//!   waits for the end sees the one that runs (`tests/loom_engine.rs`).

mod worker;

use super::{
    action::{Action, Panicked, Reporter},
    driver::{Driver, Kind, OnDrop},
    end::{Ending, StopAndWait},
};
use crate::{
    Tick, TimerId,
    sync::{Mutex, MutexGuard, lock, thread},
};
use std::{
    fmt,
    sync::Arc,
    task::{Poll, Waker},
    time::Duration,
};
use worker::Working;

/// A pure machine: events and the time in, jobs and the next deadline out.
///
/// Events are methods of its own. It holds no timer, reads no clock and calls nobody.
pub(crate) trait Machine: Send + 'static {
    /// What the action is given.
    type Job: Send + 'static;

    /// Returns the earliest tick at which [`next`](Self::next) may have a job or something to do:
    /// [`Tick::ZERO`] if at once, `None` if an event must come first.
    fn due(&self) -> Option<Tick>;

    /// Does what is due at `now`, and takes out a job if there is one to run.
    ///
    /// Called again at once after a job, and at [`due`](Self::due).
    fn next(&mut self, now: Tick) -> Option<Self::Job>;

    /// No event comes any more: makes everything due that must not be lost.
    fn finish(&mut self, now: Tick);

    /// Takes everything out, to be dropped where no lock is held.
    fn clear(&mut self) -> impl Sized + use<Self>;
}

/// A machine in motion. Clones are handles of the same one; dropping the last one ends it.
pub(crate) struct Engine<M: Machine> {
    handle: Arc<Handle<M>>,
}

struct Handle<M: Machine> {
    inner: Arc<Inner<M>>,
    on_drop: OnDrop,
}

pub(super) struct Inner<M: Machine> {
    driver: Driver,
    report: Option<Reporter>,
    state: Mutex<State<M>>,
}

struct State<M: Machine> {
    machine: M,
    phase: Phase,
    /// Taken out while it runs; none once all is over.
    action: Option<Action<M::Job>>,
    running: Option<Running>,
    worker: Worker,
    /// Who waits for the end.
    ending: Vec<(u64, Waker)>,
    /// The next number, of somebody who waits or of a timer.
    next_number: u64,
    panics: u64,
}

/// An action under way: on the stack of a thread, or as a future that no thread owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Running {
    inside: Option<thread::ThreadId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// No event any more, but what is left still runs.
    Draining,
    Stopped,
}

/// Who looks after the deadline.
enum Worker {
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
enum Step<J> {
    Run(Action<J>, J),
    Sleep(Tick),
    /// It ends; the action is dropped with it if all is over.
    Exit(Option<Action<J>>),
}

/// What is to be done once the lock is released.
enum Rouse {
    Nothing,
    Wake(Waker),
    Start,
}

impl<M: Machine> Clone for Engine<M> {
    fn clone(&self) -> Self {
        Self { handle: Arc::clone(&self.handle) }
    }
}

impl<M: Machine> Engine<M> {
    pub(crate) fn start(
        machine: M,
        driver: Driver,
        (action, report): (Action<M::Job>, Option<Reporter>),
        on_drop: OnDrop,
    ) -> Self {
        let state = State {
            machine,
            phase: Phase::Open,
            action: Some(action),
            running: None,
            worker: Worker::None,
            ending: Vec::new(),
            next_number: 0,
            panics: 0,
        };
        let inner = Arc::new(Inner { driver, report, state: Mutex::new(state) });
        Self { handle: Arc::new(Handle { inner, on_drop }) }
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.handle.inner.driver
    }

    /// Puts an event into the machine and returns what it says; `None` after a stop.
    ///
    /// Whatever `event` replaces should be returned, so that it is dropped without the lock.
    pub(crate) fn event<R>(&self, event: impl FnOnce(&mut M, Tick) -> R) -> Option<R> {
        let inner = &self.handle.inner;
        let mut state = inner.lock();
        if state.phase != Phase::Open {
            return None;
        }
        // The clock is read under the lock, so that time does not go backwards for the machine.
        let now = inner.driver.clock().now();
        let said = event(&mut state.machine, now);
        let rouse = inner.rouse(&mut state);
        drop(state);
        Inner::go(inner, rouse);
        Some(said)
    }

    /// Looks at the machine.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&M, Tick) -> R) -> R {
        let inner = &self.handle.inner;
        let state = inner.lock();
        look(&state.machine, inner.driver.clock().now())
    }

    /// Tells whether the action runs at this moment.
    pub(crate) fn is_running(&self) -> bool {
        self.handle.inner.lock().running.is_some()
    }

    /// Tells whether the action runs on this thread, that is, asks.
    pub(crate) fn is_inside(&self) -> bool {
        self.handle.inner.is_inside()
    }

    /// Tells whether [`stop`](Self::stop) or [`finish`](Self::finish) was called.
    pub(crate) fn is_stopped(&self) -> bool {
        self.handle.inner.lock().phase != Phase::Open
    }

    /// Returns how many actions have panicked.
    pub(crate) fn panics(&self) -> u64 {
        self.handle.inner.lock().panics
    }

    /// Ends it: no action starts after this has returned. One that runs goes on.
    pub(crate) fn stop(&self) {
        Inner::stop(&self.handle.inner);
    }

    /// Ends it after everything that is pending has run: no event is taken any more.
    pub(crate) fn finish(&self) {
        Inner::finish(&self.handle.inner);
    }

    /// Waits, at most for `within`, until it is stopped and no action runs.
    pub(crate) fn ended(&self, within: Duration) -> StopAndWait {
        let clock = self.driver().clock();
        let until = clock.now().saturating_add(within);
        let inner: Arc<Inner<M>> = Arc::clone(&self.handle.inner);
        StopAndWait::new(inner, clock.clone(), (until, within))
    }
}

impl<M: Machine> Drop for Handle<M> {
    fn drop(&mut self) {
        match self.on_drop {
            OnDrop::Cancel => Inner::stop(&self.inner),
            OnDrop::Flush => Inner::finish(&self.inner),
        }
    }
}

impl<M: Machine> Inner<M> {
    fn lock(&self) -> MutexGuard<'_, State<M>> {
        lock(&self.state)
    }

    fn stop(this: &Arc<Self>) {
        let mut state = this.lock();
        state.phase = Phase::Stopped;
        let held = state.machine.clear();
        let over = state.over();
        // A worker that sleeps ends at once.
        let rouse = match std::mem::replace(&mut state.worker, Worker::None) {
            Worker::Asleep { waker, .. } => {
                state.worker = Worker::Awake;
                Rouse::Wake(waker)
            }
            Worker::Timer { id, .. } => {
                this.cancel_timer(id);
                Rouse::Nothing
            }
            worker => {
                state.worker = worker;
                Rouse::Nothing
            }
        };
        drop(state);
        Self::go(this, rouse);
        over.tell();
        drop(held);
    }

    fn finish(this: &Arc<Self>) {
        let mut state = this.lock();
        if state.phase != Phase::Open {
            return;
        }
        state.phase = Phase::Draining;
        let now = this.driver.clock().now();
        state.machine.finish(now);
        if state.machine.due().is_none() && state.running.is_none() {
            drop(state);
            return Self::stop(this);
        }
        let rouse = this.rouse(&mut state);
        drop(state);
        Self::go(this, rouse);
    }

    /// Sees that somebody looks after the deadline of the machine.
    fn rouse(&self, state: &mut State<M>) -> Rouse {
        let Some(due) = state.machine.due() else { return Rouse::Nothing };
        match &state.worker {
            Worker::None => {
                state.worker = Worker::Awake;
                Rouse::Start
            }
            Worker::Asleep { until, .. } if due < *until => {
                match std::mem::replace(&mut state.worker, Worker::Awake) {
                    Worker::Asleep { waker, .. } => Rouse::Wake(waker),
                    _ => Rouse::Nothing,
                }
            }
            Worker::Timer { until, id, .. } if due < *until => {
                self.cancel_timer(*id);
                state.worker = Worker::Awake;
                Rouse::Start
            }
            _ => Rouse::Nothing,
        }
    }

    fn cancel_timer(&self, id: TimerId) {
        if let Kind::Manual(hand) = &self.driver.kind {
            hand.cancel(id);
        }
    }

    /// Wakes or starts the worker. No lock may be held: a task may be dropped right here.
    fn go(this: &Arc<Self>, rouse: Rouse) {
        match rouse {
            Rouse::Nothing => {}
            Rouse::Wake(waker) => waker.wake(),
            Rouse::Start => match &this.driver.kind {
                Kind::Manual(_) => Self::work_inline(this),
                Kind::Thread => Self::start_thread(this),
                #[cfg(feature = "tokio")]
                Kind::Tokio(runtime) => drop(runtime.spawn(Working::new(this).work())),
            },
        }
    }

    fn start_thread(this: &Arc<Self>) {
        let working = Working::new(this);
        // A system that has no thread left drops the closure, and with it the worker's place: the
        // next event tries again.
        drop(
            thread::Builder::new()
                .name("tollgate".to_owned())
                .spawn(move || working.work_on_this_thread()),
        );
    }

    /// One step of the worker.
    fn step(&self) -> Step<M::Job> {
        let mut state = self.lock();
        if state.phase != Phase::Stopped {
            let now = self.driver.clock().now();
            if let Some(job) = state.machine.next(now)
                && let Some(action) = state.action.take()
            {
                let inside = action.is_call().then(|| thread::current().id());
                state.running = Some(Running { inside });
                return Step::Run(action, job);
            }
            match state.machine.due() {
                Some(due) => return Step::Sleep(due),
                None if state.phase == Phase::Open => {
                    state.worker = Worker::None;
                    return Step::Exit(None);
                }
                None => state.phase = Phase::Stopped,
            }
        }
        state.worker = Worker::None;
        let Over { action, wakers } = state.over();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        Step::Exit(action)
    }

    /// Notes that a job has ended.
    fn done(&self, action: Action<M::Job>, result: &Result<(), Panicked>) {
        if let (Err(panicked), Some(report)) = (result, &self.report) {
            // A reporter that panics is not reported.
            drop(super::action::guarded(|| report(panicked)));
        }
        let mut state = self.lock();
        state.panics += u64::from(result.is_err());
        state.running = None;
        state.action = Some(action);
        if state.phase == Phase::Stopped {
            let over = state.over();
            drop(state);
            over.tell();
        }
    }

    /// Puts the worker to sleep until `due`; ready if it was roused meanwhile.
    fn poll_rest(&self, due: Tick, waker: &Waker) -> Poll<()> {
        let mut state = self.lock();
        let closer = state.machine.due().is_none_or(|next| next < due);
        if state.phase == Phase::Stopped || closer {
            state.worker = Worker::Awake;
            return Poll::Ready(());
        }
        let old = std::mem::replace(
            &mut state.worker,
            Worker::Asleep { until: due, waker: waker.clone() },
        );
        drop(state);
        drop(old);
        Poll::Pending
    }

    /// The worker wakes by itself.
    fn rise(&self) {
        let old = std::mem::replace(&mut self.lock().worker, Worker::Awake);
        drop(old);
    }

    /// What a manual clock does: runs what is due, and sets a timer of the hand for the rest.
    fn work_inline(this: &Arc<Self>) {
        let Kind::Manual(hand) = &this.driver.kind else { return };
        loop {
            match this.step() {
                Step::Run(mut action, job) => {
                    let result = action.run(job);
                    this.done(action, &result);
                }
                Step::Sleep(_) => {
                    let mut state = this.lock();
                    // An event of another thread may have come between.
                    let Some(until) = state.machine.due() else { continue };
                    if until <= this.driver.clock().now() || state.phase == Phase::Stopped {
                        continue;
                    }
                    let (later, number) = (Arc::clone(this), state.number());
                    let id = hand.call_at(until, move |_| {
                        if later.rises(number) {
                            Self::work_inline(&later);
                        }
                    });
                    state.worker = Worker::Timer { until, id, number };
                    break;
                }
                Step::Exit(action) => {
                    drop(action);
                    break;
                }
            }
        }
    }

    /// Tells whether timer `number` is still the one to work.
    fn rises(&self, number: u64) -> bool {
        let mut state = self.lock();
        let is_due = matches!(&state.worker, Worker::Timer { number: set, .. } if *set == number);
        if is_due {
            state.worker = Worker::Awake;
        }
        is_due
    }
}

impl<M: Machine> State<M> {
    fn number(&mut self) -> u64 {
        self.next_number += 1; // OVERFLOW: 2^64 take centuries.
        self.next_number
    }

    /// Takes out what is of no use once it is stopped and nothing runs.
    fn over(&mut self) -> Over<M::Job> {
        match (self.phase, self.running) {
            (Phase::Stopped, None) => {
                let wakers = self.ending.drain(..).map(|(_, waker)| waker).collect();
                Over { action: self.action.take(), wakers }
            }
            _ => Over { action: None, wakers: Vec::new() },
        }
    }
}

/// What is dropped and who is woken when all is over, without a lock.
struct Over<J> {
    action: Option<Action<J>>,
    wakers: Vec<Waker>,
}

impl<J> Over<J> {
    fn tell(self) {
        drop(self.action);
        self.wakers.into_iter().for_each(Waker::wake);
    }
}

impl<M: Machine> Ending for Inner<M> {
    fn poll_ended(&self, ticket: &mut Option<u64>, waker: &Waker) -> Poll<()> {
        let mut state = self.lock();
        if state.phase == Phase::Stopped && state.running.is_none() {
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

impl<M: Machine> fmt::Debug for Engine<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("driver", self.driver()).finish_non_exhaustive()
    }
}
