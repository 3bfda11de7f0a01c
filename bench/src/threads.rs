//! One hot limiter and many threads.

use crate::{
    Options,
    grid::Case,
    harness::progress,
    peers, stats,
    table::{Table, figure},
};
use std::time::Duration;

const COUNTS: [usize; 3] = [2, 8, 64];
const TIME: Duration = Duration::from_millis(150);

/// Prints total throughput by number of threads.
pub(crate) fn run(options: &Options) {
    println!("\n## threads on one limiter\n");
    println!("Million decisions per second of all threads together; ratio above 1 is faster.");
    let rows = [
        peers::tollgate::default(),
        peers::tollgate::on_cached_clock(),
        peers::crates::governor(),
        peers::textbook::mutex(),
    ];
    for case in [Case::Full, Case::Partly, Case::Denied] {
        println!("\n### threads, {case:?}\n");
        let mut values = vec![vec![Vec::new(); COUNTS.len()]; rows.len()];
        for round in 0..options.rounds() {
            for (column, count) in COUNTS.iter().enumerate() {
                for (row, values) in rows.iter().zip(&mut values) {
                    progress(&format!("round {}, {count} threads: {}", round + 1, row.name));
                    let subject = row.build(case);
                    let value = subject.and_then(|it| it.mega_calls_per_second(*count, TIME));
                    values[column].push(value);
                }
            }
        }
        progress("");
        let mut headings = vec![String::new()];
        for count in COUNTS {
            headings.extend([format!("{count} threads"), "ratio".to_owned()]);
        }
        let mut table = Table::new(headings);
        let base = rows.iter().position(|row| row.name == peers::BASELINE);
        for (row, ours) in rows.iter().zip(&values) {
            let mut line = vec![row.name.clone()];
            for (column, ours) in ours.iter().enumerate() {
                let ratio = base.and_then(|base| stats::median_ratio(ours, &values[base][column]));
                line.extend([figure(stats::median(ours.iter().copied())), figure(ratio)]);
            }
            table.line(line);
        }
        println!("{table}");
    }
}
