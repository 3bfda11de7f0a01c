//! Puts a machine, its action and a driver together.
//!
//! The rules, for every driver:
//!
//! - events change the machine under one short lock; actions run outside it, one at a time;
//! - a worker (thread, task, or the hand of a manual clock) exists only while the machine has a
//!   deadline. An event wakes it only if the deadline came closer: a debouncer that is triggered
//!   again and again pushes its deadline away and wakes nobody;
//! - a job is taken out of the machine and marked as running under the same lock under which
//!   [`Engine::stop`] marks the end. So after `stop` has returned no action starts, and a caller who
//!   waits for the end sees the one that runs (`tests/loom/engine.rs`);
//! - no code of the caller runs or is dropped under the lock: actions, values, wakers. The engine wakes
//!   the callers who wait for the end only after it has dropped the action, with all that it captured.

#[cfg(feature = "tokio")]
mod detached;
mod manual;
mod state;
mod worker;

use super::{
    action::{Action, Duty, Panicked, Reporter, guarded},
    completion::{CalledInside, Completion, StopAndWait},
    driver::{Driver, Kind, OnDrop},
    wakers::wake_all,
};
use crate::{
    Tick, TimerId,
    sync::{Mutex, MutexGuard, lock, thread},
};
use state::{Over, Phase, Rouse, State, Step, Worker};
use std::{
    fmt,
    sync::{Arc, Weak},
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

    /// Takes out what [`next`](Self::next) and [`finish`](Self::finish) have left over, to be
    /// dropped where no lock is held. Called after each of them.
    fn waste(&mut self) -> impl Sized + use<Self> {}

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

/// A handle that does not keep its engine going.
pub(crate) struct WeakEngine<M: Machine> {
    handle: Weak<Handle<M>>,
}

struct Inner<M: Machine> {
    driver: Driver,
    state: Mutex<State<M>>,
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
        let state = Mutex::new(State::new(machine, Duty { action, report }));
        let inner = Arc::new(Inner { driver, state });
        Self { handle: Arc::new(Handle { inner, on_drop }) }
    }

    /// Returns a handle that does not keep this going.
    pub(crate) fn downgrade(&self) -> WeakEngine<M> {
        WeakEngine { handle: Arc::downgrade(&self.handle) }
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.handle.inner.driver
    }

    /// Puts an event into the machine and returns what it says; `None` after a stop.
    ///
    /// Whatever `event` replaces should be returned, so that it is dropped without the lock.
    pub(crate) fn event<R>(&self, event: impl FnOnce(&mut M, Tick) -> R) -> Option<R> {
        self.event_if(|phase| phase == Phase::Open, event)
    }

    /// The same, also while what is left still runs: for events that only take out.
    pub(crate) fn amend<R>(&self, event: impl FnOnce(&mut M, Tick) -> R) -> Option<R> {
        self.event_if(|phase| phase != Phase::Stopped, event)
    }

    fn event_if<R>(
        &self,
        is_taken: impl FnOnce(Phase) -> bool,
        event: impl FnOnce(&mut M, Tick) -> R,
    ) -> Option<R> {
        let inner = &self.handle.inner;
        let mut state = inner.lock();
        if !is_taken(state.phase) {
            return None;
        }
        // The clock is read under the lock, so that time does not go backwards for the machine.
        let now = inner.driver.clock().now();
        let said = event(&mut state.machine, now);
        Inner::follow(inner, state);
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
        self.handle.inner.lock().is_running()
    }

    /// Tells whether the caller is the action itself.
    pub(crate) fn is_inside(&self) -> bool {
        let inner = &self.handle.inner;
        inner.is_inside(&inner.lock())
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
        let inner: Arc<Inner<M>> = Arc::clone(&self.handle.inner);
        StopAndWait::new(inner, self.driver().clock().clone(), within)
    }
}

impl<M: Machine> WeakEngine<M> {
    /// Returns a handle, if there is still one.
    pub(crate) fn upgrade(&self) -> Option<Engine<M>> {
        self.handle.upgrade().map(|handle| Engine { handle })
    }
}

impl<M: Machine> Clone for WeakEngine<M> {
    fn clone(&self) -> Self {
        Self { handle: Weak::clone(&self.handle) }
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

    fn is_inside(&self, state: &State<M>) -> bool {
        #[cfg(feature = "tokio")]
        if self.is_detached_here() {
            return true;
        }
        state.is_inside()
    }

    fn stop(this: &Arc<Self>) {
        let mut state = this.lock();
        state.phase = Phase::Stopped;
        let held = state.machine.clear();
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
        this.conclude(this.lock());
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
        let waste = state.machine.waste();
        Self::follow(this, state);
        drop(waste);
    }

    /// Unlocks after a change of the machine, and stops if all is done or sees to the worker.
    fn follow(this: &Arc<Self>, mut state: MutexGuard<'_, State<M>>) {
        let is_over = state.is_drained();
        let rouse = this.rouse(&mut state);
        drop(state);
        if is_over {
            Self::stop(this);
        } else {
            Self::go(this, rouse);
        }
    }

    /// Unlocks. If the engine has stopped and nothing runs, drops the action, and then wakes the callers
    /// who wait for that.
    fn conclude(&self, mut state: MutexGuard<'_, State<M>>) {
        let over = state.over();
        drop(state);
        let wakers = match over {
            Over::No => return,
            Over::Wake(wakers) => wakers,
            Over::Release(duty) => {
                // The captured values may panic when they are dropped: the callers are woken all the same.
                let released = guarded(|| drop(duty));
                self.lock().released(&released)
            }
        };
        // A waker that panics takes neither the others nor the worker along.
        drop(guarded(|| wake_all(wakers.into_iter())));
    }

    /// Sees that a worker serves the deadline of the machine.
    fn rouse(&self, state: &mut State<M>) -> Rouse {
        let Some(due) = state.due() else { return Rouse::Nothing };
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
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.phase == Phase::Stopped {
            return self.exit(guard);
        }
        let now = self.driver.clock().now();
        // A machine may run code of the caller that panics, such as the clone of a key. That counts as a
        // panic of its job, and the worker goes on.
        let next = guarded(|| state.machine.next(now));
        let waste = state.machine.waste();
        let job = match next {
            Ok(job) => job,
            Err(panicked) => {
                let report = state.missed();
                drop(guard);
                drop(guarded(|| drop(waste)));
                if let Some(report) = report {
                    drop(guarded(|| report(&panicked)));
                }
                return Step::Sleep(Tick::ZERO);
            }
        };
        let step = match (job, state.due()) {
            (Some(job), _) => state.begin(job),
            (None, Some(due)) => Step::Sleep(due),
            (None, None) => {
                if state.phase == Phase::Draining {
                    state.phase = Phase::Stopped;
                }
                Step::Exit
            }
        };
        let step = if matches!(step, Step::Exit) {
            self.exit(guard)
        } else {
            drop(guard);
            step
        };
        // A value that panics when it is dropped does not take the worker along.
        drop(guarded(|| drop(waste)));
        step
    }

    /// The worker gives up its place.
    fn exit(&self, mut state: MutexGuard<'_, State<M>>) -> Step<M::Job> {
        state.worker = Worker::None;
        self.conclude(state);
        Step::Exit
    }

    /// Notes that a job has ended.
    fn done(&self, duty: Duty<M::Job>, result: &Result<(), Panicked>) {
        if let Err(panicked) = result {
            duty.report(panicked);
        }
        let mut state = self.lock();
        state.end(duty, result);
        self.conclude(state);
    }

    /// Puts the worker to sleep until `due`; ready if it was roused meanwhile.
    fn poll_rest(&self, due: Tick, waker: &Waker) -> Poll<()> {
        let waker = waker.clone();
        let mut state = self.lock();
        let is_roused = state.phase == Phase::Stopped || state.due().is_none_or(|next| next < due);
        let worker = if is_roused { Worker::Awake } else { Worker::Asleep { until: due, waker } };
        // The old value is a waker of this worker.
        let old = std::mem::replace(&mut state.worker, worker);
        drop(state);
        drop(old);
        if is_roused { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The worker wakes by itself.
    fn rise(&self) {
        let old = std::mem::replace(&mut self.lock().worker, Worker::Awake);
        drop(old);
    }
}

impl<M: Machine> Completion for Inner<M> {
    fn poll_completion(
        &self,
        number: &mut Option<u64>,
        waker: &Waker,
    ) -> Poll<Result<(), CalledInside>> {
        let waker = waker.clone();
        let mut state = self.lock();
        if state.has_ended() {
            return Poll::Ready(Ok(()));
        }
        if self.is_inside(&state) {
            return Poll::Ready(Err(CalledInside));
        }
        let old = state.register_waker(number, waker);
        drop(state);
        drop(old);
        Poll::Pending
    }

    fn remove_waker(&self, number: u64) {
        let old = self.lock().remove_waker(number);
        drop(old);
    }
}

impl<M: Machine> fmt::Debug for WeakEngine<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakEngine")
    }
}
