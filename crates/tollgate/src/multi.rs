//! Several limits as one decision.

mod decide;
pub(crate) mod inline_vec;
pub(crate) mod locks;
mod multi_reservation;

pub use multi_reservation::Ticket;

pub(crate) use decide::{MultiDecision, Taking};

use crate::{Decision, KeyedLimiter, Limiter, Tick, keyed::core::Key, verbs::StateRef};
use std::{fmt, hash::Hash};

/// One limit and what it would be charged: a part of a decision over several limits.
///
/// Made by [`Limiter::charge`] and [`KeyedLimiter::charge`].
#[derive(Clone, Copy)]
pub struct Charge<'a> {
    pub(crate) of: StateRef<'a>,
    pub(crate) cost: u64,
}

impl Charge<'_> {
    /// Returns the permits that would be taken.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }
}

impl fmt::Debug for Charge<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.of {
            StateRef::Limiter(limiter) => limiter.name(),
            StateRef::Key(core, ..) => &core.name,
        };
        f.debug_struct("Charge").field("limit", &name).field("cost", &self.cost).finish()
    }
}

impl Limiter {
    /// Returns this limit with a cost, as a part of a decision over several [`Limits`].
    #[must_use]
    pub const fn charge(&self, cost: u64) -> Charge<'_> {
        Charge { of: StateRef::Limiter(self), cost }
    }
}

impl<K: Hash + ?Sized> KeyedLimiter<K> {
    /// Returns the limit of a key with a cost, as a part of a decision over several [`Limits`].
    #[must_use]
    pub fn charge(&self, key: &K, cost: u64) -> Charge<'_> {
        Charge { of: StateRef::Key(&self.core, Key::plain(self.named(key))), cost }
    }
}

/// Several limits as one decision: all are charged, or none.
///
/// The limits may be of any kind: single limiters, keys of several keyed limiters, different
/// quotas, algorithms, tables and costs. Their order does not matter, but for the numbers by which
/// a decision names them.
///
/// | | of several limits |
/// |---|---|
/// | allowed | if every one of them allows |
/// | charged | every one of them, or none |
/// | [`refusing`](Decision::refusing) | every one that refused, not only the first |
/// | [`retry_after`](Decision::retry_after) | the longest of those that refused |
/// | [`remaining`](Decision::remaining) | the least of all |
/// | [`limit`](Decision::limit) | of the one that binds: refused, or with the least remaining |
/// | [`reset_after`](Decision::reset_after) | the longest of all |
///
/// A limit that is given twice is charged the sum of both costs.
///
/// All limits must be on one clock, which is that of the first.
///
/// # Concurrency
///
/// The states are locked in the order of their addresses, looked at, charged and unlocked. Calls that
/// take from one of them meanwhile wait: so no other decision sees some of them charged and some
/// not, and a refusal leaves no trace (`tests/limiting/limits.rs`). Nothing is allocated for up to eight
/// limits.
///
/// # Examples
///
/// ```
/// use tollgate::{KeyedLimiter, Limiter, Limits, Quota};
///
/// let global = Limiter::new(Quota::per_second(1000))?;
/// let users = KeyedLimiter::<str>::new(Quota::per_minute(2))?;
/// for expected in [true, true, false] {
///     let charges = [global.charge(1), users.charge("alice", 1)];
///     let decision = Limits::new(&charges)?.try_acquire();
///     assert_eq!(decision.is_allowed(), expected);
///     if decision.is_denied() {
///         assert_eq!(decision.refusing().collect::<Vec<_>>(), [1]); // the user's
///     }
/// }
/// assert!(global.available() >= 998); // the third was not charged
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    charges: &'a [Charge<'a>],
}

/// Why limits cannot be one decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitsError {
    /// There is no limit.
    None,
    /// There are more than a decision can name.
    TooMany {
        /// How many there are.
        count: usize,
    },
}

impl fmt::Display for LimitsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("the list of limits is empty; give at least one"),
            Self::TooMany { count } => write!(
                f,
                "{count} limits are more than the {} that one decision can name; use fewer",
                Limits::MOST
            ),
        }
    }
}

impl std::error::Error for LimitsError {}

impl<'a> Limits<'a> {
    /// The most limits in one decision.
    pub const MOST: usize = 64;

    /// Prepares a decision.
    ///
    /// # Errors
    ///
    /// When there is no limit, or more than [`MOST`](Self::MOST).
    pub const fn new(charges: &'a [Charge<'a>]) -> Result<Self, LimitsError> {
        match Self::check(charges.len()) {
            Ok(()) => Ok(Self { charges }),
            Err(error) => Err(error),
        }
    }

    /// Checks how many there are.
    pub(crate) const fn check(count: usize) -> Result<(), LimitsError> {
        match count {
            0 => Err(LimitsError::None),
            1..=Self::MOST => Ok(()),
            count => Err(LimitsError::TooMany { count }),
        }
    }

    fn now(&self) -> Tick {
        self.charges.first().map_or(Tick::ZERO, |first| first.of.clock().now())
    }

    /// Takes from all limits if every one of them allows it now. Never waits for permits.
    pub fn try_acquire(&self) -> Decision {
        self.try_acquire_at(self.now())
    }

    /// [`try_acquire`](Self::try_acquire) as of `now`.
    pub fn try_acquire_at(&self, now: Tick) -> Decision {
        self.try_acquire_each_at(now, |_, _| {})
    }

    /// [`try_acquire_at`](Self::try_acquire_at). Calls `told` with the number and the decision of each limit. If
    /// several are the same limit, each gets the decision on their sum.
    pub fn try_acquire_each_at(&self, now: Tick, told: impl FnMut(usize, &Decision)) -> Decision {
        MultiDecision::decide(self.charges, now, Taking::Take, told).0
    }

    /// Returns what [`try_acquire`](Self::try_acquire) would answer, and changes nothing.
    pub fn peek(&self) -> Decision {
        self.peek_at(self.now())
    }

    /// [`peek`](Self::peek) as of `now`.
    pub fn peek_at(&self, now: Tick) -> Decision {
        self.peek_each_at(now, |_, _| {})
    }

    /// [`peek_at`](Self::peek_at). Calls `told` with the number and the decision of each limit.
    pub fn peek_each_at(&self, now: Tick, told: impl FnMut(usize, &Decision)) -> Decision {
        MultiDecision::decide(self.charges, now, Taking::Look, told).0
    }

    /// Takes from all limits if every one of them allows it now, with the right to give back.
    ///
    /// # Errors
    ///
    /// The decision, if it was a denial.
    pub fn reserve(&self) -> Result<Ticket, Decision> {
        self.reserve_at(self.now())
    }

    /// [`reserve`](Self::reserve) as of `now`.
    ///
    /// # Errors
    ///
    /// The decision, if it was a denial.
    pub fn reserve_at(&self, now: Tick) -> Result<Ticket, Decision> {
        match MultiDecision::decide(self.charges, now, Taking::Reserve, |_, _| {}) {
            (decision, Some(reservations)) => Ok(Ticket::new(reservations, decision)),
            (decision, None) => Err(decision),
        }
    }
}
