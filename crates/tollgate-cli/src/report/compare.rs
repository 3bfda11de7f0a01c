//! The same events through every algorithm, side by side.

use super::{
    count,
    picture::{Axis, KEY, WIDTH},
};
use crate::{plan::Comparison, span::Span};
use std::io::{self, Write};

/// As wide as the longest name of an algorithm, and two more.
const NAME_WIDTH: usize = 17;

/// Writes a picture and the figures of each algorithm.
pub(super) fn text(plan: &Comparison, out: &mut impl Write) -> io::Result<()> {
    let Comparison { quota, events, replays, notes } = plan;
    let arrivals = count(events.ticks.len(), "arrival");
    writeln!(out, "{quota}, {arrivals} of cost {}: {}\n", events.cost, events.arrivals)?;
    let Some(first) = replays.first() else {
        return Ok(());
    };
    let axis = Axis::of(first);
    let period = quota.period();
    let busiest = format!("busiest {}", Span(period));
    let width = busiest.len();
    let blank = NAME_WIDTH + WIDTH;
    writeln!(out, "{:blank$}  {:>6}  {busiest}", "", "passed")?;
    for replay in replays {
        writeln!(
            out,
            "{:<NAME_WIDTH$}{}  {:>6}  {:>width$}",
            replay.algorithm.name(),
            axis.line(replay),
            replay.allowed(),
            replay.most_in_any(period)
        )?;
    }
    writeln!(out, "{:NAME_WIDTH$}{}", "", axis.ruler(period))?;
    writeln!(out, "{:NAME_WIDTH$}{}", "", axis.ends())?;
    writeln!(out, "{:NAME_WIDTH$}{KEY}   ┴ a window begins", "")?;
    writeln!(
        out,
        "\nbusiest {}: the most permits that passed in any window of that length",
        Span(period)
    )?;
    notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))
}
