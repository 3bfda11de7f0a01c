//! Properties that every adaptive law has, for any samples.

use super::adaptive_laws::{call, ms};
use proptest::prelude::*;
use std::time::Duration;
use tollgate::{
    CallOutcome, Tick,
    adaptive::{
        Law, LimitReason, Sample,
        law::{Aimd, DampedAimd, Gradient2, Measure, ProbingGradient, Vegas, Windowed},
    },
};

const MIN: u64 = 5;
const MAX: u64 = 80;

fn windowed(law: impl Law + 'static, measure: Measure) -> Box<dyn Law> {
    Box::new(Windowed::builder(law).window(ms(100)).measure(measure).build().unwrap())
}

/// Every law, between `MIN` and `MAX`.
fn laws() -> Vec<Box<dyn Law>> {
    let aimd = Aimd::builder().initial(20).min(MIN).max(MAX).timeout(ms(100)).build().unwrap();
    let vegas = Vegas::builder().initial(20).min(MIN).max(MAX).build().unwrap();
    let gradient2 = Gradient2::builder().initial(20).min(MIN).max(MAX).build().unwrap();
    let mut laws = window_laws();
    laws.push(Box::new(aimd.clone()));
    laws.push(Box::new(vegas));
    laws.push(Box::new(gradient2));
    laws.push(windowed(aimd, Measure::Percentile(90.0)));
    laws
}

/// The laws that decide once per window.
fn window_laws() -> Vec<Box<dyn Law>> {
    let vegas = Vegas::builder().initial(20).min(MIN).max(MAX).build().unwrap();
    let gradient2 = Gradient2::builder().initial(20).min(MIN).max(MAX).build().unwrap();
    let damped = DampedAimd::builder(ms(200)).initial(20).min(MIN).max(MAX).build().unwrap();
    // Probes are level with the minimum, so that they stay inside the bounds.
    let probing = ProbingGradient::builder()
        .initial(20)
        .min(MIN)
        .max(MAX)
        .probe_at(MIN)
        .probe_every(ms(1000))
        .build()
        .unwrap();
    vec![
        Box::new(damped),
        Box::new(probing),
        windowed(vegas, Measure::Percentile(50.0)),
        windowed(gradient2, Measure::Mean),
    ]
}

fn outcome() -> impl Strategy<Value = CallOutcome> {
    prop_oneof![
        6 => Just(CallOutcome::Success),
        1 => Just(CallOutcome::Overload),
        1 => Just(CallOutcome::Failure),
        1 => Just(CallOutcome::Ignore),
    ]
}

/// Round trips from zero to years, mostly common ones.
fn rtt() -> impl Strategy<Value = Duration> {
    prop_oneof![
        1 => Just(Duration::ZERO),
        1 => Just(Duration::from_nanos(1)),
        8 => (1_u64..500).prop_map(ms),
        1 => (1_u64..200).prop_map(|years| Duration::from_secs(years * 31_556_952)),
    ]
}

/// Samples that end a few milliseconds after each other, late enough for every round trip.
fn samples(in_flight: std::ops::Range<u64>) -> impl Strategy<Value = Vec<Sample>> {
    let one = (0_u64..20, rtt(), in_flight, outcome());
    prop::collection::vec(one, 1..1500).prop_map(|calls| {
        let mut ended = Tick::from_secs(300 * 31_556_952);
        let calls = calls.into_iter();
        calls
            .map(|(gap, rtt, in_flight, outcome)| {
                ended = ended.saturating_add(ms(gap));
                call(ended, rtt, in_flight, outcome)
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// A limit that is not a number, or infinite, would become 0 or 2^64 as an integer.
    #[test]
    fn the_limit_stays_in_its_bounds(samples in samples(0..200)) {
        for mut law in laws() {
            for sample in &samples {
                let limit = law.observe(sample);
                prop_assert!((MIN..=MAX).contains(&limit), "{law:?} after {sample:?}");
                prop_assert_eq!(limit, law.limit());
            }
        }
    }

    #[test]
    fn a_limit_that_is_not_used_does_not_grow(samples in samples(0..4)) {
        for mut law in laws() {
            let mut limit = law.limit();
            for sample in &samples {
                let before = (limit, law.reason());
                limit = law.observe(sample);
                // At most 3 calls in flight: a limit up to 6 is used.
                let may_grow = before.0 <= 6 || before.1 == LimitReason::Probing;
                prop_assert!(limit <= before.0 || may_grow, "{law:?} after {sample:?}");
            }
        }
    }

    #[test]
    fn the_order_inside_a_window_does_not_matter(
        (samples, shuffled) in prop::collection::vec((0_u64..85, 1_u64..300, 1_u64..60), 10..200)
            .prop_flat_map(|calls| (Just(calls.clone()), Just(calls).prop_shuffle())),
    ) {
        let (left, right) = (window_laws(), window_laws());
        for (mut left, mut right) in left.into_iter().zip(right) {
            for (law, calls) in [(&mut left, &samples), (&mut right, &shuffled)] {
                // The first sample opens the window, the last one closes it.
                let outside = |at| call(Tick::from_millis(at), ms(1), 1, CallOutcome::Success);
                law.observe(&outside(1000));
                for (at, rtt, in_flight) in calls {
                    let ended = Tick::from_millis(1000 + at);
                    law.observe(&call(ended, ms(*rtt), *in_flight, CallOutcome::Success));
                }
                law.observe(&outside(1120));
            }
            prop_assert_eq!((left.limit(), left.reason()), (right.limit(), right.reason()));
        }
    }

    /// The callers use their limit, up to `demand`.
    #[test]
    fn constant_latency_settles_within_one(rtt_ms in 1_u64..400, demand in 1_u64..200) {
        for mut law in laws() {
            let mut settled = Vec::new();
            for number in 0..30_000_u64 {
                let in_flight = demand.min(law.limit());
                let ended = Tick::from_millis(1000 + 2 * number);
                law.observe(&call(ended, ms(rtt_ms), in_flight, CallOutcome::Success));
                if number > 25_000 && law.reason() != LimitReason::Probing {
                    settled.push(law.limit());
                }
            }
            let (low, high) = (settled.iter().min().unwrap(), settled.iter().max().unwrap());
            prop_assert!(high - low <= 2, "{law:?}: {low} to {high}");
        }
    }
}
