//! What open reservations can still claim.
//!
//! A take that is given back later must not credit what time has refilled already, nor what another
//! caller gave back. It therefore gives back
//!
//! ```text
//! clamp(mark - now - refunds since then of takes older than mine, 0, cost)
//! ```
//!
//! where `mark` is the state's `tat` just after the take. `mark - now` is what time has not yet
//! refilled of this take and those before it; a refund of an older take has already moved the state
//! back by its part, so it is subtracted. Returning the whole cost would credit the refill twice. The ledger keeps the marks of the open
//! takes in their order and lowers each by the refunds of older ones as they happen. Only
//! reservations pay for it: plain takes never come here.
//!
//! Bound: an entry leaves with its reservation, and entries whose mark has passed leave as soon as
//! a new one comes. A reservation of nothing has none. So there are never more than live
//! reservations, nor (forgotten ones included) more than permits that can be booked at once.

use crate::{Inherit, Tick, algorithm::Gcra};
use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// In the order of their takes, so ids rise.
    open: VecDeque<Open>,
    next_id: u64,
}

/// One open take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) id: u64,
    pub(crate) mark: u64,
    /// The most that can be given back, in the algorithm's units.
    pub(crate) units: u64,
}

impl Ledger {
    /// Notes a take and returns its id. Entries whose mark is at most `passed` have nothing left
    /// to claim and leave.
    pub(crate) fn add(&mut self, mark: u64, units: u64, passed: u64) -> u64 {
        while self.open.front().is_some_and(|oldest| oldest.mark <= passed) {
            self.open.pop_front();
        }
        let id = self.next_id;
        self.next_id += 1;
        self.open.push_back(Open { id, mark, units });
        id
    }

    /// [`add`](Self::add), with a number not below `first`.
    pub(crate) fn add_from(&mut self, first: u64, (mark, units): (u64, u64), passed: u64) -> u64 {
        self.next_id = self.next_id.max(first);
        self.add(mark, units, passed)
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.open.binary_search_by_key(&id, |open| open.id).ok()
    }

    /// Removes a take and returns what it can claim.
    pub(crate) fn remove(&mut self, id: u64) -> Option<Open> {
        self.find(id).and_then(|index| self.open.remove(index))
    }

    /// Lowers the claims of all takes younger than `id`, because `id` gave back `units`.
    pub(crate) fn lower_younger(&mut self, id: u64, units: u64) {
        let first = self.open.partition_point(|open| open.id <= id);
        for open in self.open.iter_mut().skip(first) {
            open.mark = open.mark.saturating_sub(units);
        }
    }

    /// Lowers the claims of all takes behind `mark`, because somebody who had booked up to there
    /// gave back `units`: for GCRA, whose marks rise with the order of takes.
    pub(crate) fn lower_behind(&mut self, mark: u64, units: u64) {
        let first = self.open.partition_point(|open| open.mark <= mark);
        for open in self.open.iter_mut().skip(first) {
            open.mark = open.mark.saturating_sub(units);
        }
    }

    /// Lowers the claims of all takes, because somebody unknown gave back `units`.
    pub(crate) fn lower_all(&mut self, units: u64) {
        for open in &mut self.open {
            open.mark = open.mark.saturating_sub(units);
        }
    }

    /// Forgets all claims.
    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Takes `units` from the claims of all takes, because somebody unknown gave back so much: for
    /// windows, where a claim is a number of permits and not a place.
    pub(crate) fn take_from_all(&mut self, units: u64) {
        for open in &mut self.open {
            open.units = open.units.saturating_sub(units);
        }
    }

    /// Reads the marks of GCRA in another unit.
    pub(crate) fn reread(&mut self, place: impl Fn(u64) -> u64) {
        for open in &mut self.open {
            (open.mark, open.units) = (place(open.mark), place(open.units));
        }
    }

    /// Carries the claims over to other parameters as the state was: both ends of each, so that a
    /// claim is what it is of the new state.
    pub(crate) fn rescale(&mut self, old: &Gcra, new: &Gcra, now: Tick, how: Inherit) {
        let (before, after) = (old.position(now), new.position(now));
        for open in &mut self.open {
            let ahead = open.mark.saturating_sub(before);
            let ends = [ahead, ahead.saturating_sub(open.units)];
            let [Some(upper), Some(lower)] = ends.map(|end| new.carry(old, end, how)) else {
                return self.clear();
            };
            open.mark = after + upper;
            open.units = upper - lower;
        }
    }
}
