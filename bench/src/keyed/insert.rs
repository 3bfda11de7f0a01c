//! New keys, with all that growing costs, and the slowest of them.

use super::{
    HOUR, KEYS,
    child::{self, Figures},
    keys,
    store::{Peer, Setup},
};
use crate::{
    Options,
    harness::progress,
    machine, peers, stats,
    table::{Table, figure},
};

/// Inserts so many keys into a new store. Returns the nanoseconds that each took, with its share of
/// the making of the table, and the microseconds of the slowest one.
pub(super) fn child(peer: &Peer, keys: &str) -> Option<Figures> {
    machine::pin(0);
    let (keys, period_ns) = (keys::shuffled(0..keys.parse().ok()?), machine::counter_period_ns());
    let setup = Setup { every: HOUR, burst: 10, keys: keys.len() };
    // Processor time, because half a second is long enough for somebody to take the processor.
    let start = machine::thread_cpu_ns();
    let store = (peer.build)(&setup);
    let slowest = store.slowest(&keys) as f64 * period_ns;
    let ns = (machine::thread_cpu_ns() - start) as f64;
    std::mem::forget(store);
    Some(vec![Some(ns / keys.len() as f64), Some(slowest / 1e3)])
}

/// Prints what new keys cost.
pub(crate) fn run(options: &Options) {
    println!("\n## keyed-insert: a million new keys\n");
    println!(
        "Nanoseconds of processor time per new key, growth of the table included, each store in a \
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
            let found = child::ask("insert", peer, &KEYS.to_string()).unwrap_or_default();
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
        let found = child(&peers::keyed::governor(), "20000").unwrap();
        let (ns, slowest_us) = (found[0].unwrap(), found[1].unwrap());
        assert!(ns > 0.0 && slowest_us * 1e3 > ns, "{found:?}");
    }
}
