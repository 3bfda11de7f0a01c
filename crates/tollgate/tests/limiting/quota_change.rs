//! Live changes of the quota: a limiter keeps exactly what the caller has declared.

use crate::support::*;
use std::time::Duration;
use tollgate::{Algorithm, Bypass, Inherit, Quota};

fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

#[test]
fn keeps_what_the_table_of_inherit_says() {
    for algorithm in Algorithm::ALL {
        for (how, wider, narrower) in [
            (Inherit::Reset, 500, 50),
            (Inherit::AsIs, 40, 40),
            (Inherit::Proportional, 200, 20),
            (Inherit::Additive, 440, 0),
        ] {
            for (to, left) in [("500/h", wider), ("50/h", narrower)] {
                let (limiter, _) = manual(algorithm, "100/h");
                assert!(limiter.try_acquire_n(60).is_allowed());
                limiter.set_quota(quota(to), how).unwrap();
                assert_eq!(limiter.available(), left, "{algorithm} {how:?} to {to}");
                assert_eq!(limiter.quota(), quota(to));
                let debt = how == Inherit::Additive && to == "50/h";
                assert_eq!(
                    limiter.try_acquire_n(0).is_denied(),
                    debt,
                    "{algorithm} {how:?} to {to}"
                );
            }
        }
    }
}

#[test]
fn a_proportional_change_and_its_reverse_lose_nothing() {
    // Thirds and sevenths of a permit are not whole numbers of the limiter's units.
    for (from, to, cost) in [("3/s", "7/s", 2), ("7/s", "3/s", 4), ("7/min", "1000/s", 3)] {
        let (limiter, hand) = manual(Algorithm::Gcra, from);
        hand.advance(Duration::from_millis(12_345));
        assert!(limiter.try_acquire_n(cost).is_allowed());
        let left = limiter.available();
        for change in 0..50 {
            limiter.set_quota(quota(to), Inherit::Proportional).unwrap();
            limiter.set_quota(quota(from), Inherit::Proportional).unwrap();
            assert_eq!(limiter.available(), left, "{from} to {to}, change {change}");
        }
    }
}

#[test]
fn the_new_rate_counts_from_the_change_on() {
    let (limiter, hand) = manual(Algorithm::Gcra, "10/s burst 10 initial empty");
    hand.advance(Duration::from_millis(250));
    limiter.set_quota(quota("1/s burst 10"), Inherit::AsIs).unwrap();
    assert_eq!(limiter.available(), 2, "two and a half permits are kept");
    hand.advance(Duration::from_millis(499));
    assert_eq!(limiter.available(), 2);
    hand.advance(Duration::from_millis(1));
    assert_eq!(limiter.available(), 3, "half a permit at the new rate");
}

#[test]
fn a_refused_change_leaves_the_old_quota_in_force() {
    for algorithm in Algorithm::ALL {
        let (limiter, _) = manual(algorithm, "10/s");
        let error = limiter.set_quota(Quota::per_second(u64::MAX), Inherit::AsIs).unwrap_err();
        assert!(error.to_string().contains("above 1000000000 per second"), "{error}");
        assert_eq!((limiter.quota(), limiter.available()), (quota("10/s"), 10), "{algorithm}");
    }
    let (window, _) = manual(Algorithm::SlidingLog, "10/s");
    let error = window.set_quota(quota("10/s burst 5"), Inherit::AsIs).unwrap_err();
    assert_eq!(
        error.to_string(),
        "burst 5 has no effect with sliding-log, which admits its limit of 10 at once; remove the \
         burst, or use gcra"
    );
}

#[test]
fn unlimited_and_back() {
    for algorithm in Algorithm::ALL {
        let (limiter, _) = manual(algorithm, "10/s");
        let _ = limiter.try_acquire_n(10);
        limiter.set_quota(Quota::unlimited(), Inherit::AsIs).unwrap();
        assert!(limiter.try_acquire_n(1_000_000).is_allowed(), "{algorithm}");
        limiter.set_quota(quota("5/s"), Inherit::AsIs).unwrap();
        assert_eq!(limiter.available(), 5, "{algorithm}: an unlimited past leaves nothing used");
    }
}

#[test]
fn bypass_lets_all_pass_and_charges_nothing() {
    for algorithm in Algorithm::ALL {
        let (limiter, _) = manual(algorithm, "10/s");
        let _ = limiter.try_acquire_n(8);
        limiter.bypass(Bypass::On);
        assert!(limiter.is_bypassed());
        for _ in 0..100 {
            let decision = limiter.try_acquire_n(50);
            assert!(decision.is_allowed() && decision.is_bypassed(), "{algorithm}");
        }
        assert_eq!(limiter.reserve(1000).unwrap().cancel(), 0);
        limiter.bypass(Bypass::Off);
        assert_eq!(limiter.available(), 2, "{algorithm}: nothing was charged");
        assert!(!limiter.try_acquire().is_bypassed());
    }
}

#[test]
fn reservations_keep_their_claim_through_a_change() {
    for (how, to, back) in [
        (Inherit::AsIs, "500/h", 10),
        (Inherit::Additive, "500/h", 10),
        (Inherit::Proportional, "500/h", 50),
        (Inherit::Proportional, "50/h", 5),
        (Inherit::Reset, "500/h", 0),
    ] {
        let (limiter, _) = manual(Algorithm::Gcra, "100/h");
        let reservation = limiter.reserve(10).unwrap();
        limiter.set_quota(quota(to), how).unwrap();
        let before = limiter.available();
        assert_eq!(reservation.cancel(), back, "{how:?} to {to}");
        assert_eq!(limiter.available(), before + back, "{how:?} to {to}");
    }
}

#[test]
fn a_sliding_counter_outgrows_its_word_only_by_a_clear_error() {
    let (limiter, _) = manual(Algorithm::SlidingCounter, "100/s");
    let error = limiter.set_quota(quota("20000000/s"), Inherit::AsIs).unwrap_err();
    assert_eq!(
        error.to_string(),
        "limit 20000000 is above 21212, the maximum for this running sliding-counter in this \
         window; build a new limiter for it"
    );
    // A limiter without a limit can take any quota.
    let (limiter, _) = manual(Algorithm::SlidingCounter, "unlimited");
    limiter.set_quota(quota("20000000/s"), Inherit::AsIs).unwrap();
    assert_eq!(limiter.available(), 20_000_000);
    // Built for this quota, it works.
    let (limiter, _) = manual(Algorithm::SlidingCounter, "20000000/s");
    assert_eq!(limiter.up_to(u64::MAX).cost(), 20_000_000);
    limiter.set_quota(quota("10/s"), Inherit::Reset).unwrap();
    assert_eq!(limiter.available(), 10);
}

#[test]
fn applying_the_same_quota_again_and_again_changes_nothing() {
    for algorithm in Algorithm::ALL {
        let run = |reload: bool| {
            let (limiter, hand) = manual(algorithm, "10/min");
            let calls = (0..120).filter(|_| {
                hand.advance(Duration::from_secs(5));
                if reload {
                    limiter.set_quota(quota("10/min"), Inherit::AsIs).unwrap();
                }
                limiter.try_acquire().is_allowed()
            });
            calls.count()
        };
        assert_eq!(run(true), run(false), "{algorithm}");
    }
}

#[test]
fn claims_ahead_are_carried_over_as_the_state_is() {
    // Two reservations, the second ahead of time: a debt of 50, which is not scaled.
    for (to, back) in [("1000/min", 50), ("10/min", 50)] {
        let (limiter, _) = manual(Algorithm::Gcra, "100/min");
        limiter.reserve(100).unwrap().keep();
        let second = limiter.reserve(50).unwrap();
        limiter.set_quota(quota(to), Inherit::Proportional).unwrap();
        assert_eq!(second.cancel(), back, "to {to}");
        assert_eq!(limiter.available(), 0, "to {to}: the first has used all");
        assert!(limiter.try_acquire_n(0).is_allowed(), "to {to}: and owes nothing");
    }
    // Permits that the change has dropped cannot be given back.
    let (limiter, _) = manual(Algorithm::Gcra, "100/h");
    let reservation = limiter.reserve(30).unwrap();
    let _ = limiter.try_acquire_n(30);
    limiter.set_quota(quota("50/h"), Inherit::AsIs).unwrap();
    assert_eq!((limiter.available(), limiter.try_acquire_n(35).remaining()), (40, 5));
    assert_eq!((reservation.cancel(), limiter.available()), (0, 5));
}

#[test]
fn an_unlimited_limiter_has_nothing_to_give_back() {
    let (limiter, _) = manual(Algorithm::Gcra, "20/h");
    let reservation = limiter.reserve(5).unwrap();
    limiter.set_quota(Quota::unlimited(), Inherit::AsIs).unwrap();
    assert_eq!(reservation.settle(3).limit(), u64::MAX);
    assert_eq!(limiter.refund(5), 0);
}
