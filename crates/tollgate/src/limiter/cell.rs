//! The state of a limiter, whatever its algorithm.

use super::{
    locked::LockedCell,
    word::{HeldWord, WordCell},
};
use crate::{
    Algorithm, Clock, Inherit, Quota, QuotaError, Tick,
    algorithm::{Entry, FixedWindow, Gcra, Log, Rule, SlidingCounter, SlidingLog, TwoWindows},
    sync::MutexGuard,
};

/// One word without a lock where it fits, a lock where it does not.
#[derive(Debug)]
pub(crate) enum Cell {
    Gcra(WordCell<Gcra>),
    FixedWindow(WordCell<FixedWindow>),
    AnchoredWindow(WordCell<FixedWindow>),
    SlidingCounter(WordCell<SlidingCounter>),
    WideCounter(LockedCell<SlidingCounter>),
    SlidingLog(LockedCell<SlidingLog>),
}

/// Runs the same code on the cell of any algorithm.
macro_rules! on_cell {
    ($cell:expr, $name:ident => $body:expr) => {
        match $cell {
            $crate::limiter::cell::Cell::Gcra($name) => $body,
            $crate::limiter::cell::Cell::FixedWindow($name) => $body,
            $crate::limiter::cell::Cell::AnchoredWindow($name) => $body,
            $crate::limiter::cell::Cell::SlidingCounter($name) => $body,
            $crate::limiter::cell::Cell::WideCounter($name) => $body,
            $crate::limiter::cell::Cell::SlidingLog($name) => $body,
        }
    };
}
pub(crate) use on_cell;

/// A locked state.
pub(crate) enum HeldCell<'a> {
    Word(HeldWord<'a>),
    Counter(MutexGuard<'a, (SlidingCounter, TwoWindows)>),
    Log(MutexGuard<'a, (SlidingLog, Log)>),
}

impl HeldCell<'_> {
    pub(crate) fn entry(&mut self) -> Entry<'_> {
        match self {
            Self::Word(held) => held.entry(),
            Self::Counter(held) => {
                let (counter, windows) = &mut **held;
                Entry::Counter(counter, windows)
            }
            Self::Log(held) => {
                let (log, entries) = &mut **held;
                Entry::Log(log, entries)
            }
        }
    }
}

fn gcra(quota: &Quota, clock: &Clock) -> Result<Gcra, QuotaError> {
    Ok(Gcra::new(quota)?.with_margin(clock.early().margin()))
}

impl Cell {
    pub(crate) fn new(
        algorithm: Algorithm,
        quota: &Quota,
        clock: &Clock,
        now: Tick,
    ) -> Result<Self, QuotaError> {
        // An unlimited limiter does not ask its cell, but may get a quota later.
        let (nothing, is_unlimited) = (Quota::once(0), quota.is_unlimited());
        let quota = if is_unlimited { &nothing } else { quota };
        let epoch = clock.wall_offset();
        Ok(match algorithm {
            Algorithm::Gcra => Self::Gcra(WordCell::new(gcra(quota, clock)?, now)),
            Algorithm::FixedWindow => {
                Self::FixedWindow(WordCell::new(FixedWindow::aligned(quota, epoch)?, now))
            }
            Algorithm::AnchoredWindow => {
                Self::AnchoredWindow(WordCell::new(FixedWindow::anchored(quota, epoch)?, now))
            }
            Algorithm::SlidingCounter => {
                let counter = SlidingCounter::new(quota, epoch)?;
                // A limiter without a limit may get any.
                if counter.packs() && !is_unlimited {
                    Self::SlidingCounter(WordCell::new(counter, now))
                } else {
                    Self::WideCounter(LockedCell::new(counter.unpacked(), now))
                }
            }
            Algorithm::SlidingLog => {
                Self::SlidingLog(LockedCell::new(SlidingLog::new(quota)?, now))
            }
        })
    }

    /// Tells whether [`set_quota`](Self::set_quota) would take the quota.
    pub(crate) fn check_quota(&self, quota: &Quota, clock: &Clock) -> Result<(), QuotaError> {
        let epoch = clock.wall_offset();
        match self {
            Self::Gcra(_) => gcra(quota, clock).map(drop),
            Self::FixedWindow(_) => FixedWindow::aligned(quota, epoch).map(drop),
            Self::AnchoredWindow(_) => FixedWindow::anchored(quota, epoch).map(drop),
            Self::SlidingCounter(_) | Self::WideCounter(_) => {
                SlidingCounter::new(quota, epoch).map(drop)
            }
            Self::SlidingLog(_) => SlidingLog::new(quota).map(drop),
        }
    }

    /// Changes the quota. Returns the old and the new parameters if reservations need them.
    pub(crate) fn set_quota(
        &self,
        quota: &Quota,
        clock: &Clock,
        now: Tick,
        how: Inherit,
    ) -> Result<Option<(Gcra, Gcra)>, QuotaError> {
        let epoch = clock.wall_offset();
        match self {
            Self::Gcra(cell) => {
                let next = gcra(quota, clock)?;
                return Ok(Some((cell.replace(next, now, how), next)));
            }
            Self::FixedWindow(cell) => {
                cell.replace(FixedWindow::aligned(quota, epoch)?, now, how);
            }
            Self::AnchoredWindow(cell) => {
                cell.replace(FixedWindow::anchored(quota, epoch)?, now, how);
            }
            Self::SlidingCounter(cell) => {
                let next = SlidingCounter::new(quota, epoch)?;
                if !next.packs() {
                    let (limit, most) = (quota.count(), next.packed_limit_max());
                    return Err(QuotaError::Outgrown { limit, most });
                }
                cell.replace(next, now, how);
            }
            Self::WideCounter(cell) => {
                cell.replace(SlidingCounter::new(quota, epoch)?.unpacked(), now, how);
            }
            Self::SlidingLog(cell) => cell.replace(SlidingLog::new(quota)?, now, how),
        }
        Ok(None)
    }

    /// Applies `step` to the state, atomically. It may run several times; the last run counts.
    pub(crate) fn update<R>(&self, mut step: impl FnMut(&mut Entry<'_>) -> R) -> R {
        match self {
            Self::Gcra(cell) => {
                cell.update(|gcra, tat| step(&mut Entry::Word(&Rule::Gcra(*gcra), tat)))
            }
            Self::FixedWindow(cell) => cell
                .update(|window, word| step(&mut Entry::Word(&Rule::FixedWindow(*window), word))),
            Self::AnchoredWindow(cell) => cell.update(|window, word| {
                step(&mut Entry::Word(&Rule::AnchoredWindow(*window), word))
            }),
            Self::SlidingCounter(cell) => {
                cell.update(|counter, windows| step(&mut Entry::Counter(counter, windows)))
            }
            Self::WideCounter(cell) => {
                cell.update(|counter, windows| step(&mut Entry::Counter(counter, windows)))
            }
            Self::SlidingLog(cell) => cell.update(|log, state| step(&mut Entry::Log(log, state))),
        }
    }

    /// Locks the state until the result is dropped.
    /// Tells whether the state is a word, which has a lock bit, and not behind a mutex.
    pub(crate) const fn is_word(&self) -> bool {
        !matches!(self, Self::WideCounter(_) | Self::SlidingLog(_))
    }

    pub(crate) fn hold(&self) -> HeldCell<'_> {
        match self {
            Self::Gcra(cell) => HeldCell::Word(cell.hold(Rule::Gcra)),
            Self::FixedWindow(cell) => HeldCell::Word(cell.hold(Rule::FixedWindow)),
            Self::AnchoredWindow(cell) => HeldCell::Word(cell.hold(Rule::AnchoredWindow)),
            Self::SlidingCounter(cell) => HeldCell::Word(cell.hold(Rule::SlidingCounter)),
            Self::WideCounter(cell) => HeldCell::Counter(cell.hold()),
            Self::SlidingLog(cell) => HeldCell::Log(cell.hold()),
        }
    }

    pub(crate) const fn algorithm(&self) -> Algorithm {
        match self {
            Self::Gcra(_) => Algorithm::Gcra,
            Self::FixedWindow(_) => Algorithm::FixedWindow,
            Self::AnchoredWindow(_) => Algorithm::AnchoredWindow,
            Self::SlidingCounter(_) | Self::WideCounter(_) => Algorithm::SlidingCounter,
            Self::SlidingLog(_) => Algorithm::SlidingLog,
        }
    }
}
