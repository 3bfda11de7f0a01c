//! How long single calls take.

use crate::{
    Options,
    grid::{Case, Row},
    harness::{Subject, progress},
    machine, peers, stats,
    table::{Table, figure},
};
use std::{hint::black_box, sync::Barrier, thread};

const CALLS: usize = 200_000;
/// The percentiles of a table.
pub(crate) const SHARES: [(&str, f64); 4] =
    [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// Times each call of one thread, in counts.
fn time_calls(subject: &Subject, index: usize, barrier: &Barrier) -> Vec<f64> {
    machine::pin(index);
    let mut run = subject.runner();
    let mut counts = vec![0.0; CALLS];
    run(CALLS as u64);
    barrier.wait();
    for count in &mut counts {
        let start = machine::counter();
        run(1);
        *count = machine::counter().wrapping_sub(start) as f64;
    }
    counts
}

fn percentiles(subject: &Subject, threads: usize, period_ns: f64) -> Vec<f64> {
    let barrier = Barrier::new(threads);
    let mut all: Vec<f64> = thread::scope(|scope| {
        let work = |index| {
            let barrier = &barrier;
            move || time_calls(subject, index, barrier)
        };
        let workers: Vec<_> = (0..threads).map(|index| scope.spawn(work(index))).collect();
        let join = |worker: thread::ScopedJoinHandle<'_, _>| worker.join().unwrap_or_default();
        workers.into_iter().flat_map(join).collect()
    });
    SHARES
        .iter()
        .filter_map(|(_, share)| stats::quantile(&mut all, *share))
        .map(|counts| counts * period_ns)
        .collect()
}

fn nothing() -> Row {
    Row::new("nothing (the price of timing)", |_| {
        Some(Subject::new(|| {
            Box::new(|calls| {
                black_box(calls);
            })
        }))
    })
}

/// Prints percentiles of single calls.
pub(crate) fn run(options: &Options) {
    println!("\n## latency: single calls\n");
    println!(
        "Nanoseconds, each call between two readings of the processor's counter and behind one \
         indirect call; nothing is subtracted, so the first line is the floor. Medians over rounds. \
         The maximum is the scheduler's, not the limiter's."
    );
    let period_ns = machine::counter_period_ns();
    let rows = [
        nothing(),
        peers::tollgate::default(),
        peers::tollgate::on_cached_clock(),
        peers::crates::governor(),
        peers::textbook::mutex(),
    ];
    for threads in [1, 2] {
        for case in [Case::Full, Case::Partly, Case::Denied] {
            println!("\n### latency, {case:?}, threads: {threads}\n");
            let mut table = Table::new([""].into_iter().chain(SHARES.map(|(name, _)| name)));
            let mut values = vec![vec![Vec::new(); SHARES.len()]; rows.len()];
            for round in 0..options.rounds() {
                for (row, values) in rows.iter().zip(&mut values) {
                    progress(&format!("latency, round {}: {}", round + 1, row.name));
                    let Some(subject) = row.build(case) else {
                        continue;
                    };
                    let found = percentiles(&subject, threads, period_ns);
                    for (values, value) in values.iter_mut().zip(found) {
                        values.push(Some(value));
                    }
                }
            }
            progress("");
            for (row, values) in rows.iter().zip(values) {
                let medians = values.into_iter().map(|values| figure(stats::median(values)));
                table.line([row.name.clone()].into_iter().chain(medians));
            }
            println!("{table}");
        }
    }
}
