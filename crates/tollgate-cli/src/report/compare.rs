//! The same events through every algorithm, side by side.

use super::{
    count,
    picture::{Axis, KEY},
};
use crate::{plan::Comparison, span::Span};
use std::io::{self, Write};

/// As wide as the longest name of an algorithm, and two more.
const NAME_WIDTH: usize = 17;

/// Writes a picture and the figures of each algorithm.
pub(super) fn text(plan: &Comparison, out: &mut impl Write) -> io::Result<()> {
    let Comparison {
        quota,
        events,
        replays,
        notes,
    } = plan;
    let arrivals = count(events.ticks.len(), "arrival");
    writeln!(
        out,
        "{quota}, {arrivals} of cost {}: {}\n",
        events.cost, events.arrivals
    )?;
    let Some(first) = replays.first() else {
        return Ok(());
    };
    let axis = Axis::of(first);
    let period = quota.period();
    let total = events.ticks.len().to_string();
    let width = total.len();
    for replay in replays {
        writeln!(
            out,
            "{:<NAME_WIDTH$}{}  {:>width$} of {total}, {} in the busiest {}",
            replay.algorithm.name(),
            axis.line(replay),
            replay.allowed(),
            replay.most_in_any(period),
            Span(period)
        )?;
    }
    writeln!(out, "{:NAME_WIDTH$}{}", "", axis.ruler(period))?;
    writeln!(out, "{:NAME_WIDTH$}{}", "", axis.ends())?;
    writeln!(out, "{:NAME_WIDTH$}{KEY}   ┴ a window begins", "")?;
    if !notes.is_empty() {
        writeln!(out)?;
    }
    notes
        .iter()
        .try_for_each(|note| writeln!(out, "note: {note}"))
}
