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
//! back by its part, so it is subtracted. Returning the whole cost would credit the refill twice. The ledger keeps the marks of the
//! open takes in their order and lowers those of younger takes by each refund, in logarithmic time
//! ([`FenwickList`]). Only reservations pay for it: plain takes never come here.
//!
//! Bound: an entry leaves with its reservation, and entries whose mark has passed leave as soon as
//! a new one comes. A reservation of nothing has none. So there are never more than live
//! reservations, nor (forgotten ones included) more than permits that can be booked at once.

use super::fenwick::FenwickList;
use crate::{Inherit, Tick, algorithm::Gcra};

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// In the order of their takes. At the mark of each, the most that can be given back and all that was
    /// taken from all claims before it came.
    open: FenwickList,
    /// The units taken from the claims of all takes so far.
    taken: u64,
}

/// One open take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) mark: u64,
    /// The most that can be given back, in the algorithm's units.
    pub(crate) units: u64,
}

impl Ledger {
    /// Adds a take and returns its id. Entries whose mark is at most `passed` have nothing left
    /// to claim and leave.
    pub(crate) fn add(&mut self, mark: u64, units: u64, passed: u64) -> u64 {
        while let Some(oldest) = self.open.first()
            && self.open.place(oldest) <= passed
        {
            self.open.remove(oldest);
        }
        // OVERFLOW: a claim is below 2^63, and so much is taken at most.
        self.open.push(mark, units + self.taken)
    }

    /// Asks for the memory that a queue of a dozen ever needs, at once.
    pub(crate) fn warm_up(&mut self) {
        self.open.warm_up();
    }

    /// [`add`](Self::add), with a number not below `first`.
    pub(crate) fn add_from(&mut self, first: u64, (mark, units): (u64, u64), passed: u64) -> u64 {
        self.open.skip_ids(first);
        self.add(mark, units, passed)
    }

    /// Removes a take and returns what it can claim.
    pub(crate) fn remove(&mut self, id: u64) -> Option<Open> {
        let index = self.open.index_of(id)?;
        let mark = self.open.place(index);
        let units = self.open.remove(index).saturating_sub(self.taken);
        Some(Open { mark, units })
    }

    /// Lowers the claims of all takes younger than `id`, which was removed and gave back `units`.
    pub(crate) fn lower_younger(&mut self, id: u64, units: u64) {
        // INVARIANT: marks rise. The tombstone of `id` is lowered as well, to where its take began.
        self.open.lower_from(self.open.first_from(id), units);
    }

    /// Lowers the claims of all takes behind `mark`, because a caller that had booked up to there
    /// gave back `units`: for GCRA, whose marks rise with the order of takes.
    pub(crate) fn lower_behind(&mut self, mark: u64, units: u64) {
        self.open.lower_from(self.open.first_behind(mark), units);
    }

    /// Lowers the claims of all takes, because an unknown caller gave back `units`.
    pub(crate) fn lower_all(&mut self, units: u64) {
        self.open.lower_from(0, units);
    }

    /// Lets no claim reach beyond `booked`, where the state's booking ends now: a change of quota may have
    /// cut it, and what was cut off is nobody's to give back. For GCRA.
    pub(crate) fn cut_to(&mut self, booked: u64) {
        let is_behind = |youngest| self.open.place(youngest) > booked;
        if self.open.last().is_some_and(is_behind) {
            self.change_each(|mark, units| {
                let lower = mark.saturating_sub(units).min(booked);
                Some((mark.min(booked), mark.min(booked) - lower))
            });
        }
    }

    /// Forgets all claims.
    pub(crate) fn clear(&mut self) {
        self.open.clear();
    }

    pub(crate) const fn len(&self) -> usize {
        self.open.len()
    }

    /// Takes `units` from the claims of all takes, because an unknown caller gave back so much: for
    /// windows, where a claim is a number of permits and not a place.
    pub(crate) fn take_from_all(&mut self, units: u64) {
        const MOST: u64 = 1 << 63;
        let units = units.min(MOST);
        if self.taken > MOST - units {
            self.change_each(|mark, units| Some((mark, units)));
        }
        self.taken += units;
    }

    /// Reads the marks of GCRA in another unit.
    pub(crate) fn reread(&mut self, place: impl Fn(u64) -> u64) {
        self.change_each(|mark, units| Some((place(mark), place(units))));
    }

    /// Carries the claims over to other parameters as the state was: both ends of each, so that a
    /// claim is what it is of the new state.
    pub(crate) fn rescale(&mut self, old: &Gcra, new: &Gcra, now: Tick, how: Inherit) {
        let (before, after) = (old.position(now), new.position(now));
        self.change_each(|mark, units| {
            let ahead = mark.saturating_sub(before);
            let upper = new.carry(old, ahead, how)?;
            let lower = new.carry(old, ahead.saturating_sub(units), how)?;
            Some((after + upper, upper - lower))
        });
    }

    /// Changes the mark and the units of each take; forgets all if one has none.
    fn change_each(&mut self, change: impl Fn(u64, u64) -> Option<(u64, u64)>) {
        let taken = std::mem::take(&mut self.taken);
        self.open.change_each(|mark, units| change(mark, units.saturating_sub(taken)));
    }
}

#[cfg(test)]
mod tests;
