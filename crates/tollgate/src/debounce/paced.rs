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
    observe::RunCounts,
    pace::{Booked, Pace},
    wait::Machine,
};

#[derive(Debug)]
pub(crate) struct PacedDebounce<T> {
    pub(super) debounce: Debounce<T>,
    pace: Pace,
    /// A value that was not used, until the engine takes it to drop it without the lock.
    unused: Option<T>,
    pub(super) counts: RunCounts,
}

impl<T> PacedDebounce<T> {
    pub(crate) const fn new(rules: Rules, pace: Pace) -> Self {
        let counts = RunCounts { triggers: 0, runs: 0, coalesced: 0 };
        Self { debounce: Debounce::new(rules), pace, unused: None, counts }
    }

    /// An event, see [`Debounce::trigger`].
    pub(super) fn trigger(&mut self, now: Tick, value: T) -> [Option<T>; 4] {
        let unused = self.debounce.trigger(now, value);
        self.counts.trigger(&unused);
        unused
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
        let fired = if leaves { self.debounce.take_ready() } else { None };
        if let Some(fired) = &fired {
            self.counts.run(fired.count);
        }
        fired
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
