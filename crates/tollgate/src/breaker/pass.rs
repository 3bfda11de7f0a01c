//! The answer of a breaker: a pass, or the reason why not.

use super::{
    Breaker,
    machine::{OpenReason, Ticket},
};
use crate::{CallOutcome, Tick};
use std::{borrow::Cow, fmt, time::Duration};

/// The permission to make one call. End it with how the call went.
///
/// A plain drop counts as [`CallOutcome::Ignore`]: a cancelled call decides nothing, and a trial
/// that is dropped makes room for another.
///
/// # Examples
///
/// ```
/// use tollgate::{Breaker, CallOutcome};
///
/// # fn call() -> Result<u32, std::io::Error> { Ok(1) }
/// let breaker = Breaker::builder().build()?;
/// let pass = breaker.try_pass()?;
/// let result = call();
/// pass.end(if result.is_ok() { CallOutcome::Success } else { CallOutcome::Failure });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "end it with the outcome of the call; dropping it counts for nothing"]
pub struct Pass<'b> {
    /// `None` when ended.
    open: Option<Running<'b>>,
}

struct Running<'b> {
    breaker: Cow<'b, Breaker>,
    ticket: Ticket,
    /// When it began, if slow calls matter.
    began: Tick,
}

impl<'b> Pass<'b> {
    #[inline]
    pub(super) fn borrowed(breaker: &'b Breaker, ticket: Ticket, began: Tick) -> Self {
        Self { open: Some(Running { breaker: Cow::Borrowed(breaker), ticket, began }) }
    }

    /// Keeps the breaker alive by itself, for tasks that outlive the borrow.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Breaker, CallOutcome};
    ///
    /// let breaker = Breaker::builder().build()?;
    /// let pass = breaker.try_pass()?.into_owned();
    /// std::thread::spawn(move || pass.end(CallOutcome::Success)).join().unwrap();
    /// assert_eq!(breaker.counts().ended, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_owned(mut self) -> Pass<'static> {
        let open = self.open.take().map(|Running { breaker, ticket, began }| Running {
            breaker: Cow::Owned(breaker.into_owned()),
            ticket,
            began,
        });
        Pass { open }
    }

    /// Ends the call.
    pub fn end(self, outcome: CallOutcome) {
        // A success in a window of calls needs no time, and reading it costs more than the rest.
        let needs_time =
            |it: &&Running<'_>| outcome != CallOutcome::Success || it.breaker.host.needs_time();
        let timed = self.open.as_ref().filter(needs_time);
        let now = timed.map_or(Tick::ZERO, |it| it.breaker.clock().now());
        self.end_at(now, outcome);
    }

    /// [`end`](Self::end) at a time of the caller's.
    pub fn end_at(mut self, now: Tick, outcome: CallOutcome) {
        if let Some(Running { breaker, ticket, began }) = self.open.take() {
            breaker.host.end(ticket, outcome, (began, now));
        }
    }

    /// Ends the call, and opens the breaker until the tick that the dependency named, by
    /// `Retry-After` or gRPC pushback.
    ///
    /// It opens at once and for exactly that long, whatever the thresholds and
    /// [`most`](super::BreakerBuilder::most) say: the caller decides how far to believe the
    /// dependency. A time that has passed, an outcome of `Ignore` and a call that began before the
    /// last transition open nothing. Nothing extends a break.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Breaker, CallOutcome, Clock};
    ///
    /// let (clock, _hand) = Clock::manual();
    /// let breaker = Breaker::builder().clock(clock.clone()).build()?;
    /// let pass = breaker.try_pass()?;
    /// let until = clock.now().saturating_add(Duration::from_secs(7)); // Retry-After: 7
    /// pass.end_until(CallOutcome::Overload, until);
    /// let open = breaker.try_pass().unwrap_err();
    /// assert_eq!(open.retry_after(clock.now()), Some(Duration::from_secs(7)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn end_until(mut self, outcome: CallOutcome, until: Tick) {
        if let Some(Running { breaker, ticket, began }) = self.open.take() {
            let now = breaker.clock().now();
            breaker.host.end_until(ticket, outcome, (began, now), until);
        }
    }

    /// Tells whether this call is a trial, whose outcome decides whether the breaker closes.
    #[must_use]
    pub fn is_trial(&self) -> bool {
        let role = self.open.as_ref().map(|it| it.ticket.role);
        matches!(role, Some(super::machine::Role::Trial(_)))
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if let Some(Running { breaker, ticket, .. }) = self.open.take() {
            // Ignored calls need no time: they give back a trial's slot, or do nothing.
            breaker.host.end(ticket, CallOutcome::Ignore, (Tick::ZERO, Tick::ZERO));
        }
    }
}

impl fmt::Debug for Pass<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.open.as_ref().map(|it| it.breaker.name());
        f.debug_struct("Pass").field("breaker", &name).field("is_trial", &self.is_trial()).finish()
    }
}

/// The state of a [`Breaker`].
///
/// # Examples
///
/// ```
/// use tollgate::{Breaker, BreakerState};
///
/// let breaker = Breaker::builder().build()?;
/// assert_eq!(breaker.state(), BreakerState::Closed);
/// assert_eq!(breaker.state().name(), "closed");
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// Calls pass and are counted.
    Closed,
    /// Calls are refused, until a tick.
    Open,
    /// A few calls pass as trials.
    HalfOpen,
    /// An operator refuses all calls.
    HeldOpen,
    /// An operator lets all calls pass.
    HeldClosed,
}

impl BreakerState {
    pub(super) const ALL: [Self; 5] =
        [Self::Closed, Self::Open, Self::HalfOpen, Self::HeldOpen, Self::HeldClosed];

    /// Returns the name for metrics and logs: `closed`, `open`, `half_open`, `held_open`,
    /// `held_closed`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
            Self::HeldOpen => "held_open",
            Self::HeldClosed => "held_closed",
        }
    }

    /// Tells whether all calls pass: closed by itself or held closed.
    #[must_use]
    pub const fn is_closed(self) -> bool {
        matches!(self, Self::Closed | Self::HeldClosed)
    }
}

/// The answer of a breaker that refuses a call: a value, not a fault.
///
/// # Examples
///
/// ```
/// use tollgate::{Breaker, BreakerState};
///
/// let breaker = Breaker::builder().name("billing").build()?;
/// breaker.hold_open();
/// let open = breaker.try_pass().unwrap_err();
/// assert_eq!((open.state(), open.retry_at()), (BreakerState::HeldOpen, None));
/// assert_eq!(open.to_string(), "the breaker is held open by an operator; retry when it is released");
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    pub(super) state: BreakerState,
    pub(super) why: OpenReason,
    pub(super) retry_at: Option<Tick>,
}

impl Open {
    /// Returns the state that refused: `Open`, `HalfOpen` with all trials under way, or `HeldOpen`.
    #[must_use]
    pub const fn state(&self) -> BreakerState {
        self.state
    }

    /// Returns why the breaker opened.
    #[must_use]
    pub const fn why(&self) -> OpenReason {
        self.why
    }

    /// Returns the tick at which a retry gets through; `None` if an operator has to decide, or a
    /// keyed breaker has no room.
    ///
    /// If nothing else happens, a call one tick earlier is refused, and at this tick it is a trial.
    /// In half-open it is the tick at which the oldest trial loses its slot; a trial that ends
    /// earlier makes room earlier.
    #[must_use]
    pub const fn retry_at(&self) -> Option<Tick> {
        self.retry_at
    }

    /// Returns how long to wait from `now` before a retry; see [`retry_at`](Self::retry_at).
    #[must_use]
    pub fn retry_after(&self, now: Tick) -> Option<Duration> {
        self.retry_at.map(|at| at.since(now))
    }
}

impl fmt::Display for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = self.why.as_str();
        match self.state {
            _ if self.why == OpenReason::TableFull => {
                write!(f, "{why}; retry later, or raise max_keys")
            }
            BreakerState::HeldOpen => {
                f.write_str("the breaker is held open by an operator; retry when it is released")
            }
            BreakerState::HalfOpen => {
                write!(f, "the breaker waits for its trial calls ({why}); retry when they end")
            }
            _ => write!(f, "the breaker is open: {why}; retry after `retry_after`"),
        }
    }
}

impl std::error::Error for Open {}
