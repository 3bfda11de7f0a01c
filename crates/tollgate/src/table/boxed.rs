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

use super::{Base, Full, Hint, KeyRef, Room, slot::Content};
use crate::{
    Tick,
    algorithm::{AnyRule, Entry, Gcra, Idle, Log, Step, TwoWindows},
    sync::{Arc, AtomicU64, Mutex, Ordering::Relaxed, lock},
};
use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasherDefault, Hasher},
    time::Duration,
};

#[cfg(not(tollgate_loom))]
const SHARDS: usize = 64;
#[cfg(tollgate_loom)]
const SHARDS: usize = 1;
const SHARD_SHIFT: u32 = u64::BITS - 6;

/// Entries that a new key looks at for idle ones, and for one to evict.
const SWEEP: usize = 4;
const CANDIDATES: usize = 16;

#[derive(Debug)]
pub(crate) struct BoxedTable {
    base: Arc<Base>,
    shards: Box<[Mutex<BoxedShard>]>,
    max_idle: Option<Duration>,
    cap: Option<u64>,
    len: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct BoxedShard {
    entries: HashMap<u64, BoxedEntry, BuildHasherDefault<Ready>>,
    /// The fingerprints in the order in which they are looked at for idle ones.
    ring: VecDeque<u64>,
}

#[derive(Debug)]
struct BoxedEntry {
    /// The rule by which it was last asked for.
    rule: AnyRule,
    used_at: Tick,
    state: State,
}

/// A state of any size.
#[derive(Clone, Debug)]
pub(crate) enum State {
    Word(u64),
    Counter(TwoWindows),
    Log(Log),
}

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

impl State {
    fn fresh(rule: &AnyRule, now: Tick) -> Self {
        match rule {
            AnyRule::Word(rule) | AnyRule::Kept(rule) => Self::Word(rule.initial(now)),
            AnyRule::Counter(counter) => Self::Counter(counter.initial(now)),
            AnyRule::Log(log) if log.starts_empty() => Self::Log(Log::default()),
            AnyRule::Log(log) => Self::Log(log.initial(now)),
        }
    }

    /// Pairs the state with its rule. A state of another algorithm starts anew.
    fn entry<'a>(&'a mut self, rule: &'a AnyRule, now: Tick) -> Entry<'a> {
        let fits = matches!(
            (&*self, rule),
            (Self::Word(_), AnyRule::Word(_) | AnyRule::Kept(_))
                | (Self::Counter(_), AnyRule::Counter(_))
                | (Self::Log(_), AnyRule::Log(_))
        );
        if !fits {
            *self = Self::fresh(rule, now);
        }
        match (self, rule) {
            (Self::Word(word), AnyRule::Word(rule) | AnyRule::Kept(rule)) => {
                Entry::Word(rule, word)
            }
            (Self::Counter(windows), AnyRule::Counter(counter)) => Entry::Counter(counter, windows),
            (Self::Log(entries), AnyRule::Log(log)) => Entry::Log(log, entries),
            _ => unreachable!("a fresh state fits its rule"),
        }
    }

    /// Applies `step` to the state.
    fn step<R>(
        &mut self,
        who: &KeyRef,
        written_by: &AnyRule,
        step: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> R {
        match (&mut *self, &who.rule) {
            (Self::Word(word), AnyRule::Word(rule) | AnyRule::Kept(rule)) => {
                let hint = written_by.time_rule().map_or_else(Hint::default, Gcra::hint);
                let (result, next) = who.step(rule, Content::new(0, hint, *word), step);
                *word = next.map_or(*word, |next| next.word);
                result
            }
            (_, rule) => step(&mut self.entry(rule, who.now)),
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
    pub(super) fn new(base: Arc<Base>, cap: Option<u64>, max_idle: Option<Duration>) -> Self {
        let shards = std::iter::repeat_with(Mutex::default).take(SHARDS).collect();
        Self { base, shards, max_idle, cap, len: AtomicU64::new(0) }
    }

    pub(crate) const fn max_idle(&self) -> Option<Duration> {
        self.max_idle
    }

    /// The shard of a key, for decisions that lock several keys at once.
    pub(crate) fn shard_of(&self, fingerprint: u64) -> &Mutex<BoxedShard> {
        // By the upper bits, so that fingerprints in order have shards in order.
        &self.shards[(fingerprint >> SHARD_SHIFT) as usize & (SHARDS - 1)]
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
        who: &KeyRef,
        step: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> Result<R, Full> {
        self.update_held(who, &mut lock(self.shard_of(who.fingerprint)), step)
    }

    /// [`update`](Self::update) with the key's shard locked.
    pub(crate) fn update_held<R>(
        &self,
        who: &KeyRef,
        shard: &mut BoxedShard,
        step: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> Result<R, Full> {
        let rule = who.rule;
        if let Some(entry) = shard.entries.get_mut(&who.fingerprint) {
            entry.used_at = entry.used_at.max(who.now);
            let written_by = std::mem::replace(&mut entry.rule, rule);
            return Ok(entry.state.step(who, &written_by, step));
        }
        self.sweep(shard, who.now, SWEEP);
        let has_room = self.make_room(shard, who.now);
        if !has_room && self.base.room != Room::Evict {
            return Err(Full);
        }
        let mut state = State::fresh(&rule, who.now);
        let result = state.step(who, &rule, step);
        let entry = BoxedEntry { rule, used_at: who.now, state };
        // A kept key is kept from its first look on.
        if rule.is_kept() || !self.may_leave(&entry, who.now) {
            if !has_room {
                // Its place in the count goes to the new one.
                self.evict(shard, who.now);
            }
            shard.entries.insert(who.fingerprint, entry);
            shard.ring.push_back(who.fingerprint);
        } else if has_room {
            // ORDERING: Relaxed, here and below. A count that guards nothing but itself.
            self.len.fetch_sub(1, Relaxed);
        }
        Ok(result)
    }

    /// Counts one more entry if the cap allows it, or some in other shards may leave.
    fn make_room(&self, shard: &mut BoxedShard, now: Tick) -> bool {
        if self.count_one() {
            return true;
        }
        self.sweep(shard, now, CANDIDATES);
        for other in &self.shards {
            if self.count_one() {
                return true;
            }
            // Only tried: its owner may wait for ours.
            if let Ok(mut other) = other.try_lock() {
                self.sweep(&mut other, now, SWEEP);
            }
        }
        self.count_one()
    }

    fn count_one(&self) -> bool {
        let cap = self.cap.unwrap_or(u64::MAX);
        let more = |len| (len < cap).then_some(len + 1);
        self.len.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Looks at the next entries and removes those that may leave.
    fn sweep(&self, shard: &mut BoxedShard, now: Tick, count: usize) {
        for _ in 0..count.min(shard.ring.len()) {
            let Some(fingerprint) = shard.ring.pop_front() else { return };
            match shard.entries.get(&fingerprint) {
                Some(entry) if self.may_leave(entry, now) => {
                    shard.entries.remove(&fingerprint);
                    self.len.fetch_sub(1, Relaxed);
                    self.base.tally.forgot(1);
                }
                Some(_) => shard.ring.push_back(fingerprint),
                None => {}
            }
        }
    }

    /// Removes the entry nearest to full of some, of this shard if it has any.
    fn evict(&self, shard: &mut BoxedShard, now: Tick) {
        self.base.tally.evicted();
        if self.evict_from(shard, now) {
            return;
        }
        let mut others = self.shards.iter().filter_map(|other| other.try_lock().ok());
        if !others.any(|mut other| self.evict_from(&mut other, now)) {
            // Nobody to be found: all others are being worked on. The count says what is there.
            self.len.fetch_add(1, Relaxed);
        }
    }

    fn evict_from(&self, shard: &mut BoxedShard, now: Tick) -> bool {
        let weight = |fingerprint: &u64| {
            let entry = shard.entries.get(fingerprint)?;
            Some((entry.state.burden(&entry.rule, now), *fingerprint))
        };
        let lightest = shard.ring.iter().take(CANDIDATES).filter_map(weight).min();
        if let Some((_, fingerprint)) = lightest {
            shard.entries.remove(&fingerprint);
            shard.ring.retain(|other| *other != fingerprint);
        }
        lightest.is_some()
    }

    fn forget(&self, shard: &mut BoxedShard, fingerprint: u64) {
        if shard.entries.remove(&fingerprint).is_some() {
            shard.ring.retain(|other| *other != fingerprint);
            self.len.fetch_sub(1, Relaxed);
        }
    }

    /// Applies `look` to a copy of the state of a key; a fresh one if there is none.
    pub(super) fn read<R>(&self, who: &KeyRef, look: impl FnOnce(&mut Entry<'_>) -> R) -> R {
        match lock(self.shard_of(who.fingerprint)).entries.get_mut(&who.fingerprint) {
            // A look changes nothing, so the state itself will do.
            Some(entry) => entry.state.step(who, &entry.rule, look),
            None => State::fresh(&who.rule, who.now).step(who, &who.rule, look),
        }
    }

    /// Forgets a key.
    pub(super) fn remove(&self, fingerprint: u64) {
        self.forget(&mut lock(self.shard_of(fingerprint)), fingerprint);
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).entries.len()).sum()
    }

    /// Returns about how much memory the entries take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let one = |entry: &BoxedEntry| match &entry.state {
            State::Log(log) => log.bytes(),
            _ => 0,
        };
        let shard = |shard: &Mutex<BoxedShard>| {
            let shard = lock(shard);
            let slots = shard.entries.capacity() * (size_of::<(u64, BoxedEntry)>() + 1);
            let rings = shard.ring.capacity() * size_of::<u64>();
            slots + rings + shard.entries.values().map(one).sum::<usize>()
        };
        self.shards.iter().map(shard).sum()
    }

    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let old = std::mem::take(&mut *lock(shard));
            self.len.fetch_sub(old.entries.len() as u64, Relaxed);
        }
    }

    pub(super) fn shrink(&self, now: Tick) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            let count = shard.ring.len();
            self.sweep(&mut shard, now, count);
            shard.entries.shrink_to_fit();
            shard.ring.shrink_to_fit();
        }
    }

    /// Puts a state back. Tells whether there was room.
    pub(crate) fn put_back(&self, who: &KeyRef, state: &State) -> bool {
        let put = |entry: &mut Entry<'_>| match (entry, state) {
            (Entry::Word(_, word), State::Word(state)) => **word = *state,
            (Entry::Counter(_, windows), State::Counter(state)) => **windows = *state,
            (Entry::Log(_, log), State::Log(state)) => (*log).clone_from(state),
            _ => {}
        };
        self.update(who, put).is_ok()
    }

    /// Calls `visit` with a copy of every entry, one lock at a time and not while `visit` runs.
    pub(crate) fn visit(&self, mut visit: impl FnMut(u64, &AnyRule, &State)) {
        for shard in &self.shards {
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
