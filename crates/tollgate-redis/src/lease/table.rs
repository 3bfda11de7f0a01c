//! A bounded table of the entries that this process remembers by key.
//!
//! A key has one of sixteen places in its bucket; each bucket has its own lock. A full bucket
//! evicts the entry with the lowest rank, which is harmless: the store has the whole state. Memory
//! grows with the entries, up to the bound, and is kept.
//!
//! Keys are not stored, only fingerprints of 128 bits by SipHash-1-3 with a secret of this process:
//! an attacker cannot find two keys with the same fingerprint, and by chance two of a billion keys
//! collide with a probability below 10^-20.

use siphasher::sip128::{Hasher128, SipHasher13};
use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

const WAYS: usize = 16;

/// An entry of a table.
pub(super) trait Slot {
    /// Returns the rank of the entry: the lowest is evicted first. `None`: it must stay.
    fn rank(&self) -> Option<u64>;
}

/// The counts of a bucket. They change under its lock, so counting costs nothing more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) allowed: u64,
    pub(super) refused: u64,
    pub(super) wasted: u64,
}

pub(super) struct Bucket<T> {
    /// Grows when permits are given back: earlier requests are then out of date.
    pub(super) epoch: u64,
    pub(super) tally: Tally,
    slots: Vec<(u128, T)>,
    ways: usize,
}

impl<T: Slot> Bucket<T> {
    /// Returns the entry of a key, and where to count what becomes of it.
    pub(super) fn get(&mut self, id: u128) -> Option<(&mut T, &mut Tally)> {
        let Self { slots, tally, .. } = self;
        slots.iter_mut().find(|(known, _)| *known == id).map(|(_, entry)| (entry, tally))
    }

    /// Adds an entry for a key that has none, and returns what it displaced; the entry itself if
    /// there is no place for it.
    pub(super) fn insert(&mut self, id: u128, entry: T) -> Option<T> {
        if self.slots.len() < self.ways {
            self.slots.push((id, entry));
            return None;
        }
        let ranks = self.slots.iter().enumerate();
        let least = ranks.filter_map(|(index, (_, it))| Some((it.rank()?, index))).min();
        match least {
            Some((_, index)) => Some(std::mem::replace(&mut self.slots[index], (id, entry)).1),
            None => Some(entry),
        }
    }

    pub(super) fn remove(&mut self, id: u128) -> Option<T> {
        let index = self.slots.iter().position(|(known, _)| *known == id)?;
        Some(self.slots.swap_remove(index).1)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
}

pub(super) struct Table<T> {
    buckets: Box<[Mutex<Bucket<T>>]>,
}

impl<T: Slot> Table<T> {
    /// Returns a table for at most `entries`.
    pub(super) fn new(entries: usize) -> Self {
        let (buckets, ways) = ((entries / WAYS).max(1), entries.min(WAYS));
        let bucket =
            |_| Mutex::new(Bucket { epoch: 0, tally: Tally::default(), slots: Vec::new(), ways });
        Self { buckets: (0..buckets).map(bucket).collect() }
    }

    pub(super) fn bucket(&self, id: u128) -> MutexGuard<'_, Bucket<T>> {
        // The upper half of the fingerprint, scaled to the number of buckets.
        // OVERFLOW: a product of two numbers of 64 bits fits in 128, its upper half is an index.
        let index = ((id >> 64) * self.buckets.len() as u128) >> 64;
        lock(&self.buckets[index as usize])
    }

    pub(super) fn each(&self, mut call: impl FnMut(&mut Bucket<T>)) {
        self.buckets.iter().for_each(|bucket| call(&mut lock(bucket)));
    }

    /// Returns how many entries there are, and what happened to all of them.
    pub(super) fn count(&self) -> (usize, Tally) {
        let (mut entries, mut sum) = (0, Tally::default());
        self.each(|bucket| {
            entries += bucket.len();
            sum.allowed += bucket.tally.allowed;
            sum.refused += bucket.tally.refused;
            sum.wasted += bucket.tally.wasted;
        });
        (entries, sum)
    }
}

/// A panic in between leaves whole values: every change under the lock is a few assignments.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes fingerprints.
pub(super) struct Ids {
    secret: (u64, u64),
}

impl Ids {
    pub(super) fn new() -> Self {
        // The system's randomness, by way of the standard library.
        let random = || RandomState::new().build_hasher().finish();
        Self { secret: (random(), random()) }
    }

    /// Returns the fingerprint of a policy's key.
    pub(super) fn of(&self, policy: &str, key: &[u8]) -> u128 {
        let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
        // With the length first, no other pair of name and key gives the same bytes.
        hasher.write(&(policy.len() as u64).to_le_bytes());
        hasher.write(policy.as_bytes());
        hasher.write(key);
        hasher.finish128().as_u128()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Slot for u64 {
        fn rank(&self) -> Option<u64> {
            (*self < 1000).then_some(*self)
        }
    }

    #[test]
    fn a_full_bucket_gives_up_what_matters_least() {
        let table = Table::<u64>::new(3);
        for (id, rank) in [(1, 7), (2, 5), (3, 9)] {
            assert_eq!(table.bucket(id).insert(id, rank), None);
        }
        assert_eq!(table.bucket(4).insert(4, 6), Some(5));
        assert!(table.bucket(2).get(2).is_none());
        assert_eq!(table.count().0, 3);
        table.each(|bucket| bucket.slots.iter_mut().for_each(|(_, rank)| *rank = 1000));
        assert_eq!(table.bucket(5).insert(5, 6), Some(6), "all must stay");
        assert_eq!(table.bucket(4).remove(4), Some(1000));
        assert_eq!(table.count().0, 2);
    }

    #[test]
    fn a_table_holds_no_more_than_it_was_given() {
        for entries in [1, 15, 16, 17, 1000] {
            let (table, ids) = (Table::<u64>::new(entries), Ids::new());
            for key in 0..3000_u64 {
                let id = ids.of("policy", &key.to_le_bytes());
                table.bucket(id).insert(id, key % 1000);
            }
            assert!(table.count().0 <= entries, "{} of {entries}", table.count().0);
        }
    }

    #[test]
    fn names_and_keys_do_not_run_into_each_other() {
        let ids = Ids::new();
        let pairs: [(&str, &[u8]); 5] =
            [("a", b"bc"), ("ab", b"c"), ("abc", b""), ("", b"abc"), ("a", b"bc\0")];
        for (index, (name, key)) in pairs.into_iter().enumerate() {
            for (other, key_of_other) in &pairs[..index] {
                assert_ne!(ids.of(name, key), ids.of(other, key_of_other));
            }
            assert_eq!(ids.of(name, key), ids.of(name, key));
        }
    }
}
