//! The memory of a key.

use super::{
    HOUR,
    child::{self, Figures},
    store::{Peer, Setup},
};
use crate::{Options, grid::Grid, harness::progress, machine, peers};

const COUNTS: [(&str, &str); 2] = [("1 million", "1000000"), ("10 million", "10000000")];

/// Fills a store with this many keys, and returns by how many bytes this process has grown for
/// each.
pub(super) fn child(peer: &Peer, keys: &str) -> Option<Figures> {
    let keys = keys.parse().ok()?;
    let before = machine::resident_bytes()?;
    let store = (peer.build)(&Setup { every: HOUR, burst: 10, keys });
    store.fill_numbered(keys);
    let grown = machine::resident_bytes()?.saturating_sub(before);
    // The process ends here; freeing ten million keys one by one would take a second.
    std::mem::forget(store);
    Some(vec![Some(grown as f64 / keys as f64)])
}

/// Prints bytes per key.
pub(crate) fn run(options: &Options) {
    println!("\n## keyed-memory: bytes for each key\n");
    println!(
        "Growth of the resident set divided by the keys, 16-byte keys, each store in a fresh \
         process, one reading; ratio to {}.\n",
        peers::keyed::BASELINE
    );
    let counts = if options.quick { &COUNTS[..1] } else { &COUNTS[..] };
    let peers = peers::keyed::all();
    let mut values = Vec::new();
    for peer in &peers {
        let row = counts.iter().map(|(heading, keys)| {
            progress(&format!("keyed-memory, {heading}: {}", peer.name));
            child::ask("memory", peer.name, keys).unwrap_or_default()
        });
        values.push(row.collect());
    }
    progress("");
    let names = peers.iter().map(|peer| peer.name.to_owned()).collect();
    let grid = Grid::of(counts.iter().map(|(heading, _)| *heading).collect(), names, values);
    println!("{}", grid.table(peers::keyed::BASELINE));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_written_is_resident() {
        let before = machine::resident_bytes().unwrap();
        let block = vec![1_u8; 64 << 20];
        let grown = machine::resident_bytes().unwrap() - before;
        assert!(std::hint::black_box(&block).len() == 64 << 20 && grown > 60 << 20, "{grown}");
    }

    #[test]
    fn a_child_answers_with_one_figure() {
        let found = child(&peers::keyed::governor(), "1000").unwrap();
        assert_eq!(found.len(), 1);
        assert!(child(&peers::keyed::governor(), "many").is_none());
    }
}
