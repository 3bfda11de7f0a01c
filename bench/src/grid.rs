//! Rows by cases, measured round by round.

use crate::{
    harness::{Subject, Tally, progress},
    stats,
    table::{Table, figure},
};
use std::{hint::black_box, sync::Arc};

/// The state of a limiter when it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// 10^9 per second: refilled between any two calls, so the bucket is full at each.
    Full,
    /// 1000 per second and a burst of 4 x 10^9, of which a million is used: neither full nor empty.
    Partly,
    /// One per hour and a burst of ten, all used: every call is refused.
    Denied,
    /// Calls go to a `Partly` and a `Denied` limiter in turn.
    Half,
    /// A million per second and a burst of 100, called as fast as possible: always at the border.
    Hammered,
}

impl Case {
    /// All cases, in the order of the tables.
    pub(crate) const ALL: [Self; 5] =
        [Self::Full, Self::Partly, Self::Denied, Self::Half, Self::Hammered];

    const fn heading(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Partly => "partly used",
            Self::Denied => "denied",
            Self::Half => "half denied",
            Self::Hammered => "hammered",
        }
    }

    /// Tells what every call should answer, if that is fixed.
    const fn expected(self) -> Option<bool> {
        match self {
            Self::Full | Self::Partly => Some(true),
            Self::Denied => Some(false),
            Self::Half | Self::Hammered => None,
        }
    }
}

/// Calls a limiter.
///
/// A trait and not a function, because a call through a function that is passed on may not be
/// inlined, and would then be measured too.
pub(crate) trait Ask<T>: Copy + Send + Sync + 'static {
    fn ask(self, limiter: &T) -> bool;
}

impl<T, F: Fn(&T) -> bool + Copy + Send + Sync + 'static> Ask<T> for F {
    #[inline(always)]
    fn ask(self, limiter: &T) -> bool {
        self(limiter)
    }
}

/// Calls the limiter behind an `Arc`.
#[derive(Clone, Copy)]
pub(crate) struct Behind<A>(pub(crate) A);

impl<T, A: Ask<T>> Ask<Arc<T>> for Behind<A> {
    #[inline(always)]
    fn ask(self, limiter: &Arc<T>) -> bool {
        self.0.ask(limiter)
    }
}

/// A limiter that can be measured in the cases, or in some of them.
pub(crate) struct Row {
    pub(crate) name: String,
    build: Box<dyn Fn(Case) -> Option<Subject>>,
}

impl Row {
    /// A row that builds its subjects itself.
    pub(crate) fn new(
        name: impl Into<String>,
        build: impl Fn(Case) -> Option<Subject> + 'static,
    ) -> Self {
        Self { name: name.into(), build: Box::new(build) }
    }

    /// A limiter that threads share by an `Arc` around it: `build` makes one for a case, `call`
    /// calls it.
    pub(crate) fn shared<T, F>(
        name: &'static str,
        build: impl Fn(Case) -> Option<T> + 'static,
        call: F,
    ) -> Self
    where
        T: Send + Sync + 'static,
        F: Fn(&T) -> bool + Copy + Send + Sync + 'static,
    {
        Self::handle(name, move |case| build(case).map(Arc::new), Behind(call))
    }

    /// A limiter that is a handle itself: threads share it by cloning it.
    ///
    /// The answers are checked once, so that no row measures the wrong thing.
    pub(crate) fn handle<T, F>(
        name: &'static str,
        build: impl Fn(Case) -> Option<T> + 'static,
        call: F,
    ) -> Self
    where
        T: Clone + Send + Sync + 'static,
        F: Ask<T>,
    {
        Self::new(name, move |case| {
            if case == Case::Half {
                return Some(alternating((build(Case::Partly)?, build(Case::Denied)?), call));
            }
            let limiter = build(case)?;
            if let Some(expected) = case.expected()
                && (0..1000).any(|_| call.ask(&limiter) != expected)
            {
                eprintln!("\n{name} does not hold the case {case:?}; left out");
                return None;
            }
            Some(if case == Case::Denied {
                tallied(limiter, call)
            } else {
                repeating(limiter, call)
            })
        })
    }

    /// Returns the name of the row.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Builds the row's subject for a case, if the row supports it.
    pub(crate) fn build(&self, case: Case) -> Option<Subject> {
        (self.build)(case)
    }
}

/// Calls one limiter over and over.
///
/// The reference goes through `black_box` at each call, so that parameters that are plain fields
/// are loaded as they would be by a caller that does other things in between.
pub(crate) fn repeating<T, F>(limiter: T, call: F) -> Subject
where
    T: Clone + Send + Sync + 'static,
    F: Ask<T>,
{
    Subject::new(move || {
        let limiter = limiter.clone();
        Box::new(move |calls| {
            for _ in 0..calls {
                black_box(call.ask(black_box(&limiter)));
            }
        })
    })
}

/// Does the same as [`repeating`], and counts the calls that pass.
fn tallied<T, F>(limiter: T, call: F) -> Subject
where
    T: Clone + Send + Sync + 'static,
    F: Ask<T>,
{
    let tally = Arc::new(Tally::default());
    let shared = Arc::clone(&tally);
    let subject = Subject::new(move || {
        let (limiter, tally) = (limiter.clone(), Arc::clone(&shared));
        Box::new(move |calls| {
            let passes = |_: &u64| black_box(call.ask(black_box(&limiter)));
            tally.add(calls, (0..calls).filter(passes).count() as u64);
        })
    });
    subject.tallied(tally)
}

fn alternating<T, F>(limiters: (T, T), call: F) -> Subject
where
    T: Clone + Send + Sync + 'static,
    F: Ask<T>,
{
    Subject::new(move || {
        let limiters = limiters.clone();
        Box::new(move |calls| {
            for _ in 0..calls / 2 {
                black_box(call.ask(black_box(&limiters.0)));
                black_box(call.ask(black_box(&limiters.1)));
            }
        })
    })
}

/// The measured values: for each row and case, one value per round.
pub(crate) struct Grid {
    headings: Vec<&'static str>,
    names: Vec<String>,
    values: Vec<Vec<Vec<Option<f64>>>>,
    /// Calls per second that passed, where rows count them.
    admitted: Vec<Vec<Vec<Option<f64>>>>,
}

impl Grid {
    /// Measures every row in every case, `rounds` times.
    pub(crate) fn measure(rows: &[Row], cases: &[Case], threads: usize, rounds: usize) -> Self {
        let mut values = vec![vec![Vec::new(); cases.len()]; rows.len()];
        let mut admitted = values.clone();
        for round in 0..rounds {
            for (column, case) in cases.iter().enumerate() {
                // Each round begins with another row, so that no row always follows the same one.
                for turn in 0..rows.len() {
                    let index = (turn + round) % rows.len();
                    let row = &rows[index];
                    progress(&format!(
                        "{threads} threads, round {}/{rounds}, {}: {}",
                        round + 1,
                        case.heading(),
                        row.name
                    ));
                    let subject = row.build(*case);
                    let ns = subject.as_ref().and_then(|it| it.ns_per_call(threads));
                    values[index][column].push(ns);
                    if let Some(share) = subject.and_then(|it| it.admitted_share()) {
                        let per_second = |ns| share * 1e9 * threads as f64 / ns;
                        admitted[index][column].push(ns.map(per_second));
                    }
                }
            }
        }
        progress("");
        Self {
            headings: cases.iter().map(|case| case.heading()).collect(),
            names: rows.iter().map(|row| row.name.clone()).collect(),
            values,
            admitted,
        }
    }

    /// Takes values that were measured elsewhere: by row, by column, one per round.
    pub(crate) fn of(
        headings: Vec<&'static str>,
        names: Vec<String>,
        values: Vec<Vec<Vec<Option<f64>>>>,
    ) -> Self {
        let admitted = vec![vec![Vec::new(); headings.len()]; names.len()];
        Self { headings, names, values, admitted }
    }

    /// Replaces the headings, if the columns do not differ by the case.
    pub(crate) fn headed(mut self, headings: &[&'static str]) -> Self {
        self.headings = headings.to_vec();
        self
    }

    /// Returns nanoseconds per call, the ratio to the row `baseline`, and how many calls per second were admitted
    /// where rows count them.
    pub(crate) fn table(&self, baseline: &str) -> Table {
        let is_tallied = |column: usize| self.admitted.iter().any(|row| !row[column].is_empty());
        let mut headings = vec![String::new()];
        for (column, heading) in self.headings.iter().enumerate() {
            headings.extend([(*heading).to_owned(), "ratio".to_owned()]);
            headings.extend(is_tallied(column).then(|| "admitted/s".to_owned()));
        }
        let mut table = Table::new(headings);
        let base = self.names.iter().position(|name| name == baseline);
        for ((name, values), admitted) in self.names.iter().zip(&self.values).zip(&self.admitted) {
            let mut line = vec![name.clone()];
            for (column, ours) in values.iter().enumerate() {
                let ratio = base
                    .and_then(|base| stats::median_ratio(ours, &self.values[base][column]))
                    .map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
                line.extend([figure(stats::median(ours.iter().copied())), ratio]);
                let per_second = || figure(stats::median(admitted[column].iter().copied()));
                line.extend(is_tallied(column).then(per_second));
            }
            table.line(line);
        }
        table
    }
}
