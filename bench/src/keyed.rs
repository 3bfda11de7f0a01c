//! A million keys: `keyed`, `keyed-memory`, `keyed-insert` and `keyed-expiry`.

pub(crate) mod child;
pub(crate) mod expiry;
pub(crate) mod growth;
pub(crate) mod insert;
pub(crate) mod keys;
pub(crate) mod memory;
pub(crate) mod quota_change;
pub(crate) mod store;

use crate::{
    Options,
    grid::Grid,
    harness::{Subject, progress},
    peers,
};
use child::Figures;
use keys::{Key, Spread};
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use store::{Loops, Peer, Setup};

/// Keys of the tables.
pub(crate) const KEYS: usize = 1_000_000;
const HOUR: Duration = Duration::from_secs(3600);

/// The answers of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// One permit a minute and a burst of a million, of which few are taken. A key that was used
    /// once is not full for a minute, so no store may evict it.
    Allowed,
    /// One permit an hour and a burst of ten, all taken. Not one, because a peer does not limit a
    /// burst of one.
    Denied,
}

impl Answers {
    pub(crate) const fn setup(self, keys: usize) -> Setup {
        match self {
            Self::Allowed => Setup { every: Duration::from_secs(60), burst: 1_000_000, keys },
            Self::Denied => Setup { every: HOUR, burst: 10, keys },
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
        }
    }

    /// Returns the answers of a name.
    pub(crate) fn find(name: &str) -> Option<Self> {
        [Self::Allowed, Self::Denied].into_iter().find(|it| it.name() == name)
    }

    /// Permits to take of each key before the measurement.
    const fn used(self) -> u32 {
        match self {
            Self::Allowed => 1,
            Self::Denied => 10,
        }
    }
}

/// The columns: how often each key is used, and by how many threads.
pub(crate) const COLUMNS: [(&str, Spread, usize); 4] = [
    ("uniform, 1 thread", Spread::Uniform, 1),
    ("uniform, 2 threads", Spread::Uniform, 2),
    ("zipf, 1 thread", Spread::Zipf, 1),
    ("zipf, 2 threads", Spread::Zipf, 2),
];

/// Takes from a store along the order, over and over; each thread begins at another place.
fn subject(store: Arc<dyn Loops>, keys: Arc<Vec<String>>, order: Arc<Vec<u32>>) -> Subject {
    walking(order.len(), move |part| {
        store.take_each(&keys, &order[part]);
    })
}

/// Walks along an order of this many calls, over and over; each thread begins at another place.
pub(crate) fn walking(
    calls_of_order: usize,
    take: impl Fn(Range<usize>) + Send + Sync + 'static,
) -> Subject {
    let (threads, take) = (AtomicUsize::new(0), Arc::new(take));
    Subject::new(move || {
        let take = Arc::clone(&take);
        // ORDERING: Relaxed is enough, the number publishes nothing.
        let thread = threads.fetch_add(1, Relaxed);
        // An odd share of the order, so that no two of the first threads walk together.
        let mut next = thread * 7 * calls_of_order / 16 % calls_of_order;
        Box::new(move |calls| {
            let mut left = calls as usize;
            while left > 0 {
                let part = left.min(calls_of_order - next);
                take(next..next + part);
                next = (next + part) % calls_of_order;
                left -= part;
            }
        })
    })
    .waiting()
}

/// Fills a store, and checks its answers, so that no row measures the wrong thing.
pub(crate) fn prepare<K: Key>(
    peer: &Peer<K>,
    answers: Answers,
    keys: &[K],
) -> Option<Arc<dyn Loops<K>>> {
    let store: Arc<dyn Loops<K>> = Arc::from((peer.build)(&answers.setup(keys.len())));
    store.fill(keys, answers.used());
    let sample: Vec<K> = keys.iter().step_by((keys.len() / 1000).max(1)).cloned().collect();
    let expected = if answers == Answers::Allowed { sample.len() } else { 0 };
    // A table of a fixed size may have evicted a few keys; one in a hundred at most.
    let found = store.take_all(&sample);
    let resident = store.resident().unwrap_or(keys.len());
    if found.abs_diff(expected) > 10 || resident < keys.len() / 100 * 99 {
        eprintln!("\n{} does not hold the case {answers:?}; left out", peer.name);
        return None;
    }
    Some(store)
}

/// The keys and the orders in which they are used.
pub(crate) struct Traffic {
    pub(crate) keys: Arc<Vec<String>>,
    uniform: Arc<Vec<u32>>,
    zipf: Arc<Vec<u32>>,
}

impl Traffic {
    pub(crate) fn new(keys: usize) -> Self {
        Self {
            keys: Arc::new(keys::shuffled(0..keys)),
            uniform: Arc::new(Spread::Uniform.order(keys)),
            zipf: Arc::new(Spread::Zipf.order(keys)),
        }
    }

    pub(crate) fn subject(&self, store: &Arc<dyn Loops>, spread: Spread) -> Subject {
        let order = match spread {
            Spread::Uniform => &self.uniform,
            Spread::Zipf => &self.zipf,
        };
        subject(Arc::clone(store), Arc::clone(&self.keys), Arc::clone(order))
    }
}

/// Fills a new store, and measures it in every column.
fn child(peer: &Peer, answers: &str) -> Option<Figures> {
    let answers = Answers::find(answers)?;
    let traffic = Traffic::new(KEYS);
    let store = prepare(peer, answers, &traffic.keys)?;
    let figure = |(_, spread, threads): &(_, _, usize)| {
        traffic.subject(&store, *spread).ns_per_call(*threads)
    };
    Some(COLUMNS.iter().map(figure).collect())
}

/// Measures every peer in every column; each round fills new tables in new processes.
fn measure(peers: &[Peer], answers: Answers, rounds: usize) -> Grid {
    let mut values = vec![vec![Vec::new(); COLUMNS.len()]; peers.len()];
    for round in 0..rounds {
        // Each round begins with another row, so that no row always follows the same one.
        for turn in 0..peers.len() {
            let index = (turn + round) % peers.len();
            let peer = &peers[index];
            let name = answers.name();
            progress(&format!("keyed, {name}, round {}/{rounds}: {}", round + 1, peer.name));
            let found = child::ask("keyed", peer.name, name).unwrap_or_default();
            for (column, values) in values[index].iter_mut().enumerate() {
                values.push(found.get(column).copied().flatten());
            }
        }
    }
    progress("");
    let names = peers.iter().map(|peer| peer.name.to_owned()).collect();
    Grid::of(COLUMNS.iter().map(|(heading, ..)| *heading).collect(), names, values)
}

const NOTES: &str = "\
Not in the table: gcra 0.6. Its map hashes strings with FxHash, whose hashes of such keys collide:
the time per key grows with the keys, and to fill it takes longer than all other rows together.
";

/// Prints a million keys, each peer.
pub(crate) fn run(options: &Options) {
    println!("\n## keyed: a million keys\n");
    println!(
        "Nanoseconds per call as each thread sees them, {KEYS} resident keys of 16 bytes; ratio to \
         {} in the same round. Each table in a fresh process.",
        peers::keyed::BASELINE
    );
    let mut rows = vec![peers::keyed::base()];
    rows.extend(peers::keyed::all());
    println!("\n### keyed, all allowed\n");
    println!("1 permit a minute, burst 1000000.\n");
    let grid = measure(&rows, Answers::Allowed, options.rounds());
    println!("{}\n{NOTES}", grid.table(peers::keyed::BASELINE));
    println!("### keyed, all denied\n");
    println!("1 permit an hour, burst 10, all taken.\n");
    let mut rows = peers::keyed::ours().to_vec();
    rows.push(peers::keyed::governor());
    let grid = measure(&rows, Answers::Denied, options.rounds());
    println!("{}", grid.table(peers::keyed::BASELINE));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_can_be_brought_into_both_cases() {
        let traffic = Traffic::new(2000);
        for peer in peers::keyed::all() {
            for answers in [Answers::Allowed, Answers::Denied] {
                assert!(
                    prepare(&peer, answers, &traffic.keys).is_some(),
                    "{}, {answers:?}",
                    peer.name
                );
            }
        }
    }

    #[test]
    fn a_runner_goes_on_where_the_order_ends() {
        let setup = Setup { every: HOUR, burst: 10, keys: 3 };
        let store: Arc<dyn Loops> = Arc::from((peers::keyed::governor().build)(&setup));
        let keys = Arc::new(keys::shuffled(0..3));
        let asked = subject(Arc::clone(&store), Arc::clone(&keys), Arc::new(vec![0, 1, 2, 2]));
        let mut run = asked.runner();
        run(3);
        run(7);
        // Ten calls: two and a half rounds, so the first key was used three times of ten.
        assert_eq!(store.take_each(&keys, &[0; 10]), 7);
        assert_eq!(store.take_each(&keys, &[2; 10]), 6);
    }
}
