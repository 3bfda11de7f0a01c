//! A slot that its caller waits for without the pacer.

use super::{job::Work, machine::PacerMachine};
use crate::{Tick, wait::WeakEngine};
use std::time::Duration;

/// A slot of a [`Pacer`](super::Pacer); made by [`Pacer::slot`](super::Pacer::slot).
///
/// Dropping it changes nothing: the slot counts as used. A caller that does not use it should
/// [`cancel`](Self::cancel) it.
#[derive(Debug)]
#[must_use = "act at `at()`, or `cancel` to give the slot back"]
pub struct Slot {
    pub(super) engine: WeakEngine<PacerMachine<Work>>,
    pub(super) at: Tick,
    pub(super) cost: u64,
}

impl Slot {
    /// Returns when the slot is, by the clock of the pacer.
    #[must_use]
    pub const fn at(&self) -> Tick {
        self.at
    }

    /// Returns how long it is from `now` to the slot; zero if it has come.
    #[must_use]
    pub const fn delay(&self, now: Tick) -> Duration {
        self.at.since(now)
    }

    /// Returns how many slots it takes.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Gives back the slot, which was not used. Returns whether another caller can have it.
    ///
    /// The last slot that was given out is the next free one again, even if it has come. Another
    /// one that is still ahead goes to the next who asks for the same cost. One that has come, with
    /// others after it, is lost, as all are once the pacer is stopped.
    #[allow(clippy::must_use_candidate, reason = "giving back is the point")]
    pub fn cancel(self) -> bool {
        let Some(engine) = self.engine.upgrade() else { return false };
        engine.event(|machine, now| machine.cancel_slot(now, self.at)).unwrap_or(false)
    }
}
