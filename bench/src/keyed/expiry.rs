//! The latency of calls while a million keys expire.
//!
//! An open loop: a call is due every [`EVERY_NS`], and its latency counts from when it was due, so
//! a stall is charged to every call that it delays. (A loop that calls again as soon as the last
//! call is done would take one sample of a stall and thousands of the quiet time.) Each pass fills
//! a table with a million keys, in a new process, and takes fresh ones. The passes differ only in
//! two things: the keys of the table have expired or not, and another thread sweeps them or not.

use super::{
    HOUR, KEYS,
    child::{self, Figures},
    keys,
    store::{Loops, Pace, Peer, Setup},
};
use crate::{
    Options,
    harness::progress,
    latency::SHARES,
    machine, peers, stats,
    table::{Table, figure},
};
use std::{
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// Time between two calls.
pub(super) const EVERY_NS: f64 = 2000.0;
/// Calls of a pass: half a second.
const CALLS: usize = 250_000;
/// How long a key lives when it should expire: longer than a pass and than the time to fill
/// tollgate's tables, because otherwise the first keys would leave while the last ones come.
const LIFE: Duration = Duration::from_millis(1500);
/// How long to wait until keys have expired. governor keeps a key for twice its life.
const PATIENCE: Duration = Duration::from_millis(3050);

/// The activity beside the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// Nothing: the run for comparison.
    Quiet,
    /// The keys of the table have expired, and leave as fresh ones come.
    Expired,
    /// Another thread looks for expired keys and finds none.
    Swept,
    /// Another thread removes all keys of the table, which have expired.
    ExpiredSwept,
}

impl Case {
    const ALL: [Self; 4] = [Self::Quiet, Self::Expired, Self::Swept, Self::ExpiredSwept];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Quiet => "quiet",
            Self::Expired => "expired",
            Self::Swept => "swept",
            Self::ExpiredSwept => "expired-swept",
        }
    }

    const fn expires(self) -> bool {
        matches!(self, Self::Expired | Self::ExpiredSwept)
    }

    const fn sweeps(self) -> bool {
        matches!(self, Self::Swept | Self::ExpiredSwept)
    }
}

/// Makes one pass. Returns the lateness at each of [`SHARES`] in microseconds, how long the sweep
/// took in milliseconds, the keys stored at the end, and how often the kernel preempted the caller.
pub(super) fn child(peer: &Peer, case: &str) -> Option<Figures> {
    let case = Case::ALL.into_iter().find(|it| it.name() == case)?;
    let (keys, pace) = (Traffic::new(KEYS, CALLS), Pace::every(EVERY_NS));
    let every = if case.expires() { LIFE } else { HOUR };
    let store = (peer.build)(&Setup { every, burst: 10, keys: KEYS + CALLS });
    store.fill(&keys.resident, 1);
    if store.resident().is_some_and(|found| found < KEYS / 100 * 99) {
        eprintln!("\n{}: the first keys left before the last ones came", peer.name);
        return None;
    }
    if case.expires() {
        thread::sleep(PATIENCE);
    }
    let figures = probe(&*store, case, &keys.fresh, pace);
    std::mem::forget(store);
    Some(figures)
}

fn probe(store: &dyn Loops, case: Case, fresh: &[String], pace: Pace) -> Figures {
    let barrier = Barrier::new(2);
    let ((mut late_ns, preemptions), sweep_ms) = thread::scope(|scope| {
        let caller = scope.spawn(|| {
            machine::pin(0);
            barrier.wait();
            let before = machine::preemptions();
            let late = store.open_loop(fresh, pace, &mut || Some(0));
            (late, machine::preemptions() - before)
        });
        let sweeper = scope.spawn(|| {
            machine::pin(1);
            barrier.wait();
            let start = Instant::now();
            case.sweeps().then(|| {
                store.sweep();
                start.elapsed().as_secs_f64() * 1e3
            })
        });
        (caller.join().unwrap_or_default(), sweeper.join().unwrap_or_default())
    });
    let late_us = |(_, share): &(_, f64)| stats::quantile(&mut late_ns, *share).map(|ns| ns / 1e3);
    let mut figures: Figures = SHARES.iter().map(late_us).collect();
    figures.extend([sweep_ms, store.resident().map(|keys| keys as f64), Some(preemptions as f64)]);
    figures
}

struct Traffic {
    resident: Vec<String>,
    fresh: Vec<String>,
}

impl Traffic {
    fn new(resident: usize, fresh: usize) -> Self {
        Self {
            resident: keys::shuffled(0..resident),
            fresh: keys::shuffled(resident..resident + fresh),
        }
    }
}

/// A peer in a case.
struct Row {
    peer: Peer,
    case: Case,
    /// The description of the case.
    text: String,
}

/// All measurements. The quiet run of each peer comes first.
fn rows() -> Vec<Row> {
    let [growing, bounded] = peers::keyed::ours();
    let retain = "retain_recent()";
    let peers = [
        (growing, Some("shrink()"), true),
        (bounded, None, true),
        (peers::keyed::governor(), Some(retain), false),
        (peers::keyed::governor_hashmap(), Some(retain), false),
        (peers::keyed::textbook(), Some("retain()"), false),
    ];
    let mut rows = Vec::new();
    for (peer, sweep, removes_in_calls) in peers {
        let mut row = |case, text: String| rows.push(Row { peer, case, text });
        row(Case::Quiet, "live".into());
        if removes_in_calls {
            row(Case::Expired, "expired".into());
        }
        if let Some(sweep) = sweep {
            row(Case::Swept, format!("live, {sweep}"));
            row(Case::ExpiredSwept, format!("expired, {sweep}"));
        }
    }
    rows
}

/// The index of p99.9 among the figures.
pub(crate) const TAIL: usize = 2;
/// The figures after the percentiles; preemptions come last.
const REST: [&str; 3] = ["sweep ms", "left", "preempted"];

/// Returns the measurements as a table.
fn table(rows: &[Row], passes: &[Vec<Figures>]) -> Table {
    let shares = SHARES.map(|(name, _)| name);
    let headings = ["", "keys"].into_iter().chain(shares).chain(["ratio"]).chain(REST);
    let mut table = Table::new(headings);
    let mut quiet = None;
    for (row, passes) in rows.iter().zip(passes) {
        let median = |index: usize| {
            stats::median(passes.iter().map(|figures| figures.get(index).copied().flatten()))
        };
        if row.case == Case::Quiet {
            quiet = median(TAIL);
        }
        let ratio = median(TAIL).zip(quiet).map(|(tail, quiet)| tail / quiet);
        let mut line = vec![row.peer.name.to_owned(), row.text.clone()];
        line.extend((0..shares.len()).map(|index| figure(median(index))));
        line.push(figure(ratio));
        line.extend((0..REST.len()).map(|index| figure(median(shares.len() + index))));
        table.line(line);
    }
    table
}

/// Prints the latency of calls.
pub(crate) fn run(options: &Options) {
    println!("\n## keyed-expiry: callers while a million keys expire\n");
    println!(
        "A call is due every {EVERY_NS} ns for {} ms, each of a fresh key; microseconds from when \
         it was due to when it was done, medians over passes, each in a fresh process. Keys: \
         {KEYS} are in the table and live or have expired; where a call is named, another thread \
         makes it once as the calls begin. Ratio: p99.9 to that of the same table with live keys \
         and nothing else. Sweep: how long the other thread's call took. Left: keys stored at the \
         end. Preempted: how often the kernel took the caller's processor away; what it \
         waited for it is taken out.\n",
        CALLS as f64 * EVERY_NS / 1e6
    );
    let count = if options.quick { 3 } else { 5 };
    let rows = rows();
    let mut passes = vec![Vec::new(); rows.len()];
    for number in 0..count {
        for (row, passes) in rows.iter().zip(&mut passes) {
            let (name, text) = (row.peer.name, &row.text);
            progress(&format!("keyed-expiry, pass {}/{count}: {name}, {text}", number + 1));
            passes.extend(child::ask("expiry", name, row.case.name()));
        }
    }
    progress("");
    println!("{}", table(&rows, &passes));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_keys_stay_through_a_sweep_and_expired_ones_go() {
        let (keys, life) = (Traffic::new(2000, 1000), Duration::from_millis(1));
        for row in rows() {
            let store = (row.peer.build)(&Setup {
                every: if row.case.expires() { life } else { HOUR },
                burst: 10,
                keys: 4000,
            });
            store.fill(&keys.resident, 1);
            thread::sleep(life * 20);
            let found = probe(&*store, row.case, &keys.fresh, Pace::every(1.0));
            assert_eq!(found.len(), SHARES.len() + REST.len());
            let (name, left) = (row.peer.name, found[SHARES.len() + 1].unwrap());
            // A bounded table keeps expired keys until their slots are needed. In other tables, at
            // least one leaves for every two that come: 500 of 2000, when 1000 have come.
            let may_keep = name == crate::peers::keyed::BOUNDED;
            assert!(
                left < 2500.0 || may_keep || !row.case.expires(),
                "{name}, {}: {left}",
                row.text
            );
            assert!(left >= 2000.0 || row.case.expires(), "{name}, {}: {left}", row.text);
        }
    }
}
