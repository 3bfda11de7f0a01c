//! A breaker for each of many keys: bounded, and eviction shows nowhere.

use std::time::Duration;
use tollgate::{Breaker, BreakerState, CallOutcome, Clock, KeyedBreaker, ManualClock, Trip};

fn build(max_keys: u64) -> (KeyedBreaker<u64>, ManualClock) {
    let (clock, hand) = Clock::manual();
    let builder = Breaker::builder().trip(Trip::failure_percent(50)).min_calls(2).clock(clock);
    (builder.build_keyed(max_keys).unwrap(), hand)
}

fn fail(keyed: &KeyedBreaker<u64>, key: u64) {
    keyed.try_pass(&key).unwrap().end(CallOutcome::Failure);
}

#[test]
fn a_key_that_fails_stops_no_other() {
    let (keyed, _hand) = build(100);
    fail(&keyed, 1);
    fail(&keyed, 1);
    assert!(keyed.try_pass(&1).is_err());
    assert!(keyed.try_pass(&2).is_ok());
    assert_eq!(keyed.state(&1), BreakerState::Open);
    assert_eq!(keyed.state(&3), BreakerState::Closed, "a missing one is closed");
    assert_eq!(keyed.len(), 2, "and looking at it makes none");
}

#[test]
fn idle_closed_ones_are_evicted_and_others_stay() {
    let (keyed, hand) = build(4);
    fail(&keyed, 1);
    fail(&keyed, 1);
    keyed.breaker(&2).unwrap().hold_open();
    let running = keyed.try_pass(&3).unwrap();
    keyed.try_pass(&4).unwrap().end(CallOutcome::Success);
    assert_eq!(keyed.len(), 4);
    fail(&keyed, 5);
    assert_eq!((keyed.len(), keyed.untracked()), (4, 1), "all are in use");

    hand.advance(Duration::from_secs(10));
    fail(&keyed, 5);
    assert_eq!((keyed.len(), keyed.untracked()), (4, 1), "the fourth was idle");
    assert_eq!((keyed.state(&1), keyed.state(&2)), (BreakerState::Open, BreakerState::HeldOpen));
    running.end(CallOutcome::Failure);
    fail(&keyed, 3);
    assert_eq!(keyed.state(&3), BreakerState::Open, "the running call kept its window");
}

#[test]
fn a_key_in_its_window_is_not_evicted() {
    let (keyed, hand) = build(1);
    hand.advance(Duration::from_secs(100));
    fail(&keyed, 1);
    hand.advance(Duration::from_millis(8_900));
    fail(&keyed, 2);
    assert_eq!(keyed.untracked(), 1);
    fail(&keyed, 1);
    assert_eq!(keyed.state(&1), BreakerState::Open, "the first failure still counts");
}

#[test]
fn a_flood_of_keys_stays_within_the_bound_and_opens_nothing() {
    let (keyed, hand) = build(1000);
    fail(&keyed, 0);
    fail(&keyed, 0);
    for key in 1..5_000 {
        keyed.try_pass(&key).unwrap().end(CallOutcome::Failure);
        hand.advance(Duration::from_micros(100));
        assert!(keyed.len() <= 1000);
    }
    assert!(keyed.untracked() > 0);
    assert_eq!(keyed.state(&0), BreakerState::Open, "a flood does not wash out what is open");
}

#[test]
fn zero_keys_are_refused() {
    let error = Breaker::builder().build_keyed::<str>(0).unwrap_err();
    assert_eq!(error.to_string(), "max_keys 0 is out of range; use 1 to 1000000000");
}
