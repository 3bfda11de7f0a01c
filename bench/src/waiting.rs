//! Tasks and threads that wait for permits.
//!
//! The hard case for a limiter with waiting callers is a large number of tasks that try again as
//! soon as they are served: a burst of one saves nothing up, so a permit that comes late is lost.
//! All rows of a table are measured in each round, one after the other, so that a slow moment of
//! the machine affects them alike; ratios are taken inside a round.
//!
//! A row starts its tasks, lets each of them make one call, and measures them from then on. The
//! figures are in [`seats`]: how often each task was served, how long each waited (a task that
//! still waits at the end counts with its wait so far), and what the process paid for it.

mod churn;
mod costs;
mod crowd;
mod even;
mod overload;
mod seats;
mod subject;
mod threads;

use crate::{
    Options, machine,
    stats::{median, median_ratio},
    table::figure,
};
use crowd::{Case, Rate};
use seats::Sample;
use std::time::Duration;
use subject::{
    AsyncRateLimiter, Fifo, Governor, JitteredGovernor, LeakyFair, LeakyUnfair, NewestFirst,
    Reserving, Waiting,
};

/// The extent of the measurements.
#[derive(Clone, Copy)]
struct Extent {
    rounds: usize,
    /// The duration of each row in each round, at least.
    time: Duration,
}

impl Extent {
    fn new(options: &Options) -> Self {
        let rounds = if options.quick { 1 } else { 3 };
        Self { rounds, time: Duration::from_secs_f64(options.seconds.unwrap_or(2.5)) }
    }
}

/// A limiter, and how it is measured.
struct Row {
    name: &'static str,
    crowd: fn(&Case) -> Result<Sample, String>,
    overload: fn(Duration) -> Result<overload::Served, String>,
}

impl Row {
    fn of<W: Waiting>(name: &'static str) -> Self {
        Self { name, crowd: crowd::run::<W>, overload: overload::measure::<W> }
    }
}

/// The limiter that the others are compared with. It is the first row everywhere.
fn governor() -> Row {
    Row::of::<Governor>("governor 0.10, until_ready")
}

/// Limiters that serve any cost.
fn weighing() -> Vec<Row> {
    vec![
        governor(),
        Row::of::<JitteredGovernor>("governor 0.10, jitter up to 5 ms"),
        Row::of::<LeakyFair>("leaky-bucket 1.1, fair (default)"),
        Row::of::<LeakyUnfair>("leaky-bucket 1.1, unfair"),
        Row::of::<Reserving>("tollgate, reserve and one sleep"),
        Row::of::<Fifo>("tollgate, acquire"),
    ]
}

/// All limiters that are meant to be fair.
fn all() -> Vec<Row> {
    let mut rows = weighing();
    rows.insert(4, Row::of::<AsyncRateLimiter>("async-rate-limiter 1.1"));
    rows
}

/// The measurements of each row in each round.
struct Rounds<S> {
    samples: Vec<Vec<Option<S>>>,
    failures: Vec<String>,
}

impl<S> Rounds<S> {
    /// Measures every row once in each round.
    fn measure<R>(
        rows: &[R],
        extent: Extent,
        mut measure: impl FnMut(&R) -> Result<S, String>,
    ) -> Self {
        let mut rounds = Self { samples: Vec::new(), failures: Vec::new() };
        rounds.samples.resize_with(rows.len(), Vec::new);
        for _ in 0..extent.rounds {
            for (row, samples) in rows.iter().zip(&mut rounds.samples) {
                let sample = machine::counting_all(|| measure(row));
                samples.push(sample.map_err(|error| rounds.failures.push(error)).ok());
            }
        }
        rounds
    }

    /// Returns the figures of a row; `None` for a division by zero.
    fn picked(&self, row: usize, pick: impl Fn(&S) -> f64) -> Vec<Option<f64>> {
        let figure = |sample: &Option<S>| sample.as_ref().map(&pick).filter(|it| it.is_finite());
        self.samples[row].iter().map(figure).collect()
    }

    /// Returns the median over rounds.
    fn middle(&self, row: usize, pick: impl Fn(&S) -> f64) -> Option<f64> {
        median(self.picked(row, pick))
    }

    /// Returns the median over rounds of the ratio to the first row.
    fn ratio(&self, row: usize, pick: impl Fn(&S) -> f64) -> Option<f64> {
        median_ratio(&self.picked(row, &pick), &self.picked(0, &pick))
    }

    /// Returns the largest of the rounds.
    fn most(&self, row: usize, pick: impl Fn(&S) -> f64) -> Option<f64> {
        self.picked(row, pick).into_iter().flatten().reduce(f64::max)
    }

    /// Returns the smallest of the rounds.
    fn least(&self, row: usize, pick: impl Fn(&S) -> f64) -> Option<f64> {
        self.picked(row, pick).into_iter().flatten().reduce(f64::min)
    }

    /// Prints below a table which rows could not be measured.
    fn print_failures(&self) {
        for failure in &self.failures {
            println!("Not measured: {failure}.\n");
        }
    }
}

/// Writes a whole number, or a dash where there is none.
fn whole(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.0}"))
}

/// Writes a share as a percentage, or a dash where there is none.
fn percent(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{:.1} %", value * 100.0))
}

/// Writes blocks of memory for each grant. A plain 0 is none at all.
fn blocks(value: Option<f64>) -> String {
    match value {
        Some(0.0) => "0".into(),
        Some(value) if value < 0.1 => format!("{value:.4}"),
        value => figure(value),
    }
}

/// Prints the tables of waiting.
pub(crate) fn run(options: &Options) {
    let extent = Extent::new(options);
    println!("\n## waiting\n");
    println!(
        "Tokio with {} workers, rounds: {}. *Rate*, *CPU* (time of the whole process on a processor \
         for each grant), *ratio* (of CPU to the first row, inside a round) and *blocks* (of memory \
         that all threads asked for, for each grant) are medians over rounds; grants per task, \
         longest waits and places overtaken are the worst of them.\n",
        crowd::WORKERS,
        extent.rounds
    );
    even::run(extent);
    costs::run(extent);
    churn::run(extent);
    overload::run(extent);
    threads::run(extent);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_have_medians_ratios_and_extremes() {
        let extent = Extent { rounds: 3, time: Duration::ZERO };
        let mut values = [10.0, 1.0, 40.0, 8.0, 20.0, 3.0].into_iter();
        let rounds = Rounds::measure(&["base", "row"], extent, |_| Ok(values.next().unwrap()));
        assert_eq!(rounds.middle(0, |it| *it), Some(20.0));
        assert_eq!(rounds.ratio(1, |it| *it), Some(0.15));
        assert_eq!((rounds.least(1, |it| *it), rounds.most(1, |it| *it)), (Some(1.0), Some(8.0)));
    }

    #[test]
    fn no_block_at_all_reads_differently_from_hardly_any() {
        let cells = [Some(0.0), Some(0.0004), Some(1.0), None].map(blocks);
        assert_eq!(cells, ["0", "0.0004", "1.00", "-"]);
    }

    #[test]
    fn a_row_that_fails_is_named_and_leaves_a_dash() {
        let extent = Extent { rounds: 1, time: Duration::ZERO };
        let rounds = Rounds::<f64>::measure(&["row"], extent, |_| Err("gone".to_owned()));
        assert_eq!(rounds.failures, ["gone"]);
        assert_eq!((whole(rounds.middle(0, |it| *it)), percent(None)), ("-".into(), "-".into()));
    }
}
