//! The queue of a limiter: who waits, what is booked for them, and who wakes them.

use crate::{
    Decision, Refused, Tick, TimerId,
    wait::{
        bookings::Bookings,
        queue::{Order, Queue, Ticket},
    },
};
use std::task::Waker;

/// How a limiter lets wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineRules {
    pub(crate) order: Order,
    pub(crate) max_waiting: usize,
}

/// As many wait at a limiter unless its builder says otherwise.
pub(crate) const MAX_WAITING: usize = 10_000;

/// The queue, with what it has booked. GCRA books for those who wait; windows cannot.
#[derive(Debug)]
pub(crate) struct Line {
    pub(super) queue: Queue<Answer>,
    pub(super) bookings: Bookings,
    pub(super) alarm: Alarm,
}

/// What somebody who waited has got.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Granted(Grant),
    Refused(Refused),
}

/// Permits that are taken for somebody.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(super) decision: Decision,
    /// When they were due, which is before they are fetched.
    pub(super) due: Tick,
    /// What can be given back: the mark of the take, and its units.
    pub(super) mark: u64,
    pub(super) units: u64,
}

/// Who looks after the next due time.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    /// A timer of the hand of a manual clock.
    pub(super) hand: Option<(Tick, TimerId)>,
    /// A task, and what it is set to.
    pub(super) driver: Option<Driving>,
    /// What a thread at the head of the queue was told to wake up at.
    pub(super) told: Option<(Ticket, Tick)>,
    /// Threads among those who wait.
    pub(super) threads: usize,
}

#[derive(Debug, Default)]
pub(super) struct Driving {
    pub(super) waker: Option<Waker>,
    pub(super) until: Option<Tick>,
}

impl Line {
    pub(super) fn new(order: Order) -> Self {
        Self { queue: Queue::new(order), bookings: Bookings::default(), alarm: Alarm::default() }
    }

    /// Somebody who had booked up to `position` gave back `amount`: what is behind moves up.
    pub(crate) fn lower_behind(&mut self, position: u64, amount: u64) {
        self.bookings.lower_behind(position, amount);
        self.queue.each_answer(|answer| {
            if let Answer::Granted(grant) = answer
                && grant.mark > position
            {
                grant.mark = grant.mark.saturating_sub(amount);
            }
        });
    }

    /// Takes `units` from what can be given back of every answer: for windows.
    pub(crate) fn take_from_answers(&mut self, units: u64) {
        self.queue.each_answer(|answer| {
            if let Answer::Granted(grant) = answer {
                grant.units = grant.units.saturating_sub(units);
            }
        });
    }

    /// Makes all answers final: nothing can be given back any more.
    pub(crate) fn forget_claims(&mut self) {
        self.take_from_answers(u64::MAX);
    }
}
