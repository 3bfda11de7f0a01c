//! "Run sometimes", in tables; the rules are those of Go's `rate.Sometimes`.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};
use tollgate::{Clock, Sometimes, Tick};

const SECOND: Duration = Duration::from_secs(1);

/// Calls at the given seconds, and returns the numbers of the calls that ran.
fn ran(rules: Sometimes, at_secs: impl IntoIterator<Item = u64>) -> Vec<usize> {
    let (clock, hand) = Clock::manual();
    let sometimes = rules.clock(clock);
    let runs = at_secs.into_iter().enumerate().filter_map(|(number, at)| {
        hand.set(Tick::from_secs(at));
        sometimes.run(|_| number)
    });
    runs.collect()
}

#[test]
fn counts_and_intervals_add_up() {
    let at_once = || std::iter::repeat_n(0, 12);
    let each_second = || 0..31;
    let rows: [(&str, Sometimes, Vec<u64>, &[usize]); 12] = [
        ("once", Sometimes::once(), at_once().collect(), &[0]),
        ("no rule: the first runs", Sometimes::first(0), at_once().collect(), &[0]),
        ("zero is no rule", Sometimes::every(0).or_interval(Duration::ZERO), vec![0, 9], &[0]),
        ("first 3", Sometimes::first(3), at_once().collect(), &[0, 1, 2]),
        ("every 5", Sometimes::every(5), at_once().collect(), &[0, 5, 10]),
        ("every 1", Sometimes::every(1), vec![0; 4], &[0, 1, 2, 3]),
        (
            "interval 10 s",
            Sometimes::interval(10 * SECOND),
            each_second().collect(),
            &[0, 10, 20, 30],
        ),
        ("just before and at it", Sometimes::interval(10 * SECOND), vec![3, 12, 13], &[0, 2]),
        (
            "first 3 or every 5",
            Sometimes::first(3).or_every(5),
            at_once().collect(),
            &[0, 1, 2, 5, 10],
        ),
        (
            "first 2 or every 5 or 10 s: all at once",
            Sometimes::first(2).or_every(5).or_interval(10 * SECOND),
            at_once().collect(),
            &[0, 1, 5, 10],
        ),
        (
            "a run of any rule begins the interval",
            Sometimes::every(5).or_first(2).or_interval(10 * SECOND),
            // Call 5 at 14 s is one of five; 20 s is 6 s after it, 24 s is 10 s after it.
            vec![0, 9, 10, 10, 10, 14, 20, 24, 24],
            &[0, 1, 5, 7],
        ),
        ("other order", Sometimes::interval(SECOND).or_every(4), vec![0, 0, 0, 0, 0], &[0, 4]),
    ];
    for (name, rules, at, expected) in rows {
        assert_eq!(ran(rules, at), expected, "{name}");
    }
}

#[test]
fn a_run_is_told_how_many_were_left_out() {
    let sometimes = Sometimes::every(4).or_first(2);
    let told: Vec<_> = (0..10).map(|_| sometimes.is_time()).collect();
    let none = None;
    assert_eq!(told, [Some(0), Some(0), none, none, Some(2), none, none, none, Some(3), none]);
}

#[test]
fn the_closure_may_ask_again() {
    let sometimes = Sometimes::first(2);
    let inner = sometimes.run(|_| sometimes.run(|_| sometimes.run(|_| ())));
    assert_eq!(inner, Some(Some(None)));
}

#[test]
fn a_closure_that_panics_has_run() {
    let sometimes = Sometimes::first(2);
    let run = std::panic::AssertUnwindSafe(|| sometimes.run(|_| panic!("on purpose")));
    assert!(std::panic::catch_unwind(run).is_err());
    assert_eq!((sometimes.run(|_| 1), sometimes.run(|_| 2)), (Some(1), None));
}

#[test]
fn a_static_measures_intervals_by_the_monotonic_clock() {
    static RARELY: Sometimes = Sometimes::interval(Duration::from_secs(86_400));
    static EVERY: Sometimes = Sometimes::interval(Duration::from_nanos(1)).or_every(1);
    assert_eq!((RARELY.is_time(), RARELY.is_time()), (Some(0), None));
    assert_eq!((EVERY.is_time(), EVERY.is_time()), (Some(0), Some(0)));
}

#[test]
fn of_many_threads_exactly_as_many_run_as_the_rules_say() {
    // name, rules, runs of 4 x 10,000 calls
    for (name, rules, expected) in [
        ("first", Sometimes::first(1234), 1234),
        ("every", Sometimes::every(7), 40_000_u64.div_ceil(7)),
        ("both", Sometimes::first(70).or_every(7), 70 + 40_000_u64.div_ceil(7) - 10),
        ("interval", Sometimes::interval(Duration::from_secs(86_400)), 1),
    ] {
        let (runs, left_out) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        // ORDERING: Relaxed, the end of the scope publishes both.
                        rules.run(|skipped| {
                            left_out.fetch_add(skipped, Relaxed);
                            runs.fetch_add(1, Relaxed)
                        });
                    }
                });
            }
        });
        assert_eq!(runs.into_inner(), expected, "{name}");
        assert!(left_out.into_inner() + expected <= 40_000, "{name}");
    }
}
