//! How long to wait after a lost race.

use crate::sync::{spin_loop, yield_now};

/// Waits after a lost race, so that many threads on one word do not keep each other from winning.
///
/// A thread pauses long enough for the winner to go on with the line in its cache, three times, and
/// then yields its processor: a winner that is not running cannot get out of the way. The figures
/// behind these numbers are in `docs/benchmarks/limiter.md`, "Which back-off".
pub(crate) struct Backoff {
    losses: u32,
}

/// Pauses after a loss. Fewer fetch the line back at once, and everybody loses again.
const PAUSES: u32 = 32;
/// Losses after which a thread yields instead of pausing.
const PAUSED_LOSSES: u32 = 3;

impl Backoff {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self { losses: 0 }
    }

    #[inline]
    pub(crate) fn wait(&mut self) {
        if self.losses >= PAUSED_LOSSES || cfg!(tollgate_loom) {
            yield_now();
            return;
        }
        for _ in 0..PAUSES {
            spin_loop();
        }
        self.losses += 1;
    }
}
