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
    /// A task, and what it is set to.
    driver: Option<Driving>,
}

#[derive(Debug, Default)]
pub(crate) struct Driving {
    waker: Option<Waker>,
    until: Option<Tick>,
}

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
        if let Some(driving) = &mut self.driver
            && driving.until.is_none_or(|until| target < until)
        {
            wakes.push(driving.waker.take());
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
        clock.hand().is_some() || self.driver.is_some() || is_inside
    }

    /// Tells whether a task has to be started, and notes that it is.
    pub(crate) fn needs_driver(&mut self, clock: &Clock) -> bool {
        let needs = clock.hand().is_none() && self.driver.is_none();
        if needs {
            self.driver = Some(Driving::default());
        }
        needs
    }

    /// The task is awake: nobody needs to wake it. Returns what it was set to, to be dropped
    /// without a lock.
    #[cfg(feature = "tokio")]
    pub(crate) const fn awake(&mut self) -> Option<Driving> {
        self.driver.replace(Driving { waker: None, until: Some(Tick::ZERO) })
    }

    /// The task sleeps until `target`, or for as long as nothing is due.
    #[cfg(feature = "tokio")]
    pub(crate) fn asleep(&mut self, waker: &Waker, target: Option<Tick>) {
        self.driver = Some(Driving { waker: Some(waker.clone()), until: target });
    }

    /// The task is gone.
    #[cfg(feature = "tokio")]
    pub(crate) const fn gone(&mut self) -> Option<Driving> {
        self.driver.take()
    }
}
