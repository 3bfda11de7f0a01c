//! One row per event: as text, as CSV, as JSON.

use super::{
    count,
    picture::{Axis, KEY},
};
use crate::{plan::Table, replay::Replay, span::Span};
use serde::Serialize;
use std::{
    io::{self, Write},
    time::Duration,
};
use tollgate::{Decision, Outcome};

const COLUMNS: usize = 6;

const TITLES: [&str; COLUMNS] =
    ["time", "cost", "answer", "remaining", "retry after", "full after"];

/// The names of the fields, for programs: the unit is the last word.
const FIELDS: &str = "at_ns,cost,answer,remaining,retry_after_ns,full_after_ns";

/// Writes the table, a summary and a picture.
pub(super) fn text(plan: &Table, out: &mut impl Write) -> io::Result<()> {
    let Table { replay, events, hints, .. } = plan;
    let Replay { quota, algorithm, .. } = replay;
    let arrivals = count(events.ticks.len(), "arrival");
    writeln!(
        out,
        "{quota} by {algorithm}, {arrivals} of cost {}: {}\n",
        events.cost, events.arrivals
    )?;
    let rows: Vec<_> = replay.decisions.iter().map(cells).collect();
    let widths = widths(&rows);
    write_row(out, &TITLES.map(str::to_owned), &widths)?;
    for row in &rows {
        write_row(out, row, &widths)?;
    }
    let axis = Axis::of(replay);
    writeln!(out, "\nadmitted {} of {}", replay.allowed(), rows.len())?;
    if replay.never() > 0 {
        writeln!(
            out,
            "{} can never pass: the cost is above the burst or limit, or nothing refills",
            replay.never()
        )?;
    }
    writeln!(out, "\n  {}", axis.line(replay).trim_end())?;
    writeln!(out, "  {}", axis.ruler(quota.period()))?;
    writeln!(out, "  {}", axis.ends())?;
    writeln!(out, "  {KEY}")?;
    write!(out, "{hints}")
}

/// Writes comma-separated rows and nothing else.
pub(super) fn csv(plan: &Table, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{FIELDS}")?;
    let or_empty = |number: Option<u64>| number.map_or_else(String::new, |n| n.to_string());
    for decision in &plan.replay.decisions {
        let row = Row::new(decision);
        writeln!(
            out,
            "{},{},{},{},{},{}",
            row.at_ns,
            row.cost,
            row.answer,
            or_empty(row.remaining),
            or_empty(row.retry_after_ns),
            or_empty(row.full_after_ns)
        )?;
    }
    Ok(())
}

/// Writes one object with the events and a summary.
pub(super) fn json(plan: &Table, out: &mut impl Write) -> io::Result<()> {
    let Table { replay, events, .. } = plan;
    let document = Document {
        quota: replay.quota.to_string(),
        algorithm: replay.algorithm.name(),
        arrivals: &events.arrivals,
        summary: Summary {
            arrivals: replay.decisions.len(),
            allowed: replay.allowed(),
            denied: replay.decisions.len() - replay.allowed() - replay.never(),
            never: replay.never(),
        },
        events: replay.decisions.iter().map(Row::new).collect(),
    };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}

/// An event and its answer, for programs. None is what does not apply: no limit, no wait, no end.
#[derive(Debug, Serialize)]
struct Row {
    at_ns: u64,
    cost: u64,
    answer: &'static str,
    remaining: Option<u64>,
    retry_after_ns: Option<u64>,
    full_after_ns: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    quota: String,
    algorithm: &'static str,
    arrivals: &'a str,
    summary: Summary,
    events: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Summary {
    arrivals: usize,
    allowed: usize,
    denied: usize,
    never: usize,
}

impl Row {
    fn new(decision: &Decision) -> Self {
        let at = decision.at();
        // A wait is the distance of two ticks, so it fits.
        let nanos = |wait: Duration| u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Self {
            at_ns: at.as_nanos(),
            cost: decision.cost(),
            answer: answer(decision),
            remaining: remaining(decision),
            retry_after_ns: decision.retry_after(at).map(nanos),
            full_after_ns: decision.reset_after(at).map(nanos),
        }
    }
}

fn answer(decision: &Decision) -> &'static str {
    match decision.outcome() {
        Outcome::Allowed => "allowed",
        Outcome::Never => "never",
        _ => "denied",
    }
}

/// Returns the remaining permits; `None` if there is no limit.
fn remaining(decision: &Decision) -> Option<u64> {
    Some(decision.remaining()).filter(|_| decision.limit() < u64::MAX)
}

fn cells(decision: &Decision) -> [String; COLUMNS] {
    let at = decision.at();
    let span = |wait: Option<Duration>| wait.map(|wait| Span(wait).to_string());
    let or = |text: Option<String>, none: &str| text.unwrap_or_else(|| none.to_owned());
    [
        Span(Duration::from_nanos(at.as_nanos())).to_string(),
        decision.cost().to_string(),
        answer(decision).to_owned(),
        or(remaining(decision).map(|n| n.to_string()), "no limit"),
        or(span(decision.retry_after(at)), "-"),
        or(span(decision.reset_after(at)), "never"),
    ]
}

fn widths(rows: &[[String; COLUMNS]]) -> [usize; COLUMNS] {
    let mut widths = TITLES.map(str::len);
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    widths
}

fn write_row(
    out: &mut impl Write,
    row: &[String; COLUMNS],
    widths: &[usize; COLUMNS],
) -> io::Result<()> {
    for (cell, width) in row.iter().zip(widths) {
        write!(out, "  {cell:>width$}")?;
    }
    writeln!(out)
}
