//! Rate laws, stepped period by period: the worked numbers, and the traps of the sources.

use proptest::prelude::*;
use std::time::Duration;
use tollgate::adaptive::{
    LimitReason,
    law::LawError,
    rate::{AimdRate, CpuRate, LittleRate, Period, RateLaw, RateReport, StepRate, SuccessRate},
};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn calls(successes: u64, failures: u64) -> Period {
    Period { successes, failures, length: ms(1000), ..Period::default() }
}

fn health(error_rate: f64, p99_ms: u64) -> Period {
    Period { error_rate: Some(error_rate), latency: Some(ms(p99_ms)), ..calls(0, 0) }
}

fn cpu(load: f64) -> Period {
    Period { cpu: Some(load), ..calls(0, 0) }
}

fn least(millis: u64) -> Period {
    Period { least_latency: Some(ms(millis)), ..calls(20, 0) }
}

/// Steps a law through a table of (period, rate, reason).
fn step(mut law: impl RateLaw, table: &[(Period, f64, LimitReason)]) {
    for (row, (period, rate, reason)) in table.iter().enumerate() {
        let found = law.decide(period);
        assert!((found - rate).abs() < 1e-9, "row {row}: {found} and not {rate}, {law:?}");
        assert_eq!(law.report().reason, *reason, "row {row}: {law:?}");
    }
}

#[test]
fn aimd_takes_a_step_up_or_a_factor_down_per_period() {
    use LimitReason::{AtMin, Growing, Holding, Overload, Queueing};
    let law = AimdRate::builder(10.0..=200.0).initial(100.0).step(5.0).factor(0.5);
    step(
        law.build().unwrap(),
        &[
            (calls(1, 0), 105.0, Growing),
            (calls(1, 0), 110.0, Growing),
            (calls(0, 1), 55.0, Overload),
            (calls(0, 1), 27.5, Overload),
            (calls(0, 1), 13.75, Overload),
            (calls(0, 1), 10.0, Overload),
            (calls(0, 1), 10.0, AtMin),
            // One cut per period, however many calls failed in it.
            (calls(1000, 0), 15.0, Growing),
            (calls(0, 1000), 10.0, Overload),
            // 5 to 10 % bad: neither up nor down.
            (calls(95, 5), 10.0, Holding),
            (calls(90, 10), 10.0, Holding),
            (calls(96, 4), 15.0, Growing),
            (Period { slow: 11, ..calls(89, 0) }, 10.0, Queueing),
            (calls(0, 0), 10.0, Holding),
        ],
    );
}

#[test]
fn a_rate_has_a_ceiling() {
    let mut law = AimdRate::builder(10.0..=104.0).initial(100.0).step(5.0).build().unwrap();
    assert_eq!((law.decide(&calls(9, 0)), law.report().reason), (104.0, LimitReason::Growing));
    assert_eq!((law.decide(&calls(9, 0)), law.report().reason), (104.0, LimitReason::AtMax));
}

/// The threshold is a percentile of earlier latencies.
#[test]
fn a_moving_threshold_follows_what_is_usual() {
    let law = AimdRate::builder(10.0..=200.0).slow_above_recent(99.0);
    let mut law = law.build().unwrap();
    assert_eq!(law.measures().slow_above, None, "nothing is known yet");
    let usual = Period { latency: Some(ms(100)), ..calls(50, 0) };
    let _ = law.decide(&usual);
    assert_eq!(law.measures().slow_above, Some(ms(100)));
    let _ = law.decide(&Period { latency: Some(ms(200)), ..usual });
    assert_eq!(law.measures().slow_above, Some(ms(110)), "a good period weighs a tenth");
    let overload = Period { slow: 50, latency: Some(ms(2110)), ..calls(0, 0) };
    let _ = law.decide(&overload);
    assert_eq!(law.measures().slow_above, Some(ms(130)), "and a bad one a hundredth");
}

#[test]
fn steps_cut_at_once_and_relax_slowly() {
    use LimitReason::{AtMin, Growing, Holding, Overload, Queueing};
    let law = StepRate::builder(10.0..=1000.0).build().unwrap();
    step(
        law,
        &[
            (health(0.01, 500), 1000.0, Holding), // equal is not above
            (health(0.011, 10), 500.0, Overload),
            (health(0.0, 501), 500.0, Holding),
            (health(0.0, 2001), 250.0, Queueing),
            (health(0.051, 10), 250.0, Holding),
            // Three clean periods below 0.7 of 5 % and 2 s: one level up, by a tenth at a time.
            (health(0.034, 1399), 250.0, Holding),
            (health(0.034, 1399), 250.0, Holding),
            (health(0.036, 10), 250.0, Holding), // not clean: from the beginning
            (health(0.034, 10), 250.0, Holding),
            (health(0.034, 10), 250.0, Holding),
            (health(0.034, 10), 275.0, Growing),
            (health(0.0, 10), 302.5, Growing),
            (health(0.0, 10), 332.75, Growing),
            // The third clean period at half: now the aim is the full limit.
            (health(0.0, 10), 366.025, Growing),
            (health(0.06, 10), 250.0, Overload),
        ],
    );
    // Without measurements nothing moves.
    let mut law = StepRate::builder(10.0..=1000.0).build().unwrap();
    let _ = law.decide(&health(0.06, 10));
    assert!((0..10).all(|_| law.decide(&calls(0, 0)) == 250.0));
    // Back to the full limit.
    assert_eq!((0..40).map(|_| law.decide(&health(0.0, 10))).last(), Some(1000.0));
    // A quarter of 3 is not 0: the floor holds.
    step(
        StepRate::builder(1.0..=3.0).build().unwrap(),
        &[
            (health(0.02, 10), 1.5, Overload),
            (health(0.06, 10), 1.0, Overload),
            (health(0.06, 10), 1.0, Holding),
        ],
    );
    let mut floor = StepRate::builder(2.0..=3.0).build().unwrap();
    let _ = (floor.decide(&health(0.02, 10)), floor.decide(&health(0.06, 10)));
    assert_eq!((floor.report().rate, floor.report().reason), (2.0, AtMin));
}

#[test]
fn cpu_moves_the_rate_towards_its_target() {
    use LimitReason::{AtMax, Growing, Holding, Overload};
    // The usual form: above 1.1 x target by a factor of 0.8, below 0.9 x target by 1.1. No mean.
    let seed = CpuRate::builder(10.0..=120.0).initial(100.0).target(0.5).dead_band(0.05);
    let seed = seed.lowest_factor(0.8).highest_factor(1.1).smoothing(Duration::from_nanos(1));
    step(
        seed.build().unwrap(),
        &[
            (cpu(0.55), 100.0, Holding),
            (cpu(0.45), 100.0, Holding),
            (cpu(0.9), 80.0, Overload),
            (cpu(1.0), 64.0, Overload),
            (cpu(0.2), 70.4, Growing),
            (cpu(0.0), 77.44, Growing),
        ],
    );
    let law = CpuRate::builder(10.0..=1000.0).target(0.6);
    step(
        law.build().unwrap(),
        &[
            (cpu(0.3), 1000.0, AtMax),
            (calls(5, 5), 1000.0, Holding), // the load is unknown
        ],
    );
    // A floor: at full load for ever.
    let mut law = CpuRate::builder(10.0..=1000.0).build().unwrap();
    assert_eq!((0..200).map(|_| law.decide(&cpu(1.0))).last(), Some(10.0));
}

#[test]
fn the_mean_of_the_load_follows_in_its_time() {
    let law = CpuRate::builder(1.0..=1000.0).target(0.5).dead_band(0.0).lowest_factor(0.1);
    let mut law = law.smoothing(ms(1000)).build().unwrap();
    assert_eq!(law.decide(&cpu(0.5)), 1000.0);
    // After one time constant 1 - 1/e of the way: 0.5 / (0.5 + 0.5 x 0.632).
    let rate = law.decide(&cpu(1.0));
    assert!((rate - 1000.0 * 0.5 / 0.816_060_3).abs() < 0.001, "{rate}");
}

/// Below the target x 0.9, above it x 1.05.
#[test]
fn a_rate_follows_its_own_success() {
    use LimitReason::{ApplicationLimited, Growing, Holding, Overload};
    let law = SuccessRate::builder(1.0..=1000.0).initial(100.0).target(0.9).build().unwrap();
    step(
        law,
        &[
            (calls(8, 2), 90.0, Overload),
            (calls(89, 11), 81.0, Overload),
            (calls(90, 10), 81.0, Holding),
            (calls(95, 5), 81.0, Holding),
            (calls(96, 4), 85.05, Growing),
            (Period { used: Some(0.4), ..calls(96, 4) }, 85.05, ApplicationLimited),
            (calls(0, 0), 85.05, Holding),
        ],
    );
}

/// For targets from 0.95 on, no success rate exceeds target + 0.05.
#[test]
fn every_target_can_be_exceeded() {
    for target in [0.9, 0.95, 0.96, 0.99, 0.999, 0.999_999] {
        let law = SuccessRate::builder(1.0..=1000.0).initial(100.0).target(target);
        let mut law = law.build().unwrap();
        assert_eq!(law.decide(&calls(10, 0)), 105.0, "{target}");
    }
    let error = SuccessRate::builder(1.0..=2.0).target(1.0).build().unwrap_err();
    assert!(error.to_string().starts_with("target 1 is not between"), "{error}");
}

#[test]
fn calls_in_flight_by_latency_are_a_rate() {
    use LimitReason::{Growing, Holding, Queueing};
    let law = LittleRate::builder(1.0..=10_000.0).in_flight(20).smoothing(1.0);
    step(
        law.build().unwrap(),
        &[
            (least(20), 1000.0, Queueing),
            (least(20), 1000.0, Holding),
            // 1000/s of 20 ms each are 20 in flight; 40 of them would be twice as many calls.
            (Period { in_flight_max: Some(40), ..least(20) }, 2000.0, Growing),
            (least(40), 1000.0, Queueing), // the shortest of ten periods is still 20 ms
        ],
    );
    let mut law = LittleRate::builder(1.0..=10_000.0).in_flight(20).smoothing(1.0).build().unwrap();
    let rates: Vec<f64> =
        [20].into_iter().chain([40; 10]).map(|it| law.decide(&least(it))).collect();
    assert_eq!(rates[9..], [1000.0, 500.0], "the eleventh period has forgotten the first");
    // A fifth of the way at a time.
    let mut law = LittleRate::builder(1.0..=10_000.0).initial(500.0).build().unwrap();
    assert_eq!([law.decide(&least(20)), law.decide(&least(20))], [600.0, 680.0]);
}

#[test]
fn builders_refuse_what_makes_no_sense() {
    let nan = f64::NAN;
    let text = |built: Result<AimdRate, LawError>| built.unwrap_err().to_string();
    for (error, start) in [
        (text(AimdRate::builder(0.0..=10.0).build()), "min 0 is not above 0"),
        (text(AimdRate::builder(nan..=10.0).build()), "min NaN"),
        (text(AimdRate::builder(1.0..=nan).build()), "max NaN"),
        (text(AimdRate::builder(20.0..=10.0).build()), "min 20 is not above 0 and at most max"),
        (text(AimdRate::builder(1.0..=2e9).build()), "max 2000000000 is not"),
        (text(AimdRate::builder(1.0..=9.0).initial(10.0).build()), "initial 10 is not between"),
        (text(AimdRate::builder(1.0..=9.0).step(0.0).build()), "step 0 is not"),
        (text(AimdRate::builder(1.0..=9.0).factor(1.0).build()), "factor 1 is not"),
        (text(AimdRate::builder(1.0..=9.0).min_calls(0).build()), "min_calls 0 is not"),
        (text(AimdRate::builder(1.0..=9.0).slow_above(ms(0)).build()), "slow_above 0 is not"),
        (
            text(AimdRate::builder(1.0..=9.0).slow_above_recent(50.0).build()),
            "slow_above_recent 50 is not",
        ),
    ] {
        assert!(error.starts_with(start), "{error}");
    }
    assert!(CpuRate::builder(1.0..=9.0).target(1.0).build().is_err());
    assert!(CpuRate::builder(1.0..=9.0).highest_factor(1.0).build().is_err());
    assert!(LittleRate::builder(1.0..=9.0).smoothing(0.0).build().is_err());
    assert!(StepRate::builder(1.0..=9.0).quarter_above(0.001, ms(2000)).build().is_err());
    assert!(StepRate::builder(1.0..=9.0).quarter_above(0.05, ms(100)).build().is_err());
    assert!(RateReport::starting(1.0..=2.0, nan).is_err());
}

const MIN: f64 = 5.0;
const MAX: f64 = 80.0;

/// The laws that search for a rate, between `MIN` and `MAX`.
fn searching() -> Vec<Box<dyn RateLaw>> {
    vec![
        Box::new(AimdRate::builder(MIN..=MAX).initial(20.0).build().unwrap()),
        Box::new(AimdRate::builder(MIN..=MAX).slow_above_recent(99.0).build().unwrap()),
        Box::new(SuccessRate::builder(MIN..=MAX).initial(20.0).build().unwrap()),
        Box::new(CpuRate::builder(MIN..=MAX).initial(20.0).build().unwrap()),
        Box::new(LittleRate::builder(MIN..=MAX).initial(20.0).in_flight(1).build().unwrap()),
    ]
}

/// All laws. `StepRate` does not search for a rate: it returns to a known one.
fn laws() -> Vec<Box<dyn RateLaw>> {
    let mut laws = searching();
    laws.push(Box::new(StepRate::builder(MIN..=MAX).initial(20.0).build().unwrap()));
    laws
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        6 => 0.0..=1.0_f64,
        1 => any::<f64>(),
        1 => prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), Just(0.0)],
    ]
}

/// Latencies from zero to years, mostly common ones.
fn latency() -> impl Strategy<Value = Duration> {
    prop_oneof![
        1 => Just(Duration::ZERO),
        1 => Just(Duration::from_nanos(1)),
        8 => (1_u64..3000).prop_map(ms),
        1 => Just(Duration::MAX),
    ]
}

fn periods() -> impl Strategy<Value = Period> {
    let count = || prop_oneof![8 => 0..100_u64, 1 => Just(u64::MAX)];
    let counts = (count(), count(), count());
    let shares = (
        prop::option::of(number()),
        prop::option::of(number()),
        prop::option::of(number()),
        prop::option::of(prop_oneof![1..1000_u64, Just(0), Just(u64::MAX)]),
    );
    let times = (latency(), prop::option::of(latency()), prop::option::of(latency()));
    (counts, shares, times).prop_map(|(counts, shares, (length, latency, least_latency))| {
        let ((successes, slow, failures), (error_rate, cpu, used, in_flight_max)) =
            (counts, shares);
        Period {
            length,
            successes,
            slow,
            failures,
            error_rate,
            latency,
            least_latency,
            cpu,
            in_flight_max,
            used,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_rate_is_a_number_within_its_bounds(
        periods in prop::collection::vec(periods(), 1..200),
    ) {
        for mut law in laws() {
            for period in &periods {
                let rate = law.decide(period);
                prop_assert!((MIN..=MAX).contains(&rate), "{rate}: {law:?} after {period:?}");
                let report = law.report();
                prop_assert_eq!((report.rate, report.min, report.max), (rate, MIN, MAX));
            }
        }
    }

    #[test]
    fn the_same_period_again_and_again_settles(period in periods()) {
        for mut law in laws() {
            let settled = (0..3000).map(|_| law.decide(&period)).last().unwrap_or(0.0);
            for _ in 0..50 {
                let rate = law.decide(&period);
                prop_assert!((rate - settled).abs() <= 1e-9 * settled, "{rate}: {law:?}");
            }
        }
    }

    #[test]
    fn a_rate_that_is_not_used_does_not_grow(
        periods in prop::collection::vec(periods(), 1..100),
        used in 0.0..0.5_f64,
    ) {
        for mut law in searching() {
            let mut rate = law.report().rate;
            for period in &periods {
                let next = law.decide(&Period { used: Some(used), ..*period });
                prop_assert!(next <= rate, "{law:?} after {period:?}");
                rate = next;
            }
        }
    }
}
