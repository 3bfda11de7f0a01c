//! The growing table: as many keys as there are, spread over locked shards.
//!
//! A shard holds its slots and its copy of the parameters behind one short lock, so quota and
//! states of a shard change together. An entry that is idle (full again) equals an absent one, so
//! it may be removed at any time without anybody noticing: each new key looks at a few slots of its
//! shard, and a shard that grows leaves its idle entries behind. Nobody sweeps the whole table.

use super::slots::{Slot, Slots};
use crate::{
    Inherit, Tick,
    algorithm::{Idle, Packed, Succeed},
    sync::{Mutex, Padded, lock},
};

/// Shards, a power of two. A shard of a table of ten million keys then holds ten thousand, and
/// that is what one rebuild holds up.
const SHARDS: usize = 1024;
const SHARD_BITS: u32 = SHARDS.ilog2();

/// Slots that a new key looks at for idle ones. More than one, so that idle entries leave faster
/// than new ones come.
const SWEEP: usize = 4;

#[derive(Debug)]
pub(super) struct Growing<A> {
    shards: Box<[Padded<Mutex<Shard<A>>>]>,
}

#[derive(Debug)]
struct Shard<A> {
    algorithm: A,
    slots: Slots,
}

impl<A: Packed + Idle + Succeed> Growing<A>
where
    A::State: Copy,
{
    pub(super) fn new(algorithm: A) -> Self {
        let shard = || Padded(Mutex::new(Shard { algorithm, slots: Slots::default() }));
        Self { shards: std::iter::repeat_with(shard).take(SHARDS).collect() }
    }

    /// The upper bits choose the shard, the rest the slot.
    fn shard(&self, fingerprint: u64) -> (&Mutex<Shard<A>>, u64) {
        let shard = &self.shards[(fingerprint >> (u64::BITS - SHARD_BITS)) as usize];
        (&shard.0, (fingerprint << SHARD_BITS) | 1)
    }

    /// Applies `step` to the state of a key, atomically. A key that is not there is idle.
    pub(super) fn update<R>(
        &self,
        fingerprint: u64,
        now: Tick,
        step: impl FnOnce(&A, &mut A::State) -> R,
    ) -> R {
        let (shard, fingerprint) = self.shard(fingerprint);
        let mut shard = lock(shard);
        let Shard { algorithm, slots } = &mut *shard;
        let found = slots.find(fingerprint);
        let mut state = algorithm.unpack(found.map_or(0, |index| slots.word(index)));
        let result = step(algorithm, &mut state);
        let word = algorithm.pack(&state);
        match found {
            Ok(index) => slots.set_word(index, word),
            Err(_) if algorithm.is_idle(&state, now) => {}
            Err(_) => {
                let is_idle = |word: u64| algorithm.is_idle(&algorithm.unpack(word), now);
                slots.sweep(SWEEP, is_idle);
                slots.insert(Slot { fingerprint, word }, is_idle);
            }
        }
        result
    }

    /// Reads the state of a key.
    pub(super) fn read<R>(&self, fingerprint: u64, look: impl FnOnce(&A, &A::State) -> R) -> R {
        let (shard, fingerprint) = self.shard(fingerprint);
        let shard = lock(shard);
        let word = shard.slots.find(fingerprint).map_or(0, |index| shard.slots.word(index));
        look(&shard.algorithm, &shard.algorithm.unpack(word))
    }

    /// Forgets a key.
    pub(super) fn remove(&self, fingerprint: u64) {
        let (shard, fingerprint) = self.shard(fingerprint);
        let mut shard = lock(shard);
        if let Ok(index) = shard.slots.find(fingerprint) {
            shard.slots.remove(index);
        }
    }

    /// Calls `visit` with each shard in turn; one lock at a time.
    fn each(&self, mut visit: impl FnMut(&mut Shard<A>)) {
        self.shards.iter().for_each(|shard| visit(&mut lock(&shard.0)));
    }

    pub(super) fn len(&self) -> usize {
        let mut len = 0;
        self.each(|shard| len += shard.slots.len());
        len
    }

    /// Returns the memory of the slots, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let mut slots = 0;
        self.each(|shard| slots += shard.slots.capacity());
        slots * size_of::<Slot>()
    }

    pub(super) fn clear(&self) {
        self.each(|shard| shard.slots = Slots::default());
    }

    pub(super) fn shrink(&self, now: Tick) {
        self.each(|Shard { algorithm, slots }| {
            slots.shrink(|word| algorithm.is_idle(&algorithm.unpack(word), now));
        });
    }

    /// Changes the parameters, shard by shard; states are carried over as `how` says, but idle ones
    /// stay idle, as absent ones do.
    pub(super) fn replace(&self, next: A, now: Tick, how: Inherit) {
        self.each(|shard| {
            let old = shard.algorithm;
            shard.slots.map(|word| match old.unpack(word) {
                state if old.is_idle(&state, now) => 0,
                state => next.pack(&next.succeed(&old, &state, now, how)),
            });
            shard.algorithm = next;
        });
    }
}
