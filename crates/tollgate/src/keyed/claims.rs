//! Open reservations of single keys, and the lines of those who wait for one.
//!
//! A key has a ledger only while it has open reservations, and a line only while somebody is in it,
//! so keys that never reserve and are never waited for pay nothing. Lock order: claims, then tables.

use super::{
    core::{Core, Key},
    waiting::KeyLine,
};
use crate::{
    Inherit, Tick,
    algorithm::{PerCall, Rule},
    reservation::{
        Taken,
        ledger::{Ledger, Open},
    },
    store::Policy,
    sync::{Mutex, MutexGuard, lock},
    table::{
        Ready,
        class::{Class, ClassRule},
    },
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

/// What the marks of a ledger belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marked {
    class: Class,
    /// The class's rule, because the number may be given to another quota; or that of the call.
    rule: ClassRule,
    /// The policy of the key; zero if it has none.
    policy: u64,
}

#[derive(Debug)]
pub(super) struct KeyLedger {
    class: Marked,
    pub(super) ledger: Ledger,
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

    /// Notes a take under `class`; takes under another one are final from now on.
    pub(crate) fn add(&mut self, class: Marked, taken: &Taken) -> u64 {
        let Shard { ledgers, next_id, .. } = &mut *self.shard;
        let fresh = || KeyLedger { class, ledger: Ledger::default() };
        let known = ledgers.entry(self.fingerprint).or_insert_with(fresh);
        if known.class != class {
            known.ledger.clear();
            known.class = class;
        }
        let id = known.ledger.add_from(*next_id, (taken.mark, taken.units), taken.passed);
        *next_id = id + 1;
        id
    }

    /// Removes a take and returns what it can claim, if its class is still `class`.
    pub(super) fn remove(&mut self, id: u64, class: Marked) -> Option<Open> {
        let known = self.shard.ledgers.get_mut(&self.fingerprint)?;
        let open = known.ledger.remove(id).filter(|_| known.class == class);
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

    /// Makes all takes final if their marks mean nothing to a call with another quota.
    pub(super) fn keep_only(&mut self, class: Marked) {
        let is_timed = |rule| matches!(rule, ClassRule::Word(Rule::PerCall(_)));
        if let Some(known) = self.shard.ledgers.get_mut(&self.fingerprint)
            && known.class != class
            && is_timed(known.class.rule)
        {
            known.ledger.clear();
        }
    }

    /// Changes the ledger if there is one.
    pub(super) fn change(&mut self, change: impl FnOnce(&mut Ledger)) {
        if let Some(known) = self.shard.ledgers.get_mut(&self.fingerprint) {
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

    /// Carries the claims under `old` over to `new`, as the states were.
    pub(super) fn rescale(
        &mut self,
        (old, new): (Class, Class),
        (now, how): (Tick, Inherit),
        rules: (ClassRule, ClassRule),
    ) {
        for shard in &mut self.shards {
            let is_old =
                |known: &&mut KeyLedger| (known.class.class, known.class.rule) == (old, rules.0);
            for known in shard.ledgers.values_mut().filter(is_old) {
                (known.class.class, known.class.rule) = (new, rules.1);
                match (rules.0.as_gcra(), rules.1.as_gcra()) {
                    (Some(old), Some(new)) => known.ledger.rescale(old, new, now, how),
                    _ => known.ledger.clear(),
                }
            }
            shard.ledgers.retain(|_, known| known.ledger.len() > 0);
        }
    }

    /// Makes all takes of a policy's keys final.
    pub(super) fn forget(&mut self, policy: u64) {
        let others = |known: &KeyLedger| known.class.policy != policy;
        self.shards.iter_mut().for_each(|shard| shard.ledgers.retain(|_, known| others(known)));
    }

    pub(super) fn clear(&mut self) {
        self.shards.iter_mut().for_each(|shard| shard.ledgers.clear());
    }
}

impl Core {
    /// Returns what the marks of a take belong to: its class with its rule, or with the rule that
    /// came with the call if marks mean nothing to calls with another one.
    pub(crate) fn marked_by(&self, class: Class, key: &Key<'_>) -> Marked {
        let rule = match &key.call {
            Some(PerCall::Gcra(gcra)) => ClassRule::Word(Rule::PerCall(*gcra)),
            _ => self.tables.base.classes.any_rule(class),
        };
        Marked { class, rule, policy: key.policy.map_or(0, Policy::id) }
    }

    /// Gives back up to `permits` of the take `id` of a key, which has `cost` in all. Returns how
    /// many whole permits that were.
    pub(crate) fn give_back(&self, key: Key<'_>, now: Tick, id: u64, share: (u64, u64)) -> u64 {
        // A quota of its own may have ended: then those who wait are booked anew before they move up.
        self.settle_key(key.fingerprint);
        let mut claims = self.claims.lock(key.fingerprint);
        let (who, _) = self.who(key, now);
        let class = self.marked_by(who.class, &key);
        let Some(Open { mark, units, .. }) = claims.remove(id, class) else {
            return 0;
        };
        let most = proportion(units, share);
        let given =
            self.update(key, now, |entry| (entry.give_back(now, mark, most), entry.is_gcra()));
        let ((amount, whole), is_gcra) = given.map(|(given, _)| given).unwrap_or_default();
        // A window's marks are window numbers and stay as they are.
        if is_gcra {
            claims.change(|ledger| ledger.lower_younger(id, amount));
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
