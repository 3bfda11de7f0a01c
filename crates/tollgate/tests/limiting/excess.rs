//! Costs far above the limit, booked in any state: the whole cost is owed, and paid off.

use crate::support::*;
use std::time::Duration;
use tollgate::{Algorithm, Clock, Inherit, KeyedLimiter, Limiter, Quota, Tick};

const YEAR: u64 = 365 * 86_400;

/// A sliding counter of three words: it began without a limit, so it can take any quota.
fn wide(quota: &str) -> Limiter {
    let (limiter, _) = manual(Algorithm::SlidingCounter, "unlimited");
    limiter.set_quota_at(Tick::ZERO, quota.parse().unwrap(), Inherit::Reset).unwrap();
    limiter
}

fn limiters(algorithm: Algorithm, quota: &str) -> Vec<Limiter> {
    let more = (algorithm == Algorithm::SlidingCounter).then(|| wide(quota));
    std::iter::once(manual(algorithm, quota).0).chain(more).collect()
}

/// Milliseconds after 25 were booked on 10/s, permits left, and when one passes.
type Row = (u64, u64, Expected);

#[test]
fn an_excess_is_carried_less_one_limit_per_window() {
    let rows: [(Algorithm, &[Row]); 5] = [
        (
            Algorithm::Gcra,
            &[(0, 0, denied_for_ms(1600)), (1600, 1, allowed(0)), (2500, 10, allowed(9))],
        ),
        (Algorithm::FixedWindow, &[(0, 0, denied_for_ms(1000)), (1000, 10, allowed(9))]),
        (Algorithm::AnchoredWindow, &[(0, 0, denied_for_ms(1000)), (1000, 10, allowed(9))]),
        (
            Algorithm::SlidingCounter,
            &[
                // Ten in each of two windows, then five: 10 x (W - e) / W is 5 after half of the third.
                (0, 0, denied_for_ms(2500)),
                (1999, 0, denied_for_ms(501)),
                (2000, 0, denied_for_ms(500)),
                (2900, 5, allowed(4)),
                (3000, 6, allowed(5)),
                (4000, 10, allowed(9)),
            ],
        ),
        (
            Algorithm::SlidingLog,
            &[
                (0, 0, denied_for_ms(2000)),
                (1000, 0, denied_for_ms(1000)),
                (1999, 0, denied_for_ms(1)),
                (2000, 5, allowed(4)),
                (3000, 10, allowed(9)),
            ],
        ),
    ];
    for (algorithm, rows) in rows {
        for limiter in limiters(algorithm, "10/s") {
            assert_eq!(seen(&limiter.force_at(ms(0), 25)), allowed(0), "{algorithm}");
            assert!(limiter.peek_at(ms(0), 0).is_denied(), "{algorithm}: a look is refused, too");
            for (at, left, one) in rows {
                let row = format!("{algorithm} at {at} ms");
                assert_eq!(limiter.available_at(ms(*at)), *left, "{row}");
                assert_eq!(seen(&limiter.peek_at(ms(*at), 1)), *one, "{row}");
            }
        }
    }
}

/// Fifty windows' worth, booked at once or in parts.
#[test]
fn fifty_thousand_of_a_thousand_a_minute_last_for_fifty_minutes() {
    let minute = 60_000_000_000;
    for (algorithm, wait_ns) in [
        (Algorithm::Gcra, 49 * minute + 60_000_000),
        (Algorithm::FixedWindow, minute),
        (Algorithm::AnchoredWindow, minute),
        (Algorithm::SlidingCounter, 50 * minute),
        (Algorithm::SlidingLog, 50 * minute),
    ] {
        for parts in [1, 7, 50] {
            for limiter in limiters(algorithm, "1000/min") {
                let (part, rest) = (50_000 / parts, 50_000 % parts);
                (0..parts).for_each(|_| assert!(limiter.force_at(ms(0), part).is_allowed()));
                assert!(limiter.force_at(ms(0), rest).is_allowed());
                let wait = seen(&limiter.peek_at(ms(0), 1));
                assert_eq!(wait, denied_for_ns(wait_ns), "{algorithm} in {parts} parts");
            }
        }
    }
}

#[test]
fn an_excess_can_be_given_back() {
    for algorithm in Algorithm::ALL {
        for limiter in limiters(algorithm, "10/s") {
            assert!(limiter.try_acquire_at(ms(200), 1).is_allowed());
            let reservation = limiter.reserve_at(ms(200), 3, Duration::ZERO).unwrap();
            assert!(limiter.force_at(ms(300), 50).is_allowed());
            let wait = limiter.peek_at(ms(300), 1).retry_at();
            assert_eq!(reservation.cancel_at(ms(300)), 3, "{algorithm}: its own");
            let sooner = limiter.peek_at(ms(300), 1).retry_at();
            assert!(sooner <= wait, "{algorithm}");
            assert_eq!(limiter.refund_at(ms(300), 45), 45, "{algorithm}");
            let left = limiter.available_at(ms(300));
            assert_eq!(left, if algorithm == Algorithm::Gcra { 5 } else { 4 }, "{algorithm}");
            let rest = limiter.refund_at(ms(300), 50);
            assert_eq!(rest, if algorithm == Algorithm::Gcra { 5 } else { 6 }, "{algorithm}");
            assert_eq!(limiter.available_at(ms(300)), 10, "{algorithm}");
        }
    }
}

/// The part that is still owed in a later window can be given back, and no more.
#[test]
fn an_excess_is_given_back_as_far_as_it_is_not_paid() {
    for algorithm in [Algorithm::SlidingCounter, Algorithm::SlidingLog] {
        for limiter in limiters(algorithm, "10/s") {
            assert!(limiter.force_at(ms(0), 95).is_allowed());
            assert_eq!(limiter.refund_at(ms(5500), 1000), 45, "{algorithm}");
            assert_eq!(limiter.available_at(ms(5500)), 10, "{algorithm}");
        }
    }
}

#[test]
fn the_largest_debt_is_paid_off_within_four_and_a_half_years() {
    for algorithm in [Algorithm::Gcra, Algorithm::SlidingCounter, Algorithm::SlidingLog] {
        for (quota, per_year) in [("10/s", 10 * YEAR), ("1000/min", 1000 * YEAR / 60)] {
            for limiter in limiters(algorithm, quota) {
                let row = format!("{algorithm} {quota}");
                let refused = limiter.force_at(ms(0), per_year * 47 / 10);
                assert!(refused.is_never(), "{row}: {refused:?}");
                assert_eq!(limiter.available_at(ms(0)), limiter.quota().capacity(), "{row}");
                assert!(limiter.force_at(ms(0), per_year * 44 / 10).is_allowed(), "{row}");
                let retry = limiter.peek_at(ms(0), 1).retry_at().unwrap();
                assert!(retry > Tick::from_secs(4 * YEAR), "{row}: {retry:?}");
                assert!(limiter.peek_at(retry, 1).is_allowed(), "{row}");
                assert!(limiter.peek_at(ns(retry.as_nanos() - 1), 1).is_denied(), "{row}");
            }
        }
    }
}

/// Nothing passes with a limit of zero, so nothing is paid off: a booking ends with its window.
#[test]
fn a_limit_of_zero_carries_nothing() {
    for algorithm in [Algorithm::SlidingCounter, Algorithm::SlidingLog] {
        for limiter in limiters(algorithm, "0/s") {
            assert!(limiter.force_at(ms(0), 50).is_allowed(), "{algorithm}");
            assert!(limiter.peek_at(ms(999), 0).is_denied(), "{algorithm}");
            assert!(limiter.peek_at(ms(2000), 0).is_allowed(), "{algorithm}");
        }
    }
}

/// The debt of a key stays when its limit changes.
#[test]
fn another_limit_does_not_forgive_an_excess() {
    for algorithm in [Algorithm::SlidingCounter, Algorithm::SlidingLog] {
        for later in ["20/s", "5/s", "100/s", "0/s", "30000/s"] {
            let keyed = KeyedLimiter::<str>::builder(Quota::per_second(10)).algorithm(algorithm);
            let keyed = keyed.clock(Clock::manual().0).build().unwrap();
            let _ = keyed.force_at("a", ms(0), 1000);
            keyed.set_quota(later.parse().unwrap()).unwrap();
            let (row, seen) = (format!("{algorithm}, {later}"), keyed.peek_at("a", ms(0), 0));
            assert!(seen.is_denied() || later == "30000/s", "{row}: {seen:?}");
            if let Some(retry) = seen.retry_at() {
                assert!(keyed.peek_at("a", retry, 0).is_allowed(), "{row}");
                assert!(keyed.peek_at("a", ns(retry.as_nanos() - 1), 0).is_denied(), "{row}");
            }
            if later != "0/s" {
                // Further bookings continue from there.
                let _ = keyed.force_at("a", ms(0), 1000);
                let retry = keyed.peek_at("a", ms(0), 1).retry_at().unwrap_or(ms(0));
                assert!(keyed.peek_at("a", retry, 1).is_allowed(), "{row}");
            }
        }
    }
}

/// Counters of three words go to a file and come back with their carried excess.
#[test]
fn a_large_excess_survives_a_restart() {
    let folder = Folder::new();
    for (algorithm, limit) in [(Algorithm::SlidingCounter, 50_000), (Algorithm::SlidingLog, 50)] {
        let build = |clock| {
            let keyed = KeyedLimiter::<str>::builder(Quota::per_second(limit)).algorithm(algorithm);
            keyed.clock(clock).seed(folder.seed()).build().unwrap()
        };
        let before = build(Clock::manual().0);
        let _ = before.force("a", 7 * limit + 3);
        before.save(folder.file("state")).unwrap();
        let after = build(Clock::manual().0);
        assert_eq!(after.restore(folder.file("state")).unwrap(), 1, "{algorithm}");
        for at in [0, 1000, 4500, 6999, 7000, 7500, 8000, 9000] {
            let [one, two] = [&before, &after].map(|keyed| keyed.peek_at("a", ms(at), 1));
            assert_eq!(one, two, "{algorithm} at {at} ms");
        }
        assert_eq!(before.refund("a", u64::MAX), after.refund("a", u64::MAX), "{algorithm}");
    }
}

/// Places that are free again go to the debt as of now, and the rest of the log leaves as before.
#[test]
fn a_log_that_owes_gives_what_is_cancelled_to_the_debt() {
    let (limiter, _) = manual(Algorithm::SlidingLog, "5/s");
    let at = |tenths_ms: u64| ns(tenths_ms * 100_000);
    let first = limiter.reserve_at(at(0), 2, Duration::ZERO).unwrap();
    let second = limiter.reserve_at(at(3076), 3, Duration::ZERO).unwrap();
    assert!(limiter.force_at(at(3076), 4).is_allowed());
    let _ = first.settle_at(at(5000), 1);
    assert_eq!(limiter.refund_at(at(5267), 1), 1);
    // One permit of the debt took the place of the first at 1.0 s. The refund has taken one of the
    // second.
    assert_eq!(second.cancel_at(at(12_232)), 2);
    assert_eq!(limiter.available_at(at(12_232)), 1);
    assert_eq!(limiter.available_at(at(15_957)), 3);
}
