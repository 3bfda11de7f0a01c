//! The one timer of a limit, which refuses those whose deadline has come.

use super::permit::Place;
use crate::{
    Clock, Tick,
    sync::{Mutex, lock},
    wait::{Wakes, alarm::Alarm, queue::Order},
};
use std::{collections::BTreeSet, time::Duration};

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

/// When the queues of a limit have to be looked at, each by its key; a limit without keys has one, of key 0.
#[derive(Debug)]
pub(super) struct Timer {
    pub(super) rules: WaitRules,
    due: Mutex<Due>,
}

#[derive(Debug, Default)]
struct Due {
    queues: BTreeSet<(Tick, u64)>,
    alarm: Alarm,
}

impl Due {
    fn first(&self) -> Option<Tick> {
        self.queues.first().map(|(due, _)| *due)
    }

    fn set_alarm(&mut self, place: &Place, wakes: &mut Wakes) {
        let (target, clock) = (self.first(), &place.timer().rules.clock);
        self.alarm.set(clock, target, wakes, || {
            let place = place.clone();
            move |_| place.ring()
        });
    }
}

impl Timer {
    pub(super) fn new(rules: WaitRules) -> Self {
        Self { rules, due: Mutex::new(Due::default()) }
    }
}

impl Place {
    /// Sets the timer of a queue from one tick to another; its host holds the lock of the queue.
    pub(super) fn set_timer(
        &self,
        key: u64,
        (old, new): (Option<Tick>, Option<Tick>),
        wakes: &mut Wakes,
    ) {
        let mut due = lock(&self.timer().due);
        if let Some(old) = old {
            due.queues.remove(&(old, key));
        }
        due.queues.extend(new.map(|new| (new, key)));
        due.set_alarm(self, wakes);
    }

    /// Sees that a task is woken at its deadline. Threads look at the clock themselves.
    pub(super) fn start_timer(&self) {
        #[cfg(feature = "tokio")]
        if lock(&self.timer().due).alarm.needs_driver(&self.timer().rules.clock) {
            crate::wait::alarm::start(self);
        }
    }

    /// The timer of a manual clock has come.
    fn ring(&self) {
        lock(&self.timer().due).alarm.rang();
        self.expire();
        let mut wakes = Wakes::new();
        lock(&self.timer().due).set_alarm(self, &mut wakes);
        wakes.fire();
    }

    /// Refuses those whose deadline has come.
    pub(super) fn expire(&self) {
        let now = self.timer().rules.clock.now();
        let next = || {
            let mut due = lock(&self.timer().due);
            let (tick, key) = *due.queues.first().filter(|(tick, _)| *tick <= now)?;
            due.queues.remove(&(tick, key));
            Some(key)
        };
        while let Some(key) = next() {
            self.of_key(key).change(|queue, wakes| queue.timer_came(now, wakes));
        }
    }
}

#[cfg(feature = "tokio")]
mod driver {
    use super::{Place, Tick, lock};
    use crate::{
        Clock,
        wait::alarm::{Driven, RuntimeId},
    };
    use std::task::Waker;

    impl Driven for Place {
        fn clock(&self) -> &Clock {
            &self.timer().rules.clock
        }

        fn drive(&self, runtime: RuntimeId, waker: &Waker) -> Option<Tick> {
            let old = lock(&self.timer().due).alarm.awake(runtime);
            self.expire();
            let mut due = lock(&self.timer().due);
            let target = due.first();
            due.alarm.asleep(runtime, waker, target);
            drop(due);
            drop(old);
            target
        }

        fn dismiss(&self, runtime: RuntimeId) -> bool {
            let mut due = lock(&self.timer().due);
            let is_over = due.queues.is_empty();
            let old = if is_over { due.alarm.gone(runtime) } else { None };
            drop(due);
            drop(old);
            is_over
        }

        /// Tasks of other runtimes have a timer of their own.
        fn abandon(&self, runtime: RuntimeId, has_panicked: bool) {
            let mut due = lock(&self.timer().due);
            let old = match has_panicked {
                true => due.alarm.broke(runtime),
                false => due.alarm.gone(runtime),
            };
            drop(due);
            drop(old);
        }
    }
}
