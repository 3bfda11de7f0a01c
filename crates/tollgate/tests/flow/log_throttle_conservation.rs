//! No line is lost without being counted: lines written + lines in notices = lines emitted, with threads, clock jumps,
//! filters inside and outside, several outputs, scoped and global dispatchers.

use crate::log_throttle::Recorder;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};
use tollgate::{
    Driver, ManualClock, Quota, Tick,
    log::{LogThrottle, LogThrottleHandle},
};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};
use tracing_subscriber::{
    EnvFilter, Layer,
    filter::{LevelFilter, dynamic_filter_fn, filter_fn},
    layer::{Context, SubscriberExt},
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

/// Emits `lines` lines of two levels from each of 8 threads, while the clock jumps and the throttle
/// is flushed.
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

/// The place of a filter that accepts warnings only.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Filtered {
    Nowhere,
    /// Over all layers.
    Globally,
    /// `throttle.wrap(output).with_filter(..)`
    Outside,
    /// `throttle.wrap(output.with_filter(..))`
    Inside,
    /// The same with a filter that checks each line.
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
        // Without another output, with one that accepts everything, and with one that has a filter
        // of its own.
        for other in [None, Some(LevelFilter::TRACE), Some(LevelFilter::INFO)] {
            // Added before or after the throttle: `tracing` calls them in that order.
            for is_first in [true, false] {
                check(filtered, other, is_first);
            }
        }
    }
}

/// Returns the other output, with a filter unless it accepts everything.
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
    // With few active threads, the burst is much less than the number of emitted lines.
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

#[test]
fn a_flush_is_heard_whatever_a_filter_was_asked_before() {
    let (hand, output, beside) = (ManualClock::new(), Recorder::default(), Recorder::default());
    let (throttle, handle) = throttle(&hand);
    let throttled = throttle.wrap(output.clone()).with_filter(LevelFilter::INFO);
    let stack = registry().with(throttled).with(beside.clone().with_filter(LevelFilter::DEBUG));
    tracing::subscriber::with_default(stack, || {
        (0..30).for_each(|_| tracing::warn!("line"));
        // The filter of the throttle says no, and keeps that answer for an event that never comes.
        assert!(tracing::enabled!(Level::DEBUG));
        handle.flush();
    });
    assert_eq!(written(&output, Level::WARN), (20, 10));
    assert_eq!(beside.lines().len(), 30, "the other output does not show the request to flush");
}

#[test]
fn a_throttle_inside_another_is_flushed_and_the_outer_one_counts_no_request() {
    let (hand, output) = (ManualClock::new(), Recorder::default());
    let ((outer, outer_handle), (inner, inner_handle)) = (throttle(&hand), throttle(&hand));
    let dispatch = Dispatch::new(registry().with(outer.wrap(inner.wrap(output.clone()))));
    for _ in 0..200 {
        inner_handle.flush();
        outer_handle.flush();
    }
    tracing::dispatcher::with_default(&dispatch, || (0..30).for_each(|_| tracing::warn!("line")));
    let counts = outer_handle.counts();
    assert_eq!((counts.passed, counts.left_out), (20, 10));
    outer_handle.flush();
    assert_eq!(written(&output, Level::WARN), (20, 10));
    assert!(written(&output, Level::ERROR) == (0, 0), "no output shows a request to flush");
}

#[test]
fn notices_that_make_the_output_panic_are_written_later() {
    /// Panics at the first notices.
    struct Broken(Recorder, AtomicU64);
    impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Broken {
        fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
            let is_notice = event.metadata().target() == "tollgate::log";
            assert!(!is_notice || self.1.fetch_add(1, Relaxed) >= 2, "the output is broken");
            self.0.on_event(event, context);
        }
    }
    let (hand, output) = (ManualClock::new(), Recorder::default());
    let builder = LogThrottle::builder(Quota::per_second(1)).by("tenant");
    let throttle = builder.driver(Driver::manual(&hand)).build().unwrap();
    let handle = throttle.handle();
    let broken = throttle.wrap(Broken(output.clone(), AtomicU64::new(0)));
    let dispatch = Dispatch::new(registry().with(broken));
    let log = || {
        tracing::dispatcher::with_default(&dispatch, || {
            for tenant in [1, 2, 3, 1, 2, 3] {
                tracing::warn!(tenant, "line");
            }
        });
    };
    log();
    assert!(catch_unwind(AssertUnwindSafe(|| handle.flush())).is_err());
    log();
    hand.advance(Duration::from_secs(2));
    // A line that passes has the notice of its tenant before it.
    assert!(catch_unwind(AssertUnwindSafe(log)).is_err());
    hand.advance(Duration::from_secs(30));
    let counts = handle.counts();
    let (lines, left_out) = written(&output, Level::WARN);
    // The line behind the notice that panicked was let through, and did not arrive.
    assert_eq!((lines, left_out), (counts.passed - 1, counts.left_out));
}
