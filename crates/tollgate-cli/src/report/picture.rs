//! One line of glyphs per algorithm, along a time axis.

use crate::{replay::Replay, span::Span};
use std::time::Duration;
use tollgate::Decision;

/// Cells of a line: with a name in front and figures behind, it fits in 100 columns.
pub(super) const WIDTH: usize = 56;

/// More borders than this are a comb, not a help.
const BORDERS_MAX: u64 = 12;

/// The legend of the glyphs.
pub(super) const KEY: &str = "■ all passed   ▪ some passed   · none passed";

/// Maps times to cells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    first_ns: u64,
    /// Nanoseconds from the first event to the last.
    span_ns: u64,
}

impl Axis {
    /// Returns the axis of a replay; every replay of the same events has the same one.
    pub(super) fn of(replay: &Replay) -> Self {
        let at = |decision: Option<&Decision>| decision.map_or(0, |d| d.at().as_nanos());
        let first_ns = at(replay.decisions.first());
        let span_ns = at(replay.decisions.last()).saturating_sub(first_ns);
        Self { first_ns, span_ns }
    }

    fn cell(&self, at_ns: u64) -> usize {
        let into = u128::from(at_ns.saturating_sub(self.first_ns));
        // OVERFLOW: `into` is at most `span_ns`, so the quotient is below WIDTH.
        let cell = into * (WIDTH as u128 - 1) / u128::from(self.span_ns.max(1));
        (cell as usize).min(WIDTH - 1)
    }

    /// Draws what passed: one glyph per cell, blank where nothing arrived.
    pub(super) fn line(&self, replay: &Replay) -> String {
        let mut cells = [(0_u32, 0_u32); WIDTH];
        for decision in &replay.decisions {
            let (asked, passed) = &mut cells[self.cell(decision.at().as_nanos())];
            *asked += 1;
            *passed += u32::from(decision.is_allowed());
        }
        let glyph = |(asked, passed): &(u32, u32)| match (asked, passed) {
            (0, _) => ' ',
            (_, 0) => '·',
            (asked, passed) if asked == passed => '■',
            _ => '▪',
        };
        cells.iter().map(glyph).collect()
    }

    /// Draws the axis, with a mark where an aligned window of this length begins.
    pub(super) fn ruler(&self, period: Duration) -> String {
        let mut cells = ['─'; WIDTH];
        for border_ns in self.borders(period) {
            cells[self.cell(border_ns)] = '┴';
        }
        cells.iter().collect()
    }

    /// Returns the times at both ends, for below the ruler.
    pub(super) fn ends(&self) -> String {
        let first = Span(Duration::from_nanos(self.first_ns)).to_string();
        let last_ns = self.first_ns.saturating_add(self.span_ns);
        let last = Span(Duration::from_nanos(last_ns)).to_string();
        let room = WIDTH.saturating_sub(first.chars().count());
        match self.span_ns {
            0 => first,
            _ => format!("{first}{last:>room$}"),
        }
    }

    fn borders(&self, period: Duration) -> impl Iterator<Item = u64> + use<> {
        let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
        let last_ns = self.first_ns.saturating_add(self.span_ns);
        let (from, to) = (self.first_ns.div_ceil(period_ns), last_ns / period_ns);
        let few = to.saturating_sub(from) <= BORDERS_MAX;
        let numbers = if few { from..to + 1 } else { 0..0 };
        // OVERFLOW: the largest product is at most `last_ns`, which is below the horizon.
        numbers.map(move |number| number * period_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{arrivals, replay::Events};
    use tollgate::{Algorithm, Quota};

    fn replay(arrivals: &str) -> Replay {
        let events = Events {
            arrivals: arrivals.to_owned(),
            ticks: arrivals::parse(arrivals).unwrap(),
            cost: 1,
        };
        Replay::run(Quota::per_second(2), Algorithm::FixedWindow, &events).unwrap()
    }

    #[test]
    fn a_cell_tells_all_some_none_and_nothing() {
        let replay = replay("0s x3, 500ms, 1s x2, 2200ms");
        let axis = Axis::of(&replay);
        assert_eq!(axis.line(&replay), "▪           ·            ■                             ■");
        assert_eq!(
            axis.ruler(Duration::from_secs(1)),
            "┴────────────────────────┴────────────────────────┴─────"
        );
        assert_eq!(axis.ends(), "0s                                                  2.2s");
    }

    #[test]
    fn a_single_time_is_a_picture_too() {
        let replay = replay("1h x2");
        let axis = Axis::of(&replay);
        assert_eq!(axis.line(&replay).trim_end(), "■");
        assert_eq!(axis.ends(), "1h");
        assert_eq!(axis.ruler(Duration::from_nanos(1)).matches('┴').count(), 1);
    }

    #[test]
    fn a_comb_of_borders_is_left_out() {
        let axis = Axis::of(&replay("0s, 1h"));
        assert_eq!(axis.ruler(Duration::from_nanos(1)).matches('┴').count(), 0);
    }
}
