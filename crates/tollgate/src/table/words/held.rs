//! A key that takes part in a decision about several.
//!
//! Order of locks: the mutexes of absent keys, then the lock bits of those that are there, both in the order of
//! tables and fingerprints. The upper bits of a fingerprint choose its shard, so one order serves for both.

use super::{Content, Place, Slot, WordTable, Writer};
use crate::{
    Tick,
    algorithm::{AnyRule, Entry, Rule},
    sync::Mutex,
    table::{Full, KeyRef},
};

#[derive(Debug)]
pub(crate) struct HeldKey<'a> {
    table: &'a WordTable,
    place: Place,
    slot: Option<&'a Slot>,
    /// Whether an absent key was counted.
    has_room: bool,
    /// What the slot held, and what the state was and is by the rule of the call.
    seen: Content,
    before: u64,
    state: u64,
}

fn word_rule(key: &KeyRef) -> &Rule {
    match &key.rule {
        AnyRule::Word(rule) => rule,
        _ => &Rule::Unlimited,
    }
}

impl<'a> HeldKey<'a> {
    /// Looks for a key, without a lock.
    pub(crate) fn find(table: &'a WordTable, fingerprint: u64) -> Self {
        let place = Place::of(fingerprint);
        let head = table.heads[place.shard].load();
        let slot = table.find(place.shard, head, place.name, super::NAME);
        let seen = Content { tag: place.name, word: 0 };
        Self { table, place, slot, has_room: false, seen, before: 0, state: 0 }
    }

    pub(crate) const fn is_found(&self) -> bool {
        self.slot.is_some()
    }

    pub(crate) fn mutex(&self) -> &'a Mutex<Writer> {
        &self.table.shards[self.place.shard].writer
    }

    /// Looks for the key again, with the mutex of its shard locked. If it is absent, counts room for it.
    pub(crate) fn find_again(&mut self, writer: &mut Writer, now: Tick) {
        self.slot = self.table.find_locked(self.place, writer);
        if self.slot.is_none() {
            self.has_room = self.table.locked(self.place.shard, writer, now).make_room();
        }
    }

    /// Sets the lock bit if the key is there. Returns false if it has left its slot.
    pub(crate) fn lock(&mut self, key: &KeyRef) -> bool {
        if let Some(slot) = self.slot {
            let Some(seen) = slot.lock(self.place.name) else {
                self.slot = None;
                return false;
            };
            self.seen = seen;
        }
        let Content { word, .. } = self.seen;
        self.before = word_rule(key).current(word, self.seen.hint(), key.since);
        self.state = self.before;
        true
    }

    /// Applies `step` to the state.
    #[inline]
    pub(crate) fn update<R>(
        &mut self,
        key: &KeyRef,
        step: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> Result<R, Full> {
        let rule = word_rule(key);
        let is_in = self.slot.is_some() || self.has_room || self.table.eviction.evicts_live;
        if !is_in && *rule != Rule::Unlimited {
            return Err(Full);
        }
        Ok(step(&mut Entry::Word(rule, &mut self.state)))
    }

    /// Returns what the state has become; `None` if it is as it was.
    fn next(&self, key: &KeyRef) -> Option<Content> {
        let changed = self.state != self.before;
        changed.then(|| key.content(word_rule(key), self.seen, self.before, self.state))
    }

    /// Stores the state and clears the lock bit.
    pub(crate) fn unlock(&mut self, key: &KeyRef) {
        if let Some(slot) = self.slot {
            match self.next(key) {
                Some(next) => slot.store(self.seen, next),
                None => slot.unlock(self.seen),
            }
        }
    }

    /// Adds a key that was absent, with the mutex of its shard locked, if it is not idle.
    pub(crate) fn insert(&mut self, key: &KeyRef, writer: &mut Writer) {
        let Self { table, place, has_room, .. } = *self;
        if self.slot.is_some() {
            return;
        }
        match self.next(key).filter(|next| !next.is_idle(key.now)) {
            Some(next) => table.locked(place.shard, writer, key.now).insert(next, has_room),
            None => table.give_up(u64::from(has_room)),
        }
    }

    /// Gives up an attempt to lock: nothing was changed.
    pub(crate) fn give_up(&mut self, is_locked: bool) {
        match self.slot {
            Some(slot) if is_locked => slot.unlock(self.seen),
            Some(_) => {}
            None => self.table.give_up(u64::from(self.has_room)),
        }
    }
}
