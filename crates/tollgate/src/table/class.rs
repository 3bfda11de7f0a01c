//! Which quota a word belongs to.
//!
//! A table holds words of several quotas side by side: tiers, overrides, policies. Each quota with
//! its algorithm is a *class*, and every slot has the number of its class, 11 bits beside the
//! fingerprint and the word. So a slot can be judged (is it idle, how far from full is it) by
//! whoever comes across it, and a key that changes its quota is carried over when it is next met.
//!
//! # How a class is retired
//!
//! When a quota changes for all its keys, its class gets an *heir*, the count of
//! [`changes`](Classes::stamp) goes up, and a walk over the table carries every slot over, one lock
//! at a time. Whoever meets such a slot earlier carries it over at once, as of the same tick, so it
//! does not matter who comes first. A caller notes the count before it looks up its class and
//! compares it under the slot's lock: so nobody can put a word of the old class behind the walk, and
//! after it the number is free for another quota.

mod by_gcra;

pub(crate) use by_gcra::ByGcra;

use crate::{
    Algorithm, Clock, Inherit, Quota, QuotaError, Tick,
    algorithm::{
        Gcra, Idle, PARAMETERS, Packed, Rule, SlidingCounter, SlidingLog, Succeed, gcra_per_call,
    },
    sync::{
        AtomicU64, Mutex,
        Ordering::{Acquire, Relaxed, Release},
        lock,
    },
};
use std::sync::OnceLock;

/// The number of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Class(u16);

impl Class {
    /// Classes that one table can tell apart: 11 bits.
    pub(crate) const COUNT: usize = 1 << 11;

    pub(crate) const fn new(low: u64, high: u64) -> Self {
        // OVERFLOW: nine bits and two.
        Self((low & 0x1ff | (high & 3) << 9) as u16)
    }

    /// The nine bits that are kept beside the fingerprint.
    pub(crate) const fn low(self) -> u64 {
        self.0 as u64 & 0x1ff
    }

    /// The two bits that are kept above the word.
    pub(crate) const fn high(self) -> u64 {
        self.0 as u64 >> 9
    }

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) const fn from_index(index: usize) -> Self {
        debug_assert!(index < Self::COUNT, "a class has 11 bits");
        Self(index as u16)
    }
}

/// What the slots of a class are judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClassRule {
    /// One word, in the tables of words.
    Word(Rule),
    /// One word, but kept for a declared time, because a fresh key is not full.
    Kept(Rule),
    /// Counts too large for a word.
    Counter(SlidingCounter),
    Log(SlidingLog),
}

impl ClassRule {
    /// Returns the rule for a quota.
    pub(crate) fn new(
        algorithm: Algorithm,
        quota: &Quota,
        clock: &Clock,
    ) -> Result<Self, QuotaError> {
        let epoch = clock.wall_offset();
        Ok(match (Rule::new(algorithm, quota, epoch)?, algorithm) {
            (Some(rule), _) if quota.starts_full() => Self::Word(rule),
            (Some(rule), _) => Self::Kept(rule),
            (None, Algorithm::SlidingLog) => Self::Log(SlidingLog::new(quota)?),
            (None, _) => Self::Counter(SlidingCounter::new(quota, epoch)?.unpacked()),
        })
    }

    pub(crate) const fn as_gcra(&self) -> Option<&Gcra> {
        match self {
            Self::Word(rule) | Self::Kept(rule) => rule.as_gcra(),
            _ => None,
        }
    }

    /// Tells whether a key at rest differs from a fresh one, which is not full.
    pub(crate) const fn is_kept(&self) -> bool {
        match self {
            Self::Word(_) => false,
            Self::Kept(_) => true,
            Self::Counter(counter) => !counter.starts_empty(),
            Self::Log(log) => !log.starts_empty(),
        }
    }

    /// Tells whether its states are kept in the table of words.
    pub(crate) const fn is_word(&self) -> bool {
        matches!(self, Self::Word(_))
    }

    fn to_words(self) -> (u64, [u64; PARAMETERS]) {
        match self {
            Self::Word(rule) => rule.to_words(),
            Self::Kept(rule) => {
                let (kind, words) = rule.to_words();
                (kind | KEPT, words)
            }
            Self::Counter(counter) => (COUNTER, counter.to_words()),
            Self::Log(log) => (LOG, log.to_words()),
        }
    }

    fn from_words(kind: u64, words: [u64; PARAMETERS]) -> Self {
        match kind {
            COUNTER => Self::Counter(SlidingCounter::from_words(words)),
            LOG => Self::Log(SlidingLog::from_words(words)),
            kind => {
                let rule = Rule::from_words(kind & !KEPT, words).unwrap_or(Rule::Unlimited);
                if kind & KEPT == 0 { Self::Word(rule) } else { Self::Kept(rule) }
            }
        }
    }
}

/// Marks the rule of a kept word among the kinds. Those of plain words are below.
const KEPT: u64 = 8;
const COUNTER: u64 = 16;
const LOG: u64 = 17;

/// In place of an heir: no new slot may have the class, and those that have it stay as they are.
const FROZEN: u64 = 1 << 40;

/// Classes are made in chunks of so many.
#[cfg(not(tollgate_loom))]
const CHUNK: usize = 64;
#[cfg(tollgate_loom)]
const CHUNK: usize = 4;

/// A class in atomics: written before its number is known to anybody, and after it is retired.
#[derive(Debug, Default)]
#[repr(align(64))]
struct ClassCell {
    kind: AtomicU64,
    words: [AtomicU64; PARAMETERS],
    /// Zero while in force; else 1 + the heir's number in the lower half and how in the upper one,
    /// or [`FROZEN`], whose lower half names no heir.
    heir: AtomicU64,
    retired_at: AtomicU64,
}

type Chunk = Box<[ClassCell; CHUNK]>;

/// All classes of a table.
#[derive(Debug)]
pub(crate) struct Classes {
    chunks: Box<[OnceLock<Chunk>; Class::COUNT / CHUNK]>,
    /// Counts retirements.
    changes: AtomicU64,
    listed: Mutex<Vec<Option<Listed>>>,
}

/// What a class was made from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Listed {
    pub(crate) algorithm: Algorithm,
    pub(crate) quota: Quota,
    pub(crate) rule: ClassRule,
    /// The policy it belongs to, [`SHARED`], or zero if it is of no policy.
    pub(crate) owner: u64,
    /// Its quota is nominal: that of a call comes with it.
    pub(crate) is_ad_hoc: bool,
    /// Names that use it; at zero it may go when no slot has it.
    pins: u32,
}

/// What a class is made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MadeFrom<'a> {
    pub(crate) algorithm: Algorithm,
    pub(crate) quota: Quota,
    pub(crate) clock: &'a Clock,
    /// The policy it is for, [`SHARED`], or zero for none.
    pub(crate) owner: u64,
    /// Its quota is nominal: that of a call comes with it.
    pub(crate) is_ad_hoc: bool,
}

/// The owner of classes that belong to all policies of one quota. No policy has this number.
pub(crate) const SHARED: u64 = u64::MAX;

impl MadeFrom<'_> {
    /// Returns what the slots of the class are judged by.
    pub(crate) fn rule(&self) -> Result<ClassRule, QuotaError> {
        if self.is_ad_hoc && self.algorithm == Algorithm::Gcra {
            return gcra_per_call(&self.quota).map(|gcra| ClassRule::Word(Rule::PerCall(gcra)));
        }
        ClassRule::new(self.algorithm, &self.quota, self.clock)
    }

    fn listed(&self, pins: u32) -> Result<Listed, QuotaError> {
        let Self { algorithm, quota, owner, is_ad_hoc, .. } = *self;
        Ok(Listed { algorithm, quota, rule: self.rule()?, owner, is_ad_hoc, pins })
    }
}

/// What a class has left its slots to.
#[derive(Clone, Copy, Debug)]
struct Heir {
    class: Class,
    how: Inherit,
    at: Tick,
}

impl Default for Classes {
    fn default() -> Self {
        let chunks = Box::new([const { OnceLock::new() }; Class::COUNT / CHUNK]);
        Self { chunks, changes: AtomicU64::new(0), listed: Mutex::new(Vec::new()) }
    }
}

impl Classes {
    /// Returns the count of retirements, to be read before a class is looked up.
    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release of `retire`: whoever sees the new count finds
        // the new class wherever it was put before.
        self.changes.load(Acquire)
    }

    /// Tells whether a class that was looked up after the stamp is still in force. Asked under a
    /// slot's lock.
    #[inline]
    pub(crate) fn is_current(&self, class: Class, stamp: u64) -> bool {
        // ORDERING: Relaxed. If the walk of a retirement has passed this slot, the slot's lock
        // orders its count before this load; and if somebody has carried this slot over to an heir
        // already, it orders the naming of the heir before the second load.
        self.changes.load(Relaxed) == stamp
            && self.cell(class).is_some_and(|cell| cell.heir.load(Relaxed) == 0)
    }

    #[inline]
    fn cell(&self, class: Class) -> Option<&ClassCell> {
        self.chunks[class.index() / CHUNK].get().map(|chunk| &chunk[class.index() % CHUNK])
    }

    /// Returns what the slots of a class are judged by.
    #[inline]
    pub(crate) fn any_rule(&self, class: Class) -> ClassRule {
        let Some(cell) = self.cell(class) else {
            debug_assert!(false, "a class is made before it is used");
            return ClassRule::Word(Rule::Unlimited);
        };
        // ORDERING: Relaxed. The number came from a slot, a map or an atomic that was written
        // after the class, with Release, and read with Acquire.
        let words = std::array::from_fn(|index| cell.words[index].load(Relaxed));
        // ORDERING: Acquire, see `add`: before the other words would be too early, after them it
        // orders the check of the count that follows.
        ClassRule::from_words(cell.kind.load(Acquire), words)
    }

    /// Tells whether the states of a class are kept in the table of words.
    #[inline]
    pub(crate) fn is_word(&self, class: Class) -> bool {
        // ORDERING: Acquire, as in `any_rule`.
        self.cell(class).is_none_or(|cell| cell.kind.load(Acquire) < KEPT)
    }

    /// Returns the rule of a class whose states are words.
    #[inline]
    pub(crate) fn rule(&self, class: Class) -> Rule {
        match self.any_rule(class) {
            ClassRule::Word(rule) | ClassRule::Kept(rule) => rule,
            // A slot of a word table never has such a class.
            ClassRule::Counter(_) | ClassRule::Log(_) => Rule::Unlimited,
        }
    }

    /// Tells whether a class has an heir: its slots are being carried over.
    pub(super) fn is_retired(&self, class: Class) -> bool {
        // ORDERING: Relaxed. Asked under the locks of two buckets: if the walk has passed one of
        // them, that lock orders the naming of the heir before this load.
        self.cell(class).is_some_and(|cell| cell.heir.load(Relaxed) != 0)
    }

    fn heir(&self, class: Class) -> Option<Heir> {
        let cell = self.cell(class)?;
        // ORDERING: Relaxed. Asked under a slot's lock, see `is_current`; a retirement that is
        // missed here has its walk still to come.
        let packed = cell.heir.load(Relaxed);
        let at = Tick::from_nanos(cell.retired_at.load(Relaxed));
        let how = match packed >> 32 {
            0 => Inherit::Reset,
            1 => Inherit::AsIs,
            2 => Inherit::Proportional,
            _ => Inherit::Additive,
        };
        let index = (packed & 0xffff_ffff).checked_sub(1)?;
        Some(Heir { class: Class::from_index(index as usize), how, at })
    }

    /// Returns what a state of class `from` becomes next on its way to `to`: class, how, as of when.
    pub(super) fn heir_or(&self, from: Class, to: Class, now: Tick) -> (Class, Inherit, Tick) {
        let fallback = Heir { class: to, how: Inherit::AsIs, at: now };
        let Heir { class, how, at } = self.heir(from).unwrap_or(fallback);
        (class, how, at)
    }

    /// Returns a word of class `from` as one of class `to`: through the heirs of retired classes,
    /// and from one class in force to another as of `now`, with what is left left.
    pub(crate) fn carried(&self, (from, to): (Class, Class), word: u64, now: Tick) -> u64 {
        let (mut from, mut word) = (from, word);
        while from != to {
            let (class, how, at) = self.heir_or(from, to, now);
            let (old, new) = (self.rule(from), self.rule(class));
            // A key at rest stays at rest, as an absent one does.
            word = if old.is_idle(&word, at) { 0 } else { new.succeed(&old, &word, at, how) };
            from = class;
        }
        word
    }

    /// Returns the class of a quota, made if need be; `None` if all numbers are taken. Whoever asks
    /// for the same quota gets the same class.
    pub(crate) fn intern(&self, made_from: MadeFrom<'_>) -> Result<Option<Class>, QuotaError> {
        let new = made_from.listed(0)?;
        let same = |known: &Option<Listed>| known.as_ref() == Some(&new);
        let found = lock(&self.listed).iter().position(same);
        match found {
            Some(index) => Ok(Some(Class::from_index(index))),
            None => Ok(self.add(new)),
        }
    }

    /// Returns the class of a quota if there is one.
    fn find(&self, new: &Listed) -> Option<Class> {
        // Who uses it does not matter to what it is.
        let same = |known: &Option<Listed>| match known {
            Some(known) if known.owner == new.owner => Listed { pins: new.pins, ..*known } == *new,
            _ => false,
        };
        lock(&self.listed).iter().position(same).map(Class::from_index)
    }

    /// [`intern`](Self::intern) for a policy: one of its own, so that its quota can change for all
    /// its keys at once; or, from when half of all numbers are taken, one that it shares with all
    /// policies of the same quota.
    pub(crate) fn intern_policy(
        &self,
        made_from: MadeFrom<'_>,
    ) -> Result<Option<Class>, QuotaError> {
        let own = made_from.listed(0)?;
        let shared = Listed { owner: SHARED, ..own };
        // Whichever it has, it keeps.
        if let Some(class) = self.find(&own).or_else(|| self.find(&shared)) {
            return Ok(Some(class));
        }
        let taken = lock(&self.listed).iter().flatten().count();
        Ok(self.add(if taken < Class::COUNT / 2 { own } else { shared }))
    }

    /// Tells whether a class is shared by policies.
    pub(crate) fn is_shared(&self, class: Class) -> bool {
        self.listed(class).is_some_and(|listed| listed.owner == SHARED)
    }

    /// Makes a class that has a name, which nobody gets who asks for its quota; `None` if all
    /// numbers are taken. It stays until it is [retired](Self::retire).
    pub(crate) fn create(&self, made_from: MadeFrom<'_>) -> Result<Option<Class>, QuotaError> {
        Ok(self.add(made_from.listed(1)?))
    }

    fn add(&self, new: Listed) -> Option<Class> {
        let mut listed = lock(&self.listed);
        let free = listed.iter().position(Option::is_none).unwrap_or(listed.len());
        if free == Class::COUNT {
            return None;
        }
        if free == listed.len() {
            listed.push(None);
        }
        let chunk = self.chunks[free / CHUNK]
            .get_or_init(|| Box::new(std::array::from_fn(|_| ClassCell::default())));
        let (cell, (kind, words)) = (&chunk[free % CHUNK], new.rule.to_words());
        for (atomic, word) in cell.words.iter().zip(words) {
            // ORDERING: Relaxed, here and below. Nobody knows the number yet; whoever learns it
            // does so through a lock or a Release.
            atomic.store(word, Relaxed);
        }
        // ORDERING: Release pairs with the Acquire of `any_rule`: a reader without a lock that sees
        // a new rule also sees the count of changes that made its number free.
        cell.kind.store(kind, Release);
        cell.heir.store(0, Relaxed);
        listed[free] = Some(new);
        Some(Class::from_index(free))
    }

    /// Returns what a class was made from.
    pub(crate) fn listed(&self, class: Class) -> Option<Listed> {
        lock(&self.listed).get(class.index()).copied().flatten()
    }

    /// Returns all classes with what they were made from.
    pub(crate) fn all(&self) -> Vec<(Class, Listed)> {
        let listed = lock(&self.listed);
        let numbered = listed.iter().enumerate();
        numbered.filter_map(|(i, known)| known.map(|known| (Class::from_index(i), known))).collect()
    }

    /// Adds a name that uses the class, or takes one away.
    pub(crate) fn pin(&self, class: Class) {
        self.change_pins(class, 1);
    }

    pub(crate) fn unpin(&self, class: Class) {
        self.change_pins(class, -1);
    }

    fn change_pins(&self, class: Class, by: i32) {
        if let Some(Some(listed)) = lock(&self.listed).get_mut(class.index()) {
            listed.pins = listed.pins.saturating_add_signed(by);
        }
    }

    /// Leaves the slots of a class to another, which `publish` puts wherever the old one can be
    /// found. The caller walks the table afterwards and then [`free`](Self::free)s the number.
    ///
    /// From the naming of the heir on, nobody goes on with the old class; before the new one is
    /// published, nobody finds it. So there is no moment at which both are in use.
    pub(crate) fn retire(
        &self,
        (class, heir): (Class, Class),
        (at, how): (Tick, Inherit),
        publish: impl FnOnce(),
    ) {
        if let Some(cell) = self.cell(class) {
            let how: u64 = match how {
                Inherit::Reset => 0,
                Inherit::AsIs => 1,
                Inherit::Proportional => 2,
                Inherit::Additive => 3,
            };
            // ORDERING: Relaxed; whatever `publish` does, and the Release below, publish them.
            cell.retired_at.store(at.as_nanos(), Relaxed);
            cell.heir.store(how << 32 | (heir.index() as u64 + 1), Relaxed);
        }
        publish();
        // ORDERING: Release, see `stamp`.
        self.changes.fetch_add(1, Release);
    }

    /// Makes the number of a retired class free for another quota.
    pub(crate) fn free(&self, class: Class) {
        if let Some(slot) = lock(&self.listed).get_mut(class.index()) {
            *slot = None;
        }
    }

    /// Keeps everybody from putting a slot of these classes anywhere, until each is
    /// [`free`](Self::free)d or [thawed](Self::thaw).
    pub(crate) fn freeze(&self, classes: &[Class]) {
        for cell in classes.iter().filter_map(|class| self.cell(*class)) {
            // ORDERING: Relaxed; the Release below publishes it, and so does the lock of a slot
            // that is looked at later.
            cell.heir.store(FROZEN, Relaxed);
        }
        // ORDERING: Release, see `stamp`.
        self.changes.fetch_add(1, Release);
    }

    /// Puts a frozen class back in force.
    pub(crate) fn thaw(&self, class: Class) {
        if let Some(cell) = self.cell(class) {
            // ORDERING: Relaxed. Seen late, it makes somebody look the class up once more.
            cell.heir.store(0, Relaxed);
        }
    }

    /// Returns the classes that nobody names and that are not in `used`.
    pub(crate) fn unused(&self, used: &[bool]) -> Vec<Class> {
        let all = self.all();
        let gone = all.iter().filter(|(class, known)| known.pins == 0 && !used[class.index()]);
        gone.map(|(class, _)| *class).collect()
    }
}
