//! What came of the days, for people.

use super::run::{Report, Row, percentile};
use std::{
    fmt::{self, Write as _},
    time::Duration,
};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", times(self))?;
        self.errors.iter().try_for_each(|error| writeln!(f, "  {error}"))?;
        self.rows.iter().try_for_each(|row| writeln!(f, "  {}", of_row(self, row)))
    }
}

fn times(report: &Report) -> String {
    let slowest = report.noticing.iter().max().copied().unwrap_or_default();
    let [half, almost_all] = [50, 99].map(|percent| percentile(&report.down, percent));
    format!(
        "| {} | {} | {} | {} | {} |",
        report.name,
        if report.degrades { written(slowest) } else { "-".into() },
        written(half),
        written(almost_all),
        written(report.recovered),
    )
}

fn of_row(report: &Report, row: &Row) -> String {
    let most = row.bound.while_down_once.map_or("all".into(), |most| most.to_string());
    format!(
        "| {} | {:?} | {} | {most} | {} | {} | {} | {} | {} |",
        report.name,
        row.failure,
        row.tally.admitted_degraded,
        row.tally.refused_degraded,
        row.unknown,
        row.carried,
        row.spent,
        row.tally.admitted(),
    )
}

fn written(duration: Duration) -> String {
    match duration.as_micros() {
        micros @ 0..1_000 => format!("{micros} µs"),
        micros @ 1_000..1_000_000 => format!("{:.1} ms", micros as f64 / 1e3),
        micros => format!("{:.1} s", micros as f64 / 1e6),
    }
}

/// Returns the tables of all days.
pub(crate) fn markdown(reports: &[Report]) -> String {
    let mut text = String::from(
        "| bad day | slowest until noticed | p50 then | p99 then | recovered after |\n\
         |---|---|---|---|---|\n",
    );
    for report in reports {
        writeln!(text, "{}", times(report)).unwrap();
    }
    text.push_str(
        "\n| bad day | failure policy | admitted without the store | at most | refused | \
         unknown | carried back | booked at recovery | admitted in all |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for report in reports {
        for row in &report.rows {
            writeln!(text, "{}", of_row(report, row)).unwrap();
        }
    }
    text.push_str("\n| bad day | what the store says, at first and then |\n|---|---|\n");
    for report in reports {
        let errors: Vec<_> = report.errors.iter().map(|error| format!("`{error}`")).collect();
        writeln!(text, "| {} | {} |", report.name, errors.join("<br>")).unwrap();
    }
    text
}
