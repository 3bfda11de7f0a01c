//! One limiter, and the store in memory, beside governor's direct limiter.

use super::{Line, Rounds, Section};
use crate::{
    Options,
    grid::{Case, Row},
    peers,
};

const COLUMNS: [&str; 2] = ["ns ours", "ns governor"];

/// Measures rows in a case.
fn rounds(what: (&str, usize), rows: &[Row], case: Case, options: &Options) -> Rounds {
    let build = || rows.iter().map(|row| row.build(case)).collect();
    Rounds::measure(what, options, build)
}

/// One limiter, one thread.
pub(super) fn one(options: &Options) -> Vec<Section> {
    let rows =
        [peers::tollgate::default(), peers::tollgate::retry_read(), peers::crates::governor()];
    let (mut plain, mut read) = (Vec::new(), Vec::new());
    for (case, what, aim, read_aim) in [
        (Case::Full, "full", "<= 1.0", Some("<= 1.15")),
        (Case::Partly, "partly used", "<= 0.65", None),
        (Case::Denied, "denied", "<= 0.6", Some("<= 1.15")),
    ] {
        let rounds = rounds(("one limiter", 1), &rows, case, options);
        plain.push(rounds.line(what, (0, 2), aim));
        let line = |aim| rounds.line(format!("{what}, remaining and retry_at read"), (1, 2), aim);
        read.extend(read_aim.map(line));
    }
    plain.extend(read);
    vec![Section { title: "one limiter, 1 thread", columns: COLUMNS, lines: plain }]
}

/// The store in memory, compared with one decision of a direct limiter.
pub(super) fn stored(options: &Options) -> Vec<Section> {
    let mut rows = peers::stored::rows();
    rows.push(peers::crates::governor());
    let mut lines = Vec::new();
    for (case, name) in [(Case::Partly, "partly used"), (Case::Denied, "one hot denied key")] {
        for threads in [1, 2] {
            let aims = match (case, threads) {
                (Case::Denied, 2) => ["<= 1.2", ""],
                (Case::Denied, _) => ["", ""],
                _ => ["<= 2", "<= 6"],
            };
            let rounds = rounds(("store in memory", threads), &rows, case, options);
            for (index, (demands, aim)) in
                ["one demand", "three demands"].iter().zip(aims).enumerate()
            {
                let what = format!("{demands}, {name}, threads: {threads}");
                lines.push(rounds.line(what, (index, 2), aim));
            }
        }
    }
    let columns = ["ns ours", "ns governor, once"];
    vec![Section { title: "store in memory", columns, lines }]
}

/// The parts of a store's decisions, with two threads at once.
pub(super) fn bounds(options: &Options) -> Vec<Section> {
    let mut rows = peers::stored::bounds();
    let governor = rows.len();
    rows.push(peers::crates::governor());
    let mut lines = Vec::new();
    for (case, name) in [(Case::Partly, "partly used"), (Case::Denied, "denied")] {
        let rounds = rounds(("what bounds the store", 2), &rows, case, options);
        let line = |(index, row): (usize, &Row)| {
            rounds.line(format!("{}, {name}", row.name), (index, governor), "")
        };
        lines.extend(rows[..governor].iter().enumerate().map(line));
    }
    let columns = ["ns", "ns governor, once"];
    vec![Section { title: "what bounds the store, 2 threads", columns, lines }]
}

/// Several demands in one decision, compared with one.
pub(super) fn demands(options: &Options) -> Vec<Section> {
    let rows = peers::stored::widths();
    let rounds = rounds(("demands in one decision", 1), &rows, Case::Partly, options);
    let line = |(index, row): (usize, &Row)| Line {
        what: row.name.clone(),
        ..rounds.line("", (index, 0), ["", "<= 2", "<= 4", "<= 8", "<= 16", "<= 64"][index])
    };
    let lines = rows.iter().enumerate().map(line).collect();
    vec![Section { title: "demands in one decision", columns: ["ns ours", "ns one demand"], lines }]
}
