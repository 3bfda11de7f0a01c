//! G7: time that stands still, goes backwards or jumps; and the extremes of time and numbers.

use crate::support::*;
use std::time::Duration;
use tollgate::{Algorithm, Clock, Inherit, Limiter, Quota, Tick};

#[test]
fn nothing_refills_while_time_stands_still() {
    for algorithm in Algorithm::ALL {
        let (limiter, _) = manual(algorithm, "1000/s");
        let passed = (0..100_000).filter(|_| limiter.try_acquire().is_allowed()).count();
        assert_eq!(passed, 1000, "{algorithm}");
    }
}

#[test]
fn a_clock_set_backwards_grants_nothing_and_loses_nothing() {
    for algorithm in Algorithm::ALL {
        let (limiter, hand) = manual(algorithm, "10/s");
        hand.set(Tick::from_secs(100));
        assert_eq!(limiter.try_acquire_n(5).remaining(), 5, "{algorithm}");
        for back in [99, 50, 0] {
            hand.set(Tick::from_secs(back));
            assert_eq!(limiter.available(), 5, "{algorithm}: the rest is still there at {back} s");
        }
        assert!(limiter.try_acquire_n(5).is_allowed(), "{algorithm}");
        assert!(limiter.try_acquire().is_denied(), "{algorithm}: and no more");
        hand.set(Tick::from_secs(100));
        assert!(limiter.try_acquire().is_denied(), "{algorithm}: time has only caught up");
        hand.set(Tick::from_secs(102));
        assert_eq!(limiter.available(), 10, "{algorithm}");
    }
}

#[test]
fn a_time_passed_in_from_before_can_only_refuse_more() {
    for algorithm in Algorithm::ALL {
        let (limiter, _) = manual(algorithm, "10/s");
        assert!(limiter.try_acquire_at(Tick::from_secs(100), 5).is_allowed());
        let mut passed = 0;
        for back in [99, 98, 50, 0, 100] {
            passed += limiter.up_to_at(Tick::from_secs(back), 10).cost()
                * u64::from(limiter.peek_at(Tick::from_secs(back), 0).is_allowed());
        }
        assert!(passed <= 10, "{algorithm}: {passed}");
        assert_eq!(limiter.available_at(Tick::from_secs(102)), 10, "{algorithm}");
    }
}

#[test]
fn a_jump_far_ahead_fills_up_and_no_more() {
    for algorithm in Algorithm::ALL {
        for to in [Tick::from_secs(86_400 * 365), Tick::HORIZON, Tick::MAX] {
            let (limiter, _) = manual(algorithm, "10/s");
            let _ = limiter.up_to_at(Tick::from_secs(1), 10);
            let passed = (0..100).filter(|_| limiter.try_acquire_at(to, 1).is_allowed()).count();
            assert_eq!(passed, 10, "{algorithm} at {to}");
        }
    }
}

#[test]
fn no_number_breaks_a_limiter() {
    let numbers = [0, 1, 2, 9, 10, 11, 1 << 31, 1 << 32, 1 << 53, 1 << 62, u64::MAX - 1, u64::MAX];
    let mut random = Random(7);
    for algorithm in Algorithm::ALL {
        for quota in ["10/s", "1/month", "0/s", "1 per 1ns", "1000/ms", "7/min", "1/year"] {
            let (limiter, _) = manual(algorithm, quota);
            for _ in 0..2000 {
                let now = ns(numbers[random.below(12) as usize] ^ random.below(3));
                let cost = numbers[random.below(12) as usize];
                let decision = match random.below(6) {
                    0 => limiter.try_acquire_at(now, cost),
                    1 => limiter.up_to_at(now, cost),
                    2 => limiter.force_at(now, cost),
                    3 => limiter.peek_at(now, cost),
                    4 => {
                        let _ = limiter.refund_at(now, cost);
                        continue;
                    }
                    _ => match limiter.reserve_at(now, cost, Duration::from_nanos(cost)) {
                        Ok(reservation) => {
                            reservation.settle_at(now, numbers[random.below(12) as usize])
                        }
                        Err(refused) => refused.decision(),
                    },
                };
                assert!(decision.remaining() <= decision.limit(), "{algorithm} {quota}");
                let _ = (decision.retry_at(), decision.full_at(), format!("{decision:?}"));
            }
        }
    }
}

#[test]
fn costs_at_the_borders() {
    for algorithm in Algorithm::ALL {
        for (cost, passes, never) in [
            (0, true, false),
            (1, true, false),
            (10, true, false),
            (11, false, true),
            (u64::MAX, false, true),
        ] {
            let (limiter, _) = manual(algorithm, "10/s");
            let decision = limiter.try_acquire_n(cost);
            assert_eq!(
                (decision.is_allowed(), decision.is_never()),
                (passes, never),
                "{algorithm} {cost}"
            );
        }
    }
}

#[test]
fn ten_years_of_uptime_are_no_trouble() {
    let ten_years = 10 * 365 * 86_400;
    for algorithm in Algorithm::ALL {
        for quota in ["1000000000/s burst 1000", "3/s", "1/month", "700000000/s burst 10"] {
            let quota: Quota = quota.parse().unwrap();
            let quota = match algorithm {
                Algorithm::Gcra => quota,
                _ => Quota::per(quota.capacity(), quota.period()),
            };
            let (clock, _hand) = Clock::manual();
            let built = Limiter::builder(quota).algorithm(algorithm).clock(clock).build();
            let limiter = built.unwrap();
            let now = Tick::from_secs(ten_years);
            assert_eq!(
                limiter.up_to_at(now, u64::MAX).cost(),
                quota.capacity(),
                "{algorithm} {quota}"
            );
            let denied = limiter.try_acquire_at(now, 1);
            let retry_at = denied.retry_at().unwrap();
            assert!(
                limiter.peek_at(ns(retry_at.as_nanos() - 1), 1).is_denied(),
                "{algorithm} {quota}"
            );
            assert!(limiter.try_acquire_at(retry_at, 1).is_allowed(), "{algorithm} {quota}");
        }
    }
}

#[test]
fn the_wall_offset_is_kept_until_measured_again() {
    let clock = Clock::monotonic();
    let first = clock.wall_offset();
    assert!(first > Duration::from_secs(1_600_000_000), "the origin is after 2020: {first:?}");
    clock.set_wall_offset(Duration::from_secs(5));
    assert_eq!(clock.to_wall(Tick::from_secs(2)), Duration::from_secs(7));
    assert_eq!(clock.from_wall(Duration::from_secs(7)), Tick::from_secs(2));
    assert_eq!(clock.from_wall(Duration::from_secs(1)), Tick::ZERO);
    clock.resync_wall();
    let again = clock.wall_offset();
    assert!(again.abs_diff(first) < Duration::from_secs(5), "{first:?} and {again:?}");
}

#[test]
fn a_wall_clock_that_is_set_moves_no_running_window() {
    let (clock, hand) = Clock::manual();
    let limiter = on(clock.clone(), Algorithm::FixedWindow, "1/min");
    hand.set(Tick::from_secs(10));
    assert!(limiter.try_acquire().is_allowed());
    clock.set_wall_offset(Duration::from_secs(55));
    hand.set(Tick::from_secs(59));
    assert!(limiter.try_acquire().is_denied(), "the window still ends at 60 s");
    hand.set(Tick::from_secs(60));
    assert!(limiter.try_acquire().is_allowed());
    // A new quota follows the new offset: the minute now ends at 65 s.
    limiter.set_quota(Quota::per_minute(2), tollgate::Inherit::Reset).unwrap();
    assert_eq!(limiter.try_acquire_n(2).full_at(), Some(Tick::from_secs(65)));
}

#[test]
fn the_monotonic_clock_decides_exactly_with_its_early_reading() {
    // A few decisions, all on the real clock: the burst passes, and nothing else.
    let limiter = Limiter::new("1/h burst 1000".parse().unwrap()).unwrap();
    let passed = (0..100_000).filter(|_| limiter.try_acquire().is_allowed()).count();
    assert_eq!(passed, 1000);
    let denied = limiter.try_acquire();
    let wait = denied.retry_after(limiter.now()).unwrap();
    assert!(wait <= Duration::from_secs(3600) && wait > Duration::from_secs(3500), "{wait:?}");
}

#[test]
fn the_cached_clock_moves_and_its_thread_ends_with_it() {
    let clock = Clock::cached().unwrap();
    let start = clock.now();
    // Bounded: the thread writes the time every millisecond. Yielding is not sleeping.
    let moved = (0..50_000_000_u64).any(|_| {
        std::thread::yield_now();
        clock.now() > start
    });
    assert!(moved, "the cached clock stands still");
    let limiter = Limiter::builder(Quota::once(2)).clock(clock.clone()).build().unwrap();
    assert_eq!((0..5).filter(|_| limiter.try_acquire().is_allowed()).count(), 2);
}

/// A window that a change of quota empties is idle, also at an earlier time and before the first
/// border.
#[test]
fn a_window_that_a_change_has_emptied_is_fresh_at_an_earlier_time() {
    for algorithm in Algorithm::ALL.into_iter().filter(|it| *it != Algorithm::Gcra) {
        let (clock, _hand) = Clock::manual();
        clock.set_wall_offset(Duration::from_nanos(112_633_347_555_969_300));
        let quota: Quota = "51 per 151160543ns".parse().unwrap();
        let limiter = Limiter::builder(quota).algorithm(algorithm).clock(clock).build().unwrap();
        let changed = Tick::from_nanos(3_278_160_797_526);
        limiter.set_quota_at(changed, Quota::per_hour(2), Inherit::AsIs).unwrap();
        let earlier = Tick::from_nanos(2_635_011_375_507);
        assert!(limiter.try_acquire_at(earlier, 2).is_allowed(), "{algorithm}");
        assert!(limiter.try_acquire_at(earlier, 1).is_denied(), "{algorithm}");
    }
}
