//! Any algorithm whose state is one word, chosen at run time.
//!
//! Tables of many keys hold words of several quotas and algorithms side by side. A [`Rule`] is what
//! such a word means. It costs one predictable branch over the algorithm itself.

use super::{FixedWindow, Gcra, Idle, PARAMETERS, Packed, SlidingCounter, Step};
use crate::{Tick, decision::Decision, table::Hint};

/// An algorithm with its parameters, whose state is the word a host keeps. A word of zero is the
/// state of a key never seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    Gcra(Gcra),
    FixedWindow(FixedWindow),
    SlidingCounter(SlidingCounter),
    /// GCRA whose quota comes with each call.
    PerCall(Gcra),
    /// Everything passes and nothing is counted.
    Unlimited,
}

/// Runs `$body` with the algorithm and its unpacked state.
macro_rules! on_word {
    ($rule:expr, $word:expr, $step:ident, $state:ident => $body:expr, else $other:expr) => {
        match $rule {
            Rule::Gcra($step) | Rule::PerCall($step) => on_word!(@one $word, $step, $state => $body),
            Rule::FixedWindow($step) => on_word!(@one $word, $step, $state => $body),
            Rule::SlidingCounter($step) => on_word!(@one $word, $step, $state => $body),
            Rule::Unlimited => $other,
        }
    };
    (@one $word:expr, $step:ident, $state:ident => $body:expr) => {{
        #[allow(unused_mut, reason = "some bodies only look")]
        let mut $state = $step.unpack(*$word);
        $body
    }};
}

/// As [`on_word`], but stores the state afterwards.
macro_rules! change_word {
    ($rule:expr, $word:expr, $step:ident, $state:ident => $body:expr, else $other:expr) => {
        on_word!($rule, $word, $step, $state => {
            let result = $body;
            *$word = $step.pack(&$state);
            result
        }, else $other)
    };
}

impl Rule {
    /// The kind of [`Gcra`] in [`to_words`](Self::to_words).
    pub(crate) const GCRA: u64 = 1;

    /// Returns a number for the kind and the parameters, for hosts that keep them in atomics.
    pub(crate) fn to_words(self) -> (u64, [u64; PARAMETERS]) {
        match self {
            Self::Unlimited => (0, [0; PARAMETERS]),
            Self::Gcra(step) => (Self::GCRA, step.to_words()),
            Self::FixedWindow(step) => (2, step.to_words()),
            Self::SlidingCounter(step) => (3, step.to_words()),
            Self::PerCall(step) => (4, step.to_words()),
        }
    }

    /// The inverse of [`to_words`](Self::to_words); `None` for any other kind.
    #[inline]
    pub(crate) fn from_words(kind: u64, words: [u64; PARAMETERS]) -> Option<Self> {
        Some(match kind {
            0 => Self::Unlimited,
            Self::GCRA => Self::Gcra(Gcra::from_words(words)),
            2 => Self::FixedWindow(FixedWindow::from_words(words)),
            3 => Self::SlidingCounter(SlidingCounter::from_words(words)),
            4 => Self::PerCall(Gcra::from_words(words)),
            _ => return None,
        })
    }

    /// Returns the state that a word of a table stands for, by a quota that is in force since `since`.
    #[inline]
    pub(crate) fn current(&self, word: u64, hint: Hint, since: Tick) -> u64 {
        match self {
            Self::Gcra(step) | Self::PerCall(step) => step.current(word, hint, since),
            _ => word,
        }
    }

    /// Returns the word of a table for a state.
    #[inline]
    pub(crate) fn marked(&self, state: u64, now: Tick) -> u64 {
        match self {
            Self::Gcra(step) | Self::PerCall(step) => step.marked(state, now),
            _ => state,
        }
    }

    /// Returns the hint of a table for a state.
    pub(crate) fn hint(&self, state: u64, now: Tick) -> Hint {
        match self {
            Self::Gcra(step) | Self::PerCall(step) if !step.is_budget() => step.hint(),
            _ => Hint::of_share(self.burden(&state, now)),
        }
    }

    /// Tells whether this is GCRA, the only algorithm that can book the future.
    pub(crate) const fn as_gcra(&self) -> Option<&Gcra> {
        match self {
            Self::Gcra(gcra) => Some(gcra),
            _ => None,
        }
    }
}

impl Step for Rule {
    type State = u64;

    fn initial(&self, now: Tick) -> u64 {
        match self {
            Self::Gcra(step) | Self::PerCall(step) => step.initial(now),
            Self::FixedWindow(step) => step.initial(now),
            Self::SlidingCounter(step) => step.pack(&step.initial(now)),
            Self::Unlimited => 0,
        }
    }

    #[inline]
    fn peek(&self, word: &u64, now: Tick, cost: u64) -> Decision {
        on_word!(self, word, step, state => step.peek(&state, now, cost),
            else Decision::unlimited(now, cost))
    }

    fn available(&self, word: &u64, now: Tick) -> u64 {
        on_word!(self, word, step, state => step.available(&state, now), else u64::MAX)
    }

    fn charge(&self, word: &mut u64, now: Tick, cost: u64) -> bool {
        change_word!(self, word, step, state => step.charge(&mut state, now, cost), else true)
    }

    fn chargeable(&self, word: &u64, now: Tick) -> u64 {
        on_word!(self, word, step, state => step.chargeable(&state, now), else u64::MAX)
    }

    fn mark(&self, word: &u64, now: Tick) -> u64 {
        on_word!(self, word, step, state => step.mark(&state, now), else 0)
    }

    fn passed(&self, word: &u64, now: Tick) -> u64 {
        on_word!(self, word, step, state => step.passed(&state, now), else u64::MAX)
    }

    fn give_back(&self, word: &mut u64, now: Tick, mark: u64, most: u64) -> u64 {
        change_word!(self, word, step, state => step.give_back(&mut state, now, mark, most),
            else 0)
    }

    fn units(&self, permits: u64) -> u64 {
        match self {
            Self::Gcra(step) | Self::PerCall(step) => step.units(permits),
            _ => permits,
        }
    }

    fn whole_permits(&self, units: u64) -> u64 {
        match self {
            Self::Gcra(step) | Self::PerCall(step) => step.whole_permits(units),
            _ => units,
        }
    }

    #[inline]
    fn decide(&self, word: &mut u64, now: Tick, cost: u64) -> Decision {
        change_word!(self, word, step, state => step.decide(&mut state, now, cost),
            else Decision::unlimited(now, cost))
    }
}

impl Idle for Rule {
    fn burden(&self, word: &u64, now: Tick) -> u64 {
        on_word!(self, word, step, state => step.burden(&state, now), else 0)
    }
}
