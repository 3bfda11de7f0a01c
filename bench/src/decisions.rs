//! The cost of a decision, in one table with aims: `decisions`.
//!
//! Ours and the peer's are measured in one process, a batch of 1 ms of one after a batch of the
//! other ([`Compared`]), so that disturbances of the machine affect both. Each round builds its
//! limiters from scratch. A round's ratio is the median over its batches; a line has the median
//! over rounds. If only a fresh process gives a figure (inserts, memory, tails), the processes take
//! turns.
//!
//! The workloads are those of the other tables, which show more peers and more cases.

pub(crate) mod keyed;
mod limiter;
mod tails;

use crate::{
    Options,
    harness::{Compared, Subject, progress},
    keyed::child::Figures,
    stats,
    table::{Table, figure},
};

/// Makes the lines of a part of the table.
type Part = fn(&Options) -> Vec<Section>;

/// All parts, in the order of the table. A part in another file needs one more line here.
const PARTS: [Part; 10] = [
    limiter::one,
    keyed::numbers,
    keyed::strings,
    tails::inserts,
    tails::latency,
    limiter::stored,
    limiter::bounds,
    limiter::demands,
    tails::quota_changes,
    tails::memory,
];

/// Lines that are measured in the same way.
pub(crate) struct Section {
    pub(crate) title: &'static str,
    /// The headings of the two columns of figures.
    pub(crate) columns: [&'static str; 2],
    pub(crate) lines: Vec<Line>,
}

/// A line of the table.
pub(crate) struct Line {
    pub(crate) what: String,
    pub(crate) ours: Option<f64>,
    pub(crate) peer: Option<f64>,
    pub(crate) ratio: Option<f64>,
    pub(crate) aim: &'static str,
}

impl Section {
    fn table(&self) -> Table {
        let [ours, peer] = self.columns;
        let mut table = Table::new([self.title, ours, peer, "ratio", "aim"]);
        for line in &self.lines {
            let [ours, peer, ratio] = [line.ours, line.peer, line.ratio].map(figure);
            table.line([line.what.clone(), ours, peer, ratio, line.aim.to_owned()]);
        }
        table
    }
}

/// Returns how often each part is measured. Fewer than in other tables: a ratio here is already
/// the median of many.
const fn rounds(options: &Options) -> usize {
    if options.quick { 3 } else { 7 }
}

/// The costs of subjects that were measured in turn, round by round.
struct Rounds {
    subjects: usize,
    figures: Vec<Figures>,
}

impl Rounds {
    const fn new(subjects: usize) -> Self {
        Self { subjects, figures: Vec::new() }
    }

    /// Measures subjects that are built from scratch for each round.
    fn measure(
        (what, threads): (&str, usize),
        options: &Options,
        build: impl Fn() -> Option<Vec<Subject>>,
    ) -> Self {
        let mut rounds = Self::new(0);
        for round in 0..self::rounds(options) {
            progress(&format!("{what}, threads: {threads}, round {}", round + 1));
            let Some(subjects) = build() else { continue };
            rounds.subjects = subjects.len();
            rounds.figures.push(self::figures(&subjects.iter().collect::<Vec<_>>(), threads));
        }
        rounds
    }

    fn median(&self, index: usize) -> Option<f64> {
        stats::median(self.figures.iter().map(|figures| figures.get(index).copied().flatten()))
    }

    /// Returns the line of one subject beside another.
    fn line(
        &self,
        what: impl Into<String>,
        (ours, peer): (usize, usize),
        aim: &'static str,
    ) -> Line {
        Line {
            what: what.into(),
            ours: self.median(ours),
            peer: self.median(peer),
            ratio: self.median(self.subjects + ours * self.subjects + peer),
            aim,
        }
    }
}

/// Measures subjects in turn. Returns the nanoseconds of each, and then the ratio of each to each:
/// [`figures_of`] says how many figures that is.
fn figures(subjects: &[&Subject], threads: usize) -> Figures {
    let (compared, count) = (Compared::measure(subjects, threads), subjects.len());
    let ns = (0..count).map(|subject| compared.ns(subject));
    let ratio = |index: usize| compared.ratio(index / count, index % count);
    ns.chain((0..count * count).map(ratio)).collect()
}

/// Returns how many figures this many subjects have.
const fn figures_of(subjects: usize) -> usize {
    subjects + subjects * subjects
}

/// Prints the table.
pub(crate) fn run(options: &Options) {
    println!("\n## decisions: what a decision costs, beside what it should\n");
    println!(
        "Medians of {} rounds. Nanoseconds are what each thread sees. A ratio is the median of the \
         ratios of batches that ran one after the other.",
        rounds(options)
    );
    for part in PARTS {
        let sections = part(options);
        progress("");
        for section in sections {
            print!("\n{}", section.table());
        }
    }
    crate::ledger::run(options);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hint::black_box;

    fn spinning(turns: u64) -> Subject {
        Subject::new(move || {
            Box::new(move |calls| {
                for call in 0..calls * turns {
                    black_box(call);
                }
            })
        })
    }

    #[test]
    fn a_line_has_the_figures_of_its_two_subjects() {
        let figures = vec![Some(1.0), Some(2.0), Some(1.0), Some(0.5), Some(2.0), Some(1.0)];
        assert_eq!(figures.len(), figures_of(2));
        let rounds = Rounds { subjects: 2, figures: vec![figures] };
        let line = rounds.line("one", (0, 1), "");
        assert_eq!((line.ours, line.peer, line.ratio), (Some(1.0), Some(2.0), Some(0.5)));
        let line = rounds.line("other", (1, 0), "");
        assert_eq!((line.ours, line.peer, line.ratio), (Some(2.0), Some(1.0), Some(2.0)));
    }

    #[test]
    fn every_pair_of_subjects_has_a_ratio() {
        let found = figures(&[&spinning(10), &spinning(20)], 1);
        assert_eq!(found.len(), figures_of(2));
    }
}
