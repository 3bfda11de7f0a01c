//! Taking now and acting later, with the right to give back.

pub(crate) mod fenwick;
pub(crate) mod ledger;

use crate::{
    Decision, Denied, Limiter, Reason, Tick,
    algorithm::{PerCall, Step},
    keyed::core::{Core, Key},
    store::Policy,
    store::Settled,
    sync::Arc,
    verbs::StateRef,
};
use std::{fmt, time::Duration};

/// Permits that are taken already, with a time to act and the right to give back.
///
/// Made by [`Limiter::reserve`]. What happens to the permits:
///
/// | end | permits |
/// |---|---|
/// | drop, or [`keep`](Self::keep) | stay spent |
/// | [`cancel`](Self::cancel) | given back, as far as time has not refilled them already |
/// | [`settle`](Self::settle) | corrected to the actual cost, into debt if that is more |
///
/// A cancel never gives back what another caller took, and two takes of one instant give back both,
/// in either order (`tests/limiting/refund.rs`). Later reservations that were handed out already do not
/// move up.
///
/// # Examples
///
/// Reserve an estimate, settle with what it cost:
///
/// ```
/// use tollgate::{Clock, Limiter, Quota};
///
/// let (clock, _hand) = Clock::manual();
/// let tokens = Limiter::builder(Quota::per_minute(10_000)).clock(clock).build()?;
/// let reservation = tokens.reserve(1_500)?;
/// let used = 1_100; // what the answer took
/// let _level = reservation.settle(used);
/// assert_eq!(tokens.available(), 10_000 - used);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "dropping a reservation keeps its permits spent; call `keep` if you mean that"]
pub struct Reservation {
    owner: Owner,
    /// The entry in the ledger; none if nothing was charged.
    id: Option<u64>,
    cost: u64,
    act_at: Tick,
    decision: Decision,
}

/// Why nothing was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// No wait can help: the cost exceeds the burst, or what is spent does not come back.
    Never(Decision),
    /// It would have to wait longer than the caller wants to.
    TooLong {
        /// The refusal; [`Decision::retry_at`] says when it could act.
        decision: Decision,
        /// The longest wait the caller accepts.
        max_wait: Duration,
    },
    /// The limiter is booked as far ahead as its state can hold: years of refill.
    BookedUp(Decision),
    /// This algorithm can only reserve what passes now. Only GCRA can book the future.
    OnlyNow(Decision),
    /// As many wait as may.
    QueueFull {
        /// The refusal.
        decision: Decision,
        /// The most that may wait.
        max_waiting: u64,
    },
    /// The deadline has come: the expected wait was shorter when it began, but meanwhile the quota was
    /// lowered, or other callers were admitted first.
    Late(Decision),
    /// A task can wait only in a tokio runtime with timers, which wakes it.
    NoRuntime(Decision),
}

impl Refused {
    /// Returns the decision behind the refusal.
    pub const fn decision(&self) -> Decision {
        match self {
            Self::Never(decision)
            | Self::TooLong { decision, .. }
            | Self::BookedUp(decision)
            | Self::OnlyNow(decision)
            | Self::QueueFull { decision, .. }
            | Self::Late(decision)
            | Self::NoRuntime(decision) => *decision,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decision = self.decision();
        let wait = decision.retry_after(decision.at()).unwrap_or_default();
        let cost = decision.cost();
        match self {
            Self::Never(decision) => Denied(*decision).fmt(f),
            Self::TooLong { max_wait, .. } => write!(
                f,
                "cost {cost} has to wait {wait:?}, more than {max_wait:?}; ask for less, or allow a \
                 longer wait"
            ),
            Self::BookedUp(_) => write!(
                f,
                "cost {cost} would have to wait {wait:?}, and the limiter cannot be booked further \
                 ahead; cancel reservations, or try again later"
            ),
            Self::OnlyNow(_) => write!(
                f,
                "cost {cost} does not pass now, and a window cannot be reserved ahead; retry after \
                 {wait:?}, or use gcra"
            ),
            Self::QueueFull { max_waiting, .. } => write!(
                f,
                "cost {cost} has to wait, but {max_waiting} are already waiting, the maximum; try \
                 again later, or raise `max_waiting`"
            ),
            Self::Late(_) => write!(
                f,
                "cost {cost} reached its deadline while waiting, because the quota was lowered or \
                 others were admitted first; allow a longer wait"
            ),
            Self::NoRuntime(_) => write!(
                f,
                "cost {cost} has to wait, but there is no tokio runtime with timers here; wait \
                 inside one, or `block` a thread"
            ),
        }
    }
}

impl std::error::Error for Refused {}

/// What a successful take leaves behind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) act_at: Tick,
    pub(crate) mark: u64,
    pub(crate) units: u64,
    /// Marks up to here have nothing left to claim.
    pub(crate) passed: u64,
}

impl Taken {
    pub(crate) fn of<S: Step>(
        step: &S,
        state: &S::State,
        (now, act_at): (Tick, Tick),
        cost: u64,
    ) -> Self {
        let (mark, passed) = (step.mark(state, now), step.passed(state, now));
        Self { act_at, mark, units: step.units(cost), passed }
    }
}

impl Limiter {
    /// Takes `cost` permits now, or books the earliest time at which they are free.
    ///
    /// # Errors
    ///
    /// [`Refused`] says why, if no wait can help. Window algorithms can reserve only what passes
    /// now.
    #[doc(alias = "ReserveN")]
    pub fn reserve(&self, cost: u64) -> Result<Reservation, Refused> {
        self.reserve_within(cost, Duration::MAX)
    }

    /// Takes `cost` permits that are free within `max_wait`; refuses at once if they are not.
    ///
    /// With a `max_wait` of zero this is a [`try_acquire_n`](Self::try_acquire_n) that can be
    /// given back.
    ///
    /// # Errors
    ///
    /// [`Refused`] says why.
    pub fn reserve_within(&self, cost: u64, max_wait: Duration) -> Result<Reservation, Refused> {
        self.reserve_at(self.now(), cost, max_wait)
    }

    /// [`reserve_within`](Self::reserve_within) as of `now`.
    ///
    /// # Errors
    ///
    /// [`Refused`] says why.
    pub fn reserve_at(
        &self,
        now: Tick,
        cost: u64,
        max_wait: Duration,
    ) -> Result<Reservation, Refused> {
        StateRef::Limiter(self).reserve(now, cost, max_wait)
    }
}

/// Returns why a reservation was refused, given the decision behind it.
pub(crate) fn refusal(decision: Decision, max_wait: Duration, can_wait: bool) -> Refused {
    if decision.is_never() {
        Refused::Never(decision)
    } else if !can_wait {
        Refused::OnlyNow(decision)
    } else if decision.retry_after(decision.at()).is_some_and(|wait| wait <= max_wait) {
        Refused::BookedUp(decision)
    } else {
        Refused::TooLong { decision, max_wait }
    }
}

/// Returns units x permits / cost: in proportion, because a change of quota may have scaled them.
pub(crate) fn proportion(units: u64, (permits, cost): (u64, u64)) -> u64 {
    match cost {
        0 => 0,
        // OVERFLOW: permits <= cost, so the quotient is at most `units`.
        cost => (u128::from(units) * u128::from(permits) / u128::from(cost)) as u64,
    }
}

/// The limiter or key that decided, and takes back: a [`StateRef`] that lives as long as its reservation.
#[derive(Clone)]
pub(crate) enum Owner {
    Limiter(Limiter),
    Key { core: Arc<Core>, fingerprint: u64, policy: Option<Policy>, call: Option<PerCall> },
}

impl Owner {
    pub(crate) const fn state_ref(&self) -> StateRef<'_> {
        match self {
            Self::Limiter(limiter) => StateRef::Limiter(limiter),
            Self::Key { core, fingerprint, policy, call } => {
                let (fingerprint, policy) = (*fingerprint, policy.as_ref());
                StateRef::Key(core, Key { fingerprint, policy, call: *call })
            }
        }
    }

    /// Makes a reservation final.
    fn forget(&self, id: u64) {
        self.state_ref().lock_claims().change(None, |ledger| ledger.remove(id));
    }
}

impl Reservation {
    /// Makes the reservation of a take; `id` is its entry in the ledger, if it can be given back.
    pub(crate) fn new(
        owner: Owner,
        id: Option<u64>,
        (cost, act_at): (u64, Tick),
        decision: Decision,
    ) -> Self {
        Self { owner, id, cost, act_at, decision }
    }

    /// Returns the first tick at which to act.
    #[must_use]
    pub const fn act_at(&self) -> Tick {
        self.act_at
    }

    /// Returns how long after `now` to act; zero if at once.
    #[must_use]
    pub const fn delay(&self, now: Tick) -> Duration {
        self.act_at.since(now)
    }

    /// Returns the permits that were taken.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns the decision that admitted it, with what is left.
    pub const fn decision(&self) -> Decision {
        self.decision
    }

    /// Keeps the permits spent: the same as dropping, but said.
    pub fn keep(self) {}

    /// Gives back what is still outstanding. Returns how many whole permits that were.
    #[allow(clippy::must_use_candidate, reason = "giving back is the point")]
    pub fn cancel(self) -> u64 {
        let now = self.owner.state_ref().clock().now();
        self.cancel_at(now)
    }

    /// [`cancel`](Self::cancel) as of `now`.
    #[allow(clippy::must_use_candidate, reason = "giving back is the point")]
    pub fn cancel_at(mut self, now: Tick) -> u64 {
        let (state, cost) = (self.owner.state_ref(), self.cost);
        self.id.take().map_or(0, |id| state.give_back(now, id, (cost, cost)))
    }

    /// Corrects the cost to `actual`: gives back the difference, or books it into debt. Returns
    /// the level afterwards.
    ///
    /// The caller has used the permits already, so nothing is refused here: of a difference that is more than the
    /// state can hold ([`Limiter::force`] says how much that is), as much is booked as fits, and
    /// nothing is left. [`Decision::cost`] is what was charged in all: `actual`, or less in that
    /// case.
    ///
    /// # Examples
    ///
    /// A settlement above a budget that never refills uses it up:
    ///
    /// ```
    /// use tollgate::{Limiter, Quota};
    ///
    /// let budget = Limiter::new(Quota::once(20))?;
    /// let level = budget.reserve(1)?.settle(1 << 60);
    /// assert!(level.remaining() == 0 && level.cost() < 1 << 60);
    /// assert!(budget.try_acquire().is_denied());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn settle(self, actual: u64) -> Decision {
        let now = self.owner.state_ref().clock().now();
        self.settle_at(now, actual)
    }

    /// [`settle`](Self::settle) as of `now`.
    pub fn settle_at(self, now: Tick, actual: u64) -> Decision {
        self.settled_at(now, actual).0
    }

    /// [`settle_at`](Self::settle_at), with what was charged and given back.
    pub(crate) fn settled_at(mut self, now: Tick, actual: u64) -> (Decision, Settled) {
        let (id, cost, state) = (self.id.take(), self.cost, self.owner.state_ref());
        // A reservation of nothing has no entry, but the caller may have used something.
        let is_limited = id.is_some() || cost == 0 && self.decision.reason() == Reason::Quota;
        if actual > cost && is_limited {
            id.into_iter().for_each(|id| self.owner.forget(id));
            let more = state.force_up_to(now, actual - cost);
            // A key that finds no place any more in a full table is the only one that is refused.
            if more.is_denied() {
                return (more, Settled::default());
            }
            let charged = more.cost();
            return (more.forced(cost.saturating_add(charged)), Settled { charged, returned: 0 });
        }
        let Some(id) = id else { return (self.decision.forced(actual), Settled::default()) };
        let returned = state.give_back(now, id, (cost - actual, cost));
        (state.level(now).forced(actual), Settled { charged: 0, returned })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            self.owner.forget(id);
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("cost", &self.cost)
            .field("act_at", &self.act_at)
            .field("decision", &self.decision)
            .finish_non_exhaustive()
    }
}
