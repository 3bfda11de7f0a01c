//! Samples by row, column and round, and the cells that they become.

use super::server::Sample;
use crate::{
    stats::{median, median_ratio},
    table::{Table, figure},
};

/// The measured values: by row, by column, by round.
pub(super) struct Grid {
    rows: Vec<String>,
    columns: Vec<String>,
    samples: Vec<Vec<Vec<Option<Sample>>>>,
}

impl Grid {
    pub(super) fn new(rows: Vec<String>, columns: Vec<String>) -> Self {
        let samples = vec![vec![Vec::new(); columns.len()]; rows.len()];
        Self { rows, columns, samples }
    }

    pub(super) fn push(&mut self, row: usize, column: usize, sample: Option<Sample>) {
        self.samples[row][column].push(sample);
    }

    /// Returns the last sample of a cell.
    pub(super) fn last(&self, row: usize, column: usize) -> Option<Sample> {
        self.samples[row][column].last().copied().flatten()
    }

    /// Returns the median of a cell.
    pub(super) fn middle(
        &self,
        row: usize,
        column: usize,
        pick: fn(&Sample) -> f64,
    ) -> Option<f64> {
        median(self.samples[row][column].iter().map(|it| it.as_ref().map(pick)))
    }

    /// Returns the median over rounds of the ratio to the cell of row `base` in the same round.
    pub(super) fn ratio(
        &self,
        (row, base): (usize, usize),
        column: usize,
        pick: fn(&Sample) -> f64,
    ) -> Option<f64> {
        let picked = |row: usize| -> Vec<Option<f64>> {
            self.samples[row][column].iter().map(|it| it.as_ref().map(pick)).collect()
        };
        median_ratio(&picked(row), &picked(base))
    }

    /// Returns the table in which a cell is the ratio to row `base`, and the text that `show` makes
    /// of the median.
    pub(super) fn table(
        &self,
        base: usize,
        pick: fn(&Sample) -> f64,
        show: fn(f64) -> String,
    ) -> Table {
        let columns = self.columns.iter().map(String::as_str);
        let mut table = Table::new([""].into_iter().chain(columns));
        for (row, name) in self.rows.iter().enumerate() {
            let cells = (0..self.columns.len()).map(|column| {
                let ratio = self.ratio((row, base), column, pick);
                match (ratio, self.middle(row, column, pick)) {
                    (Some(ratio), Some(value)) if !ratio.is_nan() => {
                        format!("{} ({})", figure(Some(ratio)), show(value))
                    }
                    _ => "-".into(),
                }
            });
            table.line([name.clone()].into_iter().chain(cells));
        }
        table
    }

    /// Returns the cells in which more than one of a hundred decisions was wrong.
    pub(super) fn strays(&self, is_allowed: impl Fn(usize) -> bool) -> Vec<String> {
        let mut strays = Vec::new();
        for (row, name) in self.rows.iter().enumerate() {
            for (column, heading) in self.columns.iter().enumerate() {
                let share = self.middle(row, column, |it| it.allowed / it.decisions);
                let Some(share) = share else { continue };
                let wrong = if is_allowed(row) { 1.0 - share } else { share };
                if wrong > 0.01 {
                    strays.push(format!("{name} / {heading}: {:.0} %", wrong * 100.0));
                }
            }
        }
        strays
    }
}

/// Writes microseconds.
pub(super) fn micros(value: f64) -> String {
    format!("{} us", figure(Some(value)))
}

/// Writes a rate in thousands each second.
pub(super) fn thousands(value: f64) -> String {
    format!("{}k/s", figure(Some(value / 1000.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(decisions: f64, allowed: f64) -> Option<Sample> {
        Some(Sample { decisions, allowed, seconds: 1.0, server_us: 10_000.0, ..Sample::default() })
    }

    fn grid() -> Grid {
        let mut grid = Grid::new(vec!["INCR".into(), "take".into()], vec!["1 key".into()]);
        // The machine was ten times slower in the second round.
        for (row, decisions) in [(0, 10_000.0), (1, 2_000.0), (0, 1_000.0), (1, 200.0)] {
            grid.push(row, 0, sample(decisions, decisions));
        }
        grid
    }

    #[test]
    fn a_cell_is_the_ratio_inside_its_round_and_the_median() {
        let text = grid().table(0, Sample::rate, thousands).to_string();
        assert!(text.contains("| take | 0.20 (2.00k/s) |"), "{text}");
        let text = grid().table(0, Sample::server_us_each, micros).to_string();
        assert!(text.contains("| take | 5.00 (50.0 us) |"), "{text}");
    }

    #[test]
    fn a_cell_without_samples_is_a_dash() {
        let grid = Grid::new(vec!["INCR".into()], vec!["1 key".into()]);
        assert!(grid.table(0, Sample::rate, thousands).to_string().contains("| INCR |     - |"));
    }

    #[test]
    fn decisions_that_are_not_as_they_should_be_are_named() {
        let mut grid = Grid::new(vec!["take".into()], vec!["1 key".into()]);
        grid.push(0, 0, sample(100.0, 90.0));
        assert_eq!(grid.strays(|_| true), ["take / 1 key: 10 %"]);
        assert!(grid.strays(|_| false)[0].ends_with("90 %"));
    }
}
