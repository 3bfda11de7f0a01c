//! Where the states of many keys live.
//!
//! | table | memory | a key costs | lock |
//! |---|---|---|---|
//! | [`Growing`] | as much as there are keys, or up to a cap | 20 to 30 bytes | a shard's, short |
//! | [`Bounded`] | fixed when made | 24 bytes, used or not | none to read, one of 4096 to write |
//! | [`Wide`] | as much as there are keys, or up to a cap | what its state takes | a shard's, short |
//!
//! All three answer the same calls ([`Tables::update`], [`Tables::read`]): apply a step to the state
//! of a key, which is that of a fresh one if the key is not there. [`Tables`] chooses by the rule, which comes
//! with the call. A word says itself when it is idle, so the tables of words know no rules.

mod bounded;
mod bucket;
mod growing;
mod hint;
mod slots;
mod wide;

pub(crate) use bounded::Bounded;
pub(crate) use bucket::{Held, Stripe};
pub(crate) use growing::{Ask, Growing, Shard};
pub(crate) use hint::Hint;
pub(crate) use wide::{Ready, State, Wide, WideShard};

use crate::{
    Decision, Tick,
    algorithm::{AnyRule, Entry, Gcra, Rule, word_time},
    sync::{Arc, AtomicU64, Ordering::Relaxed},
};
use slots::Slot;
use std::time::Duration;

/// Which key is meant, when, and by which rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    /// With the [salt](AnyRule::salt) of the rule.
    pub(crate) fingerprint: u64,
    pub(crate) now: Tick,
    pub(crate) rule: AnyRule,
    /// Since when the rule is in force for the key.
    pub(crate) since: Tick,
}

impl Who {
    /// Applies `step` to the state that a word stands for. Returns the word afterwards, if that changes.
    #[inline]
    fn step<R>(
        &self,
        rule: &Rule,
        (hint, word): (Hint, u64),
        step: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> (R, Option<u64>) {
        let before = rule.current(word, hint, self.now, self.since);
        let mut state = before;
        let result = step(&mut Entry::Word(rule, &mut state));
        (result, (state != before).then(|| rule.marked(state, self.now)))
    }

    fn slot(&self, rule: &Rule, tag: u64, word: u64) -> Slot {
        Slot::new(tag, rule.hint(word & (word_time::OWED - 1), self.now), word)
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
    pub(crate) words: Words,
    pub(crate) wide: Wide,
}

/// The table of words.
#[derive(Debug)]
pub(crate) enum Words {
    Growing(Growing),
    Bounded(Bounded),
}

/// How large the tables may become.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Size {
    /// Keys that a bounded table is made for.
    pub(crate) bounded: Option<u64>,
    /// The most keys of a growing table, and of the wide one.
    pub(crate) cap: Option<u64>,
    pub(crate) max_idle: Option<Duration>,
}

/// Where a state is, as far as its table knows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spot {
    Fingerprint(u64),
    Slot { tag: u64, bucket: u64 },
}

/// Runs the same code on either table of words.
macro_rules! on_words {
    ($words:expr, $table:ident => $body:expr) => {
        match $words {
            Words::Growing($table) => $body,
            Words::Bounded($table) => $body,
        }
    };
}

impl Tables {
    pub(crate) fn new(size: Size, room: Room) -> Self {
        let Size { bounded, cap, max_idle } = size;
        let base = Base { tally: Tally::default(), room };
        let base = Arc::new(base);
        let words = match bounded {
            Some(keys) => Words::Bounded(Bounded::new(Arc::clone(&base), keys)),
            None => Words::Growing(Growing::new(Arc::clone(&base), cap)),
        };
        let wide = Wide::new(Arc::clone(&base), bounded.or(cap), max_idle);
        Self { base, words, wide }
    }

    /// The short way of a take by GCRA; `None` if there is more to do.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    pub(crate) fn take(
        &self,
        (fingerprint, now): (u64, Tick),
        gcra: &Gcra,
        cost: u64,
    ) -> Option<Decision> {
        on_words!(&self.words, table => table.take((fingerprint, now), gcra, cost))
    }

    /// Applies `step` to the state of a key, atomically. It may run several times; the last run
    /// counts.
    pub(crate) fn update<R>(
        &self,
        who: &Who,
        step: impl FnMut(&mut Entry<'_>) -> R,
    ) -> Result<R, Full> {
        match &who.rule {
            AnyRule::Word(rule) => on_words!(&self.words, table => table.update(who, rule, step)),
            _ => self.wide.update(who, step),
        }
    }

    /// Applies `look` to a copy of the state of a key.
    pub(crate) fn read<R>(&self, who: &Who, look: impl FnOnce(&mut Entry<'_>) -> R) -> R {
        match &who.rule {
            AnyRule::Word(rule) => {
                let slot = on_words!(&self.words, table => table.read(who.fingerprint));
                who.step(rule, slot.state(), look).0
            }
            _ => self.wide.read(who, look),
        }
    }

    /// Tells whether a new key is always taken in.
    pub(crate) fn takes_all_in(&self) -> bool {
        self.base.room == Room::Evict
    }

    /// Forgets a key.
    pub(crate) fn remove(&self, fingerprint: u64) {
        on_words!(&self.words, table => table.remove(fingerprint));
        self.wide.remove(fingerprint);
    }

    pub(crate) fn len(&self) -> usize {
        on_words!(&self.words, table => table.len()) + self.wide.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        on_words!(&self.words, table => table.bytes()) + self.wide.bytes()
    }

    pub(crate) fn clear(&self) {
        on_words!(&self.words, table => table.clear());
        self.wide.clear();
    }

    pub(crate) fn shrink(&self, now: Tick) {
        on_words!(&self.words, table => table.shrink(now));
        self.wide.shrink(now);
    }

    /// Calls `visit` with every word: its fingerprint, or in a bounded table its tag and bucket.
    pub(crate) fn visit(&self, mut visit: impl FnMut(Spot, Hint, u64)) {
        match &self.words {
            Words::Growing(table) => table.visit(|fingerprint, slot| {
                visit(Spot::Fingerprint(fingerprint), slot.hint(), slot.word());
            }),
            Words::Bounded(table) => table.visit(|bucket, slot| {
                visit(Spot::Slot { tag: slot.tag(), bucket }, slot.hint(), slot.word());
            }),
        }
    }

    /// Puts a word back. Tells whether there was room.
    pub(crate) fn put_back(&self, spot: Spot, (hint, word): (Hint, u64), now: Tick) -> bool {
        match (spot, &self.words) {
            (Spot::Slot { tag, bucket }, Words::Bounded(table)) => {
                table.put_back(bucket, Slot::new(tag, hint, word), now)
            }
            (Spot::Fingerprint(fingerprint), Words::Growing(table)) => {
                table.put_back(fingerprint, (hint, word), now)
            }
            _ => false,
        }
    }
}
