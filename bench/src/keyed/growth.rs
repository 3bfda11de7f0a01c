//! The latency of calls for existing keys while fresh keys make the table grow.
//!
//! An open loop as in [`expiry`](super::expiry): a call is due every 2 us, and its latency counts
//! from when it was due. It takes the keys that were there first, while another thread inserts a
//! million fresh ones, or none.

use super::{
    Answers, KEYS,
    child::Figures,
    expiry::EVERY_NS,
    keys,
    store::{Loops, Pace, Peer},
};
use crate::{latency::SHARES, machine, stats};
use std::{
    hint::spin_loop,
    sync::{
        Barrier,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
};

/// Keys that are in the table before the others come.
const FIRST: usize = 1000;
/// The most calls of a pass: two seconds. It ends with the last fresh key, mostly after half of one.
const CALLS: usize = 1_000_000;
/// Calls of a pass without inserts.
const QUIET_CALLS: usize = CALLS / 4;

/// Keys between two signs of life of the inserting thread: some 20 us.
const PART: usize = 50;

/// The table stays as it is.
pub(crate) const QUIET: &str = "quiet";
/// The table grows from a thousand keys to a million.
pub(crate) const GROWING: &str = "growing";

/// Makes one pass. Returns the lateness at each of [`SHARES`] in microseconds.
pub(super) fn child(peer: &Peer<u64>, case: &str) -> Option<Figures> {
    let inserts = case == GROWING;
    let (pace, keys) = (Pace::every(EVERY_NS), keys::shuffled::<u64>(0..KEYS));
    let (first, fresh) = keys.split_at(FIRST);
    let store = (peer.build)(&Answers::Allowed.setup(KEYS));
    store.fill(first, 1);
    let calls = if inserts { CALLS } else { QUIET_CALLS };
    let asked: Vec<u64> = first.iter().copied().cycle().take(calls).collect();
    let fresh = if inserts { fresh } else { &[] };
    let figures = probe(&*store, &asked, fresh, pace);
    std::mem::forget(store);
    Some(figures)
}

/// State that the inserting thread shares with the calling thread.
#[derive(Default)]
struct Inserter {
    /// Grows with every [`PART`] keys.
    beats: AtomicU64,
    /// How long it waited for its processor.
    waited_ns: AtomicU64,
    done: AtomicBool,
}

impl Inserter {
    fn run(&self, store: &dyn Loops<u64>, fresh: &[u64]) {
        let mut switches = 0;
        for part in fresh.chunks(PART) {
            store.take_all(part);
            let now = machine::switches();
            if std::mem::replace(&mut switches, now) != now {
                // ORDERING: Relaxed, because the beat publishes it.
                self.waited_ns.store(machine::kept_waiting_ns(), Relaxed);
            }
            // ORDERING: Release, so that a thread that sees the beat sees everything before it.
            self.beats.fetch_add(1, Release);
        }
        // ORDERING: Relaxed is enough: the flag publishes nothing.
        self.done.store(true, Relaxed);
    }

    /// Waits for a sign of life, and returns how long the thread has waited for its processor until
    /// then; `None` if it has ended.
    fn waited_ns(&self) -> Option<u64> {
        // ORDERING: as in `run`. Two beats: the first one may already have been under way.
        let before = self.beats.load(Acquire);
        while self.beats.load(Acquire) < before + 2 {
            if self.done.load(Relaxed) {
                return None;
            }
            spin_loop();
        }
        Some(self.waited_ns.load(Relaxed))
    }
}

/// Takes keys on one processor while fresh ones come on the other; ends with the fresh ones, if
/// there are any.
///
/// While the inserting thread waits for a processor, it inserts nothing, and a call that waits for
/// its lock waits for the scheduler: this delay is subtracted.
fn probe(store: &dyn Loops<u64>, asked: &[u64], fresh: &[u64], pace: Pace) -> Figures {
    let (barrier, inserter) = (Barrier::new(2), Inserter::default());
    let mut late_ns = thread::scope(|scope| {
        let caller = scope.spawn(|| {
            machine::pin(0);
            barrier.wait();
            let mut seen_ns = 0;
            let mut beside = || {
                if fresh.is_empty() {
                    return Some(0);
                }
                let now_ns = inserter.waited_ns()?;
                Some(now_ns - std::mem::replace(&mut seen_ns, now_ns))
            };
            store.open_loop(asked, pace, &mut beside)
        });
        scope.spawn(|| {
            machine::pin(1);
            barrier.wait();
            inserter.run(store, fresh);
        });
        caller.join().unwrap_or_default()
    });
    let late_us = |(_, share): &(_, f64)| stats::quantile(&mut late_ns, *share).map(|ns| ns / 1e3);
    SHARES.iter().map(late_us).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers;

    #[test]
    fn fresh_keys_come_while_others_are_asked() {
        let asked: Vec<u64> = (0..10).cycle().take(5000).collect();
        let fresh: Vec<u64> = (10..2000).collect();
        for peer in peers::numbered::all() {
            let store = (peer.build)(&Answers::Allowed.setup(2000));
            store.fill(&asked[..10], 1);
            let found = probe(&*store, &asked, &fresh, Pace::every(1.0));
            assert_eq!(found.len(), SHARES.len());
            assert_eq!(store.resident(), Some(2000), "{}", peer.name);
        }
    }
}
