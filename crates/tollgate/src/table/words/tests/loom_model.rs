//! The table alone, for the tests that explore its interleavings: a limiter around it has dozens of atomic steps more.

use super::{Eviction, Gcra, Hint, WordTable};
use crate::{
    Quota, Tick,
    sync::{Arc, lock},
    table::slot::Content,
};

/// A table of words. Fingerprints with the highest bit clear lie in one shard, which has one bucket of two slots.
#[derive(Clone, Debug)]
pub struct Table(Arc<WordTable>);

/// Words that can be told apart: one of a quota that takes an hour to refill, and one of a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The word.
    pub word: u64,
    /// Whether it was written by the longer quota.
    pub is_long: bool,
}

fn gcra(is_long: bool) -> Gcra {
    let quota = if is_long { Quota::per_hour(4) } else { Quota::per_minute(4) };
    Gcra::new(&quota).unwrap_or_else(|error| unreachable!("{error}"))
}

fn content(Content { tag, word }: Content) -> Entry {
    Entry { word, is_long: Hint::from_bits(tag) == gcra(true).hint() }
}

impl Table {
    /// Returns an empty table.
    #[must_use]
    pub fn new() -> Self {
        let eviction = Eviction { evicts_live: true, ..Eviction::default() };
        Self(Arc::new(WordTable::new(Arc::new(eviction), None, 0)))
    }

    /// Returns the word of a key of the shorter quota that is booked for so long.
    #[must_use]
    pub fn booked(now: Tick, permits: u64) -> u64 {
        let gcra = gcra(false);
        (0..permits).fold(0, |word, _| gcra.decide_at(word, now, gcra.position(now), 1).1)
    }

    /// Puts an entry in.
    pub fn put(&self, key: u64, entry: Entry, now: Tick) {
        self.0.put_back(key, (gcra(entry.is_long).hint(), entry.word), now);
    }

    /// Takes a permit by the shorter quota, on the fast path; `None` if the general path would have to decide.
    #[must_use]
    pub fn take(&self, key: u64, now: Tick) -> Option<bool> {
        self.0.take_at((key, now), &gcra(false), 1).map(|decision| decision.is_allowed())
    }

    /// Reads an entry; one with a word of zero if it is not there.
    #[must_use]
    pub fn read(&self, key: u64) -> Entry {
        content(self.0.read(key))
    }

    /// Removes a key.
    pub fn remove(&self, key: u64) {
        self.0.remove(key);
    }

    /// Adds a bucket to the first shard.
    pub fn grow(&self, now: Tick) {
        self.0.locked(0, &mut lock(&self.0.shards[0].writer), now).split();
    }
}
