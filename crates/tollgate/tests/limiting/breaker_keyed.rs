//! A breaker for each of many keys: bounded, and eviction does not show.

use std::{thread, time::Duration};
use tollgate::{
    Breaker, BreakerState, BreakerWindow, CallOutcome, Clock, KeyedBreaker, ManualClock,
    OpenReason, Trip,
};

fn build(max_keys: u64) -> (KeyedBreaker<u64>, ManualClock) {
    let (clock, hand) = Clock::manual();
    let builder =
        Breaker::builder().trip(Trip::failure_percent(50)).min_calls(2).jitter(0).clock(clock);
    (builder.build_keyed(max_keys).unwrap(), hand)
}

fn succeed(keyed: &KeyedBreaker<u64>, key: u64) {
    keyed.try_pass(&key).unwrap().end(CallOutcome::Success);
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
    succeed(&keyed, 4);
    hand.advance(Duration::from_secs(10));
    fail(&keyed, 5);
    assert_eq!((keyed.len(), keyed.forgotten()), (4, 0), "the fourth was idle");
    assert_eq!((keyed.state(&1), keyed.state(&2)), (BreakerState::Open, BreakerState::HeldOpen));
    running.end(CallOutcome::Failure);
    fail(&keyed, 3);
    assert_eq!(keyed.state(&3), BreakerState::Open, "the running call kept its window");
}

/// The calls of a window that counts them do not expire; they are forgotten with the key.
#[test]
fn a_window_of_a_number_of_calls_is_evicted_when_it_is_idle() {
    let (clock, hand) = Clock::manual();
    let builder = Breaker::builder().window(BreakerWindow::calls(10)).clock(clock);
    let keyed: KeyedBreaker<u64> = builder.build_keyed(1).unwrap();
    fail(&keyed, 1);
    hand.advance(Duration::from_secs(60));
    fail(&keyed, 2);
    assert_eq!((keyed.len(), keyed.forgotten()), (1, 0));
    fail(&keyed, 3);
    assert_eq!((keyed.len(), keyed.forgotten()), (1, 1), "the second was not idle");
}

#[test]
fn a_full_table_forgets_the_closed_one_with_the_fewest_failures() {
    let (keyed, hand) = build(3);
    hand.advance(Duration::from_secs(100));
    fail(&keyed, 1);
    succeed(&keyed, 2);
    fail(&keyed, 3);
    fail(&keyed, 3);
    hand.advance(Duration::from_secs(1));
    fail(&keyed, 4);
    assert_eq!((keyed.len(), keyed.forgotten()), (3, 1));
    fail(&keyed, 1);
    assert_eq!(keyed.state(&1), BreakerState::Open, "its first failure still counts");
    assert_eq!(keyed.state(&3), BreakerState::Open, "what is open stays");
    // Now the only closed one has a failure, and is evicted anyway.
    succeed(&keyed, 5);
    assert_eq!((keyed.forgotten(), keyed.refused()), (2, 0));
}

#[test]
fn a_running_call_stops_no_new_key_and_its_result_counts_nowhere() {
    let (keyed, _hand) = build(1);
    let running = keyed.try_pass(&1).unwrap();
    fail(&keyed, 2);
    assert_eq!((keyed.len(), keyed.forgotten()), (1, 1));
    running.end(CallOutcome::Failure);
    fail(&keyed, 1);
    assert_eq!(keyed.state(&1), BreakerState::Closed);
}

#[test]
fn a_table_of_open_or_held_ones_refuses_new_keys_and_says_why() {
    let (keyed, hand) = build(2);
    fail(&keyed, 1);
    fail(&keyed, 1);
    let held = keyed.breaker(&2).unwrap();
    for _ in 0..2 {
        let open = keyed.try_pass(&3).unwrap_err();
        assert_eq!((open.why(), open.retry_at()), (OpenReason::TableFull, None));
        assert_eq!(
            open.to_string(),
            "every key that the breaker has room for is open or held; \
             retry later, or raise max_keys"
        );
    }
    assert!(keyed.breaker(&3).is_none());
    assert_eq!((keyed.refused(), keyed.len()), (2, 2));
    succeed(&keyed, 2);
    drop(held);
    succeed(&keyed, 3);
    assert_eq!((keyed.refused(), keyed.forgotten()), (2, 1), "nobody holds the second any more");
    assert_eq!(keyed.state(&1), BreakerState::Open);
    // The break lasts 5 s; no call comes for 10 s more.
    fail(&keyed, 3);
    hand.advance(Duration::from_millis(14_999));
    assert!(keyed.try_pass(&4).is_err());
    hand.advance(Duration::from_millis(1));
    assert!(keyed.try_pass(&4).is_ok(), "a dead key is forgotten");
}

/// Its trials were dropped, and no further call came.
#[test]
fn a_half_open_one_that_nobody_calls_makes_room() {
    let (keyed, hand) = build(1);
    fail(&keyed, 1);
    fail(&keyed, 1);
    hand.advance(Duration::from_secs(5));
    drop(keyed.try_pass(&1).unwrap());
    assert_eq!(keyed.state(&1), BreakerState::HalfOpen);
    assert!(keyed.try_pass(&2).is_err());
    hand.advance(Duration::from_secs(10));
    assert!(keyed.try_pass(&2).is_ok());
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
    assert_eq!((keyed.refused(), keyed.forgotten()), (0, 4_000));
    assert_eq!(keyed.state(&0), BreakerState::Open, "a flood does not wash out what is open");
}

#[test]
fn threads_with_new_keys_take_no_place_from_each_other_twice() {
    let (keyed, _hand) = build(20);
    thread::scope(|scope| {
        for thread in 0..8 {
            let keyed = &keyed;
            scope.spawn(move || (0..2_000).for_each(|key| succeed(keyed, thread * 10_000 + key)));
        }
    });
    assert_eq!((keyed.refused(), keyed.len()), (0, 20));
    assert_eq!(keyed.forgotten(), 8 * 2_000 - 20);
}

#[test]
fn zero_keys_are_refused() {
    let error = Breaker::builder().build_keyed::<str>(0).unwrap_err();
    assert_eq!(error.to_string(), "max_keys 0 is out of range; use 1 to 1000000000");
}
