//! Step tables: worked examples of each algorithm as rows of times, calls and expected decisions.

use crate::support::*;
use tollgate::{Algorithm, Tick};

/// Rows of (time in ms, calls of cost 1 at that time, how many pass, the expected last decision).
type Rows<'a> = &'a [(u64, u64, u64, Expected)];

fn run(algorithm: Algorithm, quota: &str, rows: Rows<'_>) {
    let (limiter, _) = manual(algorithm, quota);
    for (row, (at_ms, calls, passed, last)) in rows.iter().enumerate() {
        let decisions: Vec<_> =
            (0..*calls).map(|_| limiter.try_acquire_at(ms(*at_ms), 1)).collect();
        let got = decisions.iter().filter(|decision| decision.is_allowed()).count() as u64;
        assert_eq!(got, *passed, "{algorithm} {quota}, row {row}, at {at_ms} ms");
        let got = decisions.last().map(seen);
        assert_eq!(got, Some(*last), "{algorithm} {quota}, row {row}, at {at_ms} ms");
    }
}

#[test]
fn token_bucket_of_seed_001() {
    // 10/s burst 20: 40 in two seconds, which is exactly rate x 2 s + burst.
    let rows: Rows<'_> = &[
        (0, 10, 10, allowed(10)),
        (1000, 30, 20, denied_for_ms(100)),
        (1500, 10, 5, denied_for_ms(100)),
        (2000, 5, 5, allowed(0)),
    ];
    run(Algorithm::TOKEN_BUCKET, "10/s burst 20", rows);
}

#[test]
fn leaky_bucket_as_a_meter_of_seed_001() {
    let rows: Rows<'_> =
        &[(0, 10, 10, allowed(10)), (500, 10, 10, allowed(5)), (1000, 30, 10, denied_for_ms(100))];
    run(Algorithm::LEAKY_BUCKET, "10/s burst 20", rows);
}

#[test]
fn token_bucket_with_a_fake_clock_of_seed_001() {
    let rows: Rows<'_> = &[(0, 6, 5, denied_for_ms(100)), (500, 6, 5, denied_for_ms(100))];
    run(Algorithm::Gcra, "10/s burst 5", rows);
}

#[test]
fn small_buckets_of_seed_003() {
    run(Algorithm::Gcra, "10/s burst 1", &[(0, 11, 1, denied_for_ms(100))]);
    run(Algorithm::Gcra, "10/s burst 20", &[(0, 21, 20, denied_for_ms(100))]);
}

#[test]
fn refills_in_fractions_and_never_above_the_burst() {
    let (limiter, _) = manual(Algorithm::Gcra, "100/s burst 10 initial empty");
    assert_eq!(seen(&limiter.peek_at(ms(7), 1)), denied_for_ms(3), "0.7 permits after 7 ms");
    let (limiter, _) = manual(Algorithm::Gcra, "1/s burst 5");
    assert_eq!(limiter.available_at(ms(60_000)), 5, "an hour idle is still the burst");
}

#[test]
fn the_worked_table_of_the_gcra_page() {
    let rows: Rows<'_> = &[
        (0, 6, 5, denied_for_ms(100)),
        (99, 1, 0, denied_for_ms(1)),
        (100, 1, 1, allowed(0)),
        (800, 1, 1, allowed(4)),
    ];
    run(Algorithm::Gcra, "10/s burst 5", rows);
}

#[test]
fn weighted_costs_wait_for_what_they_miss() {
    let (limiter, _) = manual(Algorithm::Gcra, "10/s burst 10");
    for (row, (at_ms, cost, expected)) in [
        (0, 7, allowed(3)),
        (0, 5, denied_for_ms(200)),
        (0, 11, never()),
        (0, 0, allowed(3)),
        (199, 5, denied_for_ms(1)),
        (200, 5, allowed(0)),
        (200, 10, denied_for_ms(1000)),
        (1200, 10, allowed(0)),
    ]
    .into_iter()
    .enumerate()
    {
        let decision = limiter.try_acquire_at(ms(at_ms), cost);
        assert_eq!(seen(&decision), expected, "row {row}, at {at_ms} ms");
    }
}

#[test]
fn fixed_window_lets_twice_the_limit_pass_across_a_border() {
    let rows: Rows<'_> = &[
        (59_000, 100, 100, allowed(0)),
        (59_999, 1, 0, denied_for_ms(1)),
        (60_000, 100, 100, allowed(0)),
        (60_000, 1, 0, denied_for_ms(60_000)),
    ];
    run(Algorithm::FixedWindow, "100/min", rows);
}

#[test]
fn anchored_window_starts_with_the_first_event() {
    let rows: Rows<'_> = &[
        (59_000, 100, 100, allowed(0)),
        (60_000, 1, 0, denied_for_ms(59_000)),
        (118_999, 1, 0, denied_for_ms(1)),
        (119_000, 100, 100, allowed(0)),
        (500_000, 1, 1, allowed(99)),
    ];
    run(Algorithm::AnchoredWindow, "100/min", rows);
}

#[test]
fn sliding_log_holds_in_every_window() {
    let rows: Rows<'_> = &[(59_000, 100, 100, allowed(0)), (60_000, 100, 0, denied_for_ms(59_000))];
    run(Algorithm::SlidingLog, "100/min", rows);
}

#[test]
fn sliding_log_is_half_open() {
    let (limiter, _) = manual(Algorithm::SlidingLog, "1/s");
    for (at_ns, expected) in [
        (0, allowed(0)),
        (999_999_999, denied_for_ns(1)),
        (1_000_000_000, allowed(0)),
        (1_000_000_000, denied_for_ns(1_000_000_000)),
    ] {
        assert_eq!(seen(&limiter.try_acquire_at(ns(at_ns), 1)), expected, "at {at_ns} ns");
    }
}

#[test]
fn sliding_counter_weighs_the_last_window() {
    let limit = 1_000_000_000;
    let (limiter, _) = manual(Algorithm::SlidingCounter, "100/min");
    let at = |ns: u64| Tick::from_nanos(ns);
    assert_eq!(limiter.up_to_at(at(59 * limit), 200).cost(), 100);
    // Until the border the whole last window counts; at the border one permit is free.
    assert_eq!(seen(&limiter.peek_at(at(60 * limit - 1), 1)), denied_for_ns(1));
    assert_eq!(limiter.up_to_at(at(60 * limit), 200).cost(), 1);
    // From then on, one every 0.6 s.
    assert_eq!(seen(&limiter.peek_at(at(60 * limit), 1)), denied_for_ms(600));
}

#[test]
fn the_wait_of_a_sliding_counter_ends_at_a_border_and_not_after_it() {
    // limit per minute, taken at, wanted, wait: whole seconds, where a nanosecond more would round
    // up to the next.
    for (row, (limit, at_s, cost, wait_s)) in
        [(10, 30, 1, 30), (1, 0, 1, 60), (10, 0, 6, 90), (10, 0, 10, 114), (60, 0, 60, 119)]
            .into_iter()
            .enumerate()
    {
        let (limiter, _) = manual(Algorithm::SlidingCounter, &format!("{limit}/min"));
        assert_eq!(limiter.up_to_at(ms(at_s * 1000), limit).cost(), limit, "row {row}");
        let refused = limiter.try_acquire_at(ms(at_s * 1000), cost);
        assert_eq!(seen(&refused), denied_for_ms(wait_s * 1000), "row {row}");
        let at = (at_s + wait_s) * 1_000_000_000;
        assert!(limiter.peek_at(ns(at - 1), cost).is_denied(), "row {row}");
        assert!(limiter.try_acquire_at(ns(at), cost).is_allowed(), "row {row}");
    }
}

#[test]
fn sliding_counter_errs_by_as_much_as_the_last_window() {
    let run = |algorithm, first, second| {
        let (limiter, _) = manual(algorithm, "100/min");
        assert_eq!(limiter.up_to_at(ms(first), 100).cost(), 100);
        limiter.up_to_at(ms(second), 100)
    };
    // All at the end of the last window: the counter admits 99 that the log refuses.
    assert_eq!(run(Algorithm::SlidingCounter, 59_999, 119_000).cost(), 99);
    assert!(run(Algorithm::SlidingLog, 59_999, 119_000).is_denied());
    // All at its start: the counter refuses 99 that the log admits.
    assert_eq!(run(Algorithm::SlidingCounter, 0, 60_000).cost(), 1);
    assert_eq!(run(Algorithm::SlidingLog, 0, 60_000).cost(), 100);
}

#[test]
fn appendix_e_of_seed_001_with_pinned_arrivals() {
    // 100 at 100/s, a pause, 100 within 100 ms, a pause, 200 at 200/s.
    let us = |phase: u64, step: u64, n: u64| (0..n).map(move |i| phase + i * step);
    let arrivals: Vec<u64> = us(0, 10_000, 100)
        .chain(us(2_000_000, 1_000, 100))
        .chain(us(3_000_000, 5_000, 200))
        .collect();
    for (algorithm, admitted, first_denial_us, retry_ns) in [
        (Algorithm::Gcra, 399, 3_995_000, 5_000_000),
        (Algorithm::FixedWindow, 300, 3_500_000, 500_000_000),
        (Algorithm::AnchoredWindow, 300, 3_500_000, 500_000_000),
        (Algorithm::SlidingCounter, 300, 3_005_000, 5_000_000),
        (Algorithm::SlidingLog, 300, 3_500_000, 500_000_000),
    ] {
        let (limiter, _) = manual(algorithm, "100/s");
        let decisions: Vec<_> = arrivals
            .iter()
            .map(|at| (*at, limiter.try_acquire_at(Tick::from_micros(*at), 1)))
            .collect();
        let passed = decisions.iter().filter(|(_, decision)| decision.is_allowed()).count();
        assert_eq!(passed, admitted, "{algorithm}");
        let (at, denial) = decisions.iter().find(|(_, decision)| decision.is_denied()).unwrap();
        assert_eq!((*at, seen(denial)), (first_denial_us, denied_for_ns(retry_ns)), "{algorithm}");
    }
}

#[test]
fn reservations_queue_up_one_behind_the_other() {
    // A Reserve that only reads the state would give the last three callers the same 100 ms.
    let (limiter, _) = manual(Algorithm::Gcra, "10/s burst 1");
    let slots: Vec<_> = (0..4).map(|_| limiter.reserve(1).unwrap().act_at()).collect();
    assert_eq!(slots, [ms(0), ms(100), ms(200), ms(300)]);
    // With a burst of three, the first three act at once.
    let (limiter, _) = manual(Algorithm::Gcra, "1 per 100ms burst 3");
    let slots: Vec<_> = (0..6).map(|_| limiter.reserve(1).unwrap().act_at()).collect();
    assert_eq!(slots, [0, 0, 0, 100, 200, 300].map(ms));
}

#[test]
fn a_rate_of_zero_is_a_budget_that_never_refills() {
    let (limiter, _) = manual(Algorithm::Gcra, "0/s burst 3");
    for (at_ms, expected) in [(0, allowed(2)), (0, allowed(1)), (9, allowed(0)), (99_999, never())]
    {
        assert_eq!(seen(&limiter.try_acquire_at(ms(at_ms), 1)), expected, "at {at_ms} ms");
    }
    assert_eq!(limiter.peek().full_at(), None);
}

#[test]
fn a_burst_of_zero_denies_all() {
    for algorithm in Algorithm::ALL {
        let (limiter, hand) = manual(algorithm, "0/s");
        hand.set(ms(5000));
        assert!(limiter.try_acquire().is_never(), "{algorithm}");
        assert!(limiter.up_to(5).is_never(), "{algorithm}");
        assert!(limiter.reserve(1).is_err(), "{algorithm}");
    }
    let (limiter, _) = manual(Algorithm::Gcra, "5/s burst 0");
    assert!(limiter.try_acquire().is_never());
}

#[test]
fn unlimited_admits_all_and_counts_nothing() {
    for algorithm in Algorithm::ALL {
        let (limiter, _) = manual(algorithm, "unlimited");
        for cost in [0, 1, u64::MAX] {
            assert!(limiter.try_acquire_n(cost).is_allowed(), "{algorithm}");
            assert!(limiter.force(cost).is_allowed(), "{algorithm}");
            assert_eq!(limiter.reserve(cost).unwrap().act_at(), Tick::ZERO);
        }
        assert_eq!(limiter.available(), u64::MAX);
    }
}

#[test]
fn a_fresh_limiter_holds_what_initial_says() {
    for algorithm in Algorithm::ALL {
        for (quota, permits) in [
            ("10/s", 10),
            ("10/s initial empty", 0),
            ("10/s initial 4", 4),
            ("10/s initial full", 10),
        ] {
            let (limiter, hand) = manual(algorithm, quota);
            assert_eq!(limiter.available(), permits, "{algorithm} {quota}");
            hand.set(Tick::from_secs(3));
            assert_eq!(limiter.available(), 10, "{algorithm} {quota}, three seconds later");
        }
    }
}

#[test]
fn forced_debt_is_paid_off_before_anything_passes() {
    for (algorithm, wait_ms) in [
        (Algorithm::Gcra, 1100),           // 11 permits above zero at 10/s
        (Algorithm::FixedWindow, 1000),    // forgotten with the window
        (Algorithm::AnchoredWindow, 1000), // the same
        (Algorithm::SlidingLog, 2000),     // ten leave after a second, ten take their place
    ] {
        let (limiter, _) = manual(algorithm, "10/s");
        assert!(limiter.force_at(ms(0), 20).is_allowed());
        assert_eq!(seen(&limiter.peek_at(ms(0), 1)), denied_for_ms(wait_ms), "{algorithm}");
        assert_eq!(limiter.available_at(ms(0)), 0);
        assert!(limiter.try_acquire_at(ms(0), 0).is_denied(), "{algorithm}: in debt");
    }
    // The counter carries ten into the next window, and one of them leaves as the one after it begins.
    let (limiter, _) = manual(Algorithm::SlidingCounter, "10/s");
    assert!(limiter.force_at(ms(0), 20).is_allowed());
    assert_eq!(seen(&limiter.peek_at(ms(0), 1)), denied_for_ms(2000));
}

#[test]
fn aligned_windows_follow_the_wall_clock() {
    let (clock, _hand) = tollgate::Clock::manual();
    // The clock's origin is 12:34:56.5 of some day; the minute ends 3.5 s later.
    let seconds = 20_000 * 86_400 + 12 * 3600 + 34 * 60 + 56;
    clock.set_wall_offset(std::time::Duration::from_millis(seconds * 1000 + 500));
    let limiter = on(clock.clone(), Algorithm::FixedWindow, "1/min");
    assert!(limiter.try_acquire_at(ms(0), 1).is_allowed());
    let denied = limiter.try_acquire_at(ms(0), 1);
    assert_eq!(seen(&denied), denied_for_ms(3500));
    let wall = clock.to_wall(denied.retry_at().unwrap());
    assert_eq!(wall.as_millis() % 60_000, 0, "windows start at whole minutes");
    assert!(limiter.try_acquire_at(ms(3500), 1).is_allowed());
}

#[test]
fn an_anchored_window_lasts_at_least_its_length_and_little_longer() {
    for (quota, longest_ns) in [
        ("5/s", 1_000_000),
        ("8000/min", 50_000_000),
        ("1000000/s", 1_000_000),
        ("10/ms", 1000),
        ("1 per 1us", 1),
    ] {
        let (limiter, _) = manual(Algorithm::AnchoredWindow, quota);
        let start = ns(123_456_789);
        let _ = limiter.up_to_at(start, u64::MAX);
        let wait = limiter.try_acquire_at(start, 1).retry_after(start).unwrap();
        let longer = wait.checked_sub(limiter.quota().period()).unwrap();
        assert!(longer.as_nanos() <= longest_ns, "{quota}: {longer:?} longer");
    }
}
