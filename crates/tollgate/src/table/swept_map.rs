//! Maps by fingerprint, and a bounded one whose entries leave by themselves.
//!
//! An entry of a [`SweptMap`] that stands for nothing any more needs no timer: each new entry looks at a few
//! old ones in turn, and removes those that may leave. A full map looks at some in every shard.

use crate::sync::{AtomicU64, Mutex, Ordering::Relaxed, lock};
use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasherDefault, Hasher},
};

/// Shards of a map, a power of two: many more than threads that meet. One for loom, which explores each.
pub(crate) const SHARDS: usize = if cfg!(tollgate_loom) { 1 } else { 64 };

/// Entries that a new one looks at for some that may leave, and for one to evict.
const SWEEP: usize = 4;
const CANDIDATES: usize = 16;

pub(crate) type FingerprintMap<V> = HashMap<u64, V, BuildHasherDefault<Ready>>;

/// Fingerprints are hashes already.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ready(u64);

impl Hasher for Ready {
    fn write(&mut self, bytes: &[u8]) {
        debug_assert!(bytes.is_empty(), "only fingerprints are hashed");
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A map of at most `most` entries. The bits of a fingerprint from `SHIFT` on choose its shard.
#[derive(Debug)]
pub(crate) struct SweptMap<V, const SHIFT: u32> {
    pub(crate) shards: Box<[Mutex<SweptShard<V>>]>,
    /// The number of entries, with those that were given room and are not there yet.
    len: AtomicU64,
    pub(crate) most: u64,
}

#[derive(Debug)]
pub(crate) struct SweptShard<V> {
    pub(crate) entries: FingerprintMap<V>,
    /// The fingerprints in the order in which they are looked at.
    ring: VecDeque<u64>,
}

impl<V> Default for SweptShard<V> {
    fn default() -> Self {
        Self { entries: FingerprintMap::default(), ring: VecDeque::new() }
    }
}

impl<V, const SHIFT: u32> SweptMap<V, SHIFT> {
    pub(crate) fn new(most: u64) -> Self {
        let shards = std::iter::repeat_with(Mutex::default).take(SHARDS).collect();
        Self { shards, len: AtomicU64::new(0), most }
    }

    #[inline]
    pub(crate) fn len(&self) -> u64 {
        // ORDERING: Relaxed, here and below. A count that guards nothing: an entry that is seen a
        // moment late was made a moment later.
        self.len.load(Relaxed)
    }

    pub(crate) fn shard(&self, fingerprint: u64) -> &Mutex<SweptShard<V>> {
        &self.shards[(fingerprint >> SHIFT) as usize % SHARDS]
    }

    /// Gives room to a new entry of `shard`, after some of those have left that `may_leave`. Tells whether
    /// there was any.
    pub(crate) fn give_room(
        &self,
        shard: &mut SweptShard<V>,
        mut may_leave: impl FnMut(&V) -> bool,
    ) -> bool {
        self.sweep(shard, SWEEP, &mut may_leave);
        if self.count_one() {
            return true;
        }
        self.sweep(shard, CANDIDATES, &mut may_leave);
        for other in &self.shards {
            if self.count_one() {
                return true;
            }
            // Only tried: its owner may wait for ours.
            if let Ok(mut other) = other.try_lock() {
                self.sweep(&mut other, SWEEP, &mut may_leave);
            }
        }
        self.count_one()
    }

    fn count_one(&self) -> bool {
        let more = |len| (len < self.most).then_some(len + 1);
        self.len.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Gives room to a new entry beyond the bound.
    pub(crate) fn give_more_room(&self) {
        self.len.fetch_add(1, Relaxed);
    }

    /// Takes back the room of an entry that was not inserted.
    pub(crate) fn take_room_back(&self) {
        self.len.fetch_sub(1, Relaxed);
    }

    fn sweep(
        &self,
        shard: &mut SweptShard<V>,
        count: usize,
        may_leave: &mut impl FnMut(&V) -> bool,
    ) {
        for _ in 0..count.min(shard.ring.len()) {
            let Some(fingerprint) = shard.ring.pop_front() else { return };
            match shard.entries.get(&fingerprint) {
                Some(entry) if may_leave(entry) => {
                    shard.entries.remove(&fingerprint);
                    self.take_room_back();
                }
                Some(_) => shard.ring.push_back(fingerprint),
                None => {}
            }
        }
    }

    pub(crate) fn remove(&self, shard: &mut SweptShard<V>, fingerprint: u64) {
        if shard.entries.remove(&fingerprint).is_some() {
            shard.ring.retain(|other| *other != fingerprint);
            self.take_room_back();
        }
    }

    pub(crate) fn clear(&self) {
        for shard in &self.shards {
            let old = std::mem::take(&mut *lock(shard));
            self.len.fetch_sub(old.entries.len() as u64, Relaxed);
        }
    }

    /// Removes all that `may_leave`, and gives back the memory that the others do not need.
    pub(crate) fn shrink(&self, mut may_leave: impl FnMut(&V) -> bool) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            let count = shard.ring.len();
            self.sweep(&mut shard, count, &mut may_leave);
            shard.entries.shrink_to_fit();
            shard.ring.shrink_to_fit();
        }
    }
}

impl<V> SweptShard<V> {
    /// Inserts an entry that has room, and was not there.
    pub(crate) fn insert(&mut self, fingerprint: u64, value: V) {
        self.entries.insert(fingerprint, value);
        self.ring.push_back(fingerprint);
    }

    /// Removes the lightest of a few entries that have a weight; its room goes to the next one. Tells
    /// whether there was one.
    pub(crate) fn evict<W: Ord>(&mut self, weight: impl Fn(&V) -> Option<W>) -> bool {
        let weighed = |(index, fingerprint): (usize, &u64)| {
            Some((weight(self.entries.get(fingerprint)?)?, index))
        };
        let lightest = self.ring.iter().enumerate().take(CANDIDATES).filter_map(weighed).min();
        // Near the front of the ring, so this moves a few and not all.
        let removed = lightest.and_then(|(_, index)| self.ring.remove(index));
        removed.is_some_and(|fingerprint| self.entries.remove(&fingerprint).is_some())
    }

    pub(crate) fn bytes(&self) -> usize {
        let slots = self.entries.capacity() * (size_of::<(u64, V)>() + 1);
        slots + self.ring.capacity() * size_of::<u64>()
    }
}
