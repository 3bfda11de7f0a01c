//! How to lose a race politely.

use crate::sync::{spin_loop, yield_now};

/// Waits a little longer after each lost race, so that many threads on one word do not keep each
/// other from winning.
///
/// A thread spins 1, 2, 4 .. 64 times and then yields its processor. The figures behind these
/// numbers are in `docs/benchmarks.md`, "threads on one limiter".
pub(crate) struct Backoff {
    losses: u32,
}

/// Losses after which a thread yields instead of spinning.
const SPIN_LOSSES: u32 = 6;

impl Backoff {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self { losses: 0 }
    }

    #[inline]
    pub(crate) fn wait(&mut self) {
        if self.losses > SPIN_LOSSES || cfg!(tollgate_loom) {
            yield_now();
            return;
        }
        for _ in 0..1 << self.losses {
            spin_loop();
        }
        self.losses += 1;
    }
}
