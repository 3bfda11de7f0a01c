//! The definition of a playbook, and the list of them.

use super::{degradation, failure};
use std::{error::Error, fmt::Write as _};

/// All figures of the docs are of this seed.
pub(crate) const SEED: u64 = 1;

/// A failure with and without its remedies.
pub(crate) struct Playbook {
    pub(crate) name: &'static str,
    /// A description of the failure.
    pub(crate) about: &'static str,
    /// The names of the figures, and how many decimals they have.
    pub(crate) columns: &'static [(&'static str, usize)],
    pub(crate) run: fn(u64) -> Result<Rows, Box<dyn Error>>,
}

/// The behaviour of the callers, and the figures that they see.
pub(crate) type Rows = Vec<(&'static str, Vec<f64>)>;

impl Playbook {
    /// Returns the first line of its table.
    pub(crate) fn head(&self) -> String {
        let names: Vec<_> = self.columns.iter().map(|(name, _)| *name).collect();
        format!("| {} | {} |", self.name.replace('-', " "), names.join(" | "))
    }

    /// Runs it and returns the text to print: its name, its description, and a table.
    pub(crate) fn print(&self, seed: u64) -> Result<String, Box<dyn Error>> {
        let mut table = format!("{}: {}\n\n{}\n", self.name, self.about, self.head());
        table += &format!("|---|{}\n", "---|".repeat(self.columns.len()));
        for (name, figures) in (self.run)(seed)? {
            let _ = write!(table, "| {name} |");
            for (figure, (_, decimals)) in figures.iter().zip(self.columns) {
                let _ = write!(table, " {figure:.decimals$} |");
            }
            table += "\n";
        }
        Ok(table)
    }
}

pub(crate) const PLAYBOOKS: [Playbook; 10] = [
    failure::RETRY_STORM,
    failure::THUNDERING_HERD,
    failure::SLOW_DEPENDENCY,
    failure::BREAKER_FLAPPING,
    failure::TWO_BREAKERS,
    degradation::SHED_AT_THE_EDGE,
    degradation::LOW_PRIORITY,
    degradation::SCALE_UP,
    degradation::RAISE_THE_LIMIT,
    degradation::COLD_START,
];
