//! `try_acquire_on_credit`: one call may overshoot, and the next waits until that is paid off.

use crate::support::*;
use proptest::prelude::*;
use tollgate::{Algorithm, Clock, KeyedLimiter, Quota, Reason, Tick, WhenFull};

/// Rows of (time in ms, cost, expected).
type Rows<'a> = &'a [(u64, u64, Expected)];

fn run(algorithm: Algorithm, quota: &str, rows: Rows<'_>) {
    let (limiter, _) = manual(algorithm, quota);
    let keyed = KeyedLimiter::<str>::builder(quota.parse().unwrap()).algorithm(algorithm);
    let keyed = keyed.clock(Clock::manual().0).build().unwrap();
    for (row, (at_ms, cost, expected)) in rows.iter().enumerate() {
        let told = format!("{algorithm} {quota}, row {row}, at {at_ms} ms");
        let decision = limiter.try_acquire_on_credit_at(ms(*at_ms), *cost);
        assert_eq!((seen(&decision), decision.cost()), (*expected, *cost), "{told}");
        assert_eq!(keyed.try_acquire_on_credit_at("a", ms(*at_ms), *cost), decision, "{told}");
    }
}

#[test]
fn a_bucket_pays_off_its_debt_at_its_rate() {
    let rows: Rows<'_> = &[
        (0, 25, allowed(0)), // owes 15
        (0, 0, denied_for_ms(1500)),
        (0, 1, denied_for_ms(1600)),
        (0, 1000, denied_for_ms(1600)), // at any cost
        (1500, 0, allowed(0)),
        (1599, 1000, denied_for_ns(1_000_000)),
        (1600, 1000, allowed(0)), // owes 999
        (1600, 1, denied_for_ms(100_000)),
        (101_600, 1, allowed(0)),
        (101_600, 1, denied_for_ms(100)), // nothing is owed, but nothing is free
    ];
    run(Algorithm::Gcra, "10/s burst 10", rows);
}

#[test]
fn a_budget_that_never_refills_is_overdrawn_once() {
    let rows: Rows<'_> = &[(0, 9, allowed(1)), (0, 30, allowed(0)), (900_000, 1, never())];
    run(Algorithm::Gcra, "0/s burst 10", rows);
}

#[test]
fn a_fixed_window_owes_until_it_ends() {
    let rows: Rows<'_> = &[
        (100, 7, allowed(3)),
        (100, 8, allowed(0)), // owes 5
        (100, 0, denied_for_ms(900)),
        (999, 1, denied_for_ms(1)),
        (1000, 10, allowed(0)),
        (1000, 0, allowed(0)),
        (1000, 1, denied_for_ms(1000)), // nothing is owed, but the window is full
    ];
    run(Algorithm::FixedWindow, "10/s", rows);
}

#[test]
fn an_anchored_window_owes_until_it_ends() {
    let rows: Rows<'_> = &[
        (100, 15, allowed(0)),
        (100, 1, denied_for_ms(1000)),
        (1099, 1, denied_for_ms(1)),
        (1100, 3, allowed(7)),
    ];
    run(Algorithm::AnchoredWindow, "10/s", rows);
}

#[test]
fn a_sliding_counter_owes_until_its_estimate_is_below_the_limit() {
    let rows: Rows<'_> = &[
        (0, 15, allowed(0)),
        // Five are carried: 10 x (W - e) / W is at most 5 from e = 500 ms of the next window on.
        (0, 1, denied_for_ms(1500)),
        (1499, 1, denied_for_ms(1)),
        (1500, 1, allowed(0)),
    ];
    run(Algorithm::SlidingCounter, "10/s", rows);
}

#[test]
fn a_sliding_log_owes_until_enough_of_it_has_left() {
    let rows: Rows<'_> = &[
        (0, 4, allowed(6)),
        (400, 30, allowed(0)), // owes 24: four leave at 1.0 s, six at 1.4 s, four at 2.0 s ...
        (400, 1, denied_for_ms(3000)), // at 3.0 s the last four are paid
        (3399, 500, denied_for_ms(1)),
        (3400, 3, allowed(3)),
    ];
    run(Algorithm::SlidingLog, "10/s", rows);
}

#[test]
fn a_debt_that_no_state_can_hold_is_denied_without_a_trace() {
    for algorithm in Algorithm::ALL {
        let (limiter, _) = manual(algorithm, "10/s");
        let decision = limiter.try_acquire_on_credit_at(ms(0), u64::MAX);
        assert!(decision.is_never() && decision.cost() == u64::MAX, "{algorithm}");
        assert_eq!(limiter.available_at(ms(0)), 10, "{algorithm}");
    }
}

#[test]
fn a_key_without_room_is_told_when_one_permit_could_be_free() {
    let builder = KeyedLimiter::<u64>::builder(Quota::per_second(10)).clock(Clock::manual().0);
    let keyed = builder.bounded(1).when_full(WhenFull::Refuse).build().unwrap();
    let mut decisions = (0..1000).map(|key| keyed.try_acquire_on_credit_at(&key, ms(0), 25));
    let refused = decisions.find(|decision| decision.reason() == Reason::Saturated);
    let refused = refused.expect("a thousand keys do not fit");
    assert_eq!((seen(&refused), refused.cost()), (denied_for_ms(100), 25));
}

/// Windows cannot be booked ahead, so a call on credit is denied until after the waiting
/// ones.
#[cfg(feature = "tokio")]
#[test]
fn nobody_overtakes_a_queue_on_credit() {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };
    for algorithm in Algorithm::ALL {
        let (limiter, hand) = manual(algorithm, "10/s");
        hand.advance(std::time::Duration::from_millis(100));
        let _four_left = limiter.up_to(6);
        let mut five = pin!(limiter.acquire_n(5));
        assert!(five.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let behind = limiter.try_acquire_on_credit(1000);
        assert!(behind.is_denied() && !behind.is_never(), "{algorithm}: {behind:?}");
        assert_eq!(behind.cost(), 1000);
    }
}

proptest! {
    /// One permit on credit equals one permit, and every retry is the first tick that passes.
    #[test]
    fn one_on_credit_is_a_try(
        which in 0..5_usize,
        calls in prop::collection::vec((0..700_000_000_u64, 0..25_u64), 1..40),
    ) {
        let algorithm = Algorithm::ALL[which];
        let [(limiter, _), (other, _)] = [manual(algorithm, "10/s"), manual(algorithm, "10/s")];
        let mut now = Tick::ZERO;
        for (gap, cost) in calls {
            now = ns(now.as_nanos() + gap);
            let one = limiter.try_acquire_on_credit_at(now, 1);
            prop_assert_eq!(one, other.try_acquire_at(now, 1));
            let decision = limiter.try_acquire_on_credit_at(now, cost);
            prop_assert_eq!(other.try_acquire_on_credit_at(now, cost), decision);
            if let Some(retry) = decision.retry_at() {
                prop_assert!(limiter.peek_at(retry, cost.min(1)).is_allowed());
                prop_assert!(limiter.peek_at(ns(retry.as_nanos() - 1), cost.min(1)).is_denied());
            }
        }
    }
}
