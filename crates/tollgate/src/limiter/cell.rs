//! The state of a limiter, whatever its algorithm.

use super::word::{HeldWord, WordCell};
use crate::{
    Algorithm, Clock, Decision, Inherit, Quota, QuotaError, Tick,
    algorithm::{
        AnyRule, Entry, FixedWindow, Gcra, Log, Rule, SlidingCounter, SlidingLog, Step, Succeed,
        TwoWindows,
    },
    sync::{Mutex, MutexGuard, lock},
};

/// One word without a lock where it fits, a lock where it does not.
pub(crate) enum Cell {
    Gcra(WordCell<Gcra>),
    FixedWindow(WordCell<FixedWindow>),
    SlidingCounter(WordCell<SlidingCounter>),
    Locked(Mutex<LargeState>),
}

/// A state too large for a word, with its parameters: the lock keeps them together.
pub(crate) enum LargeState {
    Counter(SlidingCounter, TwoWindows),
    Log(SlidingLog, Log),
}

impl LargeState {
    fn entry(&mut self) -> Entry<'_> {
        match self {
            Self::Counter(counter, windows) => Entry::Counter(counter, windows),
            Self::Log(log, entries) => Entry::Log(log, entries),
        }
    }
}

/// A locked state.
pub(crate) enum HeldCell<'a> {
    Word(HeldWord<'a>),
    Large(MutexGuard<'a, LargeState>),
}

impl HeldCell<'_> {
    pub(crate) fn entry(&mut self) -> Entry<'_> {
        match self {
            Self::Word(held) => held.entry(),
            Self::Large(held) => held.entry(),
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
            Algorithm::FixedWindow | Algorithm::AnchoredWindow => {
                Self::FixedWindow(WordCell::new(FixedWindow::new(algorithm, quota, epoch)?, now))
            }
            Algorithm::SlidingCounter => {
                let counter = SlidingCounter::new(quota, epoch)?;
                // A limiter without a limit may get any.
                if counter.packs() && !is_unlimited {
                    Self::SlidingCounter(WordCell::new(counter, now))
                } else {
                    let (counter, windows) = (counter.unpacked(), counter.initial(now));
                    Self::Locked(Mutex::new(LargeState::Counter(counter, windows)))
                }
            }
            Algorithm::SlidingLog => {
                let log = SlidingLog::new(quota)?;
                Self::Locked(Mutex::new(LargeState::Log(log, log.initial(now))))
            }
        })
    }

    /// Tells whether [`set_quota`](Self::set_quota) would take the quota.
    pub(crate) fn check_quota(
        &self,
        algorithm: Algorithm,
        quota: &Quota,
        clock: &Clock,
    ) -> Result<(), QuotaError> {
        match (self, AnyRule::new(algorithm, quota, clock.wall_offset())?) {
            (Self::SlidingCounter(_), AnyRule::Counter(next)) => {
                let (limit, most) = (quota.count(), next.packed_limit_max());
                Err(QuotaError::Outgrown { limit, most })
            }
            _ => Ok(()),
        }
    }

    /// Changes the quota, after [`check_quota`](Self::check_quota). Returns the old and the new parameters if
    /// reservations need them.
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
                let algorithm = cell.update(|window, _| window.algorithm());
                cell.replace(FixedWindow::new(algorithm, quota, epoch)?, now, how);
            }
            Self::SlidingCounter(cell) => {
                cell.replace(SlidingCounter::new(quota, epoch)?, now, how);
            }
            Self::Locked(cell) => match &mut *lock(cell) {
                LargeState::Counter(counter, windows) => {
                    let next = SlidingCounter::new(quota, epoch)?.unpacked();
                    *windows = next.succeed(counter, windows, now, how);
                    *counter = next;
                }
                LargeState::Log(log, entries) => {
                    let next = SlidingLog::new(quota)?;
                    *entries = next.succeed(log, entries, now, how);
                    *log = next;
                }
            },
        }
        Ok(None)
    }

    /// Takes `cost` permits if they are free. As [`update`](Self::update) with a decision, but without a rule
    /// between the word and its algorithm: half of the time.
    pub(crate) fn decide(&self, now: Tick, cost: u64) -> Decision {
        match self {
            Self::Gcra(cell) => cell.update(|step, tat| step.decide(tat, now, cost)),
            Self::FixedWindow(cell) => cell.update(|step, word| step.decide(word, now, cost)),
            Self::SlidingCounter(cell) => cell.update(|step, state| step.decide(state, now, cost)),
            Self::Locked(cell) => lock(cell).entry().decide(now, cost),
        }
    }

    /// Applies `step` to the state, atomically. It may run several times; the last run counts.
    pub(crate) fn update<R>(&self, mut step: impl FnMut(&mut Entry<'_>) -> R) -> R {
        match self {
            Self::Gcra(cell) => {
                cell.update(|gcra, tat| step(&mut Entry::Word(&Rule::Gcra(*gcra), tat)))
            }
            Self::FixedWindow(cell) => cell
                .update(|window, word| step(&mut Entry::Word(&Rule::FixedWindow(*window), word))),
            Self::SlidingCounter(cell) => {
                cell.update(|counter, windows| step(&mut Entry::Counter(counter, windows)))
            }
            Self::Locked(cell) => step(&mut lock(cell).entry()),
        }
    }

    /// Tells whether the state is a word, which has a lock bit, and not behind a mutex.
    pub(crate) const fn is_word(&self) -> bool {
        !matches!(self, Self::Locked(_))
    }

    /// Locks the state until the result is dropped.
    pub(crate) fn hold(&self) -> HeldCell<'_> {
        match self {
            Self::Gcra(cell) => HeldCell::Word(cell.hold(Rule::Gcra)),
            Self::FixedWindow(cell) => HeldCell::Word(cell.hold(Rule::FixedWindow)),
            Self::SlidingCounter(cell) => HeldCell::Word(cell.hold(Rule::SlidingCounter)),
            Self::Locked(cell) => HeldCell::Large(lock(cell)),
        }
    }
}
