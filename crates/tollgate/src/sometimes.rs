//! Running some of many calls: for log lines.
//!
//! The idea is that of Go's `rate.Sometimes`, and so are the rules. A call runs if it is the very
//! first one, or if one of the rules that were given says so: the first n calls, every n-th call,
//! or the first call after an interval since the last run. Beside Go:
//!
//! 1. The closure runs without a lock. So it may call `run` again, and a slow one blocks no other caller; in
//!    exchange two threads may run it at once, for two different calls.
//! 2. The interval begins when a run begins, not when it has ended.
//! 3. The closure receives how many calls were left out since the last run.
//!
//! State: the calls so far, the place in the row of n, the last run, the calls left out. Every
//! count stays where it is at its end, after centuries; the row of n starts over at n.

use crate::{Clock, Tick};
use std::{
    sync::{LazyLock, Mutex, PoisonError},
    time::Duration,
};

/// The clock of those that have none of their own, which may be in a `static`.
static MONOTONIC: LazyLock<Clock> = LazyLock::new(Clock::monotonic);

/// Runs a closure for some of many calls: the first n, every n-th, once an interval.
///
/// The rules add up: a call runs if any of them says so. The first call always runs. A number or an
/// interval of zero is no rule.
///
/// # Concurrency
///
/// The decision is made under a short lock, and the closure runs outside it: it may call
/// [`run`](Self::run) again. Of many threads exactly as many run as the rules say.
///
/// # Examples
///
/// A line in the log for the first three, for every hundredth, and for whatever comes after ten
/// quiet seconds:
///
/// ```
/// use std::time::Duration;
/// use tollgate::Sometimes;
///
/// static SLOW: Sometimes =
///     Sometimes::first(3).or_every(100).or_interval(Duration::from_secs(10));
///
/// let ran = (0..200).filter_map(|_| {
///     SLOW.run(|left_out| eprintln!("the query was slow ({left_out} lines left out)"))
/// });
/// assert_eq!(ran.count(), 4);
/// ```
#[derive(Debug)]
pub struct Sometimes {
    rules: Rules,
    /// Its own clock, if it has one.
    clock: Option<Clock>,
    calls: Mutex<CallState>,
}

/// When to run; zero is never.
#[derive(Clone, Copy, Debug)]
struct Rules {
    first: u64,
    every: u64,
    interval: Duration,
}

/// The pure machine: calls and the time in, yes or no out.
#[derive(Clone, Copy, Debug)]
struct CallState {
    calls: u64,
    /// The place of the next call in its row of `every`.
    place: u64,
    last_run: Tick,
    left_out: u64,
}

impl CallState {
    const NEW: Self = Self { calls: 0, place: 0, last_run: Tick::ZERO, left_out: 0 };

    /// Returns how many calls were left out since the last run, if this one runs.
    fn call(&mut self, rules: &Rules, now: Tick) -> Option<u64> {
        let begins_row = rules.every > 0 && self.place == 0;
        let is_rested = !rules.interval.is_zero() && now.since(self.last_run) >= rules.interval;
        let runs = self.calls == 0 || self.calls < rules.first || begins_row || is_rested;
        self.calls = self.calls.saturating_add(1);
        // OVERFLOW: the place is below `every`, so there is one after it.
        self.place = if self.place + 1 >= rules.every { 0 } else { self.place + 1 };
        if !runs {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.last_run = now;
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Sometimes {
    const fn of(first: u64, every: u64, interval: Duration) -> Self {
        let rules = Rules { first, every, interval };
        Self { rules, clock: None, calls: Mutex::new(CallState::NEW) }
    }

    /// Runs the first call only.
    #[must_use]
    pub const fn once() -> Self {
        Self::first(1)
    }

    /// Runs the first `calls` calls.
    #[must_use]
    pub const fn first(calls: u64) -> Self {
        Self::of(calls, 0, Duration::ZERO)
    }

    /// Runs every call whose number is a multiple of `calls`, counted from zero: so the first, and
    /// one after `calls - 1` left out.
    #[must_use]
    pub const fn every(calls: u64) -> Self {
        Self::of(0, calls, Duration::ZERO)
    }

    /// Runs the first call, and whenever `interval` has passed since the last run.
    #[must_use]
    pub const fn interval(interval: Duration) -> Self {
        Self::of(0, 0, interval)
    }

    /// Runs the first `calls` calls as well.
    #[must_use]
    pub const fn or_first(mut self, calls: u64) -> Self {
        self.rules.first = calls;
        self
    }

    /// Runs every `calls`-th call as well.
    #[must_use]
    pub const fn or_every(mut self, calls: u64) -> Self {
        self.rules.every = calls;
        self
    }

    /// Runs a call as well if `interval` has passed since the last run.
    #[must_use]
    pub const fn or_interval(mut self, interval: Duration) -> Self {
        self.rules.interval = interval;
        self
    }

    /// Sets the clock that intervals are measured by, by default the monotonic one.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Runs `run` if it is time, and returns its result. It receives how many calls were left
    /// out since the last run.
    pub fn run<R>(&self, run: impl FnOnce(u64) -> R) -> Option<R> {
        self.is_time().map(run)
    }

    /// Counts a call. If it is one to run, returns how many were left out since the last one.
    #[must_use = "a call that is to run counts as run"]
    pub fn is_time(&self) -> Option<u64> {
        // Without an interval the time does not matter.
        let now = match (&self.clock, self.rules.interval.is_zero()) {
            (_, true) => Tick::ZERO,
            (Some(clock), false) => clock.now(),
            (None, false) => MONOTONIC.now(),
        };
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).call(&self.rules, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stay_at_their_end() {
        let rules = Rules { first: 3, every: 0, interval: Duration::ZERO };
        let mut state = CallState { calls: u64::MAX, left_out: u64::MAX, ..CallState::NEW };
        assert_eq!(state.call(&rules, Tick::ZERO), None);
        assert_eq!((state.calls, state.left_out), (u64::MAX, u64::MAX));
    }

    #[test]
    fn the_longest_row_starts_over() {
        let rules = Rules { first: 0, every: u64::MAX, interval: Duration::ZERO };
        let mut state = CallState { calls: u64::MAX, place: u64::MAX - 1, ..CallState::NEW };
        assert_eq!(state.call(&rules, Tick::ZERO), None);
        assert_eq!(state.call(&rules, Tick::ZERO), Some(1));
        assert_eq!((state.place, state.left_out), (1, 0));
    }

    #[test]
    fn time_that_goes_backwards_stands_still() {
        let rules = Rules { first: 0, every: 0, interval: Duration::from_secs(1) };
        let mut state = CallState::NEW;
        // at_secs, runs
        for (at, runs) in [(10, true), (5, false), (10, false), (11, true), (0, false)] {
            assert_eq!(state.call(&rules, Tick::from_secs(at)).is_some(), runs, "at {at}");
        }
    }
}
