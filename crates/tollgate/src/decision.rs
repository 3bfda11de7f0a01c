//! The answer of a limiter.

mod answer;
mod packed;

pub use answer::Answer;

use crate::{algorithm::word_time, clock::Tick};
use packed::PackedFlags;
use std::{fmt, time::Duration};

/// The answer to "may this pass?": allowed or not, what is left, and when to come back.
///
/// A decision is a value of 64 bytes that holds absolute ticks. Durations are worked out when
/// asked for, against a time you name, so a decision that was kept for a while does not lie.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Clock, Limiter, Quota};
///
/// let (clock, hand) = Clock::manual();
/// let limiter = Limiter::builder(Quota::per_second(10).burst(2)).clock(clock).build()?;
/// let first = limiter.try_acquire();
/// assert!(first.is_allowed());
/// assert_eq!((first.limit(), first.remaining()), (2, 1));
///
/// let _second = limiter.try_acquire();
/// let third = limiter.try_acquire();
/// assert!(third.is_denied());
/// assert_eq!(third.retry_after(limiter.now()), Some(Duration::from_millis(100)));
/// hand.advance(Duration::from_millis(40));
/// assert_eq!(third.retry_after(limiter.now()), Some(Duration::from_millis(60)));
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
#[must_use = "a decision that is not read limits nothing"]
#[derive(Clone, Copy)]
pub struct Decision {
    /// Outcome and reason.
    flags: PackedFlags,
    /// Which of several limits refused, one bit each.
    refused: u64,
    at: Tick,
    cost: u64,
    limit: u64,
    remaining: u64,
    /// From when on the call passes, as a word holds it; only read if the outcome is `Later`.
    retry: u64,
    /// From when on the limiter is full, as a word holds it.
    full: u64,
}

/// Now, later or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The event may pass now.
    Allowed,
    /// It may not pass now; [`Decision::retry_at`] says when.
    Later,
    /// No wait can help: the cost exceeds the burst, or what is spent does not come back.
    Never,
}

/// What a decision rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The quota.
    Quota,
    /// The limiter is out of force ([`Limiter::bypass`](crate::Limiter::bypass)): all passes.
    Bypassed,
    /// The key is on the allow list: all passes.
    AllowListed,
    /// The key is on the deny list: nothing passes.
    DenyListed,
    /// The key is blocked until [`Decision::retry_at`].
    Blocked,
    /// The table of keys is full of live ones, and this key is not among them.
    Saturated,
    /// The store could not be asked: its failure policy has decided.
    Degraded,
}

impl Reason {
    /// Returns the name used in metrics and JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quota => "quota",
            Self::Bypassed => "bypassed",
            Self::AllowListed => "allow-listed",
            Self::DenyListed => "deny-listed",
            Self::Blocked => "blocked",
            Self::Saturated => "saturated",
            Self::Degraded => "degraded",
        }
    }
}

/// What a limiter holds after a decision, for [`Decision::new`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    pub(crate) at: Tick,
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) full: u64,
}

impl Decision {
    #[inline(always)]
    pub(crate) const fn allowed(level: Level, cost: u64) -> Self {
        Self::new(Outcome::Allowed, level, cost, 0)
    }

    #[inline(always)]
    pub(crate) const fn later(level: Level, cost: u64, retry: u64) -> Self {
        Self::new(Outcome::Later, level, cost, retry)
    }

    #[inline(always)]
    pub(crate) const fn never(level: Level, cost: u64) -> Self {
        Self::new(Outcome::Never, level, cost, 0)
    }

    #[inline(always)]
    pub(crate) const fn new(outcome: Outcome, level: Level, cost: u64, retry: u64) -> Self {
        let Level { at, limit, remaining, full } = level;
        Self {
            flags: PackedFlags::new(outcome),
            refused: 0,
            at,
            cost,
            limit,
            remaining,
            retry,
            full,
        }
    }

    /// Returns up to when the limiter is booked, as a word holds it.
    pub(crate) const fn booked(&self) -> u64 {
        self.full
    }

    /// The answer of a limiter without a limit.
    pub(crate) const fn unlimited(at: Tick, cost: u64) -> Self {
        let level = Level { at, limit: u64::MAX, remaining: u64::MAX, full: 0 };
        Self::allowed(level, cost)
    }

    /// The same decision, copied field by field.
    ///
    /// For the slow exit of an inlined hot path: it keeps the compiler from building the decision
    /// of the hot path in the memory in which the slow one was returned.
    #[inline(always)]
    pub(crate) const fn taken_apart(self) -> Self {
        let Self { flags, refused, at, cost, limit, remaining, retry, full } = self;
        Self { flags, refused, at, cost, limit, remaining, retry, full }
    }

    /// The same level, but allowed: for what passes whatever the limiter says.
    pub(crate) const fn forced(mut self, cost: u64) -> Self {
        self.flags = self.flags.with_outcome(Outcome::Allowed);
        self.cost = cost;
        self
    }

    /// The same level, but never.
    pub(crate) const fn refused(mut self, cost: u64) -> Self {
        self.flags = self.flags.with_outcome(Outcome::Never);
        self.cost = cost;
        self
    }

    /// The same answer to a call of another cost.
    pub(crate) const fn costing(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    pub(crate) const fn with_bypass(self, cost: u64) -> Self {
        self.forced(cost).because(Reason::Bypassed)
    }

    pub(crate) const fn because(mut self, reason: Reason) -> Self {
        self.flags = self.flags.with_reason(reason);
        self
    }

    /// The same decision, which names those of several limits that refused: one bit each.
    pub(crate) const fn naming(mut self, refused: u64) -> Self {
        self.refused = refused;
        self
    }

    /// Nothing passes until `until`, whatever the level is.
    pub(crate) fn blocked(self, cost: u64, until: Tick) -> Self {
        let until = word_time::from_nanos(until.as_nanos());
        let level =
            Level { at: self.at, limit: self.limit, remaining: 0, full: self.full.max(until) };
        let decision = Self::later(level, cost, until);
        decision.because(Reason::Blocked)
    }

    /// One decision over several limits: allowed if no bit of `refused` is set.
    pub(crate) fn joined<'a>(each: impl Iterator<Item = &'a Self>, refused: u64) -> Option<Self> {
        let (mut joined, mut binding): (Option<&Self>, _) = (None, (true, u64::MAX));
        let (mut remaining, mut full, mut retry) = (u64::MAX, 0, 0);
        let mut outcome = Outcome::Allowed;
        for (index, decision) in each.enumerate() {
            let is_refused = refused >> index & 1 == 1;
            // Those that refused bind before all others, then the one with the least left.
            let binds = (!is_refused, decision.remaining);
            if joined.is_none() || binds < binding {
                (joined, binding) = (Some(decision), binds);
            }
            remaining = remaining.min(decision.remaining);
            full = full.max(decision.full);
            if is_refused {
                let is_later = matches!(decision.flags.outcome(), Outcome::Later);
                retry = retry.max(if is_later { decision.retry } else { word_time::NEVER });
                let is_never = decision.is_never() || outcome == Outcome::Never;
                outcome = if is_never { Outcome::Never } else { Outcome::Later };
            }
        }
        joined.map(|joined| {
            let flags = joined.flags.with_outcome(outcome);
            Self { flags, refused, remaining, full, retry, ..*joined }
        })
    }

    /// Tells whether the event may pass now.
    #[inline]
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self.flags.outcome(), Outcome::Allowed)
    }

    /// Tells whether the event may not pass now.
    #[inline]
    #[must_use]
    pub const fn is_denied(&self) -> bool {
        !self.is_allowed()
    }

    /// Tells whether no wait can help.
    #[inline]
    #[must_use]
    pub const fn is_never(&self) -> bool {
        matches!(self.outcome(), Outcome::Never)
    }

    /// Tells whether the event passed only because the limiter is bypassed.
    #[must_use]
    pub const fn is_bypassed(&self) -> bool {
        matches!(self.reason(), Reason::Bypassed)
    }

    /// Returns what the decision rests on: the quota, as a rule.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.flags.reason()
    }

    /// Tells whether limit number `index` of several refused, counted from zero in the order in
    /// which they were given. Of a single limiter, number 0 is that limiter.
    ///
    /// A limit that refuses is named even if others refuse as well.
    #[must_use]
    pub const fn is_refused_by(&self, index: usize) -> bool {
        match self.refused {
            0 => index == 0 && self.is_denied(),
            mask => index < 64 && mask >> index & 1 == 1,
        }
    }

    /// Returns the numbers of the limits that refused, in ascending order.
    pub fn refusing(&self) -> impl Iterator<Item = usize> + use<> {
        let decision = *self;
        (0..64).filter(move |index| decision.is_refused_by(*index))
    }

    /// Returns now, later or never.
    #[inline]
    #[must_use]
    pub const fn outcome(&self) -> Outcome {
        // A wait that ends beyond the clock's horizon is not worth the name.
        match self.flags.outcome() {
            Outcome::Later if word_time::is_reached(self.retry) => Outcome::Later,
            Outcome::Later => Outcome::Never,
            other => other,
        }
    }

    /// Returns the outcome as a fast path of GCRA knows it: without the retry, which it works out only for a caller
    /// that reads it. A wait that ends beyond the clock's horizon is still a wait here.
    #[inline]
    pub(crate) const fn outcome_of_taken(&self) -> Outcome {
        self.flags.outcome()
    }

    /// Returns the time at which the limiter decided.
    ///
    /// With the monotonic clock, a [`Limiter`](crate::Limiter) and a [`KeyedLimiter`](crate::KeyedLimiter) may decide by a
    /// time that lies up to 12 ms back, where the exact time decides the same. So measure durations for a client against
    /// the limiter's clock. Stores and the `_at` forms decide by the exact time.
    #[must_use]
    pub const fn at(&self) -> Tick {
        self.at
    }

    /// Returns the permits that were taken, or asked for and refused.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns the most that can pass at once: the burst, or the limit of a window.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns how many permits are left after this decision.
    ///
    /// With the monotonic clock this is a lower bound, off by at most rate x 12 ms, because a
    /// decision that is clear already is made without reading the exact time.
    /// [`Limiter::peek`](crate::Limiter::peek) reads it.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Returns when the same call would pass, if it was refused and a wait can help.
    ///
    /// The tick is exact: one tick earlier the call is denied, at that tick it passes, as long as
    /// nobody else takes permits meanwhile.
    #[must_use]
    pub const fn retry_at(&self) -> Option<Tick> {
        match self.flags.outcome() {
            Outcome::Later => word_time::to_tick(self.retry),
            _ => None,
        }
    }

    /// Returns how long after `now` the same call would pass, if it was refused and a wait can
    /// help.
    #[must_use]
    pub const fn retry_after(&self, now: Tick) -> Option<Duration> {
        match self.retry_at() {
            Some(at) => Some(at.since(now)),
            None => None,
        }
    }

    /// Returns when the limiter is full again if nobody takes more; `None` if never.
    #[must_use]
    pub const fn full_at(&self) -> Option<Tick> {
        match word_time::to_tick(self.full) {
            Some(at) if at.as_nanos() < self.at.as_nanos() => Some(self.at),
            other => other,
        }
    }

    /// Returns how long after `now` the limiter is full again; `None` if never.
    #[must_use]
    pub const fn reset_after(&self, now: Tick) -> Option<Duration> {
        match self.full_at() {
            Some(at) => Some(at.since(now)),
            None => None,
        }
    }

    /// Turns a denial into an error, for use with `?`.
    ///
    /// # Errors
    ///
    /// [`Denied`] carries the decision, if it was not allowed.
    pub const fn ok(self) -> Result<Self, Denied> {
        if self.is_allowed() { Ok(self) } else { Err(Denied(self)) }
    }
}

/// Decisions are equal if they say the same.
impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        let told = |decision: &Self| {
            let Self { at, cost, limit, remaining, .. } = *decision;
            let times = (decision.retry_at(), decision.full_at());
            let why = (decision.reason(), decision.refused);
            (decision.outcome(), at, cost, limit, remaining, why, times)
        };
        told(self) == told(other)
    }
}

impl Eq for Decision {}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("outcome", &self.outcome())
            .field("at", &self.at)
            .field("cost", &self.cost)
            .field("limit", &self.limit)
            .field("remaining", &self.remaining)
            .field("retry_at", &self.retry_at())
            .field("full_at", &self.full_at())
            .field("reason", &self.reason())
            .finish()
    }
}

/// A denial as an error, for functions that return `Result`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied(pub Decision);

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(decision) = self;
        match decision.retry_after(decision.at()) {
            Some(wait) => write!(
                f,
                "cost {} is over the limit of {}; retry after {wait:?}",
                decision.cost(),
                decision.limit()
            ),
            None if decision.cost() > decision.limit() => write!(
                f,
                "cost {} never passes a limit of {}; ask for less, or raise the limit",
                decision.cost(),
                decision.limit()
            ),
            None => write!(
                f,
                "the limit of {} is spent, and waiting does not help; reset it, or raise its rate",
                decision.limit()
            ),
        }
    }
}

impl std::error::Error for Denied {}
