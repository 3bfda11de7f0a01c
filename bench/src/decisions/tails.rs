//! Measurements that need a fresh process each: inserts, tails, changes of the quota, memory.

use super::{Line, Section, rounds};
use crate::{
    Options, allocations,
    harness::progress,
    keyed::{
        KEYS,
        child::{self, Figures},
        expiry, growth, insert,
    },
    peers::keyed::{BASELINE, BOUNDED, GROWING},
    stats,
};

/// A figure, once a round.
type Values = Vec<Option<f64>>;

/// Starts child processes in turn, for each of `arguments` (a peer and an argument) each round.
/// Returns the figure at `index` of each.
fn ask<const N: usize>(
    table: &str,
    arguments: [(&str, &str); N],
    (index, rounds): (usize, usize),
) -> [Values; N] {
    let mut values = std::array::from_fn(|_| Vec::new());
    for round in 0..rounds {
        for ((peer, argument), values) in arguments.iter().zip(&mut values) {
            progress(&format!("{table}, {peer}, {argument}, round {}", round + 1));
            let found: Figures = child::ask(table, peer, argument).unwrap_or_default();
            values.push(found.get(index).copied().flatten());
        }
    }
    values
}

/// Returns the line of values that were measured in turn.
fn line(what: String, (ours, peer): (&Values, &Values), aim: &'static str) -> Line {
    Line {
        what,
        ours: stats::median(ours.iter().copied()),
        peer: stats::median(peer.iter().copied()),
        ratio: stats::median_ratio(ours, peer),
        aim,
    }
}

/// Fresh keys, a million of them into an empty table.
pub(super) fn inserts(options: &Options) -> Vec<Section> {
    let mut lines = Vec::new();
    for (table, kind) in [("insert-u64", "u64"), ("insert", "strings")] {
        for threads in [1_usize, 2] {
            let argument = insert::argument(KEYS, threads);
            let asked = [GROWING, BOUNDED, BASELINE].map(|peer| (peer, argument.as_str()));
            let per_second = |values: Values| -> Values {
                let rate = |ns: Option<f64>| ns.map(|ns| threads as f64 * 1e3 / ns);
                values.into_iter().map(rate).collect()
            };
            let [growing, bounded, governor] =
                ask(table, asked, (0, rounds(options))).map(per_second);
            for (ours, name) in [(growing, GROWING), (bounded, BOUNDED)] {
                let what = format!("{name}, {kind}, threads: {threads}");
                lines.push(line(what, (&ours, &governor), ">= 0.9 x before"));
            }
        }
    }
    let columns = ["million/s ours", "million/s governor"];
    vec![Section { title: "fresh keys (larger is better)", columns, lines }]
}

/// The tail of a call while the table changes, compared with the same table at rest.
pub(super) fn latency(options: &Options) -> Vec<Section> {
    let mut lines = Vec::new();
    for (peer, aim) in [(GROWING, "<= 2"), (BASELINE, "")] {
        let asked = [(peer, growth::GROWING), (peer, growth::QUIET)];
        let [busy, quiet] = ask("growth", asked, (expiry::TAIL, rounds(options)));
        let what = format!("{peer}: from 1000 keys to 1M, u64, existing keys asked");
        lines.push(line(what, (&busy, &quiet), aim));
    }
    // A pass takes up to five seconds.
    let (peers, rounds) = match options.quick {
        true => (1, 3),
        false => (3, 5),
    };
    let expired = expiry::Case::Expired.name();
    let swept = expiry::Case::ExpiredSwept.name();
    let peers =
        &[(GROWING, expired, "<= 2"), (BOUNDED, expired, "<= 2"), (BASELINE, swept, "")][..peers];
    for (peer, case, aim) in peers {
        let asked = [(*peer, *case), (*peer, expiry::Case::Quiet.name())];
        let [busy, quiet] = ask("expiry", asked, (expiry::TAIL, rounds));
        lines.push(line(format!("{peer}: 1M keys expire, fresh keys asked"), (&busy, &quiet), aim));
    }
    let columns = ["us meanwhile", "us in peace"];
    vec![Section { title: "p99.9 of a call, open loop, every 2 us", columns, lines }]
}

/// Ten changes of the quota a second.
pub(super) fn quota_changes(options: &Options) -> Vec<Section> {
    progress("quota changes");
    // A pair takes less than half a second, and a mean needs more of them than a median does.
    let pairs = (3 * rounds(options)).to_string();
    let found = child::ask("quota-change", GROWING, &pairs).unwrap_or_default();
    let figure = |index: usize| found.get(index).copied().flatten();
    let lines = vec![Line {
        what: "1M u64 keys, partly used, 1 thread".into(),
        ours: figure(0),
        peer: figure(1),
        ratio: figure(2),
        aim: "no difference",
    }];
    let columns = ["ns meanwhile", "ns in peace"];
    vec![Section { title: "ten quota changes a second", columns, lines }]
}

/// Memory: bytes of a key, blocks of a decision.
pub(super) fn memory(_: &Options) -> Vec<Section> {
    let keys = KEYS.to_string();
    // One reading, because it hardly varies.
    let asked = [GROWING, BOUNDED, BASELINE].map(|peer| (peer, keys.as_str()));
    let [growing, bounded, governor] = ask("memory", asked, (0, 1));
    let bytes = [
        line(format!("{GROWING}, 1M strings"), (&growing, &governor), "<= 32"),
        line(format!("{BOUNDED}, 1M strings"), (&bounded, &governor), "<= 26"),
    ];
    progress("allocations");
    let blocks = allocations::decisions().into_iter().map(|(name, count)| Line {
        what: name.into(),
        ours: count,
        peer: None,
        ratio: None,
        aim: "0",
    });
    vec![
        Section {
            title: "bytes per key",
            columns: ["bytes ours", "bytes governor"],
            lines: bytes.into(),
        },
        Section {
            title: "allocations per decision, GCRA",
            columns: ["blocks ours", "blocks peer"],
            lines: blocks.collect(),
        },
    ]
}
