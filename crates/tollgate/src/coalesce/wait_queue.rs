//! The wait queue of adds that found no room in a batch, without locks.
//!
//! Each add that waits keeps its own pair. Here it only has a number and a waker. When there is room, the queue
//! **reserves** it for the first in the queue and hands out its waker. No other add can take reserved room; the add uses
//! it when it is polled, or gives it back when it is dropped.
//!
//! The queue has one entry for each future that waits, and the entry leaves with the future, so its bound is how many
//! futures the callers make.

use crate::wait::Wakers;
use std::{collections::BTreeMap, mem, task::Waker};

#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    /// In the order of arrival.
    pub(super) waiting: BTreeMap<u64, Waker>,
    /// Room that is reserved for adds and not used yet.
    pub(super) reserved: usize,
    /// Wakers to wake as soon as no lock is held.
    woken: Vec<Waker>,
    next_number: u64,
}

impl WaitQueue {
    /// Appends an add to the queue and returns its number.
    pub(super) fn join(&mut self, waker: Waker) -> u64 {
        self.next_number += 1; // OVERFLOW: 2^64 take centuries.
        self.waiting.insert(self.next_number, waker);
        self.next_number
    }

    /// Swaps `waker` with the one of `number`. Returns `false` if that does not wait any more.
    pub(super) fn swap_waker(&mut self, number: u64, waker: &mut Waker) -> bool {
        let found = self.waiting.get_mut(&number);
        found.map(|held| mem::swap(held, waker)).is_some()
    }

    /// Removes `number` from the queue, or gives back the room reserved for it. Returns its waker, to be dropped
    /// elsewhere.
    pub(super) fn leave(&mut self, number: u64) -> Option<Waker> {
        let waker = self.waiting.remove(&number);
        if waker.is_none() {
            debug_assert!(self.reserved > 0, "a caller that left the queue holds a slot");
            self.reserved = self.reserved.saturating_sub(1);
        }
        waker
    }

    /// Reserves at most `room`, first come, first served.
    pub(super) fn reserve(&mut self, room: usize) {
        for _ in 0..room {
            let Some((_, waker)) = self.waiting.pop_first() else { return };
            self.reserved += 1;
            self.woken.push(waker);
        }
    }

    /// Takes out the wakers to wake.
    pub(super) fn take_woken(&mut self) -> Wakers {
        Wakers(mem::take(&mut self.woken))
    }

    /// Empties the queue and returns every waker.
    pub(super) fn clear(&mut self) -> Wakers {
        let mut wakers = mem::take(&mut self.woken);
        wakers.extend(mem::take(&mut self.waiting).into_values());
        self.reserved = 0;
        Wakers(wakers)
    }
}
