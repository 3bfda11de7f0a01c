//! The cost of reading the time: the floor under every limiter that reads a clock.

use crate::{
    Options,
    grid::{Case, Grid, Row},
    harness::Subject,
    machine, peers,
};
use std::{
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};
use tollgate::Clock;

fn row<T>(name: &'static str, read: impl Fn() -> T + Copy + Send + Sync + 'static) -> Row {
    Row::new(name, move |_| {
        Some(Subject::new(move || {
            Box::new(move |calls| {
                for _ in 0..calls {
                    black_box(read());
                }
            })
        }))
    })
}

fn clock(name: &'static str, make: fn() -> Clock) -> Row {
    Row::new(name, move |_| {
        let clock = make();
        Some(Subject::new(move || {
            let clock = clock.clone();
            Box::new(move |calls| {
                for _ in 0..calls {
                    black_box(black_box(&clock).now());
                }
            })
        }))
    })
}

/// One successful compare-exchange on a word of the thread's own.
fn exchange() -> Row {
    Row::new("bare compare-exchange, nobody else", |_| {
        Some(Subject::new(|| {
            let word = AtomicU64::new(0);
            Box::new(move |calls| {
                for _ in 0..calls {
                    let seen = word.load(Relaxed);
                    let _ = black_box(word.compare_exchange(seen, seen + 1, Relaxed, Relaxed));
                }
            })
        }))
    })
}

/// Prints the table.
pub(crate) fn run(options: &Options) {
    println!("\n## clocks: the floor\n");
    println!("Nanoseconds per reading, 1 thread; ratio to a whole decision of governor 0.10.\n");
    let quanta = quanta::Clock::new();
    let rows = [
        row("empty loop", || ()),
        row("std::time::Instant::now", Instant::now),
        row("clock_gettime(MONOTONIC_COARSE)", machine::coarse_ns),
        row("rdtsc", machine::counter),
        Row::new("quanta 0.12 now", move |_| {
            let quanta = quanta.clone();
            Some(Subject::new(move || {
                let quanta = quanta.clone();
                Box::new(move |calls| {
                    for _ in 0..calls {
                        black_box(black_box(&quanta).now());
                    }
                })
            }))
        }),
        clock("tollgate Clock::monotonic().now", Clock::monotonic),
        clock("tollgate Clock::cached().now", peers::tollgate::cached),
        exchange(),
        peers::crates::governor(),
    ];
    let grid = Grid::measure(&rows, &[Case::Partly], 1, options.rounds());
    println!("{}", grid.headed(&["ns"]).table(peers::BASELINE));
}
