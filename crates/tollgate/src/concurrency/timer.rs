//! The one timer of a limit, which refuses callers whose deadline has come.

use super::permit::Owner;
use crate::{
    Clock, Tick,
    sync::{Mutex, lock},
    wait::{WakeList, queue::Order, queue_timer::QueueTimer},
};
use std::{collections::BTreeSet, time::Duration};
#[cfg(feature = "tokio")]
use {
    crate::wait::queue_timer::{RuntimeId, TimerHost},
    std::task::Waker,
};

/// How callers wait.
#[derive(Clone, Debug)]
pub(super) struct WaitRules {
    pub(super) max_waiting: u64,
    /// [`Duration::MAX`] if it may take for ever.
    pub(super) max_wait: Duration,
    pub(super) order: Order,
    pub(super) clock: Clock,
}

/// Nobody waits for longer unless the builder or the call says otherwise: by then most callers have gone.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(10);

impl WaitRules {
    pub(super) fn new() -> Self {
        let (max_wait, order) = (MAX_WAIT, Order::OldestFirst);
        Self { max_waiting: 0, max_wait, order, clock: Clock::monotonic() }
    }
}

/// The due times of the queues of a limit, each by its key; a limit without keys has one, of key 0.
#[derive(Debug)]
pub(super) struct Timer {
    pub(super) rules: WaitRules,
    due: Mutex<Due>,
}

#[derive(Debug, Default)]
struct Due {
    queues: BTreeSet<(Tick, u64)>,
    timer: QueueTimer,
}

impl Due {
    fn first(&self) -> Option<Tick> {
        self.queues.first().map(|(due, _)| *due)
    }

    fn set_timer(&mut self, owner: &Owner, wakers: &mut WakeList) {
        let (target, clock) = (self.first(), &owner.timer().rules.clock);
        self.timer.set(clock, target, wakers, || {
            let owner = owner.clone();
            move |_| owner.timer_fired()
        });
    }
}

impl Timer {
    pub(super) fn new(rules: WaitRules) -> Self {
        Self { rules, due: Mutex::new(Due::default()) }
    }
}

impl Owner {
    /// Sets the timer of a queue from one tick to another; its host holds the lock of the queue.
    pub(super) fn set_timer(
        &self,
        key: u64,
        (old, new): (Option<Tick>, Option<Tick>),
        wakers: &mut WakeList,
    ) {
        let mut due = lock(&self.timer().due);
        if let Some(old) = old {
            due.queues.remove(&(old, key));
        }
        due.queues.extend(new.map(|new| (new, key)));
        due.set_timer(self, wakers);
    }

    /// Sees that a task is woken at its deadline. Threads look at the clock themselves.
    pub(super) fn start_timer(&self) {
        #[cfg(feature = "tokio")]
        if lock(&self.timer().due).timer.needs_task(&self.timer().rules.clock) {
            crate::wait::queue_timer::start(self);
        }
    }

    /// Serves the queues when the timer of a manual clock fires.
    fn timer_fired(&self) {
        lock(&self.timer().due).timer.fired();
        self.expire();
        let mut wakers = WakeList::new();
        lock(&self.timer().due).set_timer(self, &mut wakers);
        wakers.fire();
    }

    /// Refuses callers whose deadline has come.
    pub(super) fn expire(&self) {
        let now = self.timer().rules.clock.now();
        let next = || {
            let mut due = lock(&self.timer().due);
            due.first().filter(|tick| *tick <= now)?;
            due.queues.pop_first()
        };
        while let Some((_, key)) = next() {
            self.of_key(key).change(|queue, wakers| queue.timer_came(now, wakers));
        }
    }
}

#[cfg(feature = "tokio")]
impl TimerHost for Owner {
    fn clock(&self) -> &Clock {
        &self.timer().rules.clock
    }

    fn serve(&self, runtime: RuntimeId, waker: &Waker) -> Option<Tick> {
        let old = lock(&self.timer().due).timer.awake(runtime);
        self.expire();
        let mut due = lock(&self.timer().due);
        let target = due.first();
        due.timer.asleep(runtime, waker, target);
        drop(due);
        drop(old);
        target
    }

    fn remove_if_idle(&self, runtime: RuntimeId) -> bool {
        let mut due = lock(&self.timer().due);
        let is_over = due.queues.is_empty();
        let old = if is_over { due.timer.remove(runtime) } else { None };
        drop(due);
        drop(old);
        is_over
    }

    /// Tasks of other runtimes have a timer of their own.
    fn abandon(&self, runtime: RuntimeId, has_panicked: bool) {
        let mut due = lock(&self.timer().due);
        let old = match has_panicked {
            true => (due.timer.mark_broken(runtime), None),
            false => (None, due.timer.remove(runtime)),
        };
        drop(due);
        drop(old);
    }
}
