//! The system's monotonic clock, with its cheap early reading.

use super::{Tick, system};
use std::{cell::Cell, sync::LazyLock};

/// How many coarse ticks the coarse clock is trusted to lag by at most.
///
/// One tick is its resolution, a second one is lost when an interrupt comes late, a third is
/// reserve. More would send more decisions near a border to the precise clock.
const MARGIN_TICKS: u64 = 3;

/// How many readings of the coarse clock a thread trusts before it compares the two clocks again.
const TRUSTED_READINGS: u32 = 63;

/// How long before the start of the process ticks begin: the longest period of a quota. A window that
/// was open before a restart then still has a tick to have begun at.
const HEAD_START_NS: u64 = 366 * 86_400 * 1_000_000_000;

/// One time base for the whole process, so that ticks of two monotonic clocks can be compared.
static SHARED: LazyLock<Monotonic> = LazyLock::new(|| {
    system::skip_libc();
    let origin_ns = system::kernel_ns().wrapping_sub(HEAD_START_NS);
    let margin_ns = system::coarse_tick_ns().map_or(0, |tick_ns| tick_ns * MARGIN_TICKS);
    Monotonic { origin_ns, margin_ns }
});

thread_local! {
    /// Readings of the coarse clock until the next comparison; zero as long as it lags too much.
    static TRUSTED: Cell<u32> = const { Cell::new(0) };
}

/// A reading of the clock: exact, or early by up to the clock's margin.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) now: Tick,
    pub(crate) is_early: bool,
}

impl Reading {
    pub(crate) const fn exact(now: Tick) -> Self {
        Self { now, is_early: false }
    }

    /// Returns the exact time: this reading, or what `exact` reads if this one is early.
    #[inline]
    pub(crate) fn or_exact(self, exact: impl FnOnce() -> Tick) -> Tick {
        if self.is_early { exact() } else { self.now }
    }
}

/// The monotonic clock; for hosts also the early reading alone, without asking which clock it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Monotonic {
    origin_ns: u64,
    /// Zero where there is no coarse clock.
    margin_ns: u64,
}

impl Monotonic {
    /// No early reading.
    pub(crate) const NONE: Self = Self { origin_ns: 0, margin_ns: 0 };

    pub(super) fn shared() -> Self {
        *SHARED
    }

    #[inline]
    pub(super) fn now(self) -> Tick {
        self.tick(system::precise_ns())
    }

    /// Returns the bound on the lag of [`read`](Self::read); zero if there is no early reading.
    pub(crate) const fn margin(self) -> Tick {
        Tick::from_nanos(self.margin_ns)
    }

    /// Returns the coarse time, unless there is none or it lags too much to be trusted.
    #[inline(always)]
    pub(crate) fn read(self) -> Option<Tick> {
        let trusted = TRUSTED.get();
        if trusted == 0 {
            return self.compare();
        }
        TRUSTED.set(trusted - 1);
        Some(self.tick(system::coarse_ns()))
    }

    /// Returns [`read`](Self::read) if it is wanted and trusted, and else what `exact` reads.
    #[inline(always)]
    pub(crate) fn read_or(self, is_wanted: bool, exact: impl FnOnce() -> Tick) -> Reading {
        match if is_wanted { self.read() } else { None } {
            Some(now) => Reading { now, is_early: true },
            None => Reading::exact(exact()),
        }
    }

    /// Compares the two clocks. While the coarse one lags, every reading of it comes here.
    #[cold]
    #[inline(never)]
    fn compare(self) -> Option<Tick> {
        if self.margin_ns == 0 {
            return None;
        }
        let early = system::coarse_ns();
        let lag = system::kernel_ns().saturating_sub(early);
        let trusted = trusted_readings(lag, self.margin_ns);
        TRUSTED.set(trusted);
        (trusted > 0).then(|| self.tick(early))
    }

    #[inline]
    fn tick(self, ns: u64) -> Tick {
        // OVERFLOW: wraps where the machine has been up for less than the head start; the
        // difference is right.
        Tick::from_nanos(ns.wrapping_sub(self.origin_ns))
    }
}

/// Returns how many readings to trust, given how far the coarse clock was found to lag.
const fn trusted_readings(lag_ns: u64, margin_ns: u64) -> u32 {
    if margin_ns > 0 && lag_ns <= margin_ns { TRUSTED_READINGS } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_lag_beyond_the_margin_is_not_trusted_for_a_single_reading() {
        let margin = 12_000_000;
        assert_eq!(trusted_readings(0, margin), TRUSTED_READINGS);
        assert_eq!(trusted_readings(margin, margin), TRUSTED_READINGS);
        assert_eq!(trusted_readings(margin + 1, margin), 0);
        assert_eq!(trusted_readings(u64::MAX, margin), 0);
        assert_eq!(trusted_readings(0, 0), 0, "no margin, no coarse clock");
    }

    #[test]
    fn early_is_at_or_before_now_and_within_the_margin() {
        let clock = Monotonic::shared();
        if clock.margin_ns == 0 {
            return;
        }
        for _ in 0..1000 {
            let Some(early) = clock.read() else { continue };
            let now = clock.now();
            assert!(early <= now.saturating_add(Duration::from_micros(100)), "{early} > {now}");
        }
    }
}
