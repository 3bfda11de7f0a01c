//! G2 and the long-run rate: the permits of a greedy caller, compared with the exact ideal.

use crate::support::*;
use tollgate::{Algorithm, Limiter, Quota, Tick};

/// Rates that do and do not divide a nanosecond, from one a month to one a nanosecond.
const RATES: [&str; 10] = [
    "1000000000/s burst 100",
    "700000000/s burst 7",
    "999999937/s burst 1",
    "12345/s burst 3",
    "100/s burst 10",
    "3/s burst 1",
    "7/min burst 2",
    "11/h burst 1",
    "5 per 10s",
    "1/month",
];

/// floor(rate x t), exactly.
fn ideal(quota: &Quota, nanos: u64) -> u128 {
    u128::from(nanos) * u128::from(quota.count()) / quota.period().as_nanos()
}

#[test]
fn a_greedy_caller_gets_the_ideal_to_the_permit() {
    for text in RATES {
        // Room for one permit more than a step brings, so that a full bucket loses nothing.
        let quota: Quota = text.parse().unwrap();
        let fill_ns = quota.period().as_nanos() * u128::from(quota.capacity());
        let quota = quota.burst(quota.capacity() + 1);
        let (limiter, _) = manual(Algorithm::Gcra, &quota.to_string());
        let fill_ns = (fill_ns / u128::from(quota.count())) as u64;
        let (mut random, mut now, mut taken) = (Random(1), 0, 0_u128);
        for round in 0..20_000 {
            let decision = limiter.up_to_at(ns(now), u64::MAX);
            if decision.is_allowed() {
                taken += u128::from(decision.cost());
            }
            let exact = u128::from(quota.capacity()) + ideal(&quota, now);
            // Never above the ideal, but for the rounding of `now` to a position at a border.
            assert!(taken <= exact + 1, "{text}, round {round}: {taken} of {exact}");
            assert!(taken + 1 >= exact, "{text}, round {round}: {taken} of {exact}");
            now = (now + random.below(fill_ns)).min(Tick::HORIZON.as_nanos());
        }
    }
}

#[test]
fn the_rate_is_exact_to_one_in_a_million_over_years() {
    for text in RATES {
        let quota: Quota = text.parse().unwrap();
        let (limiter, _) = manual(Algorithm::Gcra, text);
        // Books a year's worth, and checks when it is paid off.
        let year = Tick::from_secs(365 * 86_400).as_nanos();
        let permits = ideal(&quota, year).max(5) as u64;
        assert!(limiter.force_at(Tick::ZERO, permits).is_allowed(), "{text}");
        let paid = limiter.peek_at(Tick::ZERO, 0).full_at().unwrap().as_nanos();
        let exact = u128::from(permits) * quota.period().as_nanos() / u128::from(quota.count());
        let error = exact.abs_diff(u128::from(paid));
        assert!(error <= 1 + exact / 1_000_000_000_000, "{text}: {paid} for {exact}");
    }
}

#[test]
fn ten_million_calls_do_not_drift() {
    let (limiter, _) = manual(Algorithm::Gcra, "3/s burst 1");
    // 37 ms a call: 27 calls a second at a limit of three.
    let step = 37_000_000;
    let mut passed = 0_u64;
    for call in 0..10_000_000_u64 {
        passed += u64::from(limiter.try_acquire_at(ns(call * step), 1).is_allowed());
    }
    // A permit that falls due between two calls is taken at the next one; with a burst of one it
    // refills only from then on. So the caller's period is ten calls, 370 ms.
    assert_eq!(passed, 1_000_000);
}

/// G2: at least 99.9 % of the ideal over a long run, and never above it, for every algorithm.
#[test]
fn a_greedy_caller_is_never_starved() {
    for algorithm in Algorithm::ALL {
        let (limiter, _) = manual(algorithm, "1000/s");
        let (mut passed, mut now) = (0_u64, 0_u64);
        let mut random = Random(3);
        while now < 200_000_000_000 {
            passed += u64::from(limiter.try_acquire_at(ns(now), 1).is_allowed());
            now += random.below(400_000);
        }
        let ideal = 200_000;
        assert!(passed * 1000 >= ideal * 999, "{algorithm}: {passed} of {ideal}");
        assert!(passed <= ideal + 1000, "{algorithm}: {passed} of {ideal}");
    }
}

#[test]
fn seven_hundred_million_per_second_is_not_a_thousand_million() {
    let limiter = Limiter::new("700M/s burst 10".parse().unwrap()).unwrap();
    let mut passed = 0_u64;
    for now in 0..100_000_u64 {
        while limiter.try_acquire_at(ns(now), 1).is_allowed() {
            passed += 1;
        }
    }
    assert!((70_009..=70_010).contains(&passed), "{passed} in 100 us");
}
