//! Open reservations of single keys, and the lines of those who wait for one.
//!
//! A key has a ledger only while it has open reservations, and a line only while somebody is in it,
//! so keys that never reserve and are never waited for pay nothing. Lock order: claims, then tables.

use super::{
    core::{Core, Key},
    waiting::KeyLine,
};
use crate::{
    Tick,
    algorithm::AnyRule,
    reservation::{
        Taken,
        ledger::{Ledger, Open},
    },
    sync::{Mutex, MutexGuard, lock},
    table::Ready,
    wait::line::Line,
};
use std::{collections::HashMap, hash::BuildHasherDefault};

#[cfg(not(tollgate_loom))]
const SHARDS: usize = 64;
#[cfg(tollgate_loom)]
const SHARDS: usize = 1;

/// The ledgers of all keys that have one.
#[derive(Debug)]
pub(crate) struct Claims {
    shards: Box<[Mutex<Shard>]>,
}

pub(super) type Ledgers = HashMap<u64, KeyLedger, BuildHasherDefault<Ready>>;

#[derive(Debug, Default)]
pub(super) struct Shard {
    pub(super) ledgers: Ledgers,
    pub(super) lines: HashMap<u64, KeyLine, BuildHasherDefault<Ready>>,
    /// Lines for keys to come.
    #[allow(clippy::vec_box, reason = "a line is given out in the box it came back in")]
    pub(super) spares: Vec<Box<Line>>,
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
            (Some(old), Some(new)) => self.ledger.reread(|place| new.place_of(old, place)),
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

    /// Returns where the ledger of a key lies, for whoever locks several at once.
    pub(crate) fn address(&self, fingerprint: u64) -> usize {
        std::ptr::from_ref(&self.shards[Self::index(fingerprint)]) as usize
    }

    pub(crate) fn lock(&self, fingerprint: u64) -> KeyClaims<'_> {
        KeyClaims { shard: lock(&self.shards[Self::index(fingerprint)]), fingerprint }
    }

    /// Returns how many locks there are.
    pub(super) const fn shards(&self) -> usize {
        self.shards.len()
    }

    pub(super) fn lock_shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[index])
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

    /// Notes a take by `rule`.
    pub(crate) fn add(&mut self, rule: AnyRule, taken: &Taken) -> u64 {
        let Shard { ledgers, next_id, .. } = &mut *self.shard;
        let fresh = || KeyLedger { rule, ledger: Ledger::default() };
        let known = ledgers.entry(self.fingerprint).or_insert_with(fresh);
        known.read_by(&rule);
        let id = known.ledger.add_from(*next_id, (taken.mark, taken.units), taken.passed);
        *next_id = id + 1;
        id
    }

    /// Removes a take and returns what it can claim by `rule`.
    pub(super) fn remove(&mut self, id: u64, rule: &AnyRule) -> Option<Open> {
        let known = self.shard.ledgers.get_mut(&self.fingerprint)?;
        known.read_by(rule);
        let open = known.ledger.remove(id);
        self.tidy();
        open
    }

    /// Forgets a take: it is final.
    pub(crate) fn forget(&mut self, id: u64) {
        if let Some(known) = self.shard.ledgers.get_mut(&self.fingerprint) {
            known.ledger.remove(id);
        }
        self.tidy();
    }

    /// Changes the ledger if there is one.
    pub(super) fn change(&mut self, rule: &AnyRule, change: impl FnOnce(&mut Ledger)) {
        if let Some(known) = self.shard.ledgers.get_mut(&self.fingerprint) {
            known.read_by(rule);
            change(&mut known.ledger);
        }
        self.tidy();
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

    pub(super) fn clear(&mut self) {
        self.shards.iter_mut().for_each(|shard| shard.ledgers.clear());
    }
}

impl Core {
    /// Gives back up to `permits` of the take `id` of a key, which has `cost` in all. Returns how
    /// many whole permits that were.
    pub(crate) fn give_back(&self, key: Key<'_>, now: Tick, id: u64, share: (u64, u64)) -> u64 {
        // A quota of its own may have ended: then those who wait are booked anew before they move up.
        self.settle_key(key.fingerprint);
        let mut claims = self.claims.lock(key.fingerprint);
        let (who, _) = self.who(key, now);
        let Some(Open { mark, units }) = claims.remove(id, &who.rule) else {
            return 0;
        };
        let most = proportion(units, share);
        let given =
            self.update(key, now, |entry| (entry.give_back(now, mark, most), entry.is_gcra()));
        let ((amount, whole), is_gcra) = given.map(|(given, _)| given).unwrap_or_default();
        // A window's marks are window numbers and stay as they are.
        if is_gcra {
            claims.change(&who.rule, |ledger| ledger.lower_younger(id, amount));
            claims.change_line(|line| line.lower_behind(mark, amount));
        }
        claims.release(self);
        self.watch_refund(whole);
        whole
    }
}

/// Returns units x permits / cost: in proportion, because a change of quota may have scaled them.
pub(crate) fn proportion(units: u64, (permits, cost): (u64, u64)) -> u64 {
    match cost {
        0 => 0,
        // OVERFLOW: permits <= cost, so the quotient is at most `units`.
        cost => (u128::from(units) * u128::from(permits) / u128::from(cost)) as u64,
    }
}
