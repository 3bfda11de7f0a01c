//! A slot that its owner keeps to by himself.

use super::{Pacer, job::Work, machine::Pace};
use crate::{Tick, wait::WeakEngine};
use std::{fmt, time::Duration};

/// When it is somebody's turn; made by [`Pacer::slot`].
///
/// Dropping it changes nothing: the slot counts as used. Whoever does not use it should
/// [`cancel`](Self::cancel) it.
#[must_use = "act at `at()`, or `cancel` to give the slot back"]
pub struct Slot {
    engine: WeakEngine<Pace<Work>>,
    at: Tick,
    cost: u64,
}

impl Slot {
    pub(super) fn new(pacer: &Pacer, at: Tick, cost: u64) -> Self {
        Self { engine: pacer.engine.downgrade(), at, cost }
    }

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

    /// Gives the slot back, for it was not used; tells whether somebody else can have it.
    ///
    /// The last slot that was given out is the next free one again, even if it has come. Another
    /// one that is still ahead goes to the next who asks for the same cost. One that has come, with
    /// others after it, is lost, as all are once the pacer is stopped.
    #[allow(clippy::must_use_candidate, reason = "giving back is the point")]
    pub fn cancel(self) -> bool {
        let Some(engine) = self.engine.upgrade() else { return false };
        engine.event(|pace, now| pace.cancel_slot(now, self.at)).unwrap_or(false)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot")
            .field("at", &self.at)
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}
