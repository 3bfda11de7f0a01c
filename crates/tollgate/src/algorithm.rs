//! The algorithms, as pure functions of parameters, state, time and cost.
//!
//! A step function reads no clock, takes no lock, does no I/O and uses integers only. Hosts (a
//! [`Limiter`](crate::Limiter), a keyed table, a simulator) keep the state and make the step
//! atomic. So an algorithm is written once, and the tests of this module hold for every host.
//!
//! | algorithm | promise | state | bound on what passes |
//! |---|---|---|---|
//! | [`Gcra`] | rate with a burst | one word | burst + rate x w in every interval w |
//! | [`FixedWindow`] | limit per window | one word | limit per window; 2 x limit across a border |
//! | [`SlidingCounter`] | about limit in any window | one word or three | see its page |
//! | [`SlidingLog`] | limit in every window | one entry per event | limit in every window |
//!
//! To add one: a file here that implements [`Step`], a variant of [`Algorithm`], a variant of
//! `limiter/cell.rs`; `tests/limiting/oracle.rs` and `tests/limiting/steps.rs` run it from there.

mod any_rule;
mod entry;
mod fixed_window;
mod gcra;
mod inherit;
mod rule;
mod sliding_counter;
mod sliding_log;
mod window;
mod window_word;
pub(crate) mod word_time;

pub(crate) use any_rule::AnyRule;
pub(crate) use entry::{Entry, PerCall};
pub use fixed_window::FixedWindow;
pub use gcra::Gcra;
pub(crate) use gcra::{Booked, Judged};
pub use inherit::Inherit;
pub(crate) use rule::Rule;
pub use sliding_counter::{SlidingCounter, TwoWindows};
pub use sliding_log::{Log, SlidingLog};

use crate::{Decision, Tick};
use std::{fmt, str::FromStr};

/// Which algorithm a limiter runs.
///
/// [docs/choosing.md] says which to take; when in doubt, [`Gcra`](Self::Gcra).
///
/// [docs/choosing.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/choosing.md
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// A rate with a burst: token bucket, leaky bucket as a meter, and GCRA are one machine.
    #[default]
    #[doc(alias = "token bucket")]
    #[doc(alias = "leaky bucket")]
    Gcra,
    /// A limit per window; windows start at multiples of their length since the Unix epoch.
    FixedWindow,
    /// A limit per window; a window starts with the first event after the last one ended.
    AnchoredWindow,
    /// A limit in any window, estimated from the counts of two neighbouring windows.
    SlidingCounter,
    /// A limit in any window, exact, at the price of one entry per event.
    SlidingLog,
}

impl Algorithm {
    /// The token bucket: [`Gcra`](Self::Gcra) seen from the permits that are left.
    pub const TOKEN_BUCKET: Self = Self::Gcra;

    /// The leaky bucket as a meter: [`Gcra`](Self::Gcra) seen from the permits that are used.
    pub const LEAKY_BUCKET: Self = Self::Gcra;

    /// All algorithms, in the order of the docs.
    pub const ALL: [Self; 5] = [
        Self::Gcra,
        Self::FixedWindow,
        Self::AnchoredWindow,
        Self::SlidingCounter,
        Self::SlidingLog,
    ];

    /// Returns the name used in configuration, metrics and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gcra => "gcra",
            Self::FixedWindow => "fixed-window",
            Self::AnchoredWindow => "anchored-window",
            Self::SlidingCounter => "sliding-counter",
            Self::SlidingLog => "sliding-log",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no algorithm has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownAlgorithm(String);

impl fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name) = self;
        write!(f, "\"{name}\" is not an algorithm; use one of token-bucket, leaky-bucket")?;
        Algorithm::ALL.iter().try_for_each(|known| write!(f, ", {known}"))
    }
}

impl std::error::Error for UnknownAlgorithm {}

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = match name {
            "token-bucket" => Some(Self::TOKEN_BUCKET),
            "leaky-bucket" => Some(Self::LEAKY_BUCKET),
            name => Self::ALL.into_iter().find(|known| known.name() == name),
        };
        known.ok_or_else(|| UnknownAlgorithm(name.chars().take(40).collect()))
    }
}

/// One algorithm with its parameters: how a state changes.
///
/// Implementors supply what differs; the verbs on top are written once. Every function is pure:
/// the same arguments give the same result.
pub trait Step {
    /// The state that a host keeps between events.
    type State;

    /// Returns the state of a fresh limiter.
    fn initial(&self, now: Tick) -> Self::State;

    /// Returns what [`decide`](Self::decide) would answer, and changes nothing.
    fn peek(&self, state: &Self::State, now: Tick, cost: u64) -> Decision;

    /// Returns how many whole permits are free now.
    fn available(&self, state: &Self::State, now: Tick) -> u64;

    /// Books `cost` whether it is free or not. Returns false, and books nothing, if the state
    /// cannot hold such a debt.
    fn charge(&self, state: &mut Self::State, now: Tick, cost: u64) -> bool;

    /// Returns the largest cost that [`charge`](Self::charge) books now. At least all that is
    /// [`available`](Self::available), so that nothing is left when that much is booked.
    fn chargeable(&self, state: &Self::State, now: Tick) -> u64;

    /// Returns what [`give_back`](Self::give_back) needs to know of the charge just made.
    fn mark(&self, state: &Self::State, now: Tick) -> u64;

    /// Returns the mark up to which nothing can be given back any more.
    fn passed(&self, state: &Self::State, now: Tick) -> u64 {
        self.mark(state, now).saturating_sub(1)
    }

    /// Gives back what is still outstanding of a charge that left `mark`, at most `most`. Returns
    /// how much that was. Amounts are in the unit of [`units`](Self::units).
    fn give_back(&self, state: &mut Self::State, now: Tick, mark: u64, most: u64) -> u64;

    /// Returns permits in the unit that [`give_back`](Self::give_back) counts in.
    fn units(&self, permits: u64) -> u64 {
        permits
    }

    /// Returns the whole permits in an amount of [`units`](Self::units).
    fn whole_permits(&self, units: u64) -> u64 {
        units
    }

    /// Gives back up to `cost` permits of whatever is outstanding. Returns how much that was, in
    /// the unit of [`units`](Self::units).
    fn refund(&self, state: &mut Self::State, now: Tick, cost: u64) -> u64 {
        let mark = self.mark(state, now);
        self.give_back(state, now, mark, self.units(cost))
    }

    /// Takes `cost` permits if they are free. A denial leaves the state as it is.
    #[inline]
    fn decide(&self, state: &mut Self::State, now: Tick, cost: u64) -> Decision {
        let decision = self.peek(state, now, cost);
        if decision.is_allowed() {
            let booked = self.charge(state, now, cost);
            debug_assert!(booked, "what is free can be booked");
        }
        decision
    }

    /// Takes as many permits as are free, at most `most`. [`Decision::cost`] says how many; if
    /// none is free, the decision is a denial of one.
    fn up_to(&self, state: &mut Self::State, now: Tick, most: u64) -> Decision {
        let cost = most.min(self.available(state, now)).max(most.min(1));
        self.decide(state, now, cost)
    }

    /// Books `cost` even into debt. Denied as never, without a trace, only if the debt would
    /// exceed what the state can hold.
    fn force(&self, state: &mut Self::State, now: Tick, cost: u64) -> Decision {
        if self.charge(state, now, cost) {
            self.peek(state, now, 0).forced(cost)
        } else {
            self.peek(state, now, 0).refused(cost)
        }
    }

    /// Books all of `cost`, even into debt, if at least one permit is free. Where one is free, nothing
    /// is owed.
    fn on_credit(&self, state: &mut Self::State, now: Tick, cost: u64) -> Decision {
        let first = self.peek(state, now, cost.min(1));
        if first.is_allowed() { self.force(state, now, cost) } else { first.costing(cost) }
    }

    /// Books `most` even into debt, or as much of it as the state can hold. [`Decision::cost`] says
    /// how much.
    fn force_up_to(&self, state: &mut Self::State, now: Tick, most: u64) -> Decision {
        let cost = most.min(self.chargeable(state, now));
        self.force(state, now, cost)
    }
}

/// Words that the parameters of an algorithm take.
pub(crate) const PARAMETERS: usize = 8;

/// A [`Step`] whose state fits in the 62 bits that a host leaves it, and whose parameters fit in
/// eight words, so that a host can keep both in atomics.
pub(crate) trait Packed: Step + Copy {
    fn pack(&self, state: &Self::State) -> u64;
    fn unpack(&self, word: u64) -> Self::State;
    fn to_words(self) -> [u64; PARAMETERS];
    fn from_words(words: [u64; PARAMETERS]) -> Self;
}

/// A [`Step`] that knows when a state equals that of a limiter never used, whose word is zero.
pub(crate) trait Idle: Step {
    /// Tells whether the state is, from `now` on, as good as none.
    fn is_idle(&self, state: &Self::State, now: Tick) -> bool {
        self.burden(state, now) == 0
    }

    /// Returns how far from full the state is: what is used, in 2^-20 of the limit, and zero only
    /// if idle. It compares across quotas, so that a full table can tell which entry matters least.
    fn burden(&self, state: &Self::State, now: Tick) -> u64;
}

/// Returns `used` in 2^-20 of `limit`, rounded up, for [`Idle::burden`].
fn share(used: u64, limit: u64) -> u64 {
    // OVERFLOW: saturates; a debt of 2^44 limits is far enough from full.
    u64::try_from((u128::from(used) << 20).div_ceil(u128::from(limit.max(1)))).unwrap_or(u64::MAX)
}

/// A [`Step`] that can take over the state of its like with another quota.
pub(crate) trait Succeed: Step {
    /// Returns the state under these parameters that continues `state` under `old`.
    fn succeed(&self, old: &Self, state: &Self::State, now: Tick, how: Inherit) -> Self::State;
}
