//! How many blocks of memory each verb allocates.

use crate::{keyed::keys, machine, peers, table::Table};
use std::{
    hint::black_box,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::{
    Algorithm, KeyedBuilder, Limiter, Quota,
    store::{Demand, DynStore, MemoryStore, Policy, Store},
};

const CALLS: u64 = 1_000_000;

/// Counts the blocks that `CALLS` calls allocate, per million calls.
fn count<T, R>(limiter: &T, mut call: impl FnMut(&T) -> R) -> u64 {
    for _ in 0..1000 {
        black_box(call(limiter));
    }
    let before = machine::allocations();
    for _ in 0..CALLS {
        black_box(call(limiter));
    }
    machine::allocations() - before
}

/// A limiter with this many permits a day.
fn limiter(algorithm: Algorithm, limit: u64) -> Option<Limiter> {
    let quota = Quota::per(limit, Duration::from_secs(86_400));
    let built = Limiter::builder(quota).algorithm(algorithm).build();
    match built {
        Ok(limiter) => Some(limiter),
        Err(error) => {
            eprintln!("{algorithm}: {error}");
            None
        }
    }
}

type Verb = (&'static str, fn(Algorithm) -> Option<u64>);

fn large(algorithm: Algorithm) -> Option<Limiter> {
    match algorithm {
        // The most entries that it keeps; still more than the calls.
        Algorithm::SlidingLog => limiter(algorithm, 1 << 20),
        _ => limiter(algorithm, 10_000_000),
    }
}

fn drained(algorithm: Algorithm) -> Option<Limiter> {
    let limiter = limiter(algorithm, 10)?;
    while limiter.try_acquire().is_allowed() {}
    Some(limiter)
}

/// Keys of the keyed rows; a thousand warm-up calls use each of them.
const KEYS: usize = 1000;

/// Counts the blocks that calls of resident keys allocate, if there is a table for the algorithm.
fn keyed(builder: KeyedBuilder<str>, algorithm: Algorithm) -> Option<u64> {
    let limiter = builder.algorithm(algorithm).build().ok()?;
    let keys: Vec<String> = keys::shuffled(0..KEYS);
    let mut keys = keys.iter().cycle();
    Some(count(&limiter, |it| keys.next().map(|key| it.try_acquire(key.as_str()))))
}

/// Polls a future that is ready at once, like those of the store in memory.
fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Counts the blocks that calls of a store allocate: this many demands of resident keys at once.
fn stored(store: &impl Store, algorithm: Algorithm, demands: usize) -> Option<u64> {
    let policy = |name: &str| Policy::with_algorithm(name, KEYED, algorithm).ok();
    let policies: Vec<_> = (0..demands).filter_map(|it| policy(&it.to_string())).collect();
    let mut keys = (0..KEYS as u64).cycle();
    Some(count(store, |it| {
        let key = keys.next().unwrap_or(0).to_le_bytes();
        let mut wanted = [Demand::new(&policies[0], &key, 1); 8];
        for (demand, policy) in wanted.iter_mut().zip(&policies) {
            *demand = Demand::new(policy, &key, 1);
        }
        ready(it.acquire(&mut wanted[..demands])).map(|decision| decision.is_ok())
    }))
}

fn store() -> MemoryStore {
    MemoryStore::new()
}

/// A thousand calls for each key, and as many to spare.
const KEYED: Quota = Quota::per(2000, Duration::from_secs(86_400));

/// If each allowed call leaves an entry, the call allocates the memory for it.
const VERBS: [Verb; 19] = [
    ("try_acquire, allowed", |algorithm| Some(count(&large(algorithm)?, |it| it.try_acquire()))),
    ("try_acquire, denied", |algorithm| Some(count(&drained(algorithm)?, |it| it.try_acquire()))),
    ("try_acquire_at", |algorithm| {
        let limiter = large(algorithm)?;
        let now = limiter.now();
        Some(count(&limiter, |it| it.try_acquire_at(now, 1)))
    }),
    ("peek", |algorithm| Some(count(&large(algorithm)?, |it| it.peek()))),
    ("up_to", |algorithm| Some(count(&large(algorithm)?, |it| it.up_to(3)))),
    ("force", |algorithm| Some(count(&large(algorithm)?, |it| it.force(1)))),
    ("force, into debt", |algorithm| Some(count(&drained(algorithm)?, |it| it.force(1)))),
    ("try_acquire + refund", |algorithm| {
        Some(count(&large(algorithm)?, |it| (it.try_acquire(), it.refund(1))))
    }),
    ("reserve + drop", |algorithm| Some(count(&large(algorithm)?, |it| it.reserve(1)))),
    ("reserve + cancel", |algorithm| {
        Some(count(&large(algorithm)?, |it| it.reserve(1).map(tollgate::Reservation::cancel)))
    }),
    ("reserve, refused", |algorithm| {
        Some(count(&drained(algorithm)?, |it| it.reserve_within(1, Duration::ZERO)))
    }),
    ("lease of 32", |algorithm| {
        let limiter = large(algorithm)?;
        let mut lease = limiter.lease(32, Duration::from_millis(10));
        Some(count(&limiter, |_| lease.try_acquire()))
    }),
    ("snapshot", |algorithm| Some(count(&large(algorithm)?, |it| it.snapshot()))),
    (peers::keyed::GROWING, |algorithm| keyed(peers::keyed::growing(KEYED), algorithm)),
    (peers::keyed::BOUNDED, |algorithm| keyed(peers::keyed::bounded(KEYED, KEYS), algorithm)),
    ("Store::acquire, in memory", |algorithm| stored(&store(), algorithm, 1)),
    ("Store::acquire, 3 demands", |algorithm| stored(&store(), algorithm, 3)),
    ("Store::acquire, 8 demands", |algorithm| stored(&store(), algorithm, 8)),
    ("Store::acquire, boxed", |algorithm| {
        let boxed: Box<dyn DynStore> = Box::new(store());
        stored(&boxed, algorithm, 1)
    }),
];

/// Returns blocks per decision by GCRA, of the verbs that only decide. It leaves out the boxed
/// store, whose futures are boxes.
pub(crate) fn decisions() -> Vec<(&'static str, Option<f64>)> {
    let decides = |name: &str| {
        name.starts_with("try_acquire,")
            || name.starts_with("Store")
            || name.starts_with("tollgate")
    };
    let count = |(name, verb): Verb| {
        (name, verb(Algorithm::Gcra).map(|blocks| blocks as f64 / CALLS as f64))
    };
    let decides = |(name, _): &Verb| decides(name) && !name.ends_with("boxed");
    VERBS.into_iter().filter(decides).map(count).collect()
}

/// Prints the counts.
pub(crate) fn run() {
    println!("\n## allocations\n");
    println!(
        "Blocks of memory asked for by a million calls, after a thousand to warm up. The last rows \
         are calls for {KEYS} resident keys in turn, by a keyed limiter and through a store.\n"
    );
    let names = Algorithm::ALL.map(|algorithm| algorithm.to_string());
    let mut table = Table::new([String::new()].into_iter().chain(names));
    for (name, verb) in VERBS {
        let counts = Algorithm::ALL.map(|algorithm| match verb(algorithm) {
            Some(count) => count.to_string(),
            None => "-".into(),
        });
        table.line([name.to_owned()].into_iter().chain(counts));
    }
    println!("{table}");
}
