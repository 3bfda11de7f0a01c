//! Where the states of many keys live.
//!
//! | table | a key costs | lock |
//! |---|---|---|
//! | [`WordTable`] | 17 to 27 bytes | none for a key that is there but the lock bit of its word |
//! | [`BoxedTable`] | what its state takes | a shard's, short |
//!
//! Both answer the same calls ([`Tables::update`], [`Tables::read`]): apply a step to the state
//! of a key, which is that of a fresh one if the key is not there. [`Tables`] chooses by the rule, which comes
//! with the call. A word says itself when it is idle, so the table of words knows no rules.

mod boxed;
mod hint;
mod slot;
mod swept_map;
mod words;

pub(crate) use boxed::{BoxedShard, BoxedTable, State};
pub(crate) use hint::Hint;
pub(crate) use swept_map::{FingerprintMap, SHARDS, SweptMap};
#[cfg(tollgate_loom)]
pub use words::loom_model;
pub(crate) use words::{Ask, HeldKey, WordTable, Writer};

use crate::{
    Tick,
    algorithm::{AnyRule, Entry, Rule, word_time},
    sync::{Arc, AtomicU64, Ordering::Relaxed},
};
use slot::Content;
use std::time::Duration;

/// Which key is meant, when, and by which rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRef {
    /// With the [salt](AnyRule::salt) of the rule.
    pub(crate) fingerprint: u64,
    pub(crate) now: Tick,
    pub(crate) rule: AnyRule,
    /// Since when the rule is in force for the key.
    pub(crate) since: Tick,
}

impl KeyRef {
    /// Applies `step` to the state that a word stands for. Returns the word afterwards, if that changes.
    #[inline]
    fn step<R>(
        &self,
        rule: &Rule,
        content: Content,
        step: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> (R, Option<Content>) {
        let before = rule.current(content.word, content.hint(), self.now, self.since);
        let mut state = before;
        let result = step(&mut Entry::Word(rule, &mut state));
        (result, (state != before).then(|| self.content(rule, content.name(), state)))
    }

    /// Returns what a slot holds for a state.
    fn content(&self, rule: &Rule, name: u64, state: u64) -> Content {
        let word = rule.marked(state, self.now);
        Content::new(name, rule.hint(word & (word_time::OWED - 1), self.now), word)
    }
}

/// The key is not there, and all entries it could replace are live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// What happens to a new key when every entry is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// It replaces the entry nearest to full.
    Evict,
    /// It is not taken in: [`Miss::Full`].
    Refuse,
}

/// What the tables share.
#[derive(Debug)]
pub(crate) struct Base {
    pub(crate) tally: Tally,
    room: Room,
}

/// Counts of what happens rarely.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    forgotten: AtomicU64,
    evicted: AtomicU64,
}

/// ORDERING: Relaxed throughout. Counts for people to look at.
impl Tally {
    fn forgot(&self, count: u64) {
        self.forgotten.fetch_add(count, Relaxed);
    }

    fn evicted(&self) {
        self.evicted.fetch_add(1, Relaxed);
    }

    /// Returns (idle entries removed, live entries evicted).
    pub(crate) fn read(&self) -> (u64, u64) {
        (self.forgotten.load(Relaxed), self.evicted.load(Relaxed))
    }
}

/// All states of a keyed limiter or a store.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) base: Arc<Base>,
    pub(crate) words: WordTable,
    pub(crate) boxed: BoxedTable,
    /// The most keys of each table.
    pub(crate) cap: Option<u64>,
}

/// How large the tables may become.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    /// The most keys, if the memory for them is allocated at once.
    pub(crate) bounded: Option<u64>,
    /// The most keys, if it is allocated as they come.
    pub(crate) cap: Option<u64>,
    pub(crate) max_idle: Option<Duration>,
}

impl Tables {
    pub(crate) fn new(size: Size, room: Room) -> Self {
        let Size { bounded, cap, max_idle } = size;
        let base = Base { tally: Tally::default(), room };
        let base = Arc::new(base);
        let cap = bounded.or(cap);
        let words = WordTable::new(Arc::clone(&base), cap, bounded.unwrap_or(0));
        let boxed = BoxedTable::new(Arc::clone(&base), cap, max_idle);
        Self { base, words, boxed, cap }
    }

    /// Applies `step` to the state of a key, atomically. It may run several times; the last run
    /// counts.
    pub(crate) fn update<R>(
        &self,
        who: &KeyRef,
        step: impl FnMut(&mut Entry<'_>) -> R,
    ) -> Result<R, Full> {
        match &who.rule {
            AnyRule::Word(rule) => self.words.update(who, rule, step),
            _ => self.boxed.update(who, step),
        }
    }

    /// Applies `look` to a copy of the state of a key.
    pub(crate) fn read<R>(&self, who: &KeyRef, look: impl FnOnce(&mut Entry<'_>) -> R) -> R {
        match &who.rule {
            AnyRule::Word(rule) => who.step(rule, self.words.read(who.fingerprint), look).0,
            _ => self.boxed.read(who, look),
        }
    }

    /// Tells whether a new key is always taken in.
    pub(crate) fn takes_all_in(&self) -> bool {
        self.base.room == Room::Evict
    }

    /// Forgets a key.
    pub(crate) fn remove(&self, fingerprint: u64) {
        self.words.remove(fingerprint);
        self.boxed.remove(fingerprint);
    }

    pub(crate) fn len(&self) -> usize {
        self.words.len() + self.boxed.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.words.bytes() + self.boxed.bytes()
    }

    pub(crate) fn clear(&self) {
        self.words.clear();
        self.boxed.clear();
    }

    pub(crate) fn shrink(&self, now: Tick) {
        self.words.shrink(now);
        self.boxed.shrink(now);
    }
}
