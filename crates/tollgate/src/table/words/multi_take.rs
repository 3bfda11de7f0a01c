//! The fast path of a decision about several keys.
//!
//! It decides by what it reads without a lock. If any key refuses, that is the answer, and nothing was written. Else it
//! sets the lock bits of all words, each only if it is free and the word still as it was read, and stores. It never
//! waits for a lock bit while it holds another, so the order of the keys does not matter.

use super::{Content, NAME, Place, Slot, WordTable};
use crate::{
    Decision, Tick,
    algorithm::{Rule, Step, word_time},
};

/// One of several keys: what its slot held when it was read, and holds if all admit. An absent key has no slot.
#[derive(Clone, Copy)]
pub(crate) struct ReadKey<'t> {
    slot: Option<&'t Slot>,
    rule: &'t Rule,
    held: Content,
    next: Content,
}

impl WordTable {
    /// Reads a key and decides about it, as if it were alone. The fingerprint has the salt of the rule. `None` if
    /// anything is unusual: the key has just moved, is owed something, or was written by another quota.
    ///
    /// Calls `tell` with the decision, and does not return it: to copy it would take an eighth of the time.
    #[inline(always)]
    pub(crate) fn read_and_decide<'t>(
        &'t self,
        (fingerprint, now): (u64, Tick),
        rule: &'t Rule,
        cost: u64,
        tell: impl FnOnce(Decision),
    ) -> Option<ReadKey<'t>> {
        let Place { shard: index, name } = Place::of(fingerprint);
        let shard_head = self.heads.get(index)?;
        let head = shard_head.load();
        let slot = self.find(index, head, name, NAME);
        let held = match slot {
            Some(slot) => slot.load(),
            None => Content { tag: name, word: 0 },
        };
        let is_settled = match slot {
            Some(slot) => held.name() == name && slot.is_still(held),
            None => self.shards[index].overflow.find(name, NAME).is_none(),
        };
        let mut word = held.state();
        if !(is_settled && shard_head.is_still(head)) || word >= word_time::OWED {
            return None;
        }
        // The compiler sees the usual rule.
        let hint = match rule {
            Rule::Gcra(gcra) if !gcra.is_budget() => {
                if slot.is_some() && held.hint() != gcra.hint() {
                    return None;
                }
                tell(gcra.decide(&mut word, now, cost));
                gcra.hint()
            }
            _ if slot.is_some() && held.hint().is_time() => return None,
            rule => {
                tell(rule.decide(&mut word, now, cost));
                rule.hint(word, now)
            }
        };
        let next = if word == held.state() { held } else { Content::new(name, hint, word) };
        Some(ReadKey { slot, rule, held, next })
    }

    /// Stores the words of all keys if they are as they were read: tells whether. `None` if that cannot be, because
    /// a key is absent or there twice.
    pub(crate) fn store_all(keys: &[Option<ReadKey<'_>>]) -> Option<bool> {
        let is_locked = |key: &&ReadKey<'_>| key.slot.is_some_and(|slot| slot.try_lock(key.held));
        let locked = keys.iter().flatten().take_while(is_locked).count();
        let is_all = locked == keys.len();
        for ReadKey { slot, held, next, .. } in keys.iter().flatten().take(locked) {
            if let Some(slot) = slot {
                slot.store(*held, if is_all { *next } else { *held });
            }
        }
        let is_in_use = || keys.iter().flatten().all(|key| key.slot.is_some());
        (is_all || is_in_use() && !ReadKey::is_any_twice(keys)).then_some(is_all)
    }
}

impl ReadKey<'_> {
    /// Tells whether a key is there twice. Keys of different shards may count as one; that costs only time.
    pub(crate) fn is_any_twice(keys: &[Option<Self>]) -> bool {
        let name = |key: &Option<Self>| key.as_ref().map(|key| key.held.name());
        let is_before = |(index, key)| keys[..index].iter().any(|other| name(other) == name(key));
        keys.iter().enumerate().any(is_before)
    }

    /// Returns the level of a key that is not charged, because another one refused.
    pub(crate) fn level(&self, now: Tick, cost: u64) -> Decision {
        self.rule.peek(&self.held.state(), now, 0).forced(cost)
    }
}
