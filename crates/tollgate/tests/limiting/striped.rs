//! One limit over several stripes: never more than one limiter, and nearly as much.

use crate::support::*;
use proptest::prelude::*;
use std::{thread, time::Duration};
use tollgate::{
    Algorithm, Clock, Inherit, Initial, Limiter, ManualClock, Quota, Reach, StripedBuilder,
    StripedLimiter,
};

/// A limiter on a manual clock; the quota in text form.
fn striped(quota: &str, stripes: usize) -> (StripedLimiter, ManualClock) {
    let (clock, hand) = Clock::manual();
    (builder(quota, stripes).clock(clock).build().unwrap(), hand)
}

fn builder(quota: &str, stripes: usize) -> StripedBuilder {
    StripedLimiter::builder(quota.parse().unwrap()).stripes(stripes)
}

#[test]
fn types_are_shareable_and_printable() {
    fn shared<T: Send + Sync + std::fmt::Debug>() {}
    shared::<StripedLimiter>();
    shared::<StripedBuilder>();
    shared::<Reach>();
    assert_eq!(size_of::<StripedLimiter>(), 8);
    let limiter = builder("10/s burst 8", 4).name("api").build().unwrap();
    let text = format!("{limiter:?}");
    assert!(text.contains("\"api\"") && text.contains("10/s burst 8"), "{text}");
}

/// The expectation of a row: the free permits afterwards, or the wait.
#[derive(Debug, PartialEq)]
enum Row {
    Passes(u64),
    WaitsMs(u64),
    Never,
}

fn assert_rows(limiter: &StripedLimiter, rows: &[(u64, u64, Row)]) {
    for (row, (at_ms, cost, expected)) in rows.iter().enumerate() {
        let now = ms(*at_ms);
        let (foreseen, before) = (limiter.peek_at(now, *cost), limiter.available_at(now));
        let decision = limiter.try_acquire_at(now, *cost);
        let seen = match seen(&decision) {
            Expected::Allowed(_) => Row::Passes(limiter.available_at(now)),
            Expected::DeniedForNs(wait) => Row::WaitsMs(wait / 1_000_000),
            Expected::Never => Row::Never,
        };
        assert_eq!(seen, *expected, "row {row}, cost {cost} at {at_ms} ms");
        assert_eq!(foreseen.outcome(), decision.outcome(), "row {row}: peek agrees");
        assert_eq!(foreseen.retry_at(), decision.retry_at(), "row {row}: peek agrees");
        if decision.is_denied() {
            assert_eq!(limiter.available_at(now), before, "row {row}: a denial takes nothing");
        } else {
            assert!(decision.remaining() <= limiter.available_at(now), "row {row}: lower bound");
        }
    }
}

#[test]
fn single_permits_come_from_every_stripe() {
    // Four stripes of 250/s burst 2: each brings a permit every 4 ms.
    let (limiter, _) = striped("1000/s burst 8", 4);
    let mut rows: Vec<_> = (0..8).rev().map(|left| (0, 1, Row::Passes(left))).collect();
    rows.extend([
        (0, 1, Row::WaitsMs(4)), // all stripes were emptied at one instant
        (3, 1, Row::WaitsMs(1)),
        (4, 1, Row::Passes(3)),
        (4, 3, Row::Passes(0)),
        (4, 1, Row::WaitsMs(4)),
        (12, 1, Row::Passes(7)),
        (1000, 1, Row::Passes(7)), // full, and no more than full
        (999, 1, Row::Passes(5)),  // time backwards: as of then, nothing granted
    ]);
    assert_rows(&limiter, &rows);
}

#[test]
fn a_large_cost_takes_from_several_stripes_or_from_none() {
    let (limiter, _) = striped("1000/s burst 8", 4);
    assert_rows(
        &limiter,
        &[
            (0, 9, Row::Never), // above the whole burst
            (0, 0, Row::Passes(8)),
            (0, 5, Row::Passes(3)),
            (0, 4, Row::WaitsMs(4)),
            (0, 3, Row::Passes(0)),
            (0, 8, Row::WaitsMs(8)),
            (7, 5, Row::WaitsMs(1)),
            (8, 8, Row::Passes(0)),
            (8, 2, Row::WaitsMs(4)),
            (12, 4, Row::Passes(0)),
        ],
    );
}

#[test]
fn a_budget_that_never_refills_is_spent_to_the_last_permit() {
    let (limiter, _) = striped("0/s burst 10", 4);
    assert_rows(
        &limiter,
        &[
            (0, 7, Row::Passes(3)),
            (0, 4, Row::Never), // no wait helps
            (0, 2, Row::Passes(1)),
            (5_000, 1, Row::Passes(0)),
            (9_000, 1, Row::Never),
        ],
    );
}

#[test]
fn windows_admit_their_limit_and_no_more() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog] {
        let (clock, _hand) = Clock::manual();
        let build = builder("10/s", 4).algorithm(algorithm).clock(clock);
        let limiter = build.build().unwrap();
        assert_eq!(limiter.algorithm(), algorithm);
        let mut rows: Vec<_> = (0..10).rev().map(|left| (0, 1, Row::Passes(left))).collect();
        rows.extend([
            (0, 1, Row::WaitsMs(1000)),
            (400, 7, Row::WaitsMs(600)),
            (999, 1, Row::WaitsMs(1)),
            (1000, 7, Row::Passes(3)),
            (1500, 11, Row::Never),
            (1500, 4, Row::WaitsMs(500)),
        ]);
        assert_rows(&limiter, &rows);
    }
}

#[test]
fn home_reach_gives_a_thread_its_share_and_no_more() {
    let (clock, _hand) = Clock::manual();
    let limiter = builder("1000/s burst 8", 4).reach(Reach::Home).clock(clock).build().unwrap();
    let passed = (0..8).filter(|_| limiter.try_acquire().is_allowed()).count();
    assert_eq!((passed, limiter.available()), (2, 6), "b - bi are refused although free");
    assert!(limiter.try_acquire_n(3).is_never(), "above the share");
    assert_eq!(limiter.peek().retry_at(), Some(ms(4)));
}

/// The waste of striping: full stripes do not refill, although others have room.
#[test]
fn a_burst_on_one_stripe_refills_at_its_share_of_the_rate() {
    let (limiter, _) = striped("1000/s burst 40", 4);
    let one = Limiter::new(limiter.quota()).unwrap();
    for _ in 0..10 {
        assert!(limiter.try_acquire_at(ms(0), 1).is_allowed());
        assert!(one.try_acquire_at(ms(0), 1).is_allowed());
    }
    assert_eq!((limiter.available_at(ms(8)), one.available_at(ms(8))), (32, 38));
    assert_eq!((limiter.available_at(ms(40)), one.available_at(ms(40))), (40, 40));
}

#[test]
fn a_key_stays_on_its_stripe_and_an_exempt_one_does_not() {
    let (clock, _hand) = Clock::manual();
    let build = builder("0/s burst 40", 4).clock(clock).exempt("vip").exempt_keys([7, 8]);
    let limiter = build.build().unwrap();
    assert!(limiter.is_exempt("vip") && limiter.is_exempt(&7) && !limiter.is_exempt("guest"));
    let take = |key: &str| limiter.try_acquire_for(key).is_allowed();
    assert_eq!((0..40).filter(|_| take("guest")).count(), 10);
    assert!(limiter.try_acquire_for_n("other", 11).is_never(), "above the share");
    assert_eq!((0..40).filter(|_| take("vip")).count(), 30, "all that is left anywhere");
    assert_eq!(limiter.available(), 0);
    limiter.reset();
    assert!(limiter.try_acquire_for_n("vip", 38).is_allowed());
    assert!(limiter.try_acquire_for_n(&8, 3).is_denied());
    assert!(limiter.try_acquire_for_n(&8, 2).is_allowed());
}

#[test]
fn keys_spread_over_all_stripes() {
    let (limiter, _) = striped("0/s burst 7000", 7);
    for key in 0..4_000 {
        assert!(limiter.try_acquire_for(&key).is_allowed());
    }
    // About 571 of 1000 are taken from each; with one stripe left out it would be 666.
    assert_eq!(limiter.available(), 3_000);
}

#[test]
fn refuses_nonsense_and_says_what_to_do() {
    let build = |quota: &str, stripes| builder(quota, stripes);
    let too_many = StripedLimiter::EXEMPT_MAX as u64 + 1;
    for (builder, text) in [
        (
            build("10/s burst 7", 8),
            "burst 7 is below 8, the number of stripes, but each stripe needs a permit; raise the \
             burst, or use fewer stripes",
        ),
        (build("10/s", 0), "0 stripes is out of range; use 1 to 64, about as many as processors"),
        (
            build("1000/s", 65),
            "65 stripes is out of range; use 1 to 64, about as many as processors",
        ),
        (
            build("unlimited", 2),
            "an unlimited quota has nothing to split into stripes; use a limiter, or give a rate",
        ),
        (
            build("10/s", 2).algorithm(Algorithm::SlidingCounter),
            "sliding-counter cannot be split, because the bounds of its stripes do not add up to \
             the whole; use gcra, fixed-window or sliding-log",
        ),
        (
            build("7 per 300d burst 7", 2),
            "7 permits over 2 stripes would give each a period of 51840000s, longer than 366 days; \
             use fewer stripes, or a limiter",
        ),
        (
            build("10/s", 2).exempt_keys(0..too_many),
            "1025 exempt keys are more than 1024; exempt fewer, or use a limiter of their own",
        ),
        (
            build("10/s burst 20", 2).algorithm(Algorithm::FixedWindow),
            "burst 20 has no effect with fixed-window, which admits its limit of 10 at once; \
             remove the burst, or use gcra",
        ),
    ] {
        assert_eq!(builder.build().unwrap_err().to_string(), text);
    }
    assert!(builder("10/s", 2).exempt_keys(vec![1; 5_000]).build().is_ok(), "one key, not 5000");
}

#[test]
fn the_default_number_of_stripes_fits_the_machine_and_the_quota() {
    let stripes =
        |quota: &str| StripedLimiter::builder(quota.parse().unwrap()).build().unwrap().stripes();
    let processors = thread::available_parallelism().unwrap().get();
    assert_eq!(stripes("1000000/s"), processors.next_power_of_two().min(64));
    assert_eq!(stripes("1000000/s burst 1"), 1, "the same program starts on any machine");
    assert_eq!(stripes("1 per 366d burst 4"), 1);
    assert!(StripedLimiter::builder(Quota::unlimited()).build().is_err());
}

#[test]
fn an_initial_fill_is_split_too() {
    let (clock, _hand) = Clock::manual();
    for (initial, free) in [(Initial::Full, 100), (Initial::Empty, 0), (Initial::Permits(43), 43)] {
        let quota = Quota::per_second(10).burst(100).initial(initial);
        let limiter =
            StripedLimiter::builder(quota).stripes(8).clock(clock.clone()).build().unwrap();
        assert_eq!(limiter.available(), free, "{initial:?}");
    }
}

#[test]
fn a_quota_changes_in_flight_and_its_shares_stay_exact() {
    let (limiter, _) = striped("100/s burst 100", 8);
    assert!(limiter.try_acquire_n(60).is_allowed());
    let set = |quota: &str, how| limiter.set_quota(quota.parse().unwrap(), how);
    for (quota, how, free) in [
        ("30/s burst 501", Inherit::Additive, 441),
        ("1000/s burst 501", Inherit::AsIs, 441),
        ("1000/s burst 75", Inherit::Reset, 75),
    ] {
        set(quota, how).unwrap();
        let shares = limiter.shares();
        let burst: u64 = shares.iter().map(Quota::capacity).sum();
        let rate: f64 = shares.iter().map(|q| q.count() as f64 / q.period().as_secs_f64()).sum();
        let whole = limiter.quota();
        assert_eq!(whole.to_string(), quota);
        assert_eq!(burst, whole.capacity(), "{quota}");
        assert!((rate - whole.count() as f64).abs() < 1e-9, "{quota}: {rate}");
        assert_eq!(limiter.available(), free, "{quota}");
    }
    // Refused changes leave everything as it was.
    let refused = |quota| set(quota, Inherit::AsIs).unwrap_err().to_string();
    assert!(refused("9/s burst 7").starts_with("burst 7 is below 8, the number of stripes"));
    assert!(refused("unlimited").starts_with("an unlimited quota has nothing to split"));
    assert_eq!(
        (limiter.quota().to_string().as_str(), limiter.available()),
        ("1000/s burst 75", 75)
    );
}

#[test]
fn what_is_given_back_is_what_was_taken() {
    let (limiter, hand) = striped("0/s burst 40", 4);
    assert_eq!(limiter.refund(5), 0, "never above full");
    assert!(limiter.try_acquire_n(33).is_allowed());
    assert_eq!((limiter.refund(30), limiter.available()), (30, 37));
    assert_eq!((limiter.refund(30), limiter.available()), (3, 40));
    // Permits that have refilled are not given back too, including fractions: a stripe brings a
    // permit in 4 ms.
    limiter.set_quota("1000/s burst 40".parse().unwrap(), Inherit::Reset).unwrap();
    assert!(limiter.try_acquire_n(40).is_allowed());
    hand.advance(Duration::from_millis(6));
    assert_eq!(limiter.available(), 4);
    assert_eq!(limiter.refund(12), 12);
    assert_eq!(limiter.available(), 16);
    let given = limiter.refund(100);
    assert!((20..=24).contains(&given), "{given}: 22 were outstanding");
    assert_eq!(limiter.available(), 40);
}

/// A refusal stores when the next permit comes; after any change, the next call sees it.
#[test]
fn a_refusal_is_forgotten_when_something_changes() {
    let (clock, _hand) = Clock::manual();
    let limiter = builder("1000/s burst 8", 4).clock(clock).exempt("vip").build().unwrap();
    let drain = || {
        limiter.reset();
        while limiter.try_acquire().is_allowed() {}
        let (first, again) = (limiter.try_acquire(), limiter.try_acquire());
        assert_eq!(first, again, "from the note");
        assert_eq!(first, limiter.peek(), "as a look at all stripes says");
        assert_eq!(first, limiter.try_acquire_for("vip"));
        assert_eq!((first.limit(), first.remaining(), first.retry_at()), (8, 0, Some(ms(4))));
        assert_eq!(first.full_at(), Some(ms(8)));
        assert!(limiter.try_acquire_at(ms(3), 1).is_denied());
    };
    drain();
    assert!(limiter.try_acquire_at(ms(4), 1).is_allowed(), "the time has come");
    drain();
    assert_eq!(limiter.refund(1), 1);
    assert!(limiter.try_acquire().is_allowed());
    drain();
    assert!(limiter.force(4).is_allowed());
    assert_eq!(limiter.try_acquire().retry_at(), Some(ms(8)));
    drain();
    limiter.reset();
    assert!(limiter.try_acquire().is_allowed());
    drain();
    limiter.set_quota("1000/s burst 16".parse().unwrap(), Inherit::Additive).unwrap();
    assert!(limiter.try_acquire().is_allowed());
}

#[test]
fn a_debt_is_shared_by_all_stripes() {
    let (limiter, hand) = striped("1000/s burst 8", 4);
    let decision = limiter.force(20);
    assert!(decision.is_allowed());
    assert_eq!((decision.cost(), decision.remaining(), limiter.available()), (20, 0, 0));
    assert!(limiter.try_acquire_n(0).is_denied(), "in debt");
    // Each of the four owes 3: out of debt after 12 ms, a permit after 16 ms.
    assert_eq!(limiter.peek_n(0).retry_at(), Some(ms(12)));
    assert_eq!(limiter.peek().retry_at(), Some(ms(16)));
    hand.advance(Duration::from_millis(16));
    assert_eq!(limiter.available(), 4);
    assert_eq!(limiter.refund(100), 4);
    assert_eq!(limiter.available(), 8);
    assert!(limiter.force(u64::MAX).is_never(), "an absurd debt");
    assert_eq!(limiter.available(), 8, "and nothing is booked");
    assert!(limiter.force(50).is_allowed());
    limiter.reset();
    assert_eq!(limiter.available(), 8);
}

/// One step of a random trace: time passes, then a call.
fn steps() -> impl Strategy<Value = Vec<(u64, u64, Option<u8>)>> {
    let key = proptest::option::of(0..6_u8);
    proptest::collection::vec((prop_oneof![Just(0), 0..6_u64], 1..9_u64, key), 1..200)
}

proptest! {
    /// A single limiter that is charged with the stripes' admissions admits all of them.
    ///
    /// Times are whole milliseconds and the quota brings whole permits in each, so that the single
    /// limiter is exact; see `never_exceeds_the_bound_at_odd_times` for the rounding.
    #[test]
    fn never_admits_what_one_limiter_would_not(
        (stripes, extra, count) in (1..9_usize, 0..40_u64, 0..12_u64), steps in steps(),
    ) {
        let quota = Quota::per(count, Duration::from_millis(1)).burst(stripes as u64 + extra);
        let build = StripedLimiter::builder(quota).stripes(stripes).exempt(&0_u8);
        let limiter = build.build().unwrap();
        let one = Limiter::new(quota).unwrap();
        let mut now = 0;
        for (wait, cost, key) in steps {
            now += wait;
            let decision = match key {
                Some(key) => limiter.try_acquire_for_at(&key, ms(now), cost),
                None => limiter.try_acquire_at(ms(now), cost),
            };
            if decision.is_allowed() {
                prop_assert!(one.try_acquire_at(ms(now), cost).is_allowed(), "over at {now} ms");
            }
            prop_assert!(limiter.available_at(ms(now)) <= one.available_at(ms(now)));
        }
    }

    /// With single permits, one limiter that gets the same calls is always ahead; and no call is
    /// refused while any stripe has a permit.
    #[test]
    fn one_limiter_is_always_ahead(
        (stripes, extra, count) in (1..9_usize, 0..40_u64, 0..12_u64), steps in steps(),
    ) {
        let quota = Quota::per(count, Duration::from_millis(1)).burst(stripes as u64 + extra);
        let limiter = StripedLimiter::builder(quota).stripes(stripes).build().unwrap();
        let one = Limiter::new(quota).unwrap();
        let (mut now, mut passed, mut most) = (0, 0_u64, 0_u64);
        for (wait, calls, _) in steps {
            now += wait;
            for _ in 0..calls {
                let free = limiter.available_at(ms(now));
                let passes = limiter.try_acquire_at(ms(now), 1).is_allowed();
                prop_assert_eq!(passes, free > 0, "refused although free");
                passed += u64::from(passes);
                most += u64::from(one.try_acquire_at(ms(now), 1).is_allowed());
                prop_assert!(passed <= most);
            }
        }
    }

    /// G4: one tick before `retry_at` the call is denied, at `retry_at` it passes.
    #[test]
    fn waits_are_exact_to_the_tick(
        (stripes, extra, count) in (1..9_usize, 0..20_u64, 1..2_000_u64),
        steps in proptest::collection::vec((0..3_000_000_u64, 0..30_u64, any::<bool>()), 1..60),
        algorithm in prop_oneof![
            Just(Algorithm::Gcra), Just(Algorithm::SlidingLog), Just(Algorithm::FixedWindow),
        ],
    ) {
        let burst = stripes as u64 + extra;
        let quota = match algorithm {
            Algorithm::Gcra => Quota::per_second(count).burst(burst),
            _ => Quota::per(burst, Duration::from_millis(7)),
        };
        let build = StripedLimiter::builder(quota).stripes(stripes).algorithm(algorithm);
        let limiter = build.build().unwrap();
        let mut now = 0;
        for (wait, cost, force) in steps {
            now += wait;
            if force && algorithm == Algorithm::Gcra {
                let _ = limiter.force_at(ns(now), cost / 4);
            }
            let foreseen = limiter.peek_at(ns(now), cost);
            let decision = limiter.try_acquire_at(ns(now), cost);
            prop_assert_eq!(foreseen.outcome(), decision.outcome());
            match decision.retry_at() {
                Some(at) => {
                    prop_assert!(at > ns(now));
                    prop_assert!(limiter.peek_at(at, cost).is_allowed());
                    prop_assert!(limiter.peek_at(ns(at.as_nanos() - 1), cost).is_denied());
                }
                None => prop_assert_eq!(decision.is_denied(), cost > burst),
            }
        }
    }

    /// Taking and giving back on a standing clock is plain arithmetic.
    #[test]
    fn nothing_is_lost_or_gained_on_a_standing_clock(
        (stripes, extra) in (1..9_usize, 0..60_u64),
        steps in proptest::collection::vec((0..40_u64, any::<bool>()), 1..80),
    ) {
        let burst = stripes as u64 + extra;
        let limiter = StripedLimiter::builder(Quota::once(burst)).stripes(stripes).build().unwrap();
        let mut free = burst;
        for (cost, take) in steps {
            if take {
                let passes = limiter.try_acquire_at(ms(1), cost).is_allowed();
                prop_assert_eq!(passes, free >= cost);
                free -= if passes { cost } else { 0 };
            } else {
                let given = limiter.refund_at(ms(1), cost);
                prop_assert_eq!(given, cost.min(burst - free));
                free += given;
            }
            prop_assert_eq!(limiter.available_at(ms(1)), free);
        }
    }

    /// A debt in equal parts is paid off like that of one limiter, never sooner.
    #[test]
    fn a_debt_is_paid_off_as_one_limiter_pays_it(
        (stripes, extra, count) in (1..9_usize, 0..40_u64, 1..12_u64),
        (taken, forced) in (0..40_u64, 0..200_u64),
    ) {
        let quota = Quota::per(count, Duration::from_millis(1)).burst(stripes as u64 + extra);
        let limiter = StripedLimiter::builder(quota).stripes(stripes).build().unwrap();
        let one = Limiter::new(quota).unwrap();
        let passes = limiter.try_acquire_at(ms(0), taken).is_allowed();
        prop_assert_eq!(passes, one.try_acquire_at(ms(0), taken).is_allowed());
        prop_assert!(limiter.force_at(ms(0), forced).is_allowed());
        prop_assert!(one.force_at(ms(0), forced).is_allowed());
        for now in 0..300 {
            let (got, most) = (limiter.available_at(ms(now)), one.available_at(ms(now)));
            prop_assert!(got <= most, "{got} of {most} at {now} ms");
        }
        // Never more than the permits given, debts first.
        let given = limiter.refund_at(ms(0), forced);
        prop_assert!(given <= forced);
        let full = limiter.peek_at(ms(0), 0);
        prop_assert!(full.remaining() <= full.limit());
    }
}
