//! Markdown tables.

use std::fmt;

/// A table whose columns are padded so that its source is readable too.
#[derive(Default)]
pub(crate) struct Table {
    lines: Vec<Vec<String>>,
}

impl Table {
    /// Starts a table with its headings.
    pub(crate) fn new<S: Into<String>>(headings: impl IntoIterator<Item = S>) -> Self {
        let mut table = Self::default();
        table.line(headings);
        table
    }

    /// Adds one line.
    pub(crate) fn line<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.lines.push(cells.into_iter().map(Into::into).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.lines.first().map_or(0, Vec::len);
        let width = |column: usize| {
            let cells = self.lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (number, line) in self.lines.iter().enumerate() {
            for (column, cell) in line.iter().enumerate() {
                let width = widths[column];
                if column == 0 {
                    write!(f, "| {cell:<width$} ")?;
                } else {
                    write!(f, "| {cell:>width$} ")?;
                }
            }
            writeln!(f, "|")?;
            if number == 0 {
                for (column, width) in widths.iter().enumerate() {
                    let (dashes, colon) =
                        ("-".repeat(width + 1), if column == 0 { "-" } else { ":" });
                    write!(f, "|{dashes}{colon}")?;
                }
                writeln!(f, "|")?;
            }
        }
        Ok(())
    }
}

/// Writes a figure, or a dash if there is none.
pub(crate) fn figure(value: Option<f64>) -> String {
    match value {
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) if value >= 10.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.2}"),
        None => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_padded_to_their_widest_cell() {
        let mut table = Table::new(["name", "ns"]);
        table.line(["a", "10.25"]);
        let text = "| name |    ns |\n|------|------:|\n| a    | 10.25 |\n";
        assert_eq!(table.to_string(), text);
    }
}
