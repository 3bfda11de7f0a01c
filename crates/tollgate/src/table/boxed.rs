//! The table of states that do not fit a word, or must be kept although they are at rest.
//!
//! | what | why it is here |
//! |---|---|
//! | sliding log | a list of events |
//! | sliding counter with huge limits | three words |
//! | quotas whose fresh keys are not full | a forgotten key would start afresh |
//!
//! Entries leave when they are idle, or, if a `max_idle` is declared, when nobody asked for them
//! for so long: a few for each new key.

use super::{
    Eviction, Full, Hint, KeyRef,
    slot::Content,
    swept_map::{SweptMap, SweptShard},
};
use crate::{
    Tick,
    algorithm::{AnyRule, Entry, Gcra, Idle, Log, Step, TwoWindows},
    sync::{Arc, Mutex, lock},
};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct BoxedTable {
    eviction: Arc<Eviction>,
    /// In shards by the upper bits, so that fingerprints in order have shards in order.
    pub(crate) map: SweptMap<BoxedEntry, { u64::BITS - 6 }>,
    max_idle: Option<Duration>,
}

pub(crate) type BoxedShard = SweptShard<BoxedEntry>;

#[derive(Debug)]
pub(crate) struct BoxedEntry {
    /// The rule by which it was last asked for.
    rule: AnyRule,
    used_at: Tick,
    state: BoxedState,
}

/// A state of any size.
#[derive(Clone, Debug)]
pub(crate) enum BoxedState {
    Word(u64),
    Counter(TwoWindows),
    Log(Log),
}

impl BoxedState {
    fn fresh(rule: &AnyRule, now: Tick) -> Self {
        match rule {
            AnyRule::Word(rule) | AnyRule::Kept(rule) => Self::Word(rule.initial(now)),
            AnyRule::Counter(counter) => Self::Counter(counter.initial(now)),
            AnyRule::Log(log) if log.starts_empty() => Self::Log(Log::default()),
            AnyRule::Log(log) => Self::Log(log.initial(now)),
        }
    }

    /// Applies `step` to the state, which `written_by` has left. A state of another algorithm starts anew.
    fn step<R>(
        &mut self,
        key: &KeyRef,
        written_by: &AnyRule,
        step: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> R {
        let fits = matches!(
            (&*self, &key.rule),
            (Self::Word(_), AnyRule::Word(_) | AnyRule::Kept(_))
                | (Self::Counter(_), AnyRule::Counter(_))
                | (Self::Log(_), AnyRule::Log(_))
        );
        if !fits {
            *self = Self::fresh(&key.rule, key.now);
        }
        match (self, &key.rule) {
            (Self::Word(word), AnyRule::Word(rule) | AnyRule::Kept(rule)) => {
                let hint = written_by.time_rule().map_or_else(Hint::default, Gcra::hint);
                let (result, next) = key.step(rule, Content::new(0, hint, *word), step);
                *word = next.map_or(*word, |next| next.word);
                result
            }
            (Self::Counter(windows), AnyRule::Counter(counter)) => {
                step(&mut Entry::Counter(counter, windows))
            }
            (Self::Log(entries), AnyRule::Log(log)) => step(&mut Entry::Log(log, entries)),
            _ => unreachable!("a fresh state fits its rule"),
        }
    }

    fn burden(&self, rule: &AnyRule, now: Tick) -> u64 {
        match (self, rule) {
            (Self::Word(word), AnyRule::Word(rule) | AnyRule::Kept(rule)) => rule.burden(word, now),
            (Self::Counter(windows), AnyRule::Counter(counter)) => counter.burden(windows, now),
            (Self::Log(entries), AnyRule::Log(log)) => log.burden(entries, now),
            _ => 0,
        }
    }
}

impl BoxedTable {
    pub(super) fn new(
        eviction: Arc<Eviction>,
        cap: Option<u64>,
        max_idle: Option<Duration>,
    ) -> Self {
        Self { eviction, map: SweptMap::new(cap.unwrap_or(u64::MAX)), max_idle }
    }

    pub(crate) const fn max_idle(&self) -> Option<Duration> {
        self.max_idle
    }

    /// Tells whether nobody would notice that the entry is gone, or nobody is promised not to.
    fn may_leave(&self, entry: &BoxedEntry, now: Tick) -> bool {
        let rule = entry.rule;
        let stale = |max_idle| now.since(entry.used_at) > max_idle;
        match rule {
            rule if rule.is_kept() => self.max_idle.is_some_and(stale),
            _ => entry.state.burden(&rule, now) == 0 || self.max_idle.is_some_and(stale),
        }
    }

    /// Applies `step` to the state of a key, atomically.
    pub(super) fn update<R>(
        &self,
        key: &KeyRef,
        step: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> Result<R, Full> {
        self.update_held(key, &mut lock(self.map.shard(key.fingerprint)), step)
    }

    /// [`update`](Self::update) with the key's shard locked.
    pub(crate) fn update_held<R>(
        &self,
        key: &KeyRef,
        shard: &mut BoxedShard,
        step: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> Result<R, Full> {
        let rule = key.rule;
        if let Some(entry) = shard.entries.get_mut(&key.fingerprint) {
            entry.used_at = entry.used_at.max(key.now);
            let written_by = std::mem::replace(&mut entry.rule, rule);
            return Ok(entry.state.step(key, &written_by, step));
        }
        let has_room = self.map.give_room(shard, |entry| self.forgets(entry, key.now));
        if !has_room && !self.eviction.evicts_live {
            return Err(Full);
        }
        let mut state = BoxedState::fresh(&rule, key.now);
        let result = state.step(key, &rule, step);
        let entry = BoxedEntry { rule, used_at: key.now, state };
        // A kept key is kept from its first look on.
        if rule.is_kept() || !self.may_leave(&entry, key.now) {
            if !has_room {
                // Its place in the count goes to the new one.
                self.evict(shard, key.now);
            }
            shard.insert(key.fingerprint, entry);
        } else if has_room {
            self.map.len.lower(1);
        }
        Ok(result)
    }

    /// [`may_leave`](Self::may_leave), and counts those that do.
    fn forgets(&self, entry: &BoxedEntry, now: Tick) -> bool {
        let leaves = self.may_leave(entry, now);
        if leaves {
            self.eviction.count_idle(1);
        }
        leaves
    }

    /// Removes the entry nearest to full of some, of this shard if it has any.
    fn evict(&self, shard: &mut BoxedShard, now: Tick) {
        self.eviction.count_live();
        let burden = |entry: &BoxedEntry| Some(entry.state.burden(&entry.rule, now));
        let mut others = self.map.shards.iter().filter_map(|other| other.try_lock().ok());
        if !shard.evict(burden) && !others.any(|mut other| other.evict(burden)) {
            // Nobody to be found: all others are being worked on. The count says what is there.
            self.map.len.add(1);
        }
    }

    /// Applies `look` to a copy of the state of a key; a fresh one if there is none.
    pub(super) fn read<R>(&self, key: &KeyRef, look: impl FnOnce(&mut Entry<'_>) -> R) -> R {
        match lock(self.map.shard(key.fingerprint)).entries.get_mut(&key.fingerprint) {
            // A look changes nothing, so the state itself will do.
            Some(entry) => entry.state.step(key, &entry.rule, look),
            None => BoxedState::fresh(&key.rule, key.now).step(key, &key.rule, look),
        }
    }

    /// Forgets a key.
    pub(super) fn remove(&self, fingerprint: u64) {
        self.map.remove(&mut lock(self.map.shard(fingerprint)), fingerprint);
    }

    pub(super) fn len(&self) -> usize {
        self.map.shards.iter().map(|shard| lock(shard).entries.len()).sum()
    }

    /// Returns about how much memory the entries take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let one = |entry: &BoxedEntry| match &entry.state {
            BoxedState::Log(log) => log.bytes(),
            _ => 0,
        };
        let shard = |shard: &Mutex<BoxedShard>| {
            let shard = lock(shard);
            shard.bytes() + shard.entries.values().map(one).sum::<usize>()
        };
        self.map.shards.iter().map(shard).sum()
    }

    pub(super) fn shrink(&self, now: Tick) {
        self.map.shrink(|entry| self.forgets(entry, now));
    }

    /// Puts a state back. Tells whether there was room.
    pub(crate) fn put_back(&self, key: &KeyRef, state: &BoxedState) -> bool {
        let put = |entry: &mut Entry<'_>| match (entry, state) {
            (Entry::Word(_, word), BoxedState::Word(state)) => **word = *state,
            (Entry::Counter(_, windows), BoxedState::Counter(state)) => **windows = *state,
            (Entry::Log(_, log), BoxedState::Log(state)) => (*log).clone_from(state),
            _ => {}
        };
        self.update(key, put).is_ok()
    }

    /// Calls `visit` with a copy of every entry, one lock at a time and not while `visit` runs.
    pub(crate) fn visit(&self, mut visit: impl FnMut(u64, &AnyRule, &BoxedState)) {
        for shard in &self.map.shards {
            let fingerprints: Vec<u64> = lock(shard).entries.keys().copied().collect();
            for fingerprint in fingerprints {
                let copied = lock(shard)
                    .entries
                    .get(&fingerprint)
                    .map(|entry| (entry.rule, entry.state.clone()));
                if let Some((rule, state)) = copied {
                    visit(fingerprint, &rule, &state);
                }
            }
        }
    }
}
