//! The system's monotonic clock, with its cheap early reading.

use super::{Tick, system};
use std::{
    cell::Cell,
    sync::{
        LazyLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// How many coarse ticks the coarse clock is trusted to lag by at most.
///
/// One tick is its resolution, a second one is lost when an interrupt comes late, a third is
/// reserve. More would send more decisions near a border to the precise clock.
const MARGIN_TICKS: u64 = 3;

/// Each thread compares the coarse clock with the precise one on every n-th reading.
const CHECK_EVERY: u32 = 64;

/// One time base for the whole process, so that ticks of two monotonic clocks can be compared.
static SHARED: LazyLock<Monotonic> = LazyLock::new(|| {
    let origin_ns = system::kernel_ns();
    let margin_ns = system::coarse().map_or(0, |coarse| coarse.tick_ns * MARGIN_TICKS);
    Monotonic { origin_ns, margin_ns }
});

/// Set while the coarse clock lags by more than the margin.
static STALLED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static READINGS: Cell<u32> = const { Cell::new(0) };
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Monotonic {
    origin_ns: u64,
    /// Zero where there is no coarse clock.
    margin_ns: u64,
}

impl Monotonic {
    pub(super) fn shared() -> Self {
        *SHARED
    }

    #[inline]
    pub(super) fn now(self) -> Tick {
        Tick::from_nanos(system::precise_ns().saturating_sub(self.origin_ns))
    }

    pub(super) fn margin(self) -> Duration {
        Duration::from_nanos(self.margin_ns)
    }

    /// Returns the coarse time, unless there is none or it is not to be trusted.
    #[inline]
    pub(super) fn early(self) -> Option<Tick> {
        let reading = READINGS.get().wrapping_add(1);
        READINGS.set(reading);
        if reading.is_multiple_of(CHECK_EVERY) || self.margin_ns == 0 || stalled() {
            return self.checked();
        }
        Some(Tick::from_nanos(system::coarse_ns().saturating_sub(self.origin_ns)))
    }

    /// Compares the two clocks. While the coarse one is stalled, every reading comes here.
    #[cold]
    #[inline(never)]
    fn checked(self) -> Option<Tick> {
        if self.margin_ns == 0 {
            return None;
        }
        let early = system::coarse_ns();
        let lag = system::kernel_ns().saturating_sub(early);
        let stalled = lag > self.margin_ns;
        // ORDERING: Relaxed. A flag on its own; seeing it late costs what the module doc states.
        STALLED.store(stalled, Relaxed);
        (!stalled).then(|| Tick::from_nanos(early.saturating_sub(self.origin_ns)))
    }
}

/// Tells whether some thread has found the coarse clock lagging and none has seen it recover.
#[inline]
fn stalled() -> bool {
    // ORDERING: Relaxed, see `checked`.
    STALLED.load(Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_is_at_or_before_now_and_within_the_margin() {
        let clock = Monotonic::shared();
        for _ in 0..1000 {
            let Some(early) = clock.early() else { continue };
            let now = clock.now();
            assert!(early <= now.saturating_add(Duration::from_micros(100)), "{early} > {now}");
        }
    }
}
