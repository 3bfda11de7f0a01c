//! New keys, with the full cost of growth, and the slowest of them.

use super::{
    HOUR, KEYS,
    child::{self, Figures},
    keys::{self, Key},
    store::{Peer, Setup},
};
use crate::{
    Options,
    harness::progress,
    machine, peers, stats,
    table::{Table, figure},
};
use std::{sync::Barrier, thread};

/// How many keys come, and from how many threads: `1000000 2` as words of the command line.
pub(crate) fn argument(keys: usize, threads: usize) -> String {
    format!("{keys} {threads}")
}

/// Inserts keys into a new store. Returns the nanoseconds that each took as each thread sees them,
/// with its share of the creation of the table, and the microseconds of the slowest one.
pub(super) fn child<K: Key>(peer: &Peer<K>, argument: &str) -> Option<Figures> {
    let (keys, threads) = argument.split_once(' ')?;
    let (keys, threads): (usize, usize) = (keys.parse().ok()?, threads.parse().ok()?);
    machine::pin(0);
    let (keys, period_ns) = (keys::shuffled::<K>(0..keys), machine::counter_period_ns());
    let setup = Setup { every: HOUR, burst: 10, keys: keys.len() };
    let (built_ns, store) = machine::own_time_ns(|| (peer.build)(&setup));
    let (asked, barrier) = (&*store, &Barrier::new(threads));
    // The wall clock without the time that others took: half a second is long enough for that.
    let insert = |(index, keys): (usize, _)| {
        move || {
            machine::pin(index);
            barrier.wait();
            machine::own_time_ns(|| asked.slowest(keys))
        }
    };
    let found: Vec<(u64, u64)> = thread::scope(|scope| {
        let parts = keys.chunks(keys.len().div_ceil(threads)).enumerate();
        let workers: Vec<_> = parts.map(|part| scope.spawn(insert(part))).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).collect()
    });
    let ns = built_ns + found.iter().map(|(ns, _)| *ns).max()?;
    let slowest = found.iter().map(|(_, slowest)| *slowest).max()? as f64 * period_ns;
    std::mem::forget(store);
    Some(vec![Some(ns as f64 / (keys.len() / threads) as f64), Some(slowest / 1e3)])
}

/// Prints the cost of new keys.
pub(crate) fn run(options: &Options) {
    println!("\n## keyed-insert: a million new keys\n");
    println!(
        "Nanoseconds per new key without what other programs took, growth of the table included, each store in a \
         fresh process; ratio to {} in the same round. The slowest single key is by the wall \
         clock, so the scheduler's pauses are in it: the calmest round has the fewest of them.\n",
        peers::keyed::BASELINE
    );
    let peers = peers::keyed::all();
    let mut ns = vec![Vec::new(); peers.len()];
    let mut slowest = ns.clone();
    for round in 0..options.rounds() {
        for turn in 0..peers.len() {
            let index = (turn + round) % peers.len();
            let peer = &peers[index];
            progress(&format!("keyed-insert, round {}: {}", round + 1, peer.name));
            let found = child::ask("insert", peer.name, &argument(KEYS, 1)).unwrap_or_default();
            ns[index].push(found.first().copied().flatten());
            slowest[index].push(found.get(1).copied().flatten());
        }
    }
    progress("");
    let base = peers.iter().position(|peer| peer.name == peers::keyed::BASELINE);
    let mut table = Table::new(["", "ns", "ratio", "slowest us, median", "slowest us, calmest"]);
    for ((peer, ours), slowest) in peers.iter().zip(&ns).zip(slowest) {
        let ratio = base.and_then(|base| stats::median_ratio(ours, &ns[base]));
        let calmest = slowest.iter().flatten().copied().min_by(f64::total_cmp);
        table.line([
            peer.name.to_owned(),
            figure(stats::median(ours.iter().copied())),
            figure(ratio),
            figure(stats::median(slowest)),
            figure(calmest),
        ]);
    }
    println!("{table}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_key_is_no_faster_than_the_mean() {
        let found = child(&peers::keyed::governor(), "20000 2").unwrap();
        let (ns, slowest_us) = (found[0].unwrap(), found[1].unwrap());
        assert!(ns > 0.0 && slowest_us * 1e3 > ns, "{found:?}");
    }
}
