//! Adaptive laws, step by step, with literal values.

use std::time::Duration;
use tollgate::{
    CallOutcome::{self, Failure, Ignore, Overload, Success},
    Tick,
    adaptive::{
        Law,
        LimitReason::{
            self, ApplicationLimited, AtMax, AtMin, Growing, Holding, Probing, Queueing, Starting,
        },
        Sample,
        law::{Aimd, DampedAimd, Gradient2, LawError, Measure, ProbingGradient, Vegas, Windowed},
    },
};

pub(crate) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A call that took `rtt` and ended at `ended`.
pub(crate) fn call(ended: Tick, rtt: Duration, in_flight: u64, outcome: CallOutcome) -> Sample {
    Sample { began: ended.saturating_sub(rtt), ended, in_flight, outcome }
}

/// A row of a table: round trip in ms, calls in flight, outcome; limit and reason after it.
type Row = (u64, u64, CallOutcome, u64, LimitReason);

fn steps(law: &mut dyn Law, rows: &[Row]) {
    for (row, &(rtt, in_flight, outcome, limit, reason)) in rows.iter().enumerate() {
        let sample = call(Tick::from_secs(1 + row as u64), ms(rtt), in_flight, outcome);
        let found = law.observe(&sample);
        assert_eq!((found, law.reason()), (limit, reason), "row {row}: {sample:?}");
        assert_eq!(law.limit(), limit, "row {row}");
    }
}

/// Gives a law `count` calls, one for each millisecond after `from_ms`, and returns its limit.
fn calls(
    law: &mut dyn Law,
    from_ms: u64,
    count: u64,
    (rtt, in_flight, outcome): (u64, u64, CallOutcome),
) -> u64 {
    for number in 1..=count {
        law.observe(&call(Tick::from_millis(from_ms + number), ms(rtt), in_flight, outcome));
    }
    law.limit()
}

/// Gives a law exactly one window of 20 calls, and returns its limit.
fn window(
    law: &mut dyn Law,
    at_ms: u64,
    (rtt, in_flight, outcome): (u64, u64, CallOutcome),
) -> u64 {
    for ended in [at_ms; 19].into_iter().chain([at_ms + 120]) {
        law.observe(&call(Tick::from_millis(ended), ms(rtt), in_flight, outcome));
    }
    law.limit()
}

#[test]
fn aimd_adds_and_multiplies() {
    let mut law =
        Aimd::builder().initial(100).min(10).max(200).increase(5).backoff(0.5).build().unwrap();
    assert_eq!((law.limit(), law.reason(), law.name()), (100, Starting, "aimd"));
    steps(
        &mut law,
        &[
            (20, 100, Success, 105, Growing),
            (20, 100, Success, 110, Growing),
            (20, 100, Overload, 55, LimitReason::Overload),
            (20, 100, Overload, 27, LimitReason::Overload),
            (20, 100, Overload, 13, LimitReason::Overload),
            (20, 100, Overload, 10, LimitReason::Overload),
            (20, 100, Overload, 10, AtMin),
            (20, 100, Failure, 10, AtMin),
            (20, 100, Ignore, 10, AtMin),
            (20, 4, Success, 10, ApplicationLimited),
            (20, 5, Success, 15, Growing),
        ],
    );
}

#[test]
fn aimd_counts_a_round_trip_equal_to_the_timeout_as_good() {
    let mut law = Aimd::builder().max(21).timeout(ms(100)).build().unwrap();
    steps(
        &mut law,
        &[
            (100, 20, Success, 21, Growing),
            (100, 20, Success, 21, AtMax),
            (101, 20, Success, 20, Queueing),
            (101, 20, Success, 20, AtMin),
        ],
    );
}

/// L = 20: g = 1, alpha 3, beta 6. L = 100: g = 2, alpha 6, beta 12.
#[test]
fn vegas_estimates_the_queue() {
    let mut law = Vegas::builder().build().unwrap();
    steps(
        &mut law,
        &[
            (20, 20, Success, 20, Holding), // the baseline
            (20, 20, Success, 26, Growing), // q = 0
            (20, 12, Success, 26, ApplicationLimited),
            (21, 26, Success, 27, Growing),  // q = ceil(26/21) = 2
            (23, 26, Success, 27, Holding),  // q = ceil(27 x 3/23) = 4
            (40, 26, Success, 26, Queueing), // q = 14
            (1, 26, Overload, 25, LimitReason::Overload), // not the baseline, fast as it is
            (1, 26, Failure, 25, LimitReason::Overload),
            (20, 26, Success, 31, Growing),
            (10, 26, Success, 31, Holding),  // a lower baseline
            (20, 26, Success, 30, Queueing), // q = 16
        ],
    );
    let mut large = Vegas::builder().initial(100).max(112).smoothing(0.5).build().unwrap();
    steps(
        &mut large,
        &[
            (20, 100, Success, 100, Holding),
            (20, 100, Success, 106, Growing), // half of the way to 112
            (20, 100, Success, 109, Growing), // half of the way to the maximum
            (40, 100, Success, 108, Queueing), // half of 2
        ],
    );
}

#[test]
fn vegas_takes_a_new_baseline_now_and_then() {
    let mut law = Vegas::builder().initial(10).max(10).build().unwrap();
    assert_eq!(calls(&mut law, 1000, 1, (20, 10, Success)), 10);
    // A service that has become slower for good is believed after 15 to 30 samples for each of the
    // limit.
    assert!(calls(&mut law, 2000, 20, (60, 10, Success)) < 10);
    assert_eq!(calls(&mut law, 3000, 400, (60, 10, Success)), 10);
}

/// After the warm-up the long average of equal round trips is that round trip.
#[test]
fn gradient2_compares_short_with_long() {
    let mut law = Gradient2::builder().build().unwrap();
    steps(
        &mut law,
        &[
            (20, 20, Success, 20, Growing), // 20.8
            (20, 20, Success, 21, Growing), // 21.6
            (20, 10, Success, 21, ApplicationLimited),
            (20, 20, Failure, 21, ApplicationLimited),
            (20, 20, Success, 22, Growing),  // 22.4
            (20, 20, Overload, 23, Growing), // 23.2: overloads are round trips like others
            // long (5 x 20 + 80) / 6 = 30; gradient 1.5 x 30 / 80 = 0.5625;
            // 0.8 x 23.2 + 0.2 x (23.2 x 0.5625 + 4) = 21.97
            (80, 20, Success, 21, Queueing),
            // long (180 + 80) / 7 = 37.1; gradient 0.696; 0.8 x 21.97 + 0.2 x (15.3 + 4) = 21.4
            (80, 20, Success, 21, Queueing),
        ],
    );
    let mut falling = Gradient2::builder().initial(100).build().unwrap();
    calls(&mut falling, 1000, 10, (10, 100, Success));
    let before = falling.limit();
    // The gradient is at least 0.5: 0.8 L + 0.2 (L / 2 + 4) = 0.9 L + 0.8.
    let after = calls(&mut falling, 2000, 1, (10_000, 200, Success));
    assert_eq!((before, after), (108, 98));
}

#[test]
fn a_window_is_one_sample() {
    let aimd = Aimd::builder().initial(100).min(1).backoff(0.5).timeout(ms(50)).build().unwrap();
    let mut law = Windowed::builder(aimd).build().unwrap();
    // A mean of 45 ms, most of them in flight at once 60: one step up for 1200 samples.
    for number in 0..1200 {
        let rtt = if number % 2 == 0 { 30 } else { 60 };
        law.observe(&call(Tick::from_millis(1000 + number), ms(rtt), number % 61, Success));
    }
    assert_eq!((law.limit(), law.reason()), (101, Growing));
    // With one overload among them, the round trips do not matter: one step down.
    assert_eq!(calls(&mut law, 2600, 1, (40, 60, Overload)), 101);
    assert_eq!(calls(&mut law, 2601, 1150, (40, 60, Success)), 50);
    assert_eq!(law.reason(), LimitReason::Overload);
}

#[test]
fn a_window_by_percentile_sees_the_slow_ones() {
    let windowed = |measure| {
        let aimd = Aimd::builder().initial(100).min(1).timeout(ms(50)).build().unwrap();
        let mut law = Windowed::builder(aimd).measure(measure).build().unwrap();
        for number in 0..1150 {
            let rtt = if number % 10 < 8 { 20 } else { 90 };
            law.observe(&call(Tick::from_millis(1000 + number), ms(rtt), 100, Success));
        }
        law.limit()
    };
    let measures = [Measure::Mean, Measure::Percentile(50.0), Measure::Percentile(90.0)];
    assert_eq!(measures.map(windowed), [101, 101, 90]);
}

#[test]
fn a_window_that_is_not_full_is_thrown_away() {
    let mut law = Windowed::builder(Vegas::builder().build().unwrap()).build().unwrap();
    for second in 0..100 {
        // Health checks, of which one closes the window of eight before, and round trips too short
        // for real work.
        calls(&mut law, 2000 * second, 8, (5, 1, Success));
        calls(&mut law, 2000 * second, 90, (0, 20, Success));
    }
    assert_eq!((law.limit(), law.reason()), (20, Starting));
}

#[test]
fn damped_aimd_decides_by_the_share_of_bad_calls() {
    // (slow calls among 20, in flight, limit, reason)
    for (slow, in_flight, limit, reason) in [
        (0, 100, 102, Growing),
        (0, 50, 102, Growing),
        (0, 49, 100, ApplicationLimited),
        (1, 100, 100, Holding), // 5 %
        (2, 100, 100, Holding), // 10 %
        (3, 100, 90, Queueing),
        (20, 100, 90, Queueing), // once, not twenty times
    ] {
        let mut law = DampedAimd::builder(ms(200)).initial(100).build().unwrap();
        for number in 0..20 {
            // Exactly half of the target is good. The twentieth call ends the window.
            let rtt = if number < slow { 101 } else { 100 };
            let ended = Tick::from_millis(if number < 19 { 1000 } else { 1200 });
            law.observe(&call(ended, ms(rtt), in_flight, Success));
        }
        assert_eq!((law.limit(), law.reason()), (limit, reason), "{slow} of 20 slow");
    }
}

#[test]
fn damped_aimd_counts_overloads_and_not_failures() {
    let mut law = DampedAimd::builder(ms(200)).initial(100).build().unwrap();
    calls(&mut law, 1000, 500, (500, 100, Failure));
    assert_eq!(law.reason(), Starting);
    assert_eq!(window(&mut law, 2000, (1, 100, Overload)), 90);
    assert_eq!(law.reason(), LimitReason::Overload);
}

#[test]
fn calls_that_began_before_a_change_do_not_count_for_the_next_decision() {
    let mut law = DampedAimd::builder(ms(200)).initial(100).build().unwrap();
    assert_eq!(window(&mut law, 1000, (150, 100, Success)), 90);
    // All of these were admitted under the limit of 100.
    assert_eq!(calls(&mut law, 1120, 900, (1000, 100, Success)), 90);
    assert_eq!(window(&mut law, 3000, (150, 90, Success)), 81);
}

#[test]
fn the_gradient_starts_with_a_probe_and_restores_the_limit() {
    let mut law = ProbingGradient::builder().initial(40).build().unwrap();
    assert_eq!(calls(&mut law, 900, 80, (20, 40, Success)), 40);
    assert_eq!((law.reason(), law.baseline()), (Starting, None));
    // The first window ends with a probe.
    assert_eq!(calls(&mut law, 980, 40, (20, 40, Success)), 6);
    assert_eq!(law.reason(), Probing);
    // Calls that began before it are no measure of a service without a queue.
    assert_eq!(calls(&mut law, 1020, 80, (200, 40, Success)), 6);
    assert_eq!(law.baseline(), None);
    // 50 calls of its own end it.
    assert_eq!(calls(&mut law, 2000, 49, (20, 6, Success)), 6);
    assert_eq!(calls(&mut law, 2049, 1, (20, 6, Success)), 40);
    let baseline = law.baseline().unwrap().as_secs_f64();
    assert!((0.0197..0.0203).contains(&baseline), "{baseline}");
    // No queue: g = 1.5, x = 60, L = floor(60 + 7.7).
    assert_eq!(window(&mut law, 3000, (20, 40, Success)), 67);
    assert_eq!(law.reason(), Growing);
    // The callers do not use it.
    assert_eq!(window(&mut law, 4000, (20, 33, Success)), 67);
    assert_eq!(law.reason(), ApplicationLimited);
    // Twice the baseline: g = 0.75, x = 50.25, L = floor(50.25 + 7.09).
    let found = window(&mut law, 5000, (40, 67, Success));
    assert!((56..=58).contains(&found), "{found}");
    assert_eq!(law.reason(), Queueing);
}

#[test]
fn the_gradient_falls_on_overloads_however_fast_they_are() {
    let mut law = ProbingGradient::builder().initial(40).build().unwrap();
    window(&mut law, 1000, (20, 40, Success));
    calls(&mut law, 2000, 50, (20, 6, Success));
    assert_eq!(window(&mut law, 3000, (0, 40, Overload)), 36);
    assert_eq!(law.reason(), LimitReason::Overload);
}

#[test]
fn the_gradient_probes_again_in_time_or_when_it_is_very_low() {
    let mut law = ProbingGradient::builder().probe_every(ms(10_000)).build().unwrap();
    window(&mut law, 1000, (20, 20, Success));
    assert_eq!(calls(&mut law, 2000, 50, (20, 6, Success)), 20);
    // Ten times slower: the limit halves, and after five windows at the floor the law probes again.
    let mut at_ms = 3000;
    while law.reason() != Probing {
        window(&mut law, at_ms, (200, 20, Success));
        at_ms += 1000;
        assert!(at_ms < 12_000, "{law:?}");
    }
    calls(&mut law, at_ms + 1000, 50, (200, 6, Success));
    assert!(law.baseline().unwrap() > ms(190));
    // And then every ten seconds, plus at most 15 %.
    let ended = at_ms + 1050;
    calls(&mut law, ended, 9_990, (200, 6, Success));
    assert_ne!(law.reason(), Probing);
    let begins = (9_990..11_900).find(|after| {
        calls(&mut law, ended + after, 1, (200, 6, Success));
        law.reason() == Probing
    });
    assert!(begins.is_some());
}

#[test]
fn a_probe_ends_even_if_no_call_can_be_measured() {
    let mut law = ProbingGradient::builder().probe_every(ms(10_000)).build().unwrap();
    assert_eq!(window(&mut law, 1000, (20, 20, Success)), 6);
    // From now on every call is a stream, which is no measure.
    assert_eq!(calls(&mut law, 2000, 9_000, (20, 6, Ignore)), 6);
    assert_eq!(calls(&mut law, 11_000, 1_000, (20, 6, Ignore)), 20);
    assert_eq!((law.reason(), law.baseline()), (Holding, None));
}

#[test]
fn the_gradient_does_not_probe_an_idle_service() {
    let mut law = ProbingGradient::builder().build().unwrap();
    for number in 0..1000 {
        law.observe(&call(Tick::from_millis(200 * number), ms(20), 20, Success));
        assert_eq!((law.limit(), law.reason()), (20, Starting));
    }
}

#[test]
fn a_seed_repeats_its_jitter() {
    let history = |seed| {
        let mut law = ProbingGradient::builder().seed(seed).build().unwrap();
        let samples = (0..5_000).map(|n| call(Tick::from_millis(n), ms(n % 7), 20, Success));
        samples.map(|sample| law.observe(&sample)).collect::<Vec<_>>()
    };
    assert_eq!(history(1), history(1));
    assert_ne!(history(1), history(2));
}

/// Checks errors against their texts: value, rule, remedy.
fn refused(rows: &[(Option<LawError>, &str)]) {
    for (row, (error, text)) in rows.iter().enumerate() {
        assert_eq!(
            error.as_ref().map(|error| error.to_string()).as_deref(),
            Some(*text),
            "row {row}"
        );
    }
}

#[test]
fn builders_refuse_bounds_and_counts_out_of_range() {
    let aimd = Aimd::builder;
    refused(&[
        (
            aimd().initial(5).build().err(),
            "initial 5 is not between min 20 and max 200; set all three so that min <= initial <= max",
        ),
        (
            aimd().max(10).build().err(),
            "initial 20 is not between min 20 and max 10; set all three so that min <= initial <= max",
        ),
        (
            aimd().min(0).build().err(),
            "min 0 could stop every call, and then nothing is measured any more; give at least 1",
        ),
        (
            aimd().max(2_000_000_000).build().err(),
            "max 2000000000 is above 1000000000 in flight; lower it",
        ),
        (
            aimd().increase(0).build().err(),
            "increase 0 is not between 1 and 1000000000; give for example 10",
        ),
        (
            aimd().timeout(Duration::ZERO).build().err(),
            "timeout 0 is not above 0 and at most 584 years; give for example 100 ms",
        ),
        (
            DampedAimd::builder(Duration::ZERO).build().err(),
            "target 0 is not above 0 and at most 584 years; give for example 100 ms",
        ),
        (
            DampedAimd::builder(ms(1)).min_samples(0).build().err(),
            "min_samples 0 is not between 1 and 1000000000; give for example 10",
        ),
        (
            ProbingGradient::builder().probe_at(0).build().err(),
            "probe_at 0 is not between 1 and 1000000000; give for example 10",
        ),
    ]);
}

#[test]
fn builders_refuse_factors_out_of_range() {
    let aimd = Aimd::builder;
    refused(&[
        (
            aimd().backoff(1.0).build().err(),
            "backoff 1 is not at least 0.5 and below 1; 0.9 cuts by a tenth",
        ),
        (
            aimd().backoff(f64::NAN).build().err(),
            "backoff NaN is not at least 0.5 and below 1; 0.9 cuts by a tenth",
        ),
        (
            Vegas::builder().smoothing(0.0).build().err(),
            "smoothing 0 is not at least 0.001 and at most 1; 1 takes every step in full",
        ),
        (
            Gradient2::builder().tolerance(0.5).build().err(),
            "tolerance 0.5 is not between 1 and 1000; 1.5 accepts half as long again",
        ),
        (
            Gradient2::builder().smoothing(f64::INFINITY).build().err(),
            "smoothing inf is not at least 0.001 and at most 1; 0.2 takes a fifth of each step",
        ),
        (
            Windowed::builder(aimd().build().unwrap())
                .measure(Measure::Percentile(101.0))
                .build()
                .err(),
            "percentile 101 is not between 0 and 100; 50 is the median",
        ),
        (
            ProbingGradient::builder().buffer(-1.0).build().err(),
            "buffer -1 is not between 0 and 10; 0.5 allows half as long again",
        ),
    ]);
}
