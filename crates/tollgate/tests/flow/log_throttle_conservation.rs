//! No line is lost without being counted: lines written + lines in notices = lines emitted, with threads, clock jumps,
//! filters inside and outside, several outputs, scoped and global dispatchers.

use crate::log_throttle::Recorder;
use std::{sync::Barrier, thread, time::Duration};
use tollgate::{
    Driver, ManualClock, Quota, Tick,
    log::{LogThrottle, LogThrottleHandle},
};
use tracing::{Dispatch, Level, Metadata, Subscriber};
use tracing_subscriber::{
    EnvFilter, Layer,
    filter::{LevelFilter, dynamic_filter_fn, filter_fn},
    layer::SubscriberExt,
    registry,
    registry::LookupSpan,
};

const THREADS: u64 = 8;

fn throttle(hand: &ManualClock) -> (LogThrottle, LogThrottleHandle) {
    let builder = LogThrottle::builder(Quota::per_second(100).burst(20));
    let throttle = builder.driver(Driver::manual(hand)).build().unwrap();
    let handle = throttle.handle();
    (throttle, handle)
}

/// Returns lines written of a level, and lines of that level in notices.
fn written(output: &Recorder, level: Level) -> (u64, u64) {
    let level = level.to_string();
    let lines: Vec<_> = output.lines().into_iter().filter(|line| line.level == level).collect();
    let lines_written = lines.iter().filter(|line| line.left_out.is_none()).count() as u64;
    (lines_written, lines.iter().filter_map(|line| line.left_out).sum())
}

/// Emits `lines` lines of two levels from each of 8 threads, while the clock jumps and somebody flushes.
fn storm(dispatch: &Dispatch, hand: &ManualClock, handle: &LogThrottleHandle, lines: u64) {
    let start = Barrier::new(THREADS as usize + 1);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                tracing::dispatcher::with_default(dispatch, || {
                    start.wait();
                    for number in 0..lines {
                        tracing::info!(target: "storm", number, "info");
                        tracing::warn!(target: "storm", number, "warn");
                    }
                });
            });
        }
        start.wait();
        for jump in 0..200_u64 {
            // Jumps of a nanosecond to 13 days, and back to the start.
            hand.advance(Duration::from_nanos(1 << (jump % 51)));
            if jump % 11 == 0 {
                hand.set(Tick::ZERO);
            }
            if jump % 7 == 0 {
                handle.flush();
            }
            thread::yield_now();
        }
    });
    handle.flush();
}

#[test]
fn nothing_is_lost_with_eight_threads_and_clock_jumps() {
    let (hand, output) = (ManualClock::new(), Recorder::default());
    let (throttle, handle) = throttle(&hand);
    let dispatch = Dispatch::new(registry().with(throttle.wrap(output.clone())));
    storm(&dispatch, &hand, &handle, 2000);
    let counts = handle.counts();
    assert_eq!(counts.passed + counts.left_out, 2 * THREADS * 2000);
    let (info, warn) = (written(&output, Level::INFO), written(&output, Level::WARN));
    assert_eq!((info.0 + info.1, warn.0 + warn.1), (THREADS * 2000, THREADS * 2000));
    assert_eq!((info.0 + warn.0, info.1 + warn.1), (counts.passed, counts.left_out));
}

/// Where a filter stands that wants warnings only.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Filtered {
    Nowhere,
    /// Over all layers.
    Globally,
    /// `throttle.wrap(output).with_filter(..)`
    Outside,
    /// `throttle.wrap(output.with_filter(..))`
    Inside,
    /// The same with a filter that looks at each line.
    InsideDynamic,
}

type Output<S> = Box<dyn Layer<S> + Send + Sync>;

fn warnings() -> EnvFilter {
    EnvFilter::new("storm=warn")
}

fn throttled<S>(throttle: LogThrottle, output: Recorder, filtered: Filtered) -> Output<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let is_wanted = |metadata: &Metadata<'_>| *metadata.level() <= Level::WARN;
    match filtered {
        Filtered::Nowhere | Filtered::Globally => throttle.wrap(output).boxed(),
        Filtered::Outside => throttle.wrap(output).with_filter(warnings()).boxed(),
        Filtered::Inside => throttle.wrap(output.with_filter(warnings())).boxed(),
        Filtered::InsideDynamic => {
            let filter = dynamic_filter_fn(move |metadata, _| is_wanted(metadata));
            throttle.wrap(output.with_filter(filter)).boxed()
        }
    }
}

#[test]
fn nothing_is_lost_with_filters_inside_and_outside_and_a_second_output() {
    use Filtered::*;
    for filtered in [Nowhere, Globally, Outside, Inside, InsideDynamic] {
        // Without another output, with one that takes everything, and with one that has a filter of its own.
        for other in [None, Some(LevelFilter::TRACE), Some(LevelFilter::INFO)] {
            // Added before or after the throttle: `tracing` calls them in that order.
            for is_first in [true, false] {
                check(filtered, other, is_first);
            }
        }
    }
}

/// Returns the other output, with a filter unless it takes everything.
fn beside_with<S>(beside: &Recorder, level: LevelFilter) -> Output<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    match level {
        LevelFilter::TRACE => beside.clone().boxed(),
        level => beside.clone().with_filter(level).boxed(),
    }
}

fn check(filtered: Filtered, other: Option<LevelFilter>, is_first: bool) {
    let row = format!("{filtered:?}, other output {other:?}, first: {is_first}");
    let (hand, output, beside) = (ManualClock::new(), Recorder::default(), Recorder::default());
    let (throttle, handle) = throttle(&hand);
    let global = (filtered == Filtered::Globally).then(warnings);
    let dispatch = if is_first {
        let stack = registry().with(other.map(|level| beside_with(&beside, level)));
        Dispatch::new(stack.with(throttled(throttle, output.clone(), filtered)).with(global))
    } else {
        let stack = registry().with(throttled(throttle, output.clone(), filtered));
        Dispatch::new(stack.with(other.map(|level| beside_with(&beside, level))).with(global))
    };
    storm(&dispatch, &hand, &handle, 100);
    let emitted = THREADS * 100;
    let (info, warn) = (written(&output, Level::INFO), written(&output, Level::WARN));
    let wants_info = filtered == Filtered::Nowhere;
    assert_eq!(warn.0 + warn.1, emitted, "{row}: {warn:?}");
    assert_eq!(info.0 + info.1, if wants_info { emitted } else { 0 }, "{row}: {info:?}");
    // With few threads at work, the burst is much less than what was emitted.
    assert!(warn.1 > 0, "{row}: nothing was left out");
    let counts = handle.counts();
    if wants_info || matches!(filtered, Filtered::Globally | Filtered::Outside) {
        let (passed, left_out) = (info.0 + warn.0, info.1 + warn.1);
        assert_eq!((counts.passed, counts.left_out), (passed, left_out), "{row}");
    } else {
        // A filter inside comes after the throttle, which counts the lines of both levels.
        assert!(counts.passed + counts.left_out >= emitted, "{row}");
    }
    if other.is_some() {
        let (infos, warns) = (written(&beside, Level::INFO), written(&beside, Level::WARN));
        let infos_wanted = if filtered == Filtered::Globally { 0 } else { emitted };
        assert_eq!((infos, warns), ((infos_wanted, 0), (emitted, 0)), "{row}: the other output");
    }
}

#[test]
fn one_decision_for_two_outputs_and_two_throttles_for_two() {
    let (hand, one, two) = (ManualClock::new(), Recorder::default(), Recorder::default());
    let (throttle_of_both, handle) = throttle(&hand);
    let both = throttle_of_both.wrap(one.clone().and_then(two.clone()));
    storm(&Dispatch::new(registry().with(both)), &hand, &handle, 100);
    assert_eq!(one.lines().len(), two.lines().len());
    let warn = written(&one, Level::WARN);
    assert_eq!(warn.0 + warn.1, THREADS * 100);

    let (one, two) = (Recorder::default(), Recorder::default());
    let ((first, first_handle), (second, second_handle)) = (throttle(&hand), throttle(&hand));
    let stack = registry().with(first.wrap(one.clone())).with(second.wrap(two.clone()));
    let dispatch = Dispatch::new(stack);
    storm(&dispatch, &hand, &first_handle, 100);
    second_handle.flush();
    for output in [&one, &two] {
        let warn = written(output, Level::WARN);
        assert_eq!(warn.0 + warn.1, THREADS * 100);
    }
}

#[test]
fn nothing_is_lost_with_the_global_dispatcher() {
    let (hand, output) = (ManualClock::new(), Recorder::default());
    let (throttle, handle) = throttle(&hand);
    // Other tests of this process log as well.
    let mine = filter_fn(|metadata| metadata.target() == "global");
    let subscriber = registry().with(throttle.wrap(output.clone()).with_filter(mine));
    tracing::subscriber::set_global_default(subscriber).unwrap();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| (0..500).for_each(|_| tracing::info!(target: "global", "line")));
        }
    });
    assert!(written(&output, Level::INFO).1 == 0, "no line has passed since");
    hand.advance(Duration::from_secs(30));
    let (lines, left_out) = written(&output, Level::INFO);
    assert_eq!((lines, left_out), (20, THREADS * 500 - 20));
    assert_eq!(handle.counts().left_out, left_out);
}
