//! A client that throttles itself: the share that it refuses, for which priorities, and when it
//! stops.

use proptest::prelude::*;
use std::time::Duration;
use tollgate::{
    CallOutcome, Clock, ConfigError, ManualClock, Priority, Tick,
    self_throttle::{SelfThrottle, SelfThrottleBuilder, ThrottlePass, Throttled},
};

const NORMAL: Priority = Priority::NORMAL;
const WINDOW: Duration = Duration::from_secs(120);

fn throttle(builder: SelfThrottleBuilder) -> (SelfThrottle, ManualClock) {
    let (clock, hand) = Clock::manual();
    (builder.clock(clock).build().unwrap(), hand)
}

#[test]
fn its_types_can_be_shared_and_printed() {
    fn shared<T: Send + Sync + std::fmt::Debug>() {}
    fn error<T: std::error::Error + Send + Sync + 'static>() {}
    shared::<(SelfThrottle, SelfThrottleBuilder, ThrottlePass)>();
    error::<ConfigError>();
    error::<Throttled>();
}

/// A server that serves `capacity` calls in each second, and refuses the others.
struct Server {
    capacity: u32,
    served: u32,
}

impl Server {
    fn call(&mut self) -> CallOutcome {
        self.served += 1;
        if self.served <= self.capacity { CallOutcome::Success } else { CallOutcome::Overload }
    }
}

/// Makes 1000 calls in each second for this length of time; returns the share refused in the last
/// tenth of it.
fn run(throttle: &SelfThrottle, hand: &ManualClock, length: Duration, capacity: u32) -> f64 {
    let steps = u32::try_from(length.as_secs()).unwrap();
    let mut refused = 0;
    for step in 0..steps {
        let mut server = Server { capacity, served: 0 };
        for _ in 0..1000 {
            match throttle.try_pass(NORMAL) {
                Ok(pass) => pass.end(server.call()),
                Err(_) if step >= steps / 10 * 9 => refused += 1,
                Err(_) => {}
            }
        }
        hand.advance(Duration::from_secs(1));
    }
    f64::from(refused) / f64::from((steps - steps / 10 * 9) * 1000)
}

/// The server gets k times what it accepts, so of a load of l times its capacity 1 - k / l is
/// refused here.
#[test]
fn the_refused_share_settles_where_the_book_says() {
    for (k, capacity, expected) in [
        (2.0, 500, 0.0), // 2 times the capacity
        (2.0, 250, 0.5), // 4 times
        (1.1, 250, 0.725),
        (2.0, 100, 0.8), // 10 times
        (2.0, 1000, 0.0),
        (2.0, 0, 0.9), // nothing is accepted: the bound
    ] {
        let (throttle, hand) = throttle(SelfThrottle::builder().k(k).seed(7));
        let share = run(&throttle, &hand, 5 * WINDOW, capacity);
        assert!((share - expected).abs() <= 0.01, "k {k}, capacity {capacity}: {share}");
    }
}

#[test]
fn refusals_end_within_a_window_after_an_overload_or_an_outage() {
    for seed in 0..2 {
        for (k, capacity) in [(2.0, 250), (1.5, 250), (1.1, 250), (2.0, 0), (1.5, 0), (1.1, 0)] {
            let (throttle, hand) = throttle(SelfThrottle::builder().k(k).seed(seed));
            let share = run(&throttle, &hand, 2 * WINDOW, capacity);
            assert!(share < 0.92, "seed {seed}, k {k}, capacity {capacity}: {share}");
            let recovers = |_: &i32| run(&throttle, &hand, WINDOW / 10, 1000) < 0.01;
            let tenths = (1..100).find(recovers).unwrap();
            assert!(tenths <= 8, "seed {seed}, k {k}, capacity {capacity}: {tenths} tenths");
        }
    }
}

/// It does not mistake a part of the capacity for all of it: when the server refuses again, so does
/// the throttle.
#[test]
fn a_server_that_recovers_in_part_gets_little_more_than_it_can_do() {
    for (k, most) in [(1.1, 0.12), (1.5, 0.36)] {
        let (throttle, hand) = throttle(SelfThrottle::builder().k(k).seed(3));
        run(&throttle, &hand, 3 * WINDOW, 100);
        let before = throttle.counts();
        run(&throttle, &hand, 10 * WINDOW, 500);
        let after = throttle.counts();
        let accepted = after.accepted - before.accepted;
        let overloaded = after.overloaded - before.overloaded;
        let refused_there = overloaded as f64 / (accepted + overloaded) as f64;
        assert!(refused_there < most, "k {k}: the server refuses {refused_there}");
        let used = accepted as f64 / (10.0 * WINDOW.as_secs_f64() * 500.0);
        assert!(used > 0.85, "k {k}: {used} of the capacity");
    }
}

/// A few calls that the server accepts by chance, or within a short time, are not a recovery.
#[test]
fn only_a_long_row_of_accepted_calls_over_a_tenth_of_the_window_is_a_recovery() {
    let second = Duration::from_secs(1);
    // k, accepted calls, seconds since the last refusal, the remaining share of the rule's
    // probability.
    for (k, accepted, seconds, left) in [
        (2.0, 10, 12, 1.0),
        (2.0, 10, 42, 0.5),
        (2.0, 9, 42, 1.0),
        (2.0, 10, 72, 0.0),
        (1.1, 72, 72, 1.0),
        (1.1, 73, 72, 0.0),
    ] {
        let builder = SelfThrottle::builder().k(k).seed(1);
        let (throttle, hand) = throttle(builder);
        let passes: Vec<_> = (0..1000 + accepted).map(|_| throttle.try_pass(NORMAL)).collect();
        let mut passes = passes.into_iter().flatten();
        passes.by_ref().take(1000).for_each(|pass| pass.end(CallOutcome::Overload));
        passes.for_each(|pass| pass.end(CallOutcome::Success));
        let rule = throttle.refusal_probability(NORMAL);
        assert!(rule > 0.89);
        hand.advance(seconds * second);
        let now = throttle.refusal_probability(NORMAL);
        assert!((now - rule * left).abs() < 1e-9, "k {k}, {accepted}, {seconds} s: {now}");
    }
}

#[test]
fn after_a_window_without_calls_nothing_is_refused() {
    let (throttle, hand) = throttle(SelfThrottle::builder().seed(1));
    run(&throttle, &hand, WINDOW, 0);
    assert!(throttle.refusal_probability(NORMAL) > 0.89);
    hand.advance(WINDOW);
    assert_eq!(throttle.refusal_probability(NORMAL), 0.0);
    assert!(throttle.try_pass(NORMAL).is_ok());
}

#[test]
fn only_ended_calls_count_and_failures_are_accepted_work() {
    let (throttle, _hand) = throttle(SelfThrottle::builder().min_calls(1).seed(1));
    for _ in 0..100 {
        drop(throttle.try_pass(NORMAL).unwrap());
        throttle.try_pass(NORMAL).unwrap().end(CallOutcome::Ignore);
        throttle.try_pass(NORMAL).unwrap().end(CallOutcome::Failure);
    }
    let in_flight: Vec<_> = (0..100).map(|_| throttle.try_pass(NORMAL).unwrap()).collect();
    assert_eq!(throttle.refusal_probability(NORMAL), 0.0);
    let counts = throttle.counts();
    assert_eq!((counts.accepted, counts.overloaded, counts.refused), (100, 0, 0));
    in_flight.into_iter().for_each(|pass| pass.end(CallOutcome::Overload));
    // 200 requests, of which 100 were accepted: k = 2 refuses nothing yet.
    assert_eq!(throttle.refusal_probability(NORMAL), 0.0);
    throttle.try_pass(NORMAL).unwrap().end(CallOutcome::Overload);
    assert_eq!(throttle.refusal_probability(NORMAL), 1.0 / 202.0);
}

#[test]
fn a_server_that_refuses_batches_stops_batches_only() {
    let (throttle, _hand) = throttle(SelfThrottle::builder().seed(3));
    let mut refused = [0; 2];
    for _ in 0..1000 {
        for (index, (priority, outcome)) in [
            (Priority::CRITICAL, CallOutcome::Success),
            (Priority::BACKGROUND, CallOutcome::Overload),
        ]
        .into_iter()
        .enumerate()
        {
            match throttle.clone().try_pass(priority) {
                Ok(pass) => pass.end(outcome),
                Err(throttled) => {
                    assert_eq!(throttled.priority(), priority);
                    refused[index] += 1;
                }
            }
        }
    }
    assert_eq!(refused[0], 0);
    assert!((850..950).contains(&refused[1]), "{refused:?}");
    let counts = throttle.counts();
    assert_eq!(counts.accepted, 1000);
    assert_eq!((counts.overloaded, counts.refused), (1000 - refused[1], refused[1]));
}

/// With the same answers of the server, lower priorities are refused sooner.
#[test]
fn a_lower_priority_has_the_smaller_k() {
    let (throttle, _hand) = throttle(SelfThrottle::builder().k_for(Priority::HIGH, 8.0));
    for priority in [Priority::HIGH, NORMAL, Priority::LOW] {
        // All are under way before the first ends: nothing is refused meanwhile.
        let passes: Vec<_> = (0..40).map(|_| throttle.try_pass(priority).unwrap()).collect();
        for (number, pass) in passes.into_iter().enumerate() {
            let is_served = number % 4 == 0;
            pass.end(if is_served { CallOutcome::Success } else { CallOutcome::Overload });
        }
    }
    let of = |priority| throttle.refusal_probability(priority);
    assert_eq!(of(Priority::HIGH), 0.0);
    assert!(of(NORMAL) < of(Priority::LOW));
}

#[test]
fn a_seed_repeats_and_a_refusal_says_why() {
    let refusals = |seed| {
        let (throttle, _hand) = throttle(SelfThrottle::builder().seed(seed));
        let call = |_| match throttle.try_pass(NORMAL) {
            Ok(pass) => {
                pass.end(CallOutcome::Overload);
                None
            }
            Err(throttled) => Some(throttled),
        };
        (0..200).map(call).collect::<Vec<_>>()
    };
    let first = refusals(1);
    assert_eq!(first, refusals(1));
    assert_ne!(first, refusals(2));
    let last = first.into_iter().flatten().next_back().unwrap();
    assert_eq!(
        last.to_string(),
        "the server is overloaded, so this client does not send 90 % of its calls of priority \
         normal; retry later, or fall back"
    );
}

#[test]
fn nonsense_is_refused_with_a_way_out() {
    let text = |builder: SelfThrottleBuilder| builder.build().unwrap_err().to_string();
    let builder = SelfThrottle::builder;
    for k in [1.0, 0.0, -2.0, 1000.1, f64::NAN, f64::INFINITY] {
        let text = text(builder().k_for(Priority::LOW, k));
        assert!(text.starts_with(&format!("k {k} is out of range")), "{text}");
        assert!(text.ends_with("use more than 1 and at most 1000, such as 2"), "{text}");
    }
    for window in [Duration::ZERO, Duration::from_micros(999), Duration::MAX] {
        let text = text(builder().window(window));
        assert_eq!(text, format!("window {window:?} is out of range; use 1 ms to a day"));
    }
    assert!(text(builder().min_calls(0)).starts_with("min_calls 0 is out of range"));
    for percent in [0, 100, u32::MAX] {
        let text = text(builder().max_refusal_percent(percent));
        assert!(text.starts_with(&format!("max_refusal_percent {percent} is out")), "{text}");
        assert!(text.ends_with("use 1 to 99"), "{text}");
    }
}

proptest! {
    /// The model keeps every call, and sums up those of the last ten buckets.
    #[test]
    fn the_probability_is_that_of_a_list_of_all_calls(
        k_percent in 101_u32..400,
        min_calls in 1_u64..20,
        events in prop::collection::vec((0_u64..2000, 0_u8..8, 0_u8..4), 1..300),
    ) {
        let k = f64::from(k_percent) / 100.0;
        let builder = SelfThrottle::builder().k(k).window(Duration::from_secs(10));
        let (throttle, hand) = throttle(builder.min_calls(min_calls).seed(9));
        // Bucket, urgency, accepted.
        let mut calls: Vec<(u64, u8, bool)> = Vec::new();
        // By urgency: when the server last refused, and how many calls it has accepted since.
        let mut accepting = [(Tick::ZERO, 0_u32); 8];
        for (pause_ms, urgency, outcome) in events {
            hand.advance(Duration::from_millis(pause_ms));
            let bucket = hand.now().since(Tick::ZERO).as_secs();
            let priority = Priority::new(urgency).unwrap();
            let recent = |call: &&(u64, u8, bool)| call.1 == urgency && call.0 + 10 > bucket;
            let requests = calls.iter().filter(recent).count() as u64;
            let accepts = calls.iter().filter(recent).filter(|call| call.2).count() as u64;
            let formula = (requests as f64 - k * accepts as f64) / (requests as f64 + 1.0);
            let rule = if requests < min_calls { 0.0 } else { formula.clamp(0.0, 0.9) };
            let (since, accepted) = &mut accepting[usize::from(urgency)];
            // This many accepts in a row have a probability below one in a thousand.
            let is_row = k.recip().powi(*accepted as i32) <= 0.001 && u64::from(*accepted) >= min_calls;
            let windows = hand.now().since(*since).as_secs_f64() / 10.0;
            let fade = if is_row { ((0.6 - windows) / 0.5).clamp(0.0, 1.0) } else { 1.0 };
            let expected = rule * fade;
            prop_assert_eq!(throttle.refusal_probability(priority), expected);
            match (throttle.try_pass(priority), outcome) {
                (Err(throttled), _) => {
                    prop_assert_eq!(throttled.probability(), expected);
                    calls.push((bucket, urgency, false));
                }
                (Ok(pass), 0) => drop(pass),
                (Ok(pass), 1) => {
                    pass.end(CallOutcome::Overload);
                    calls.push((bucket, urgency, false));
                    (*since, *accepted) = (hand.now(), 0);
                }
                (Ok(pass), _) => {
                    pass.end(CallOutcome::Success);
                    calls.push((bucket, urgency, true));
                    *accepted += 1;
                }
            }
        }
        let counts = throttle.counts();
        prop_assert_eq!(counts.accepted, calls.iter().filter(|call| call.2).count() as u64);
        let others = calls.iter().filter(|call| !call.2).count() as u64;
        prop_assert_eq!(counts.overloaded + counts.refused, others);
    }
}
