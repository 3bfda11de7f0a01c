//! Lets fires out at a pace: a pure state machine.
//!
//! State: at most one fire. One that comes while another is held back takes its place (the last
//! value wins) and stands for the triggers of both.

use super::{booked::Booked, pace::Pace, then::Accept};
use crate::{Fired, Tick, wait::Machine};

#[derive(Debug)]
pub(crate) struct Gate<T> {
    pace: Pace,
    held: Option<Fired<T>>,
}

impl<T> Gate<T> {
    pub(crate) const fn new(pace: Pace) -> Self {
        Self { pace, held: None }
    }

    pub(crate) const fn is_pending(&self) -> bool {
        self.held.is_some()
    }

    /// Forgets what is held. Returns what that was.
    pub(crate) fn cancel(&mut self) -> (Option<T>, Booked) {
        (self.held.take().map(Fired::into_value), self.pace.give_up())
    }
}

impl<T: Send + 'static> Accept<Fired<T>> for Gate<T> {
    type Spent = T;

    fn accept(&mut self, _now: Tick, mut fired: Fired<T>) -> Option<T> {
        let old = self.held.take();
        if let Some(old) = &old {
            fired.first_at = old.first_at;
            fired.count += old.count; // OVERFLOW: 2^64 triggers take centuries.
        }
        self.held = Some(fired);
        old.map(Fired::into_value)
    }
}

impl<T: Send + 'static> Machine for Gate<T> {
    type Job = Fired<T>;

    fn due(&self) -> Option<Tick> {
        self.held.as_ref().map(|_| self.pace.due())
    }

    fn next(&mut self, now: Tick) -> Option<Fired<T>> {
        if self.held.is_some() && self.pace.admits(now) { self.held.take() } else { None }
    }

    /// What is held stays due at its pace.
    fn finish(&mut self, _now: Tick) {}

    fn clear(&mut self) -> impl Sized + use<T> {
        self.cancel()
    }
}
