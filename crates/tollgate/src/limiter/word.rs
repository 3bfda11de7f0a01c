//! A state word and its parameters in atomics: what makes a one-word decision atomic.
//!
//! # Layout of the word
//!
//! | bits | what |
//! |---|---|
//! | 63 | lock: somebody changes the parameters, or several limiters at once |
//! | 61..=62 | generation: counts the changes of the parameters, modulo four |
//! | 0..=60 | state of the algorithm |
//!
//! # Quota and word change together
//!
//! The parameters are behind a seqlock, whose version is full width: a reader that looks at it
//! before and after has parameters of one quota. The version also names the generation of the words
//! that belong to it. A change locks the word, writes the parameters, and stores the new state with
//! the next generation, which unlocks. A reader takes a word and parameters of one generation; if it
//! goes on to write, its exchange fails unless the word is still the one it read. So no decision
//! pairs an old quota with a new word.
//!
//! Generations count modulo four. A thread would have to sleep through four changes right after it
//! read the word, with nobody taking a permit meanwhile, to find the word it remembers. Words of
//! different timelines or windows are different numbers, so even then the quota of four changes ago
//! must have had the same rate, and the worst that happens is one decision by another burst.

use super::backoff::Backoff;
use crate::{
    Inherit, Tick,
    algorithm::{Entry, Gcra, Judged, Packed, Rule, Succeed},
    decision::Decision,
    sync::{
        AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
        Padded, fence,
    },
};
use std::{fmt, marker::PhantomData};

const LOCK: u64 = 1 << 63;
const GENERATION: u64 = 1 << 61;
const STATE: u64 = GENERATION - 1;

/// One word of state with its parameters, shared between threads.
pub(crate) struct WordCell<A> {
    /// Written on every admission: alone on its cache line.
    word: Padded<AtomicU64>,
    /// Written on a change of quota only.
    parameters: Padded<Parameters>,
    algorithm: PhantomData<A>,
}

/// The algorithm's parameters under a seqlock.
#[derive(Debug)]
struct Parameters {
    /// The generation of the words they belong to in the upper bits, where words have theirs, and
    /// the version in the lower ones: odd while they change.
    tag: AtomicU64,
    words: [AtomicU64; 4],
}

#[allow(clippy::inline_always, reason = "measured: a call costs more than the decision itself")]
impl<A: Packed> WordCell<A>
where
    A::State: Copy,
{
    pub(crate) fn new(algorithm: A, now: Tick) -> Self {
        let word = algorithm.pack(&algorithm.initial(now));
        debug_assert!(word <= STATE, "states leave the host's bits free");
        let words = algorithm.to_words().map(AtomicU64::new);
        let parameters = Padded(Parameters { tag: AtomicU64::new(0), words });
        Self { word: Padded(AtomicU64::new(word)), parameters, algorithm: PhantomData }
    }

    #[inline(always)]
    fn load(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release of `unlock`: whoever sees a generation sees the
        // parameters that were written for it, or later ones.
        self.word.0.load(Acquire)
    }

    /// Reads the parameters that belong to `word`; `None` if it is locked or a change is under way.
    #[inline(always)]
    fn parameters(&self, word: u64) -> Option<A> {
        let Parameters { tag, words } = &self.parameters.0;
        // ORDERING: Acquire pairs with the Release that ends a change: an even version comes with
        // its parameters, or later ones.
        let before = tag.load(Acquire);
        // ORDERING: Relaxed, between the two looks at the version.
        let algorithm = A::from_words(std::array::from_fn(|i| words[i].load(Relaxed)));
        // ORDERING: the fence keeps the loads above from moving below the second look. It pairs
        // with the one in `replace`: whoever saw a parameter of a change sees its odd version.
        fence(Acquire);
        let settled = tag.load(Relaxed) == before;
        let matches = before & 1 == 0 && (word ^ before) & !STATE == 0;
        (settled && matches).then_some(algorithm)
    }

    /// Returns a word that is not locked, with its parameters.
    #[inline(always)]
    fn load_settled(&self) -> (u64, A) {
        let word = self.load();
        match self.parameters(word) {
            Some(algorithm) => (word, algorithm),
            None => self.wait_settled(),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_settled(&self) -> (u64, A) {
        let mut backoff = Backoff::new();
        loop {
            let word = self.load();
            if let Some(algorithm) = self.parameters(word) {
                return (word, algorithm);
            }
            backoff.wait();
        }
    }

    /// Applies `step` to the state, atomically. It may run several times; the last run counts.
    #[inline(always)]
    pub(crate) fn update<R>(&self, mut step: impl FnMut(&A, &mut A::State) -> R) -> R {
        let mut backoff = Backoff::new();
        loop {
            let (word, algorithm) = self.load_settled();
            let mut state = algorithm.unpack(word & STATE);
            let result = step(&algorithm, &mut state);
            let next = algorithm.pack(&state);
            debug_assert!(next <= STATE, "states leave the host's bits free");
            let next = word & !STATE | next & STATE;
            if next == word || self.exchange(word, next) {
                return result;
            }
            backoff.wait();
        }
    }

    #[inline(always)]
    fn exchange(&self, word: u64, next: u64) -> bool {
        // ORDERING: AcqRel keeps the chain of Acquire loads intact, so that a thread that sees this
        // word also sees the parameters of its generation. Relaxed on failure: it is loaded again.
        self.word.0.compare_exchange_weak(word, next, AcqRel, Relaxed).is_ok()
    }

    /// Reads the state without changing it.
    pub(crate) fn read<R>(&self, look: impl Fn(&A, &A::State) -> R) -> R {
        self.update(|algorithm, state| look(algorithm, state))
    }

    /// Takes the lock bit. Nobody else changes the word until [`unlock`](Self::unlock).
    fn lock(&self) -> (u64, A) {
        let mut backoff = Backoff::new();
        loop {
            let (word, algorithm) = self.load_settled();
            if self.exchange(word, word | LOCK) {
                return (word, algorithm);
            }
            backoff.wait();
        }
    }

    /// Locks the word until the result is dropped; `rule` says what its state means.
    pub(crate) fn hold(&self, rule: impl FnOnce(A) -> Rule) -> HeldWord<'_> {
        let (word, algorithm) = self.lock();
        HeldWord {
            atomic: &self.word.0,
            head: word & !STATE,
            state: word & STATE,
            rule: rule(algorithm),
        }
    }

    fn unlock(&self, word: u64) {
        debug_assert_eq!(word & LOCK, 0, "the stored word is unlocked");
        // ORDERING: Release makes the parameters visible to whoever sees the new generation.
        self.word.0.store(word, Release);
    }
}

impl<A: Packed + Succeed> WordCell<A>
where
    A::State: Copy,
{
    /// Changes the parameters; the state is carried over as `how` says. Returns the old ones.
    pub(crate) fn replace(&self, next: A, now: Tick, how: Inherit) -> A {
        let (word, old) = self.lock();
        let state = next.succeed(&old, &old.unpack(word & STATE), now, how);
        let generation = (word & !STATE).wrapping_add(GENERATION) & !LOCK;
        let Parameters { tag, words } = &self.parameters.0;
        // ORDERING: Relaxed. The lock bit keeps other writers away.
        let version = tag.load(Relaxed) & STATE;
        // OVERFLOW: 61 bits of version outlast any number of changes.
        tag.store(generation | (version + 1), Relaxed);
        // ORDERING: the fence makes the odd version visible before any of the parameters.
        fence(Release);
        for (atomic, value) in words.iter().zip(next.to_words()) {
            // ORDERING: Relaxed; the even version publishes them.
            atomic.store(value, Relaxed);
        }
        // ORDERING: Release publishes the parameters with the even version.
        tag.store(generation | (version + 2), Release);
        self.unlock(generation | next.pack(&state));
        old
    }
}

/// A locked word: unlocked, with the state it then has, when dropped.
pub(crate) struct HeldWord<'a> {
    atomic: &'a AtomicU64,
    head: u64,
    state: u64,
    rule: Rule,
}

impl HeldWord<'_> {
    pub(crate) fn entry(&mut self) -> Entry<'_> {
        Entry::Word(&self.rule, &mut self.state)
    }
}

impl Drop for HeldWord<'_> {
    fn drop(&mut self) {
        debug_assert!(self.state <= STATE, "states leave the host's bits free");
        // ORDERING: Release, as in `unlock`.
        self.atomic.store(self.head | self.state & STATE, Release);
    }
}

/// A reading of the clock: exact, or early by up to the clock's margin.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    pub(crate) now: Tick,
    pub(crate) is_early: bool,
}

/// A decision of GCRA in its parts. Inlined into the caller, only the parts that somebody reads
/// are ever worked out: a caller that asks `is_allowed` pays for no more.
pub(crate) struct Decided {
    gcra: Gcra,
    before: u64,
    after: Option<u64>,
    reading: Reading,
    position: u64,
    cost: u64,
}

#[allow(clippy::inline_always, reason = "measured: a call costs more than the decision itself")]
impl Decided {
    #[inline(always)]
    pub(crate) fn decision(&self) -> Decision {
        self.gcra.answer(self.before, self.after, (self.reading.now, self.position), self.cost)
    }

    /// Tells whether the other kind of reading would have been the better one to start with.
    #[inline(always)]
    pub(crate) fn is_misread(&self, began_early: bool) -> bool {
        if self.reading.is_early {
            false
        } else {
            began_early || self.gcra.is_clear(self.before, self.position, self.cost)
        }
    }
}

/// The hot path of GCRA.
#[allow(clippy::inline_always, reason = "measured: a call costs more than the decision itself")]
impl WordCell<Gcra> {
    /// Decides by `reading`, or by the exact time if that is early and the outcome depends.
    ///
    /// One loop, and one place to leave it: a slow path that returned a decision of its own would
    /// return it in memory, and then every caller would keep all of it in memory.
    #[inline(always)]
    pub(crate) fn decide(
        &self,
        mut reading: Reading,
        exact: impl Fn() -> Tick,
        cost: u64,
    ) -> Decided {
        let mut backoff = Backoff::new();
        loop {
            let word = self.load();
            if let Some(gcra) = self.parameters(word) {
                let (before, position) = (word & STATE, gcra.position(reading.now));
                let (done, after) = match gcra.judge(before, position, reading.is_early, cost) {
                    Judged::Denied => (true, None),
                    // A cost of nothing must leave an idle word as it is.
                    Judged::Allowed(next) if cost == 0 => (true, Some(next)),
                    Judged::Allowed(next) => {
                        (self.exchange(word, word & !STATE | next), Some(next))
                    }
                    Judged::Open => {
                        reading = Reading { now: exact(), is_early: false };
                        continue;
                    }
                };
                if done {
                    return Decided { gcra, before, after, reading, position, cost };
                }
            }
            self.lost(&mut backoff, reading.now, cost);
        }
    }

    /// Waits after a lost race, unless whoever won has left nothing: a denial needs no wait.
    #[cold]
    #[inline(never)]
    fn lost(&self, backoff: &mut Backoff, now: Tick, cost: u64) {
        let (word, gcra) = self.load_settled();
        let judged = gcra.judge(word & STATE, gcra.position(now), false, cost);
        if matches!(judged, Judged::Allowed(_)) {
            backoff.wait();
        }
    }
}

impl<A: Packed + fmt::Debug> fmt::Debug for WordCell<A>
where
    A::State: Copy,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, algorithm) = self.load_settled();
        f.debug_struct("WordCell")
            .field("algorithm", &algorithm)
            .field("state", &(word & STATE))
            .finish_non_exhaustive()
    }
}
