//! The breaker of one server: whether calls are sent to it.
//!
//! ```text
//!   connecting --connected--> up --F of the last W calls failed, or no connection--> open
//!                             ^                                                      |
//!                             |  three calls succeeded            a probe succeeded  |
//!                             +---------------------- probing <----------------------+
//!                                                        |   one failed   ^
//!                                                        +----> open -----+
//! ```
//!
//! While it is open a call fails without a look at the server. While it is probing, three calls at a
//! time are let through; their fate decides. The state and the last W results are one word each, so a
//! call that succeeds as always costs two loads.

use super::{Settings, wait::backoff};
use std::{
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tollgate::{Clock, Tick};

/// So many calls are let through while probing, and must succeed.
const TRIALS: u32 = 3;

/// Whether calls are sent to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    Connecting,
    Up,
    Open,
    Probing,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Up => "up",
            Self::Open => "open",
            Self::Probing => "probing",
        }
    }

    /// Tells whether nobody answers there, as far as is known.
    pub(super) fn is_lost(self) -> bool {
        self == Self::Open
    }

    fn of(number: u8) -> Self {
        match number {
            0 => Self::Connecting,
            1 => Self::Up,
            2 => Self::Open,
            _ => Self::Probing,
        }
    }
}

/// The breaker of one server.
pub(super) struct Breaker {
    clock: Clock,
    failures: u32,
    mask: u64,
    probe_min: Duration,
    probe_max: Duration,
    /// After this time a call on trial that has not ended is not waited for any more.
    patience: Duration,
    state: AtomicU8,
    /// The last results, a one for a failure, the latest in the lowest bit.
    results: AtomicU64,
    detail: Mutex<Detail>,
}

#[derive(Debug)]
struct Detail {
    since: Tick,
    last_error: Option<String>,
    /// How often it was opened, or a probe failed, since it was up.
    opened: u32,
    /// Calls on trial, when the last one began, and those that succeeded.
    trying: u32,
    tried: Tick,
    passed: u32,
}

impl Breaker {
    pub(super) fn new(settings: &Settings, clock: Clock) -> Self {
        let since = clock.now();
        Self {
            clock,
            failures: settings.breaker_failures,
            mask: u64::MAX >> (64 - settings.breaker_window),
            probe_min: settings.probe_min,
            probe_max: settings.probe_max,
            patience: settings.probe_max.max(settings.deadline),
            state: AtomicU8::new(State::Connecting as u8),
            results: AtomicU64::new(0),
            detail: Mutex::new(Detail {
                since,
                last_error: None,
                opened: 0,
                trying: 0,
                tried: since,
                passed: 0,
            }),
        }
    }

    fn detail(&self) -> MutexGuard<'_, Detail> {
        self.detail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> State {
        // ORDERING: Relaxed. The state publishes nothing: a call that reads an old one is let through
        // or refused as it would have been a moment earlier. Changes are made under the lock.
        State::of(self.state.load(Relaxed))
    }

    pub(super) fn last_error(&self) -> Option<String> {
        self.detail().last_error.clone()
    }

    fn enter(&self, detail: &mut Detail, state: State) {
        // ORDERING: Relaxed; see `state`. Writers hold the lock.
        self.state.store(state as u8, Relaxed);
        self.results.store(0, Relaxed);
        detail.since = self.clock.now();
        (detail.trying, detail.passed) = (0, 0);
    }

    /// Lets a call through, or says why not.
    pub(super) fn admit(&self, server: &str) -> Result<Pass<'_>, String> {
        match self.state() {
            State::Up | State::Connecting => return Ok(Pass { trial_of: None }),
            State::Open | State::Probing => {}
        }
        let mut detail = self.detail();
        let (state, now) = (self.state(), self.clock.now());
        if now.since(detail.tried) > self.patience {
            // Their futures are neither polled nor dropped: others must not wait for them.
            detail.trying = 0;
        }
        if state == State::Probing && detail.trying + detail.passed < TRIALS {
            detail.trying += 1;
            detail.tried = now;
            return Ok(Pass { trial_of: Some(self) });
        }
        if matches!(state, State::Up | State::Connecting) {
            return Ok(Pass { trial_of: None });
        }
        let ago = now.since(detail.since);
        let last = detail.last_error.as_deref().unwrap_or("no connection");
        let how = if state == State::Probing { "on trial" } else { "cut off by its breaker" };
        Err(format!("{server} has been {how} for {ago:.1?}: {last}"))
    }

    /// Notes that a call was answered. Returns the new state if it changed.
    pub(super) fn succeeded(&self, pass: Pass<'_>) -> Option<State> {
        if pass.end().is_none() {
            // ORDERING: Relaxed. The word is the whole record; a lost race only orders two results
            // that happened at the same time differently.
            if self.results.load(Relaxed) != 0 {
                self.shift(0);
            }
            return None;
        }
        let mut detail = self.detail();
        if self.state() != State::Probing {
            return None;
        }
        detail.trying = detail.trying.saturating_sub(1);
        detail.passed += 1;
        if detail.passed < TRIALS {
            return None;
        }
        self.enter(&mut detail, State::Up);
        detail.opened = 0;
        Some(State::Up)
    }

    /// Adds a result, and returns all.
    fn shift(&self, result: u64) -> u64 {
        let next = |word: u64| (word << 1 | result) & self.mask;
        // ORDERING: Relaxed; see `succeeded`.
        let before = self.results.fetch_update(Relaxed, Relaxed, |word| Some(next(word)));
        next(before.unwrap_or_else(|word| word))
    }

    /// Notes that a call failed. Returns the new state if it changed.
    pub(super) fn failed(&self, pass: Pass<'_>, error: &str) -> Option<State> {
        let was_trial = pass.end().is_some();
        let results = self.shift(1);
        let mut detail = self.detail();
        detail.last_error = Some(error.to_owned());
        let open = match self.state() {
            State::Up | State::Connecting => results.count_ones() >= self.failures,
            State::Probing => was_trial,
            State::Open => false,
        };
        if !open {
            return None;
        }
        self.enter(&mut detail, State::Open);
        detail.opened = detail.opened.saturating_add(1);
        Some(State::Open)
    }

    /// Opens it, because there is no connection or a probe failed. Returns the new state if it
    /// changed.
    pub(super) fn open(&self, error: &str) -> Option<State> {
        let mut detail = self.detail();
        detail.last_error = Some(error.to_owned());
        detail.opened = detail.opened.saturating_add(1);
        if self.state() == State::Open {
            return None;
        }
        self.enter(&mut detail, State::Open);
        Some(State::Open)
    }

    /// Notes that the server answered a probe. Returns the new state if it changed.
    pub(super) fn probed(&self) -> Option<State> {
        let mut detail = self.detail();
        let state = match self.state() {
            State::Connecting => State::Up,
            State::Open => State::Probing,
            State::Up | State::Probing => return None,
        };
        self.enter(&mut detail, state);
        Some(state)
    }

    /// Returns how often it was opened, or a probe failed, since it was up.
    pub(super) fn opened(&self) -> u32 {
        self.detail().opened
    }

    /// Returns how long to wait after so many failures.
    pub(super) fn wait_after(&self, failures: u32) -> Duration {
        backoff(self.probe_min, self.probe_max, failures)
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker").field("state", &self.state()).finish_non_exhaustive()
    }
}

/// The permission to call. Dropped without a result, it counts for nothing.
#[derive(Debug)]
#[must_use]
pub(super) struct Pass<'a> {
    trial_of: Option<&'a Breaker>,
}

impl<'a> Pass<'a> {
    fn end(mut self) -> Option<&'a Breaker> {
        self.trial_of.take()
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if let Some(breaker) = self.trial_of {
            let mut detail = breaker.detail();
            detail.trying = detail.trying.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker() -> (Breaker, tollgate::ManualClock) {
        let (clock, hand) = Clock::manual();
        (Breaker::new(&"redis://h".parse().unwrap(), clock), hand)
    }

    fn call(breaker: &Breaker, is_good: bool) -> Option<State> {
        let pass = breaker.admit("h").unwrap();
        if is_good { breaker.succeeded(pass) } else { breaker.failed(pass, "no answer") }
    }

    #[test]
    fn opens_after_five_failures_of_the_last_ten_calls() {
        // good and bad calls in turn, and whether the last one opens it
        for (calls, opens) in [
            ("bbbb", false),
            ("bbbbb", true),
            ("gggggggggggggggbbbbb", true),
            ("bgbgbgbgb", true),
            ("bggbggbggbggbggbgg", false),
            ("bbbbgggggb", true),
            ("bbbbggggggb", false),
        ] {
            let (breaker, _) = breaker();
            assert_eq!(breaker.probed(), Some(State::Up));
            let last = calls.bytes().map(|call_is| call(&breaker, call_is == b'g')).last();
            assert_eq!(last.unwrap() == Some(State::Open), opens, "{calls}");
        }
    }

    #[test]
    fn an_open_one_refuses_and_says_since_when_and_why() {
        let (breaker, hand) = breaker();
        breaker.probed();
        assert_eq!(breaker.open("connection refused"), Some(State::Open));
        hand.advance(Duration::from_millis(1500));
        let text = breaker.admit("h:1").unwrap_err();
        assert_eq!(text, "h:1 has been cut off by its breaker for 1.5s: connection refused");
    }

    #[test]
    fn three_calls_are_tried_and_all_must_succeed() {
        let (breaker, _) = breaker();
        breaker.probed();
        breaker.open("x");
        assert_eq!(breaker.probed(), Some(State::Probing));
        let passes: Vec<_> = (0..3).map(|_| breaker.admit("h").unwrap()).collect();
        assert!(breaker.admit("h").is_err(), "three at a time");
        let changes: Vec<_> = passes.into_iter().map(|pass| breaker.succeeded(pass)).collect();
        assert_eq!(changes, [None, None, Some(State::Up)]);

        breaker.open("x");
        breaker.probed();
        drop(breaker.admit("h").unwrap());
        assert_eq!(call(&breaker, true), None, "one that was dropped counts for nothing");
        assert_eq!(call(&breaker, false), Some(State::Open));
    }

    #[test]
    fn trials_that_nobody_ends_do_not_block_it_for_ever() {
        let (breaker, hand) = breaker();
        breaker.probed();
        breaker.open("x");
        breaker.probed();
        // Futures that are neither polled nor dropped.
        let held: Vec<_> = (0..3).map(|_| breaker.admit("h").unwrap()).collect();
        hand.advance(Duration::from_millis(900));
        assert!(breaker.admit("h").is_err(), "their deadline may not be over");
        hand.advance(Duration::from_millis(200));
        let changes: Vec<_> = (0..3).map(|_| call(&breaker, true)).collect();
        assert_eq!(changes[2], Some(State::Up));
        drop(held);
        assert_eq!(call(&breaker, true), None);
        assert_eq!(breaker.state(), State::Up);
    }

    #[test]
    fn a_call_from_before_does_not_decide_a_trial() {
        let (breaker, _) = breaker();
        breaker.probed();
        let old = breaker.admit("h").unwrap();
        breaker.open("x");
        breaker.probed();
        assert_eq!(breaker.failed(old, "lost"), None);
        assert_eq!(breaker.state(), State::Probing);
    }

    #[test]
    fn probes_come_less_often_until_the_server_is_up() {
        let (breaker, _) = breaker();
        for expected_ms in [50, 100, 200, 400, 800, 1000, 1000] {
            breaker.open("x");
            let wait = breaker.wait_after(breaker.opened()).as_secs_f64() * 1e3;
            let expected = f64::from(expected_ms);
            assert!((0.9 * expected..=1.1 * expected).contains(&wait), "{wait} of {expected}");
        }
        breaker.probed();
        let calls: Vec<_> = (0..3).map(|_| call(&breaker, true)).collect();
        assert_eq!(calls[2], Some(State::Up));
        breaker.open("x");
        assert!(breaker.wait_after(breaker.opened()) < Duration::from_millis(56));
    }
}
