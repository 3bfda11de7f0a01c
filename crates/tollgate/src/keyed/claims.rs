//! Open reservations of single keys, and the queues of those who wait for one.
//!
//! A key has a ledger only while it has open reservations, and a queue only while callers wait in it,
//! so keys that never reserve and are never waited for pay nothing. Lock order: claims, then tables.

use super::waiting::KeyQueue;
use crate::{
    algorithm::AnyRule,
    reservation::{Taken, ledger::Ledger},
    sync::{Mutex, MutexGuard, lock},
    table::{FingerprintMap, SHARDS},
    wait::limiter_queue::LimiterQueue,
};

/// The ledgers of all keys that have one.
#[derive(Debug)]
pub(crate) struct Claims {
    shards: Box<[Mutex<Shard>]>,
}

pub(super) type Ledgers = FingerprintMap<KeyLedger>;

#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) ledgers: Ledgers,
    pub(super) queues: FingerprintMap<KeyQueue>,
    /// Queues for keys to come.
    #[allow(clippy::vec_box, reason = "a queue is given out in the box it came back in")]
    pub(super) spares: Vec<Box<LimiterQueue>>,
    /// The next take's number: no two of a shard have the same, whatever was forgotten between.
    next_id: u64,
}

#[derive(Debug)]
pub(super) struct KeyLedger {
    /// The rule by which the marks are read.
    rule: AnyRule,
    pub(super) ledger: Ledger,
}

impl KeyLedger {
    /// Reads the marks by another rule from now on: as times they stay what they are, and others mean
    /// nothing to it.
    fn read_by(&mut self, rule: &AnyRule) {
        if self.rule == *rule {
            return;
        }
        match (self.rule.time_rule(), rule.time_rule()) {
            (Some(old), Some(new)) => self.ledger.reread(|place| new.place(old.word(place))),
            // Windows of one length, or budgets.
            (None, None) if self.rule.salt() == rule.salt() => {}
            _ => self.ledger.clear(),
        }
        self.rule = *rule;
    }
}

/// The ledger of one key, locked.
#[derive(Debug)]
pub(crate) struct KeyClaims<'a> {
    pub(super) shard: MutexGuard<'a, Shard>,
    pub(super) fingerprint: u64,
}

impl Default for Claims {
    fn default() -> Self {
        Self { shards: std::iter::repeat_with(Mutex::default).take(SHARDS).collect() }
    }
}

impl Claims {
    fn index(fingerprint: u64) -> usize {
        (fingerprint >> 40) as usize % SHARDS
    }

    /// Returns where the ledger of a key lies, for callers that lock several at once.
    pub(crate) fn address(&self, fingerprint: u64) -> usize {
        std::ptr::from_ref(&self.shards[Self::index(fingerprint)]) as usize
    }

    pub(crate) fn lock(&self, fingerprint: u64) -> KeyClaims<'_> {
        KeyClaims { shard: lock(&self.shards[Self::index(fingerprint)]), fingerprint }
    }

    /// Returns all shards, for callers that lock one after the other.
    pub(super) fn shards(&self) -> impl Iterator<Item = &Mutex<Shard>> {
        self.shards.iter()
    }

    pub(super) fn lock_all(&self) -> AllClaims<'_> {
        AllClaims { shards: self.shards.iter().map(lock).collect() }
    }
}

impl KeyClaims<'_> {
    /// Another key whose ledger lies under the same lock.
    pub(crate) const fn turn_to(&mut self, fingerprint: u64) {
        self.fingerprint = fingerprint;
    }

    /// Adds a take by `rule`.
    pub(crate) fn add(&mut self, rule: AnyRule, taken: &Taken) -> u64 {
        let Shard { ledgers, next_id, .. } = &mut *self.shard;
        let fresh = || KeyLedger { rule, ledger: Ledger::default() };
        let known = ledgers.entry(self.fingerprint).or_insert_with(fresh);
        known.read_by(&rule);
        if rule.time_rule().is_some() {
            known.ledger.cut_to(taken.mark.saturating_sub(taken.units));
        }
        let id = known.ledger.add_from(*next_id, (taken.mark, taken.units), taken.passed);
        *next_id = id + 1;
        id
    }

    /// Changes the key's ledger, if it has one, after it was converted to `rule`, if one is given.
    pub(crate) fn change<R>(
        &mut self,
        rule: Option<&AnyRule>,
        change: impl FnOnce(&mut Ledger) -> R,
    ) -> Option<R> {
        let known = self.shard.ledgers.get_mut(&self.fingerprint)?;
        rule.into_iter().for_each(|rule| known.read_by(rule));
        let changed = change(&mut known.ledger);
        self.tidy();
        Some(changed)
    }

    fn tidy(&mut self) {
        let ledgers = &mut self.shard.ledgers;
        if ledgers.get(&self.fingerprint).is_some_and(|known| known.ledger.len() == 0) {
            ledgers.remove(&self.fingerprint);
        }
    }
}

/// All ledgers, locked, while a quota changes.
pub(super) struct AllClaims<'a> {
    shards: Vec<MutexGuard<'a, Shard>>,
}

impl AllClaims<'_> {
    pub(super) fn shards(&mut self) -> impl Iterator<Item = &mut Shard> {
        self.shards.iter_mut().map(|shard| &mut **shard)
    }

    /// Makes all open reservations final, and forgets what is booked for those who wait.
    pub(super) fn clear(&mut self) {
        for shard in self.shards() {
            shard.ledgers.clear();
            shard.lose_bookings();
        }
    }
}
