//! Known faults of other rate limiters, each as a test, as far as they concern one limiter. The
//! table names the faults that other files test.
//!
//! | fault | test |
//! |---|---|
//! | charged though refused | `oracle.rs`, `a_denial_changes_nothing` |
//! | refund credits a refill twice | `refund.rs`, `a_cancel_never_credits_more_than_the_take_still_costs` |
//! | refund after the window rolled | `refund.rs`, `a_late_refund_never_reaches_into_a_new_window` |
//! | cancel restores too few | `refund.rs`, `two_takes_of_one_instant_give_back_both_in_either_order` |
//! | retry too early, zero or negative | `oracle.rs`, `check_retry` on every denial |
//! | limit drifts over hours | `rate.rs`, `ten_million_calls_do_not_drift` |
//! | rounding above 1000/s | `rate.rs`, `seven_hundred_million_per_second_is_not_a_thousand_million` |

use crate::support::*;
use tollgate::{Algorithm, Clock, Initial, Limiter, Quota, Tick};

#[test]
fn a_burst_of_one_limits() {
    // throttlecrab admits all 1000, at one instant and 1 ms apart.
    for gap_ms in [0, 1] {
        let (limiter, _) = manual(Algorithm::Gcra, "1/h");
        let passed =
            (0..1000).filter(|call| limiter.try_acquire_at(ms(call * gap_ms), 1).is_allowed());
        assert_eq!(passed.count(), 1, "{gap_ms} ms apart");
    }
}

#[test]
fn an_idle_spell_fills_to_the_burst_and_no_further() {
    // throttlecrab admits 17.
    for (first, idle_ms) in [(1, 8_900), (10, 17_900)] {
        let (limiter, _) = manual(Algorithm::Gcra, "1/s burst 10");
        let _ = limiter.up_to_at(ms(0), first);
        let passed = (0..50).filter(|_| limiter.try_acquire_at(ms(idle_ms), 1).is_allowed());
        assert_eq!(passed.count(), 10, "{first} taken, {idle_ms} ms idle");
    }
}

#[test]
fn a_big_request_does_not_empty_the_bucket() {
    for algorithm in Algorithm::ALL {
        let (limiter, _) = manual(algorithm, "10/s");
        let _ = limiter.try_acquire_n(6);
        for cost in [5, 10, 11, u64::MAX] {
            assert!(limiter.try_acquire_n(cost).is_denied());
        }
        assert_eq!(limiter.available(), 4, "{algorithm}");
    }
}

#[test]
fn the_wait_is_not_the_whole_window() {
    // httprate and rack-attack always answer the full window.
    let (limiter, _) = manual(Algorithm::FixedWindow, "5/min");
    let _ = limiter.up_to_at(ms(50_000), 5);
    assert_eq!(seen(&limiter.try_acquire_at(ms(50_000), 1)), denied_for_ms(10_000));
    let (limiter, _) = manual(Algorithm::SlidingLog, "5/min");
    for at in [1_000, 2_000, 3_000, 4_000, 5_000] {
        assert!(limiter.try_acquire_at(ms(at), 1).is_allowed());
    }
    assert_eq!(seen(&limiter.try_acquire_at(ms(50_000), 1)), denied_for_ms(11_000));
    assert_eq!(seen(&limiter.try_acquire_at(ms(50_000), 3)), denied_for_ms(13_000));
}

#[test]
fn the_reset_follows_the_state() {
    // tollbooth prints a constant.
    let (limiter, _) = manual(Algorithm::Gcra, "10/s");
    let first = limiter.try_acquire_at(ms(0), 1);
    let second = limiter.try_acquire_at(ms(0), 4);
    assert_eq!((first.full_at(), second.full_at()), (Some(ms(100)), Some(ms(500))));
}

#[test]
fn the_first_window_holds_twice_the_limit_only_if_you_let_it() {
    // A bucket that starts full passes burst + rate in its first period. Two remedies: start empty,
    // or use a burst of one.
    let first_minute = |quota: Quota| {
        let limiter = Limiter::builder(quota).clock(Clock::manual().0).build().unwrap();
        (0..60_000).filter(|call| limiter.try_acquire_at(ms(*call), 1).is_allowed()).count()
    };
    assert_eq!(first_minute(Quota::per_minute(60)), 119);
    assert_eq!(first_minute(Quota::per_minute(60).initial(Initial::Empty)), 59);
    assert_eq!(first_minute(Quota::per_minute(60).burst(1)), 60);
}

#[test]
fn a_denial_is_not_an_error_and_never_is_not_later() {
    let (limiter, _) = manual(Algorithm::Gcra, "10/s burst 5");
    let never = limiter.try_acquire_n(6);
    assert!(never.is_denied() && never.is_never());
    assert_eq!((never.retry_at(), never.retry_after(Tick::ZERO)), (None, None));
    let _ = limiter.try_acquire_n(5);
    let later = limiter.try_acquire_n(1);
    assert!(later.is_denied() && !later.is_never());
    let texts = [never, later].map(|decision| decision.ok().unwrap_err().to_string());
    assert_eq!(
        texts,
        [
            "cost 6 never passes a limit of 5; ask for less, or raise the limit",
            "cost 1 is over the limit of 5; retry after 100ms"
        ]
    );
}

#[test]
fn a_spent_budget_is_not_a_cost_too_large() {
    let (limiter, _) = manual(Algorithm::Gcra, "0/s burst 1");
    let _ = limiter.try_acquire();
    let text = "the limit of 1 is spent, and waiting does not help; reset it, or raise its rate";
    assert_eq!(limiter.try_acquire().ok().unwrap_err().to_string(), text);
    assert_eq!(limiter.reserve(1).unwrap_err().to_string(), text);
}

#[test]
fn degenerate_quotas_are_exact_or_refused() {
    // guava: a warm-up of zero switches the limiter off.
    let build = |text: &str, algorithm| {
        Limiter::builder(text.parse().unwrap()).algorithm(algorithm).build().map(drop)
    };
    for algorithm in Algorithm::ALL {
        assert!(build("5 per 0s", algorithm).is_err());
        assert!(build("0/s", algorithm).is_ok());
        assert!(build("1 per 1ns", algorithm).is_ok() || algorithm != Algorithm::Gcra);
    }
    let error = build("2000000/s", Algorithm::SlidingLog).unwrap_err().to_string();
    assert_eq!(
        error,
        "limit 2000000 is more than sliding-log can count in this window (1048576); use a longer \
         window, count in larger units, or use gcra"
    );
}
