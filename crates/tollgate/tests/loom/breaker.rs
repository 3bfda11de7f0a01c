//! Interleavings of a breaker's fast path with its transitions, by loom.

use crate::explore;
use loom::thread;
use std::time::Duration;
use tollgate::{Breaker, BreakerState, CallOutcome, Clock, Tick, Trip};

fn breaker(trip: Trip, trials: u32) -> Breaker {
    let (clock, _hand) = Clock::manual();
    let builder = Breaker::builder().trip(trip).min_calls(2).trials(trials).close_after(1);
    builder.jitter(0).seed(1).open_for(Duration::from_secs(5)).clock(clock).build().unwrap()
}

fn fail(breaker: &Breaker) {
    if let Ok(pass) = breaker.try_pass_at(Tick::ZERO) {
        pass.end_at(Tick::ZERO, CallOutcome::Failure);
    }
}

#[test]
fn two_failures_that_end_together_trip_it() {
    explore(3, || {
        let mine = breaker(Trip::failure_percent(100), 1);
        let theirs = mine.clone();
        let other = thread::spawn(move || fail(&theirs));
        fail(&mine);
        other.join().unwrap();
        // Each adds to a stripe of its own; one of them must see both.
        assert_eq!(mine.state(), BreakerState::Open);
        assert_eq!((mine.counts().ended, mine.counts().opened), (2, 1));
    });
}

#[test]
fn two_callers_at_the_instant_one_trial() {
    explore(3, || {
        let mine = breaker(Trip::consecutive(1), 1);
        fail(&mine);
        let due = Tick::from_secs(5);
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.try_pass_at(due).map(tollgate::Pass::into_owned));
        let first = mine.try_pass_at(due);
        let second = other.join().unwrap();
        assert!(first.is_ok() ^ second.is_ok());
    });
}

#[test]
fn a_trial_that_ends_while_another_is_dropped_closes_once() {
    explore(3, || {
        let mine = breaker(Trip::consecutive(1), 2);
        fail(&mine);
        let due = Tick::from_secs(5);
        let dropped = mine.try_pass_at(due).unwrap().into_owned();
        let trial = mine.try_pass_at(due).unwrap();
        let other = thread::spawn(move || drop(dropped));
        trial.end_at(due, CallOutcome::Success);
        other.join().unwrap();
        assert_eq!(mine.state(), BreakerState::Closed);
    });
}

#[test]
fn an_old_result_beside_a_hold_reopens_nothing() {
    explore(3, || {
        let mine = breaker(Trip::consecutive(1), 1);
        let old = mine.try_pass_at(Tick::ZERO).unwrap().into_owned();
        let other = thread::spawn(move || old.end_at(Tick::ZERO, CallOutcome::Failure));
        mine.hold_closed();
        assert!(mine.try_pass_at(Tick::ZERO).is_ok());
        other.join().unwrap();
        assert_eq!(mine.state(), BreakerState::HeldClosed);
    });
}

#[test]
fn a_refusal_reads_a_tick_that_belongs_to_a_break() {
    explore(3, || {
        let mine = breaker(Trip::consecutive(1), 1);
        let theirs = mine.clone();
        let other = thread::spawn(move || fail(&theirs));
        if let Err(open) = mine.try_pass_at(Tick::from_secs(1)) {
            assert_eq!(open.retry_at(), Some(Tick::from_secs(5)));
        }
        other.join().unwrap();
    });
}
