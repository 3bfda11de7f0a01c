//! Where the states of many keys live.
//!
//! | table | memory | a key costs | lock |
//! |---|---|---|---|
//! | [`Growing`] | as much as there are keys, or up to a cap | 20 to 30 bytes | a shard's, short |
//! | [`Bounded`] | fixed when made | 24 bytes, used or not | none to read, one of 4096 to write |
//! | [`Wide`] | as much as there are keys, or up to a cap | what its state takes | a shard's, short |
//!
//! All three answer the same calls ([`Tables::update`], [`Tables::read`]): apply a step to the state
//! of a key, which is that of a fresh one if the key is not there. [`Tables`] chooses by the key's
//! class.

mod bounded;
mod bucket;
pub(crate) mod class;
mod growing;
pub(crate) mod portable;
mod slots;
mod wide;

pub(crate) use bounded::Bounded;
pub(crate) use bucket::{Held, Stripe};
pub(crate) use growing::{Ask, Growing, Shard};
pub(crate) use wide::{Ready, State, Wide, WideShard};

use crate::{
    Decision, Inherit, Tick,
    algorithm::{Entry, Idle},
    sync::{Arc, AtomicU64, Ordering::Relaxed},
};
use class::{Class, Classes};
use std::time::Duration;

/// Which key is meant, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    pub(crate) fingerprint: u64,
    pub(crate) class: Class,
    pub(crate) now: Tick,
    /// Since when the key is of this class, if its slot is still of another one.
    pub(crate) class_since: Tick,
    /// [`Classes::stamp`] as it was before the class was looked up.
    pub(crate) stamp: u64,
}

impl Who {
    /// In place of a stamp: the class was found current under locks that are still held.
    pub(crate) const SEEN: u64 = u64::MAX;
}

/// Why a step was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// The class may be out of date: look it up again.
    Stale,
    /// The key is not there, and all entries it could replace are live.
    Full,
}

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
    pub(crate) classes: Classes,
    pub(crate) tally: Tally,
    room: Room,
}

impl Base {
    fn is_idle(&self, class: Class, state: u64, now: Tick) -> bool {
        self.classes.rule(class).is_idle(&state, now)
    }

    fn burden(&self, class: Class, state: u64, now: Tick) -> u64 {
        self.classes.rule(class).burden(&state, now)
    }

    #[inline]
    fn if_current<R>(&self, who: &Who, result: R) -> Result<R, Miss> {
        let is_seen = who.stamp == Who::SEEN;
        if is_seen || self.classes.is_current(who.class, who.stamp) {
            Ok(result)
        } else {
            Err(Miss::Stale)
        }
    }
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
        let base = Base { classes: Classes::default(), tally: Tally::default(), room };
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
    pub(crate) fn take(&self, who: &Who, cost: u64) -> Option<Decision> {
        let class = self.base.classes.by_gcra(who.class)?;
        on_words!(&self.words, table => table.take(who, &class, cost))
    }

    /// [`take`](Self::take) if the table of words grows, as it does by default.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    pub(crate) fn take_growing(&self, who: &Who, cost: u64) -> Option<Decision> {
        let Words::Growing(table) = &self.words else { return None };
        table.take(who, &self.base.classes.by_gcra(who.class)?, cost)
    }

    /// [`take`](Self::take) if the table of words is bounded.
    #[inline]
    pub(crate) fn take_bounded(&self, who: &Who, cost: u64) -> Option<Decision> {
        let Words::Bounded(table) = &self.words else { return None };
        table.take(who, &self.base.classes.by_gcra(who.class)?, cost)
    }

    /// Applies `step` to the state of a key, atomically. It may run several times; the last run
    /// counts.
    pub(crate) fn update<R>(
        &self,
        who: &Who,
        step: impl FnMut(&mut Entry<'_>) -> R,
    ) -> Result<R, Miss> {
        if self.base.classes.is_word(who.class) {
            on_words!(&self.words, table => table.update(who, step))
        } else {
            self.wide.update(who, step)
        }
    }

    /// Applies `look` to a copy of the state of a key.
    pub(crate) fn read<R>(
        &self,
        who: &Who,
        look: impl FnOnce(&mut Entry<'_>) -> R,
    ) -> Result<R, Miss> {
        if self.base.classes.is_word(who.class) {
            on_words!(&self.words, table => table.read(who, look))
        } else {
            self.wide.read(who, look)
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

    /// Leaves the keys of class `old` to class `new` as `how` says. Locks a few keys at a time.
    /// `publish` puts the new class wherever the old one can be found.
    pub(crate) fn retire(
        &self,
        (old, new): (Class, Class),
        (now, how): (Tick, Inherit),
        publish: impl FnOnce(),
    ) {
        if old == new {
            return;
        }
        let classes = &self.base.classes;
        classes.retire((old, new), (now, how), publish);
        on_words!(&self.words, table => table.carry(old, new, now));
        let who = Who { fingerprint: 0, class: new, now, class_since: now, stamp: classes.stamp() };
        self.wide.carry(&who, old);
        classes.free(old);
    }

    /// Calls `visit` with every state: its fingerprint, or in a bounded table its tag and bucket.
    pub(crate) fn visit(&self, mut visit: impl FnMut(Spot, Class, &State)) {
        match &self.words {
            Words::Growing(table) => table.visit(|fingerprint, class, state| {
                visit(Spot::Fingerprint(fingerprint), class, &State::Word(state));
            }),
            Words::Bounded(table) => table.visit(|bucket, slot| {
                let spot = Spot::Slot { tag: slot.tag(), bucket };
                visit(spot, slot.class(), &State::Word(slot.state()));
            }),
        }
        self.wide.visit(|fingerprint, class, state| {
            visit(Spot::Fingerprint(fingerprint), class, state);
        });
    }

    /// Puts a state back. Tells whether there was room.
    pub(crate) fn put_back(&self, spot: Spot, who: &Who, state: &State) -> bool {
        let put = |entry: &mut Entry<'_>| match (entry, state) {
            (Entry::Word(_, word), State::Word(state)) => **word = *state,
            (Entry::Counter(_, windows), State::Counter(state)) => **windows = *state,
            (Entry::Log(_, log), State::Log(state)) => (*log).clone_from(state),
            _ => {}
        };
        match (spot, &self.words, state) {
            (Spot::Slot { tag, bucket }, Words::Bounded(table), State::Word(word)) => {
                table.put_back(bucket, slots::Slot::new(tag, who.class, *word), who.now)
            }
            (Spot::Slot { .. }, ..) => false,
            (Spot::Fingerprint(_), ..) => self.update(who, put).is_ok(),
        }
    }

    /// Makes the numbers of classes free that nobody names and no slot has, but for `kept`.
    /// Returns how many those were.
    pub(crate) fn collect_classes(&self, kept: Class) -> usize {
        let classes = &self.base.classes;
        let unused = classes.unused(&self.used_classes(kept));
        // A slot may have come meanwhile. From now on none can; so what is unused still, is.
        classes.freeze(&unused);
        let used = self.used_classes(kept);
        let (back, gone): (Vec<_>, Vec<_>) =
            unused.into_iter().partition(|class| used[class.index()]);
        back.into_iter().for_each(|class| classes.thaw(class));
        gone.iter().for_each(|class| classes.free(*class));
        gone.len()
    }

    /// Tells which classes some slot has. Locks every slot in turn: whoever wrote one before is
    /// seen, and whoever writes one later sees what its caller did before.
    fn used_classes(&self, kept: Class) -> Vec<bool> {
        let mut used = vec![false; Class::COUNT];
        used[kept.index()] = true;
        match &self.words {
            Words::Growing(table) => table.visit(|_, class, _| used[class.index()] = true),
            Words::Bounded(table) => table.each_class(|class| used[class.index()] = true),
        }
        self.wide.visit(|_, class, _| used[class.index()] = true);
        used
    }
}
