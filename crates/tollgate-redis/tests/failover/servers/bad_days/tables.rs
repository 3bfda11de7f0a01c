//! The results of the days, as tables for people.

use super::{
    fleet::{LIMIT, PROCESSES},
    run::{CALLS_BEFORE, CALLS_DOWN, Report, Row, percentile},
};
use std::{
    fmt::{self, Write as _},
    time::Duration,
};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", times(self))?;
        writeln!(f, "{}", counts(self))?;
        self.errors.iter().try_for_each(|error| writeln!(f, "  {error}"))?;
        self.rows.iter().try_for_each(|row| writeln!(f, "  {row:?}"))
    }
}

/// Returns the tables of all days.
pub(crate) fn markdown(reports: &[Report]) -> String {
    let mut text = String::from(
        "| bad day | the store says | until noticed: slowest | then: p50 | p99 | well again after |\n\
         |---|---|---|---|---|---|\n",
    );
    for report in reports {
        writeln!(text, "{}", times(report)).unwrap();
    }
    writeln!(
        text,
        "\nOne key, {LIMIT} permits a year, {PROCESSES} processes: each makes {CALLS_BEFORE} calls \
         before, {CALLS_BEFORE} while it breaks, {CALLS_DOWN} while it is broken, some until it is \
         mended, and then as many as pass.\n"
    )
    .unwrap();
    text.push_str(
        "| bad day | unknown | open: without the store, in all | closed: without, in all | local: \
         without, in all | local: carried back, booked |\n|---|---|---|---|---|---|\n",
    );
    for report in reports {
        writeln!(text, "{}", counts(report)).unwrap();
    }
    text
}

fn times(report: &Report) -> String {
    let slowest = report.noticing.iter().max().copied().unwrap_or_default();
    let [half, almost_all] = [50, 99].map(|percent| written(percentile(&report.down, percent)));
    let (says, slowest, recovered) = match report.degrades {
        true => (reasons(&report.errors), written(slowest), written(report.recovered)),
        false => ("nothing: it is not noticed".into(), "-".into(), "-".into()),
    };
    format!("| {} | {says} | {slowest} | {half} | {almost_all} | {recovered} |", report.name)
}

/// Returns what differs among errors: an open breaker says for how long it is, and why.
fn reasons(errors: &[String]) -> String {
    let mut all: Vec<String> = Vec::new();
    for error in errors {
        let left_alone = error.split_once(" is being ").and_then(|(_, rest)| rest.split_once(": "));
        let reason = left_alone.map_or(error.as_str(), |(_, reason)| reason);
        let reason = reason.strip_prefix("server: ").unwrap_or(reason);
        let reason = reason.split(" script: ").next().unwrap_or(reason);
        let reason = format!("`{}`", reason.replace('\u{fffd}', "?"));
        if !all.contains(&reason) {
            all.push(reason);
        }
    }
    all.join(", ")
}

fn counts(report: &Report) -> String {
    let unknown: u64 = report.rows.iter().map(|row| row.unknown_in_all).sum();
    let passed = |row: &Row| format!("{}, {}", row.tally.admitted_degraded, row.tally.admitted());
    let [open, closed, local] = &report.rows;
    format!(
        "| {} | {unknown} | {} | {} | {} | {}, {} |",
        report.name,
        passed(open),
        passed(closed),
        passed(local),
        local.carried,
        local.spent,
    )
}

fn written(duration: Duration) -> String {
    match duration.as_micros() {
        micros @ 0..1_000 => format!("{micros} µs"),
        micros @ 1_000..1_000_000 => format!("{:.1} ms", micros as f64 / 1e3),
        micros => format!("{:.1} s", micros as f64 / 1e6),
    }
}
