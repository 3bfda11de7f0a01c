//! Prints reports.

mod compare;
mod explain;
mod picture;
mod table;

use crate::{args::Format, plan::Plan};
use std::io::{self, Write};

/// Writes the planned report.
pub(crate) fn write(plan: &Plan, out: &mut impl Write) -> io::Result<()> {
    match plan {
        Plan::Table(plan) => match plan.format {
            Format::Text => table::text(plan, out),
            Format::Csv => table::csv(plan, out),
            Format::Json => table::json(plan, out),
        },
        Plan::Compare(plan) => compare::text(plan, out),
        Plan::Explain(quota) => explain::text(quota, out),
    }
}

/// `1 arrival`, `2 arrivals`.
fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}
