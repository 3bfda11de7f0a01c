//! The breaker of one server: decides whether it receives calls.
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
//! [`tollgate::Breaker`] decides. This host adds the state of the connection: a break ends when the
//! server answers a PING, not after a time, so that no call is lost on a probe; and it keeps the
//! last error, for the errors of callers. While there are no calls, PINGs replace the three that
//! must succeed: otherwise a server without traffic would stay on trial.

use super::{Settings, wait::backoff};
use std::{
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tollgate::{BreakerState, BreakerWindow, CallOutcome, Clock, Pass, Tick, Trip};

/// How many calls pass while probing; all must succeed.
const TRIALS: u32 = 3;

/// Whether a server receives calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// Tells whether the server is known not to answer.
    pub(super) fn is_lost(self) -> bool {
        self == Self::Open
    }
}

/// The breaker of one server.
pub(super) struct Breaker {
    breaker: tollgate::Breaker,
    clock: Clock,
    probe_min: Duration,
    probe_max: Duration,
    /// Whether the server has answered once.
    was_reached: AtomicBool,
    detail: Mutex<Detail>,
}

#[derive(Debug)]
struct Detail {
    /// The state that was last reported, and since when.
    state: State,
    since: Tick,
    last_error: Option<String>,
    /// How often it was opened, or a probe failed, since it was up.
    opened: u32,
}

impl Breaker {
    pub(super) fn new(settings: &Settings, clock: Clock) -> Self {
        let breaker = tollgate::Breaker::builder()
            .trip(Trip::failure_count(settings.breaker_failures.into()))
            .window(BreakerWindow::calls(settings.breaker_window))
            .open_for(Duration::MAX)
            .jitter(0)
            .trials(TRIALS)
            // After this time, the breaker no longer waits for a trial call that has not ended.
            .patience(settings.probe_max.max(settings.deadline))
            .clock(clock.clone())
            .build()
            .expect("settings are checked before a node is made");
        let detail =
            Detail { state: State::Connecting, since: clock.now(), last_error: None, opened: 0 };
        Self {
            breaker,
            clock,
            probe_min: settings.probe_min,
            probe_max: settings.probe_max,
            was_reached: AtomicBool::new(false),
            detail: Mutex::new(detail),
        }
    }

    fn detail(&self) -> MutexGuard<'_, Detail> {
        self.detail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> State {
        match self.breaker.state() {
            BreakerState::HalfOpen => State::Probing,
            state if !state.is_closed() => State::Open,
            // ORDERING: Relaxed. The flag publishes nothing, and calls pass in both states.
            _ if self.was_reached.load(Relaxed) => State::Up,
            _ => State::Connecting,
        }
    }

    pub(super) fn last_error(&self) -> Option<String> {
        self.detail().last_error.clone()
    }

    /// Lets a call through, or returns the reason for the refusal.
    pub(super) fn admit(&self, server: &str) -> Result<Pass<'_>, String> {
        self.breaker.try_pass().map_err(|open| {
            let detail = self.detail();
            let ago = self.clock.now().since(detail.since);
            let last = detail.last_error.as_deref().unwrap_or("no connection");
            let is_trial = open.state() == BreakerState::HalfOpen;
            let how = if is_trial { "on trial" } else { "cut off by its breaker" };
            format!("{server} has been {how} for {ago:.1?}: {last}")
        })
    }

    /// Records that a call was answered. Returns the new state if it changed.
    pub(super) fn succeeded(&self, pass: Pass<'_>) -> Option<State> {
        let is_trial = pass.is_trial();
        pass.end(CallOutcome::Success);
        // Any other success changes no state: the usual case takes no lock.
        if is_trial { self.report(&mut self.detail()) } else { None }
    }

    /// Records that a call failed. Returns the new state if it changed.
    pub(super) fn failed(&self, pass: Pass<'_>, error: &str) -> Option<State> {
        let mut detail = self.detail();
        detail.last_error = Some(error.to_owned());
        pass.end(CallOutcome::Failure);
        self.report(&mut detail)
    }

    /// Opens the breaker, because there is no connection or a probe failed. Returns the new state
    /// if it changed.
    pub(super) fn open(&self, error: &str) -> Option<State> {
        let mut detail = self.detail();
        detail.last_error = Some(error.to_owned());
        if self.state() == State::Open {
            detail.opened = detail.opened.saturating_add(1);
        } else {
            self.breaker.trip_for(Duration::MAX);
        }
        self.report(&mut detail)
    }

    /// Records that the server answered a probe, which counts as a call while it is on trial.
    /// Returns the new state if it changed.
    pub(super) fn probed(&self) -> Option<State> {
        if self.state() != State::Probing {
            return self.connected();
        }
        // If trial calls are under way already, they decide.
        self.breaker.try_pass().ok().and_then(|pass| self.succeeded(pass))
    }

    /// Records that there is a connection. Returns the new state if it changed.
    pub(super) fn connected(&self) -> Option<State> {
        let mut detail = self.detail();
        // ORDERING: Relaxed; see `state`.
        let was_reached = self.was_reached.swap(true, Relaxed);
        if !was_reached && self.breaker.state().is_closed() {
            // Failures before the first connection say nothing.
            self.breaker.automatic();
        }
        self.breaker.try_now();
        self.report(&mut detail)
    }

    /// Returns the state if it differs from the last reported one.
    fn report(&self, detail: &mut Detail) -> Option<State> {
        let state = self.state();
        if state == detail.state {
            return None;
        }
        (detail.state, detail.since) = (state, self.clock.now());
        match state {
            State::Open => detail.opened = detail.opened.saturating_add(1),
            State::Up => detail.opened = 0,
            State::Connecting | State::Probing => {}
        }
        Some(state)
    }

    /// Returns how often it was opened, or a probe failed, since it was up.
    pub(super) fn opened(&self) -> u32 {
        self.detail().opened
    }

    /// Returns the wait after a number of failures.
    pub(super) fn wait_after(&self, failures: u32) -> Duration {
        backoff(self.probe_min, self.probe_max, failures)
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker").field("state", &self.state()).finish_non_exhaustive()
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
        // the order of good and bad calls, and whether the last one opens it
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
    fn without_calls_three_probes_end_a_trial() {
        let (breaker, _) = breaker();
        assert_eq!(breaker.connected(), Some(State::Up));
        breaker.open("x");
        assert_eq!(breaker.probed(), Some(State::Probing));
        // Further connections change nothing.
        assert_eq!([breaker.connected(), breaker.connected(), breaker.connected()], [None; 3]);
        let probes: Vec<_> = (0..3).map(|_| breaker.probed()).collect();
        assert_eq!(probes, [None, None, Some(State::Up)]);
        // A call that fails in between opens it again.
        breaker.open("x");
        breaker.probed();
        assert_eq!((breaker.probed(), call(&breaker, false)), (None, Some(State::Open)));
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
