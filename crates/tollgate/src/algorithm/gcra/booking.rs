//! Booking the future of a GCRA, and giving back beside those who have booked.

use super::Gcra;
use crate::{
    Decision, Tick,
    algorithm::{Step, word_time},
};
use std::time::Duration;

/// A booking of the places `[start, end)`, and the first tick at which it may act.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Booked {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) act_at: Tick,
}

impl Gcra {
    /// Books `cost` if it can act at most `max_wait` from now. Returns the first tick at which it
    /// may act.
    pub(crate) fn reserve(
        &self,
        tat: &mut u64,
        now: Tick,
        cost: u64,
        max_wait: Duration,
    ) -> Option<Tick> {
        self.book(tat, now, (cost, max_wait), |end| end).map(|booked| booked.act_at)
    }

    /// Books `cost` if it can act at most `max_wait` from now, where `act` says where the permits
    /// end with which it acts, given where those end that it books.
    pub(crate) fn book(
        &self,
        tat: &mut u64,
        now: Tick,
        (cost, max_wait): (u64, Duration),
        act: impl Fn(u64) -> u64,
    ) -> Option<Booked> {
        if cost > self.burst {
            return None;
        }
        let position = self.position(now);
        let start = self.place(*tat).max(position);
        let end = start + self.span(cost);
        let act_at = self.act_at(act(end), now)?;
        let fits = act_at.since(now) <= max_wait && end - position <= self.ahead_max();
        // A cost of nothing must leave an idle word as it is.
        if fits && cost > 0 {
            *tat = self.word(end);
        }
        fits.then_some(Booked { start, end, act_at })
    }

    /// Returns the first tick, not before `now`, at which permits that end at `end` may be used.
    pub(crate) fn act_at(&self, end: u64, now: Tick) -> Option<Tick> {
        let act = self.act_position(end).max(self.position(now));
        Some(word_time::to_tick(self.word(act))?.max(now))
    }

    /// Returns the first position at which permits that end at `end` may be used.
    pub(crate) const fn act_position(&self, end: u64) -> u64 {
        end.saturating_sub(self.span(self.burst))
    }

    /// [`Step::refund`] of up to `most` positions, beside `waiting` that are booked and not spent.
    pub(crate) fn refund_beside(&self, tat: &mut u64, now: Tick, most: u64, waiting: u64) -> u64 {
        let booked = self.place(*tat);
        let spent = booked.saturating_sub(self.position(now)).saturating_sub(waiting);
        self.give_back(tat, now, booked, most.min(spent))
    }

    /// Returns how many places of what a decision took have not come back yet.
    pub(crate) fn outstanding(&self, decision: &Decision, now: Tick) -> u64 {
        let booked = match decision.booked() {
            word_time::NEVER => u64::MAX,
            word => self.place(word),
        };
        booked.saturating_sub(self.position(now)).min(self.units(decision.cost()))
    }
}
