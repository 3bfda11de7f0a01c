//! When the queues of all keys are next due, and the one timer for the first of them.

use super::key_queue::Caller;
#[cfg(feature = "tokio")]
use crate::wait::queue_timer::RuntimeId;
use crate::{
    Algorithm, Clock, Tick,
    keyed::core::{Core, WAITED},
    sync::{Arc, lock},
    wait::{WakeList, queue_timer::QueueTimer},
};
use std::{
    collections::BTreeSet,
    ops::Bound::{Excluded, Unbounded},
};

/// The queues of all keys by their due times.
#[derive(Default)]
pub(crate) struct DueTimes {
    queues: BTreeSet<(Tick, u64)>,
    pub(super) timer: QueueTimer,
    /// The owner of the queues, while callers wait: for a timer that serves them.
    core: Option<Arc<Core>>,
}

impl DueTimes {
    /// Sets the due time of the queue of a key to `target`, and the timer with it.
    pub(super) fn put(
        &mut self,
        caller: &Caller<'_>,
        fingerprint: u64,
        (due, target): (&mut Option<Tick>, Option<Tick>),
        wakers: &mut WakeList,
    ) {
        let core = caller.core;
        if let Some(old) = due.take() {
            self.queues.remove(&(old, fingerprint));
        }
        self.queues.extend(target.map(|target| (target, fingerprint)));
        *due = target;
        let is_over = core.waiting() == 0;
        if self.core.is_none() && !is_over {
            self.core = caller.own.cloned();
        }
        // Under this lock, so that the last to change the mode has seen all waiting callers.
        if core.algorithm != Algorithm::Gcra {
            core.mode.set(WAITED, !is_over);
        }
        self.set_timer(&core.clock, wakers);
        if is_over {
            // INVARIANT: not the last reference, because the caller has one.
            self.core = None;
        }
    }

    fn set_timer(&mut self, clock: &Clock, wakers: &mut WakeList) {
        let first = self.queues.first().map(|(due, _)| *due);
        let core = &self.core;
        self.timer.set(clock, first, wakers, || {
            let core = core.clone();
            move |_| core.iter().for_each(|core| core.timer_fired())
        });
    }

    /// Returns the first queue after `last` that is due.
    fn next_due(&self, now: Tick, last: Option<(Tick, u64)>) -> Option<(Tick, u64)> {
        let after = last.map_or(Unbounded, Excluded);
        let next = self.queues.range((after, Unbounded)).next().copied();
        next.filter(|(due, _)| *due <= now)
    }
}

impl Core {
    /// Serves the callers who are due, of all keys.
    fn serve_due(&self, wakers: &mut WakeList) {
        let (now, mut last) = (self.clock.now(), None);
        loop {
            last = lock(&self.due_times).next_due(now, last);
            let Some((_, fingerprint)) = last else { return };
            let mut claims = self.claims.lock(fingerprint);
            claims.with_queue(self, wakers, |locked| ((), locked.settle()));
        }
    }

    /// Serves the queues when the timer of a manual clock fires.
    fn timer_fired(&self) {
        lock(&self.due_times).timer.fired();
        let mut wakers = WakeList::new();
        self.serve_due(&mut wakers);
        lock(&self.due_times).set_timer(&self.clock, &mut wakers);
        wakers.fire();
    }
}

/// Serves the queues of all keys.
#[cfg(feature = "tokio")]
impl crate::wait::queue_timer::TimerHost for Arc<Core> {
    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn serve(&self, runtime: RuntimeId, waker: &std::task::Waker) -> Option<Tick> {
        let old = lock(&self.due_times).timer.awake(runtime);
        let mut wakers = WakeList::new();
        self.serve_due(&mut wakers);
        let mut due_times = lock(&self.due_times);
        let first = due_times.queues.first().map(|(due, _)| *due);
        due_times.timer.asleep(runtime, waker, first);
        drop(due_times);
        wakers.fire();
        drop(old);
        first
    }

    fn remove_if_idle(&self, runtime: RuntimeId) -> bool {
        let mut due_times = lock(&self.due_times);
        // A caller who takes a place starts a timer task afterwards, under this lock.
        let is_over = self.waiting() == 0;
        let old = if is_over { due_times.timer.remove(runtime) } else { None };
        drop(due_times);
        drop(old);
        is_over
    }

    fn abandon(&self, runtime: RuntimeId, has_panicked: bool) {
        let (is_lost, old) = lock(&self.due_times).timer.abandoned(runtime, has_panicked);
        self.each_queue(|locked| locked.abandon(is_lost));
        drop(old);
    }
}
