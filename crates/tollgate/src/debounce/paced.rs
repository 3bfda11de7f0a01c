//! A debouncer whose fires leave at a pace: a pure state machine.
//!
//! State: a debouncer and a pace; a plain debouncer has a free one. A fire that comes while another
//! one is held back replaces it (the last value wins) and stands for the triggers of both.

use super::{
    Fired,
    machine::{Debounce, Rules},
};
use crate::{
    Tick,
    pace::{Booked, Pace},
    wait::Machine,
};

#[derive(Debug)]
pub(crate) struct PacedDebounce<T> {
    pub(super) debounce: Debounce<T>,
    pace: Pace,
    /// A value that was not used, until the engine takes it to drop it without the lock.
    unused: Option<T>,
}

impl<T> PacedDebounce<T> {
    pub(crate) const fn new(rules: Rules, pace: Pace) -> Self {
        Self { debounce: Debounce::new(rules), pace, unused: None }
    }

    /// Forgets the burst, the fire that waits for its turn, and the permit that is booked for it.
    pub(super) fn cancel(&mut self) -> ([Option<T>; 2], Booked) {
        (self.debounce.cancel(), self.pace.give_up())
    }
}

impl<T: Send + 'static> Machine for PacedDebounce<T> {
    type Job = Fired<T>;

    fn due(&self) -> Option<Tick> {
        let leaves = self.debounce.is_ready().then(|| self.pace.due());
        leaves.into_iter().chain(self.debounce.timer_due()).min()
    }

    fn next(&mut self, now: Tick) -> Option<Fired<T>> {
        self.unused = self.debounce.expire(now);
        let leaves = self.debounce.is_ready() && self.pace.admits(now);
        if leaves { self.debounce.take_ready() } else { None }
    }

    /// The last fire still waits for its pace.
    fn finish(&mut self, now: Tick) {
        self.unused = self.debounce.flush(now);
    }

    fn waste(&mut self) -> impl Sized + use<T> {
        self.unused.take()
    }

    fn clear(&mut self) -> impl Sized + use<T> {
        self.cancel()
    }
}
