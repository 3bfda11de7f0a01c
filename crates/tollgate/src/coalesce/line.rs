//! Who waits for room in a batch: a pure line.
//!
//! Each adder that waits keeps its own pair. Here it only has a number and a waker. When there is
//! room, the first in line is given a **seat**: the room is set aside, and the adder is to be woken.
//! Nobody else can take the seat; the adder fills it when it is polled, or gives it back when it is
//! dropped.
//!
//! The line has one place for each future that waits, and the place leaves with the future, so its
//! bound is how many futures the callers make.

use crate::wait::Wakers;
use std::{collections::BTreeMap, task::Waker};

#[derive(Debug, Default)]
pub(super) struct Line {
    /// In the order of arrival.
    pub(super) waiting: BTreeMap<u64, Waker>,
    /// Seats given out that are not filled yet.
    pub(super) seats: usize,
    /// Who is to be woken as soon as no lock is held.
    woken: Vec<Waker>,
    next_number: u64,
}

impl Line {
    /// Takes the last place in line.
    pub(super) fn join(&mut self, waker: Waker) -> u64 {
        self.next_number += 1; // OVERFLOW: 2^64 take centuries.
        self.waiting.insert(self.next_number, waker);
        self.next_number
    }

    /// Takes the new waker of `number` if it still waits, and returns the old one.
    pub(super) fn stay(&mut self, number: u64, new: &mut Option<Waker>) -> Option<Waker> {
        let waker = self.waiting.get_mut(&number)?;
        new.take().map(|new| std::mem::replace(waker, new))
    }

    /// Gives up the place, or the seat, of `number`. Returns the waker, to be dropped elsewhere.
    pub(super) fn leave(&mut self, number: u64) -> Option<Waker> {
        let waker = self.waiting.remove(&number);
        if waker.is_none() {
            debug_assert!(self.seats > 0, "a caller that left the queue holds a slot");
            self.seats = self.seats.saturating_sub(1);
        }
        waker
    }

    /// Gives out at most `room` seats, first come, first served.
    pub(super) fn seat(&mut self, room: usize) {
        for _ in 0..room {
            let Some((_, waker)) = self.waiting.pop_first() else { return };
            self.seats += 1;
            self.woken.push(waker);
        }
    }

    /// Takes out who is to be woken.
    pub(super) fn take_woken(&mut self) -> Wakers {
        Wakers(std::mem::take(&mut self.woken))
    }

    /// Sends everybody away.
    pub(super) fn disband(&mut self) -> Wakers {
        let mut wakers = std::mem::take(&mut self.woken);
        wakers.extend(std::mem::take(&mut self.waiting).into_values());
        self.seats = 0;
        Wakers(wakers)
    }
}
