//! Where the states of many keys live.
//!
//! | table | a key costs | lock |
//! |---|---|---|
//! | [`WordTable`] | 17 to 29 bytes | none for a key that is there but the lock bit of its word |
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

pub(crate) use boxed::{BoxedShard, BoxedState, BoxedTable};
pub(crate) use hint::Hint;
pub(crate) use swept_map::{FingerprintMap, Ready, SHARDS, SweptMap, shrink};
#[cfg(tollgate_loom)]
pub use words::loom_model;
pub(crate) use words::{HeldKey, ReadKey, WordTable, Writer};

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
        let before = rule.current(content.word, content.hint(), self.since);
        let mut state = before;
        let result = step(&mut Entry::Word(rule, &mut state));
        (result, (state != before).then(|| self.content(rule, content, before, state)))
    }

    /// Returns what a slot holds that held `seen`, which stood for `before`, for a state.
    fn content(&self, rule: &Rule, seen: Content, before: u64, state: u64) -> Content {
        // A refund does not turn the remainder of a longer quota into a debt.
        let may_owe = state > before || seen.word >= word_time::OWED;
        let word = if may_owe { rule.marked(state, self.now) } else { state };
        Content::new(seen.name(), rule.hint(word & (word_time::OWED - 1), self.now), word)
    }
}

/// The key is not there, and all entries it could replace are live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// How both tables make room for new keys, and how many entries they have removed for that.
#[derive(Debug, Default)]
pub(crate) struct Eviction {
    /// If every entry is live, a new key replaces the one nearest to full; else it is [`Full`].
    pub(crate) evicts_live: bool,
    idle_removed: AtomicU64,
    live_evicted: AtomicU64,
}

/// ORDERING: Relaxed throughout. Counts for people to look at.
impl Eviction {
    fn count_idle(&self, count: u64) {
        self.idle_removed.fetch_add(count, Relaxed);
    }

    fn count_live(&self) {
        self.live_evicted.fetch_add(1, Relaxed);
    }

    /// Returns (idle entries removed, live entries evicted).
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.idle_removed.load(Relaxed), self.live_evicted.load(Relaxed))
    }
}

/// All states of a keyed limiter or a store.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) eviction: Arc<Eviction>,
    pub(crate) words: WordTable,
    pub(crate) boxed: BoxedTable,
    /// The most keys of each table.
    pub(crate) cap: Option<u64>,
}

/// How large the tables may become, and what happens then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    /// The most keys, if the memory for them is allocated at once.
    pub(crate) bounded: Option<u64>,
    /// The most keys, if it is allocated as they come.
    pub(crate) cap: Option<u64>,
    pub(crate) max_idle: Option<Duration>,
    /// See [`Eviction`].
    pub(crate) evicts_live: bool,
}

impl Tables {
    pub(crate) fn new(Size { bounded, cap, max_idle, evicts_live }: Size) -> Self {
        let eviction = Arc::new(Eviction { evicts_live, ..Eviction::default() });
        let cap = bounded.or(cap);
        let words = WordTable::new(Arc::clone(&eviction), cap, bounded.unwrap_or(0));
        let boxed = BoxedTable::new(Arc::clone(&eviction), cap, max_idle);
        Self { eviction, words, boxed, cap }
    }

    /// Applies `step` to the state of a key, atomically. It may run several times; the last run
    /// counts.
    pub(crate) fn update<R>(
        &self,
        key: &KeyRef,
        step: impl FnMut(&mut Entry<'_>) -> R,
    ) -> Result<R, Full> {
        match &key.rule {
            AnyRule::Word(rule) => self.words.update(key, rule, step),
            _ => self.boxed.update(key, step),
        }
    }

    /// Applies `look` to a copy of the state of a key.
    pub(crate) fn read<R>(&self, key: &KeyRef, look: impl FnOnce(&mut Entry<'_>) -> R) -> R {
        match &key.rule {
            AnyRule::Word(rule) => key.step(rule, self.words.read(key.fingerprint), look).0,
            _ => self.boxed.read(key, look),
        }
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
        self.boxed.map.clear();
    }

    pub(crate) fn shrink(&self, now: Tick) {
        self.words.shrink(now);
        self.boxed.shrink(now);
    }
}
