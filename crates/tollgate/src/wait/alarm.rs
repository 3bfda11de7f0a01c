//! Who looks after the next due time: one timer, however many wait.

#[cfg(feature = "tokio")]
mod driver;

#[cfg(feature = "tokio")]
pub(crate) use driver::{Driven, start};

use crate::{Clock, Tick, TimerId, wait::Wakes};
use std::task::Waker;

/// A timer of the hand of a manual clock, or a task. Threads that wait look at the clock themselves.
#[derive(Debug, Default)]
pub(crate) struct Alarm {
    /// What a timer of the hand is set to.
    hand: Option<(Tick, TimerId)>,
    /// Tasks, and what they are set to: one in each runtime in which somebody has come to wait, so
    /// that nobody depends on a runtime that nobody drives.
    drivers: Vec<Driving>,
}

#[derive(Debug)]
pub(crate) struct Driving {
    #[cfg(feature = "tokio")]
    runtime: RuntimeId,
    waker: Option<Waker>,
    until: Option<Tick>,
    /// Its runtime has no timers.
    is_broken: bool,
}

#[cfg(feature = "tokio")]
pub(crate) use tokio::runtime::Id as RuntimeId;

impl Alarm {
    /// Sees that somebody is awake at `target`. `ring` makes what a timer of the hand calls.
    pub(crate) fn set<F: FnOnce(Tick) + Send + 'static>(
        &mut self,
        clock: &Clock,
        target: Option<Tick>,
        wakes: &mut Wakes,
        ring: impl FnOnce() -> F,
    ) {
        if let Some(hand) = clock.hand() {
            if self.hand.map(|(at, _)| at) == target {
                return;
            }
            if let Some((_, id)) = self.hand.take() {
                hand.cancel(id);
            }
            self.hand = target.map(|at| (at, hand.call_at(at, ring())));
            return;
        }
        let Some(target) = target else { return };
        for driving in &mut self.drivers {
            if driving.until.is_none_or(|until| target < until) {
                wakes.push(driving.waker.take());
            }
        }
    }

    /// The timer of the hand has come.
    pub(crate) const fn rang(&mut self) {
        self.hand = None;
    }

    /// Tells whether somebody will be awake for a task that waits, or could be started here.
    pub(crate) fn can_wake(&self, clock: &Clock) -> bool {
        #[cfg(feature = "tokio")]
        let is_inside = tokio::runtime::Handle::try_current().is_ok();
        #[cfg(not(feature = "tokio"))]
        let is_inside = false;
        clock.hand().is_some() || self.drivers.iter().any(|known| !known.is_broken) || is_inside
    }

    /// Tells whether a task has to be started in this runtime, and notes that it is.
    #[cfg(feature = "tokio")]
    pub(crate) fn needs_driver(&mut self, clock: &Clock) -> bool {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return false };
        let runtime = runtime.id();
        let needs = clock.hand().is_none() && self.driver(runtime).is_none();
        if needs {
            let (waker, until) = (None, Some(Tick::ZERO));
            self.drivers.push(Driving { runtime, waker, until, is_broken: false });
        }
        needs
    }

    #[cfg(not(feature = "tokio"))]
    pub(crate) const fn needs_driver(&mut self, _clock: &Clock) -> bool {
        false
    }
}

#[cfg(feature = "tokio")]
impl Alarm {
    fn driver(&mut self, runtime: RuntimeId) -> Option<&mut Driving> {
        self.drivers.iter_mut().find(|known| known.runtime == runtime)
    }

    /// The task of a runtime is awake: nobody needs to wake it. Returns a waker to be dropped without
    /// a lock.
    pub(crate) fn awake(&mut self, runtime: RuntimeId) -> Option<Waker> {
        let driving = self.driver(runtime)?;
        driving.until = Some(Tick::ZERO);
        driving.waker.take()
    }

    /// The task sleeps until `target`, or for as long as nothing is due.
    pub(crate) fn asleep(&mut self, runtime: RuntimeId, waker: &Waker, target: Option<Tick>) {
        if let Some(driving) = self.driver(runtime) {
            (driving.waker, driving.until) = (Some(waker.clone()), target);
        }
    }

    /// The task has panicked, because its runtime has no timers. It is not started again. Returns a waker to be dropped
    /// without a lock.
    pub(crate) fn broke(&mut self, runtime: RuntimeId) -> Option<Driving> {
        let waker = self.awake(runtime);
        let driving = self.driver(runtime)?;
        driving.is_broken = true;
        Some(Driving { runtime, waker, until: None, is_broken: true })
    }

    /// The task is gone.
    pub(crate) fn gone(&mut self, runtime: RuntimeId) -> Option<Driving> {
        let place = self.drivers.iter().position(|known| known.runtime == runtime)?;
        Some(self.drivers.swap_remove(place))
    }

    /// The task was dropped with its runtime, or has panicked, because that has no timers. Tells
    /// whether nobody is left who could wake the tasks that wait, and returns what is to be dropped
    /// without a lock.
    pub(crate) fn abandoned(
        &mut self,
        runtime: RuntimeId,
        has_panicked: bool,
    ) -> (bool, Vec<Driving>) {
        if has_panicked {
            // It is not started again, as long as another one serves those who wait here.
            self.driver(runtime).into_iter().for_each(|known| known.is_broken = true);
        } else {
            let old = self.gone(runtime);
            if old.is_some() && self.drivers.is_empty() {
                return (false, old.into_iter().collect());
            }
        }
        if self.drivers.iter().any(|known| !known.is_broken) {
            return (false, Vec::new());
        }
        (!self.drivers.is_empty(), std::mem::take(&mut self.drivers))
    }
}
