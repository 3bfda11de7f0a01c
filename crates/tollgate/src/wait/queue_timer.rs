//! The timer of a queue: one for the first due time, however many callers wait.

#[cfg(feature = "tokio")]
mod task;

#[cfg(feature = "tokio")]
pub(crate) use task::{TimerHost, start};

use crate::{Clock, Tick, TimerId, wait::WakeList};
use std::task::Waker;

/// A timer of a manual clock, or a task. Waiting threads look at the clock themselves.
#[derive(Debug, Default)]
pub(crate) struct QueueTimer {
    /// The timer of the manual clock, and the tick it is set to.
    manual: Option<(Tick, TimerId)>,
    /// One task in each runtime in which a caller has waited, so that no caller depends on a runtime
    /// that nothing drives.
    tasks: Vec<TimerTask>,
}

#[derive(Debug)]
pub(crate) struct TimerTask {
    #[cfg(feature = "tokio")]
    runtime: RuntimeId,
    waker: Option<Waker>,
    until: Option<Tick>,
    /// Its runtime has no timers.
    is_broken: bool,
}

#[cfg(feature = "tokio")]
pub(crate) use tokio::runtime::Id as RuntimeId;

impl QueueTimer {
    /// Sets the timer to `target`. `on_fire` makes what the timer of a manual clock calls.
    pub(crate) fn set<F: FnOnce(Tick) + Send + 'static>(
        &mut self,
        clock: &Clock,
        target: Option<Tick>,
        wakers: &mut WakeList,
        on_fire: impl FnOnce() -> F,
    ) {
        if let Some(hand) = clock.hand() {
            if self.manual.map(|(at, _)| at) == target {
                return;
            }
            if let Some((_, id)) = self.manual.take() {
                hand.cancel(id);
            }
            self.manual = target.map(|at| (at, hand.call_at(at, on_fire())));
            return;
        }
        let Some(target) = target else { return };
        for task in &mut self.tasks {
            if task.until.is_none_or(|until| target < until) {
                wakers.push(task.waker.take());
            }
        }
    }

    /// Notes that the timer of the manual clock has fired.
    pub(crate) const fn fired(&mut self) {
        self.manual = None;
    }

    /// Tells whether a timer can wake a waiting task, or a timer task can start here.
    pub(crate) fn can_wake(&self, clock: &Clock) -> bool {
        #[cfg(feature = "tokio")]
        let is_inside = tokio::runtime::Handle::try_current().is_ok();
        #[cfg(not(feature = "tokio"))]
        let is_inside = false;
        clock.hand().is_some() || self.tasks.iter().any(|task| !task.is_broken) || is_inside
    }

    /// Tells whether a task has to be started in this runtime, and notes that it is.
    #[cfg(feature = "tokio")]
    pub(crate) fn needs_task(&mut self, clock: &Clock) -> bool {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return false };
        let runtime = runtime.id();
        let needs = clock.hand().is_none() && self.task(runtime).is_none();
        if needs {
            let (waker, until) = (None, Some(Tick::ZERO));
            self.tasks.push(TimerTask { runtime, waker, until, is_broken: false });
        }
        needs
    }

    #[cfg(not(feature = "tokio"))]
    pub(crate) const fn needs_task(&mut self, _clock: &Clock) -> bool {
        false
    }
}

#[cfg(feature = "tokio")]
impl QueueTimer {
    fn task(&mut self, runtime: RuntimeId) -> Option<&mut TimerTask> {
        self.tasks.iter_mut().find(|task| task.runtime == runtime)
    }

    /// Notes that the task of a runtime is awake and needs no waker. Returns one to be dropped without
    /// a lock.
    pub(crate) fn awake(&mut self, runtime: RuntimeId) -> Option<Waker> {
        let task = self.task(runtime)?;
        task.until = Some(Tick::ZERO);
        task.waker.take()
    }

    /// Notes that the task sleeps until `target`, or until it is woken.
    pub(crate) fn asleep(&mut self, runtime: RuntimeId, waker: &Waker, target: Option<Tick>) {
        if let Some(task) = self.task(runtime) {
            (task.waker, task.until) = (Some(waker.clone()), target);
        }
    }

    /// Notes that the task has panicked, because its runtime has no timers: it is not started again.
    /// Returns a waker to be dropped without a lock.
    pub(crate) fn mark_broken(&mut self, runtime: RuntimeId) -> Option<Waker> {
        let task = self.task(runtime)?;
        task.is_broken = true;
        self.awake(runtime)
    }

    /// Removes the task of a runtime: it has ended.
    pub(crate) fn remove(&mut self, runtime: RuntimeId) -> Option<TimerTask> {
        let place = self.tasks.iter().position(|task| task.runtime == runtime)?;
        Some(self.tasks.swap_remove(place))
    }

    /// Notes that the task was dropped with its runtime, or has panicked because the runtime has no
    /// timers. Returns whether no task is left that could wake the waiting tasks, and tasks to be
    /// dropped without a lock.
    pub(crate) fn abandoned(
        &mut self,
        runtime: RuntimeId,
        has_panicked: bool,
    ) -> (bool, Vec<TimerTask>) {
        if has_panicked {
            // It is not started again, as long as another one serves the callers who wait here.
            self.task(runtime).into_iter().for_each(|task| task.is_broken = true);
        } else {
            let old = self.remove(runtime);
            if old.is_some() && self.tasks.is_empty() {
                return (false, old.into_iter().collect());
            }
        }
        if self.tasks.iter().any(|task| !task.is_broken) {
            return (false, Vec::new());
        }
        (!self.tasks.is_empty(), std::mem::take(&mut self.tasks))
    }
}
