//! Circuit breakers: which calls pass when, and the faults of other libraries.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};
use tollgate::{
    Breaker, BreakerBuilder, BreakerState, BreakerWindow, CallOutcome, Clock, ManualClock,
    OpenReason, Pass, Tick, Trip,
};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

fn build(set: impl FnOnce(BreakerBuilder) -> BreakerBuilder) -> (Breaker, ManualClock) {
    let (clock, hand) = Clock::manual();
    (set(Breaker::builder().jitter(0).clock(clock)).build().unwrap(), hand)
}

/// Opens after one failure, for 5 s.
fn fragile() -> (Breaker, ManualClock) {
    build(|it| it.trip(Trip::consecutive(1)))
}

fn outcome(letter: u8) -> CallOutcome {
    match letter {
        b'S' => CallOutcome::Success,
        b'F' => CallOutcome::Failure,
        b'O' => CallOutcome::Overload,
        _ => CallOutcome::Ignore,
    }
}

/// Makes one call for each letter (Success, Failure, Overload, Ignore) and returns how many ran.
fn calls(breaker: &Breaker, letters: &str) -> usize {
    let call = |letter| breaker.try_pass().map(|pass| pass.end(outcome(letter))).is_ok();
    letters.bytes().filter(|letter| call(*letter)).count()
}

fn pass(breaker: &Breaker) -> Pass<'_> {
    breaker.try_pass().unwrap()
}

/// Opens a breaker of [`fragile`], and moves to the instant of its first trial.
fn open_and_due() -> (Breaker, ManualClock) {
    let (breaker, hand) = fragile();
    assert_eq!(calls(&breaker, "F"), 1);
    hand.advance(5 * SECOND);
    (breaker, hand)
}

#[test]
fn polly_documents_these_numbers() {
    let second = BreakerWindow::time(SECOND);
    let ratio = |percent, min| {
        build(|it| it.trip(Trip::failure_percent(percent)).window(second).min_calls(min)).0
    };
    assert_eq!(calls(&ratio(10, 3), "FFFFFFFFFF"), 3, "7 of 10 are refused");
    // percent, min calls, calls, and whether they open it
    for (percent, min, letters, opens) in [
        (50, 2, "SSF", false),
        (50, 2, "SF", true),
        (50, 2, "FS", false), // a quick success never opens it
        (50, 2, "F", false),
        (50, 4, "SSFF", true),
        (50, 4, "SSSFF", false),
        (50, 2, "IIIIF", false), // an ignored call does not count
        (100, 1, "O", true),
    ] {
        let breaker = ratio(percent, min);
        calls(&breaker, letters);
        assert_eq!(breaker.state() == BreakerState::Open, opens, "{letters} of {percent} %");
    }
}

#[test]
fn each_threshold_trips_and_names_itself() {
    let ten = BreakerWindow::calls(10);
    for (trip, letters, why) in [
        (Trip::failure_percent(50), "SSSSSFFFFF", OpenReason::FailureShare),
        (Trip::failure_count(3), "FSSFSSSF", OpenReason::FailureCount),
        (Trip::consecutive(3), "FFSFFF", OpenReason::ConsecutiveFailures),
    ] {
        let (breaker, _) = build(|it| it.trip(trip).window(ten));
        assert_eq!(calls(&breaker, &letters[..letters.len() - 1]), letters.len() - 1);
        assert_eq!(breaker.state(), BreakerState::Closed, "{trip:?}");
        calls(&breaker, "F");
        assert_eq!(breaker.try_pass().unwrap_err().why(), why);
    }
}

#[test]
fn slow_calls_trip_although_they_succeed_and_a_slow_trial_reopens() {
    let slow = Trip::slow_percent(50, SECOND);
    let (breaker, hand) = build(|it| it.trip(slow).min_calls(2));
    let call = |took: Duration| {
        let pass = pass(&breaker);
        hand.advance(took);
        pass.end(CallOutcome::Success);
    };
    call(SECOND - NANO);
    assert_eq!(breaker.state(), BreakerState::Closed);
    call(SECOND);
    assert_eq!(breaker.peek().unwrap_err().why(), OpenReason::SlowShare);
    hand.advance(5 * SECOND);
    call(SECOND);
    assert_eq!(breaker.peek().unwrap_err().why(), OpenReason::TrialFailed);
}

#[test]
fn a_time_window_forgets_a_tenth_at_a_time() {
    let (breaker, hand) = build(|it| it.trip(Trip::failure_count(3)));
    calls(&breaker, "F");
    hand.advance(SECOND);
    calls(&breaker, "F");
    hand.set(Tick::from_secs(10));
    calls(&breaker, "F");
    assert_eq!(breaker.state(), BreakerState::Closed, "the first has left the window");
    calls(&breaker, "F");
    assert_eq!(breaker.state(), BreakerState::Open);
    assert_eq!(breaker.counts().failed, 4, "but not the counts");
}

#[test]
fn retry_after_is_exact_in_every_state_that_refuses() {
    let (breaker, hand) = fragile();
    calls(&breaker, "F");
    let open = breaker.try_pass().unwrap_err();
    assert_eq!(
        (open.state(), open.retry_after(hand.now())),
        (BreakerState::Open, Some(5 * SECOND))
    );
    let due = open.retry_at().unwrap();
    assert!(breaker.try_pass_at(due.saturating_sub(NANO)).is_err());
    let trials: Vec<_> = (0..3).map(|_| breaker.try_pass_at(due).unwrap()).collect();
    assert!(trials.iter().all(Pass::is_trial));

    let full = breaker.try_pass_at(due).unwrap_err();
    assert_eq!(full.state(), BreakerState::HalfOpen);
    let due = full.retry_at().unwrap();
    assert!(breaker.try_pass_at(due.saturating_sub(NANO)).is_err());
    assert!(breaker.try_pass_at(due).unwrap().is_trial());
}

#[test]
fn sixty_four_threads_at_the_instant_get_exactly_three_trials() {
    for _ in 0..20 {
        let (breaker, _hand) = open_and_due();
        let (barrier, ran) = (Barrier::new(64), AtomicU64::new(0));
        let held = thread::scope(|scope| {
            let call = || {
                barrier.wait();
                breaker.try_pass().inspect(|_| {
                    ran.fetch_add(1, Relaxed);
                })
            };
            let threads: Vec<_> = (0..64).map(|_| scope.spawn(call)).collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(ran.load(Relaxed), 3);
        assert_eq!(breaker.counts().refused, 61);
        drop(held);
    }
}

#[test]
fn a_dropped_trial_neither_sticks_nor_closes() {
    // resilience4j#903, #935, monix#1080 stuck; Polly v8 closed.
    let (breaker, _hand) = open_and_due();
    let results: Vec<_> =
        "SISS".bytes().map(|letter| pass(&breaker).end(outcome(letter))).collect();
    assert_eq!((results.len(), breaker.state()), (4, BreakerState::Closed));

    let (breaker, _hand) = open_and_due();
    for _ in 0..100 {
        drop(pass(&breaker));
    }
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _trial = pass(&breaker);
        panic!("a call that panics");
    }));
    assert!(panics.is_err());
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    assert_eq!(calls(&breaker, "SSS"), 3);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn a_hanging_trial_does_not_block_the_others_for_ever() {
    // Polly v8: a probe that hangs blocks all calls.
    let (breaker, hand) = open_and_due();
    let hanging: Vec<_> = (0..3).map(|_| pass(&breaker).into_owned()).collect();
    hand.advance(5 * SECOND - NANO);
    assert!(breaker.try_pass().is_err());
    hand.advance(NANO);
    assert_eq!(calls(&breaker, "SSS"), 3);
    assert_eq!(breaker.state(), BreakerState::Closed);
    hanging.into_iter().for_each(|pass| pass.end(CallOutcome::Failure));
    assert_eq!(breaker.state(), BreakerState::Closed);
    assert_eq!(breaker.counts().without_effect, 3);
}

/// safe-client-gateway#3442: a timeout's worth of traffic passed in each half-open window.
#[test]
fn a_target_that_hangs_gets_three_trials_for_each_patience() {
    let (breaker, hand) = open_and_due();
    let mut hanging = Vec::new();
    // A minute with a hundred callers in each second.
    for _ in 0..6_000 {
        hanging.extend(breaker.try_pass());
        hand.advance(SECOND / 100);
    }
    assert_eq!(hanging.len(), 3 * 60 / 5);
}

#[test]
fn a_result_from_before_the_break_decides_nothing() {
    // Polly#217, #223.
    let (breaker, hand) = fragile();
    let old: Vec<_> = (0..6).map(|_| pass(&breaker)).collect();
    let mut old = old.into_iter();
    let mut end_old = |outcome| old.next().unwrap().end(outcome);
    calls(&breaker, "F");
    let due = breaker.peek().unwrap_err().retry_at();
    end_old(CallOutcome::Failure);
    assert_eq!(breaker.peek().unwrap_err().retry_at(), due, "nothing extends a break");
    end_old(CallOutcome::Success);
    assert_eq!(breaker.state(), BreakerState::Open);
    hand.advance(5 * SECOND);
    let trial = pass(&breaker);
    end_old(CallOutcome::Failure);
    end_old(CallOutcome::Success);
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    trial.end(CallOutcome::Success);
    calls(&breaker, "SS");
    end_old(CallOutcome::Failure);
    assert_eq!(breaker.state(), BreakerState::Closed, "not by a call of the first generation");
    assert_eq!(breaker.counts().without_effect, 5);
}

#[test]
fn steps_of_the_clock_neither_hold_it_open_nor_flood_the_target() {
    let (breaker, hand) = fragile();
    hand.set(Tick::from_secs(100));
    calls(&breaker, "F");
    for earlier in [0, 50, 99] {
        assert!(
            breaker.try_pass_at(Tick::from_secs(earlier)).is_err(),
            "backwards: as if it stood"
        );
    }
    assert_eq!(breaker.peek().unwrap_err().retry_at(), Some(Tick::from_secs(105)));
    hand.set(Tick::MAX);
    let held: Vec<_> = (0..10).map(|_| breaker.try_pass()).collect();
    assert_eq!(held.iter().filter(|it| it.is_ok()).count(), 3, "far ahead: three trials");
}

#[test]
fn the_dependencys_own_time_opens_it_for_that_long() {
    let (breaker, hand) = build(|it| it);
    let early = pass(&breaker);
    let until = Tick::from_secs(90);
    pass(&breaker).end_until(CallOutcome::Overload, until);
    let open = breaker.try_pass().unwrap_err();
    assert_eq!((open.why(), open.retry_at()), (OpenReason::ServerTime, Some(until)));
    early.end_until(CallOutcome::Overload, Tick::from_secs(900));
    assert_eq!(breaker.peek().unwrap_err().retry_at(), Some(until), "of an older generation");
    hand.set(until);
    pass(&breaker).end_until(CallOutcome::Overload, Tick::from_secs(100));
    assert_eq!(breaker.peek().unwrap_err().retry_at(), Some(Tick::from_secs(100)));
    hand.set(Tick::from_secs(100));
    // A time in the past has no effect, and neither has a time with an ignored outcome.
    pass(&breaker).end_until(CallOutcome::Ignore, Tick::from_secs(900));
    for _ in 0..3 {
        pass(&breaker).end_until(CallOutcome::Success, Tick::from_secs(99));
    }
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn an_operator_holds_it_and_returns_it() {
    let (breaker, _hand) = fragile();
    calls(&breaker, "F");
    breaker.hold_closed();
    assert_eq!(calls(&breaker, "FFF"), 3);
    assert_eq!(breaker.state(), BreakerState::HeldClosed);
    breaker.hold_open();
    let open = breaker.try_pass().unwrap_err();
    assert_eq!((open.state(), open.retry_at()), (BreakerState::HeldOpen, None));
    breaker.trip_for(SECOND);
    breaker.try_now();
    assert_eq!(breaker.state(), BreakerState::HeldOpen, "held is held");
    breaker.automatic();
    assert_eq!((breaker.state(), calls(&breaker, "SF")), (BreakerState::Closed, 2));
    breaker.automatic();
    breaker.trip_for(7 * SECOND);
    assert_eq!(breaker.peek().unwrap_err().retry_at(), Some(Tick::from_secs(7)));
    breaker.try_now();
    assert_eq!(calls(&breaker, "SSS"), 3);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn a_shadow_decides_alike_and_refuses_nobody() {
    let (breaker, hand) = fragile();
    breaker.shadow();
    assert_eq!(calls(&breaker, "FFSS"), 4);
    let counts = breaker.counts();
    assert_eq!((counts.refused, counts.would_refuse, counts.opened), (0, 3, 1));
    assert_eq!((breaker.state(), breaker.is_shadow()), (BreakerState::Open, true));
    assert!(breaker.peek().is_ok());
    hand.advance(5 * SECOND);
    assert_eq!(calls(&breaker, "SSS"), 3);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn nonsense_is_refused_with_the_setting_the_value_and_the_rule() {
    let zero = Duration::ZERO;
    let builder = Breaker::builder;
    for (builder, text) in [
        (builder().trials(0), "trials 0 is out of range; use 1 to 1000"),
        (builder().close_after(4), "close_after 4 is out of range; use 1 to 3"),
        (builder().growth(0), "growth 0 is out of range; use 1 to 1000"),
        (builder().jitter(101), "jitter 101 is out of range; use 0 to 100"),
        (builder().min_calls(0), "min_calls 0 is out of range; use 1 to 4294967295"),
        (builder().open_for(zero), "open_for 0ns is too short; use at least 1 ms"),
        (builder().patience(zero), "patience 0ns is too short; use at least 1 ms"),
        (builder().window(BreakerWindow::time(zero)), "window 0ns is too short; use at least 1 ms"),
        (builder().window(BreakerWindow::calls(0)), "window 0 is out of range; use 1 to 100000"),
        (
            builder().window(BreakerWindow::calls(10)).min_calls(11),
            "min_calls 11 is out of range; use 1 to 10",
        ),
        (
            builder().window(BreakerWindow::calls(10)).min_calls(20),
            "min_calls 20 is out of range; use 1 to 10",
        ),
        (
            builder().trip(Trip::failure_percent(0)),
            "failure_percent 0 is out of range; use 1 to 100",
        ),
        (
            builder().trip(Trip::slow_percent(50, zero)),
            "slow_percent 0ns is too short; use at least 1 ms",
        ),
        (
            builder().most(SECOND),
            "most 1s is below open_for 5s; raise it, or shorten the first break",
        ),
    ] {
        assert_eq!(builder.build().unwrap_err().to_string(), text);
    }
}

#[test]
fn many_threads_lose_no_result() {
    let (breaker, _hand) = build(|it| it.trip(Trip::failure_percent(100)));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(calls(&breaker, &"SSSF".repeat(1000)), 4000));
        }
    });
    let counts = breaker.counts();
    assert_eq!((counts.ended, counts.failed, counts.without_effect), (32_000, 8_000, 0));
}

/// A limiter refuses every call behind the breaker: nothing is learned, and no trial is used up.
#[test]
fn a_refusal_of_ones_own_feeds_a_breaker_in_no_state() {
    let refused_by_another_layer = |breaker: &Breaker| {
        for _ in 0..100 {
            pass(breaker).end(CallOutcome::Ignore);
        }
    };
    let (breaker, _hand) = fragile();
    refused_by_another_layer(&breaker);
    assert_eq!((breaker.state(), breaker.counts().ended), (BreakerState::Closed, 0));
    let (breaker, _hand) = open_and_due();
    let before = breaker.counts();
    refused_by_another_layer(&breaker);
    assert_eq!((breaker.state(), breaker.counts().ended), (BreakerState::HalfOpen, before.ended));
    assert_eq!(calls(&breaker, "SSS"), 3);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[test]
fn while_it_is_open_nothing_behind_it_is_charged_or_called() {
    let (breaker, hand) = fragile();
    let quota = tollgate::Quota::per_second(10);
    let limiter = tollgate::Limiter::builder(quota).clock(hand.clock()).build().unwrap();
    let mut called = 0;
    let mut call = |outcome| {
        let Ok(pass) = breaker.try_pass() else { return };
        match limiter.try_acquire().is_allowed() {
            true => {
                called += 1;
                pass.end(outcome);
            }
            // The caller's own refusal does not count.
            false => pass.end(CallOutcome::Ignore),
        }
    };
    call(CallOutcome::Failure);
    let level = limiter.available();
    (0..1000).for_each(|_| call(CallOutcome::Success));
    assert_eq!((called, limiter.available(), breaker.counts().refused), (1, level, 1000));
}
