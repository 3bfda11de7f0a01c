//! A state word and its parameters in atomics: what makes a one-word decision atomic.
//!
//! # Layout of the word
//!
//! | bits | what |
//! |---|---|
//! | 63 | lock: somebody changes the parameters, or several limiters at once |
//! | 61..=62 | generation: which of the four parameter slots belongs to this word |
//! | 0..=60 | state of the algorithm |
//!
//! # Quota and word change together
//!
//! A reader takes the word and then the slot that its generation names, so it never pairs an old
//! quota with a new word. A change locks the word, fills the *next* slot, and publishes word and
//! generation in one store. A slot is filled again four changes later. So a thread would have to
//! sleep through four changes between its load and its exchange, with nobody taking a permit
//! meanwhile, to find the word it remembers. Words of different timelines or windows are different
//! numbers, so even then the quota of four changes ago must have had the same rate, and the worst
//! that happens is one decision by its burst.

use super::backoff::Backoff;
use crate::{
    Inherit, Tick,
    algorithm::{Gcra, Packed, Succeed},
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
const SLOTS: usize = 4;

/// One word of state with its parameters, shared between threads.
pub(crate) struct WordCell<A> {
    /// Written on every admission: alone on its cache line.
    word: Padded<AtomicU64>,
    /// Written on a change of quota only.
    slots: Padded<[[AtomicU64; 4]; SLOTS]>,
    algorithm: PhantomData<A>,
}

/// Which slot a word belongs to.
const fn slot_of(word: u64) -> usize {
    (word >> 61) as usize & (SLOTS - 1)
}

impl<A: Packed> WordCell<A>
where
    A::State: Copy,
{
    pub(crate) fn new(algorithm: A, now: Tick) -> Self {
        let word = algorithm.pack(&algorithm.initial(now));
        debug_assert!(word <= STATE, "states leave the host's bits free");
        let slots = std::array::from_fn(|_| algorithm.to_words().map(AtomicU64::new));
        Self { word: Padded(AtomicU64::new(word)), slots: Padded(slots), algorithm: PhantomData }
    }

    #[inline]
    fn load(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release of `replace`: whoever sees a generation sees
        // the slot that was filled for it.
        self.word.0.load(Acquire)
    }

    #[inline]
    fn parameters(&self, word: u64) -> A {
        let slot = &self.slots.0[slot_of(word)];
        // ORDERING: Relaxed. The word's Acquire covers them; a slot that is being refilled gives
        // nonsense, which `is_current` or the exchange then throws away.
        A::from_words(std::array::from_fn(|i| slot[i].load(Relaxed)))
    }

    /// Tells whether parameters read for `word` belonged to it: for answers that write nothing.
    #[inline]
    fn is_current(&self, word: u64) -> bool {
        // ORDERING: the fence keeps the parameter loads from moving below this second look.
        fence(Acquire);
        // ORDERING: Relaxed, behind the fence. Only the generation matters: that others took
        // permits since is no reason to decide anew.
        slot_of(self.word.0.load(Relaxed)) == slot_of(word)
    }

    /// Waits until nobody holds the lock bit. Returns the word.
    #[inline]
    fn load_unlocked(&self) -> u64 {
        let word = self.load();
        if word & LOCK == 0 { word } else { self.wait_unlocked() }
    }

    #[cold]
    fn wait_unlocked(&self) -> u64 {
        let mut backoff = Backoff::new();
        loop {
            let word = self.load();
            if word & LOCK == 0 {
                return word;
            }
            backoff.wait();
        }
    }

    /// Applies `step` to the state, atomically. It may run several times; the last run counts.
    #[inline]
    pub(crate) fn update<R>(&self, mut step: impl FnMut(&A, &mut A::State) -> R) -> R {
        let mut backoff = Backoff::new();
        loop {
            let word = self.load_unlocked();
            let algorithm = self.parameters(word);
            let mut state = algorithm.unpack(word & STATE);
            let result = step(&algorithm, &mut state);
            let next = word & !STATE | algorithm.pack(&state);
            if next == word {
                if self.is_current(word) {
                    return result;
                }
            } else if self.exchange(word, next) {
                return result;
            }
            backoff.wait();
        }
    }

    #[inline]
    fn exchange(&self, word: u64, next: u64) -> bool {
        // ORDERING: Relaxed on success would do for the count alone; AcqRel keeps the chain of
        // Acquire loads intact, so that a thread that sees this word also sees the slot of its
        // generation. On x86 it costs nothing. Relaxed on failure: the word is loaded again.
        self.word.0.compare_exchange_weak(word, next, AcqRel, Relaxed).is_ok()
    }

    /// Reads the state without changing it.
    pub(crate) fn read<R>(&self, look: impl Fn(&A, &A::State) -> R) -> R {
        self.update(|algorithm, state| look(algorithm, state))
    }

    /// Takes the lock bit. Nobody else changes the word until [`unlock`](Self::unlock).
    fn lock(&self) -> u64 {
        let mut backoff = Backoff::new();
        loop {
            let word = self.load_unlocked();
            if self.exchange(word, word | LOCK) {
                return word;
            }
            backoff.wait();
        }
    }

    fn unlock(&self, word: u64) {
        debug_assert_eq!(word & LOCK, 0, "the stored word is unlocked");
        // ORDERING: Release publishes the slot filled under the lock.
        self.word.0.store(word, Release);
    }
}

impl<A: Packed + Succeed> WordCell<A>
where
    A::State: Copy,
{
    /// Changes the parameters; the state is carried over as `how` says. Returns the old ones.
    pub(crate) fn replace(&self, next: A, now: Tick, how: Inherit) -> A {
        let word = self.lock();
        let old = self.parameters(word);
        let state = next.succeed(&old, &old.unpack(word & STATE), now, how);
        let generation = (word & !STATE).wrapping_add(GENERATION) & !LOCK & !STATE;
        let slot = &self.slots.0[slot_of(generation)];
        for (atomic, value) in slot.iter().zip(next.to_words()) {
            // ORDERING: Relaxed; `unlock` publishes them.
            atomic.store(value, Relaxed);
        }
        self.unlock(generation | next.pack(&state));
        old
    }
}

/// The hot paths of GCRA.
impl WordCell<Gcra> {
    /// Decides by a time that may lag, if the outcome is certain all the same.
    #[inline]
    pub(crate) fn try_early(&self, early: Tick, cost: u64) -> Option<Decision> {
        use crate::algorithm::Certain;
        let mut backoff = Backoff::new();
        loop {
            let word = self.load();
            let gcra = self.parameters(word);
            let (tat, position) = (word & STATE, gcra.position(early));
            if word & LOCK != 0 {
                return None;
            }
            match gcra.certain(tat, position, cost) {
                Certain::Open => return None,
                Certain::Denied if self.is_current(word) => {
                    return Some(gcra.answer(tat, None, (early, position), cost));
                }
                Certain::Denied => {}
                Certain::Allowed(next) => {
                    if self.exchange(word, word & !STATE | next) {
                        return Some(gcra.answer(tat, Some(next), (early, position), cost));
                    }
                }
            }
            backoff.wait();
        }
    }

    /// Decides by the exact time. Also tells whether a lagging time would have done.
    #[inline]
    pub(crate) fn try_exact(&self, now: Tick, cost: u64) -> (Decision, bool) {
        self.update(|gcra, tat| {
            let position = gcra.position(now);
            let clear = gcra.is_clear(*tat, position, cost);
            let (decision, next) = gcra.decide_at(*tat, now, position, cost);
            *tat = next;
            (decision, clear)
        })
    }
}

impl<A: Packed + fmt::Debug> fmt::Debug for WordCell<A>
where
    A::State: Copy,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.load();
        f.debug_struct("WordCell")
            .field("algorithm", &self.parameters(word))
            .field("state", &(word & STATE))
            .finish_non_exhaustive()
    }
}
