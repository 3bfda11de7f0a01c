//! A state word and its parameters in atomics: what makes a one-word decision atomic.
//!
//! # Layout of the word
//!
//! | bits | what |
//! |---|---|
//! | 63 | lock: a thread changes the parameters, or decides over several limiters |
//! | 0..=61 | state of the algorithm |
//!
//! # Quota and word change together
//!
//! The parameters are behind a seqlock, whose version is full width. A change locks the word, writes the
//! parameters, and stores the state as the new quota continues it, which unlocks. A reader looks at the
//! version, the word, the parameters and the version again: if that is the same, and even, and the
//! word is not locked, word and parameters belong together. If the reader goes on to write, its
//! exchange fails unless the word is still the one it read, and a change writes another word. Only a
//! state that the change leaves as it is can still be written to by the old quota, and then it makes
//! no difference which of the two came first.

use super::backoff::Backoff;
use crate::{
    Inherit, Tick,
    algorithm::{Entry, Gcra, Judged, PARAMETERS, Packed, Rule, Succeed, word_time::OWED},
    clock::Reading,
    decision::Decision,
    sync::{
        AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
        Padded,
        versioned::Versioned,
    },
};
use std::marker::PhantomData;

const LOCK: u64 = 1 << 63;
const STATE: u64 = OWED - 1;

/// One word of state with its parameters, shared between threads.
pub(crate) struct WordCell<A> {
    /// Written on every admission: alone on its cache line.
    word: Padded<AtomicU64>,
    /// Written on a change of quota only.
    parameters: Padded<Versioned<PARAMETERS>>,
    algorithm: PhantomData<A>,
}

impl<A: Packed> WordCell<A>
where
    A::State: Copy + PartialEq,
{
    pub(crate) fn new(algorithm: A, now: Tick) -> Self {
        let word = algorithm.pack(&algorithm.initial(now));
        debug_assert!(word <= STATE, "states leave the host's bits free");
        let parameters = Padded(Versioned::new(algorithm.to_words()));
        Self { word: Padded(AtomicU64::new(word)), parameters, algorithm: PhantomData }
    }

    /// Returns the word with its parameters; `None` if it is locked or a change is under way.
    #[inline(always)]
    fn look(&self) -> Option<(u64, A)> {
        // ORDERING: Acquire pairs with the Release of `unlock`: a thread that sees the word of a
        // change sees its version below.
        let (words, word) = self.parameters.0.read(|| self.word.0.load(Acquire))?;
        (word <= STATE).then(|| (word, A::from_words(words)))
    }

    /// Returns a word that is not locked, with its parameters.
    #[inline(always)]
    fn load_settled(&self) -> (u64, A) {
        self.look().unwrap_or_else(|| self.wait_settled())
    }

    #[cold]
    #[inline(never)]
    fn wait_settled(&self) -> (u64, A) {
        let mut backoff = Backoff::new();
        loop {
            if let Some(found) = self.look() {
                return found;
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
            let before = algorithm.unpack(word);
            let mut state = before;
            let result = step(&algorithm, &mut state);
            if state == before {
                return result;
            }
            let next = algorithm.pack(&state);
            debug_assert!(next <= STATE, "states leave the host's bits free");
            if self.exchange(word, next & STATE) {
                return result;
            }
            backoff.wait();
        }
    }

    #[inline(always)]
    fn exchange(&self, word: u64, next: u64) -> bool {
        // ORDERING: AcqRel keeps the chain of Acquire loads intact, so that a thread that sees this
        // word also sees its parameters. Relaxed on failure: it is loaded again.
        self.word.0.compare_exchange_weak(word, next, AcqRel, Relaxed).is_ok()
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
        HeldWord { atomic: &self.word.0, state: word, rule: rule(algorithm) }
    }

    fn unlock(&self, word: u64) {
        debug_assert!(word <= STATE, "the stored word is unlocked");
        // ORDERING: Release shows the parameters to every thread that sees the new word.
        self.word.0.store(word, Release);
    }
}

impl<A: Packed + Succeed> WordCell<A>
where
    A::State: Copy + PartialEq,
{
    /// Changes the parameters; the state is carried over as `how` says. Returns the old ones.
    pub(crate) fn replace(&self, next: A, now: Tick, how: Inherit) -> A {
        let (word, old) = self.lock();
        let state = next.succeed(&old, &old.unpack(word), now, how);
        // The lock bit keeps other writers away.
        self.parameters.0.write(next.to_words());
        self.unlock(next.pack(&state));
        old
    }
}

/// A locked word: unlocked, with the state it then has, when dropped.
pub(crate) struct HeldWord<'a> {
    atomic: &'a AtomicU64,
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
        self.atomic.store(self.state & STATE, Release);
    }
}

/// A decision of GCRA in its parts. Inlined into the caller, it computes only the parts that
/// the caller reads: one that calls `is_allowed` pays for no more.
pub(crate) struct Decided {
    gcra: Gcra,
    /// A place with its word.
    before: (u64, u64),
    after: Option<(u64, u64)>,
    reading: Reading,
    position: u64,
    cost: u64,
}

impl Decided {
    #[inline(always)]
    pub(crate) fn decision(&self) -> Decision {
        self.gcra.answer(self.before, self.after, (self.reading.now, self.position), self.cost)
    }

    /// Tells whether the other kind of reading would have been the better one to start with.
    #[inline(always)]
    pub(crate) fn is_misread(&self, began_early: bool) -> bool {
        !self.reading.is_early
            && (began_early || self.gcra.is_clear(self.before.0, self.position, self.cost))
    }
}

/// The hot path of GCRA.
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
            if let Some((word, gcra)) = self.look() {
                let (before, position) = (gcra.place(word), gcra.position(reading.now));
                let (done, after) = match gcra.judge(before, position, reading.is_early, cost) {
                    Judged::Denied => (true, None),
                    // A cost of nothing must leave an idle word as it is.
                    Judged::Allowed(next) if cost == 0 => (true, Some((next, word))),
                    Judged::Allowed(next) => {
                        let next = (next, gcra.word(next));
                        (self.exchange(word, next.1), Some(next))
                    }
                    Judged::Open => {
                        reading = Reading::exact(exact());
                        continue;
                    }
                };
                if done {
                    let before = (before, word);
                    return Decided { gcra, before, after, reading, position, cost };
                }
            }
            self.lost(&mut backoff, reading.now, cost);
        }
    }

    /// Waits after a lost race, unless the winner has left nothing: a denial needs no wait.
    #[cold]
    #[inline(never)]
    fn lost(&self, backoff: &mut Backoff, now: Tick, cost: u64) {
        let (word, gcra) = self.load_settled();
        let judged = gcra.judge(gcra.place(word), gcra.position(now), false, cost);
        if matches!(judged, Judged::Allowed(_)) {
            backoff.wait();
        }
    }
}
