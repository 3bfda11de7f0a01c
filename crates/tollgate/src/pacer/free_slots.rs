//! Free slots: given back before the end of the schedule.

use crate::Tick;
use std::collections::BTreeSet;

/// A set of slots, found by their time and by their cost.
#[derive(Debug, Default)]
pub(super) struct FreeSlots {
    by_time: BTreeSet<(Tick, u64)>,
    by_cost: BTreeSet<(u64, Tick)>,
}

impl FreeSlots {
    pub(super) fn insert(&mut self, at: Tick, cost: u64) {
        self.by_time.insert((at, cost));
        self.by_cost.insert((cost, at));
    }

    pub(super) fn remove(&mut self, at: Tick, cost: u64) {
        self.by_time.remove(&(at, cost));
        self.by_cost.remove(&(cost, at));
    }

    /// Returns the first slot of that cost from `now` on.
    pub(super) fn first(&self, now: Tick, cost: u64) -> Option<Tick> {
        self.by_cost.range((cost, now)..=(cost, Tick::MAX)).next().map(|(_, at)| *at)
    }

    pub(super) fn last(&self) -> Option<(Tick, u64)> {
        self.by_time.last().copied()
    }

    /// Removes the slots before `now`.
    pub(super) fn remove_before(&mut self, now: Tick) {
        while let Some((at, cost)) = self.by_time.first().copied().filter(|(at, _)| *at < now) {
            self.remove(at, cost);
        }
    }
}
