//! Circuit breakers: stop calling a dependency that fails, and find out when it is back.
//!
//! `machine.rs` decides, without a clock or a lock. `window.rs` counts calls, `host.rs` puts both
//! behind one word that every caller reads, `pass.rs` holds what callers get, and `keyed.rs` keeps
//! one breaker for each key.

mod builder;
mod host;
mod keyed;
mod machine;
mod pass;
pub(crate) mod window;

pub use builder::BreakerBuilder;
pub use host::BreakerCounts;
pub use keyed::KeyedBreaker;
pub use machine::OpenReason;
pub use pass::{BreakerState, Open, Pass};
pub use window::{BreakerWindow, Trip};

use crate::{
    Clock, Tick,
    observe::{Collector, Samples, WeakCollector, family},
    sync::Arc,
};
use host::Host;
use machine::Hold;
use std::{fmt, time::Duration};

/// A circuit breaker: refuses calls to a dependency that fails; clones share it.
///
/// While it is **closed**, calls pass and their outcomes are counted. When too many fail, or are
/// slow ([`Trip`]), it **opens**: calls are refused at once, which spares the caller the wait and
/// the dependency the load. After a pause a few calls are let through as trials: **half-open**. If
/// they succeed it closes, at the first failure it opens again, for longer.
///
/// | I want to | use |
/// |---|---|
/// | call the dependency | [`try_pass`](Self::try_pass), then [`Pass::end`] |
/// | respect its `Retry-After` | [`Pass::end_until`] |
/// | watch it before it may refuse | [`shadow`](Self::shadow) |
/// | take it out of service, or force calls through | [`hold_open`](Self::hold_open), [`hold_closed`](Self::hold_closed) |
///
/// Give a breaker only outcomes of calls that ran: a refusal by a limiter of your own says nothing
/// about the dependency.
///
/// # Concurrency
///
/// `Send + Sync`, and every method takes `&self`. While it is closed, passing is one load, and
/// ending a call adds to a counter of the thread's own stripe; neither takes a lock. A refusal
/// writes nothing but its count. Transitions and trials take a short lock.
///
/// # Examples
///
/// Open after two failures in a row, and try again after the pause:
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Breaker, CallOutcome, Clock, Trip};
///
/// let (clock, hand) = Clock::manual();
/// let breaker = Breaker::builder()
///     .trip(Trip::consecutive(2))
///     .open_for(Duration::from_secs(5))
///     .jitter(0)
///     .trials(1)
///     .clock(clock.clone())
///     .build()?;
/// breaker.try_pass()?.end(CallOutcome::Failure);
/// breaker.try_pass()?.end(CallOutcome::Overload);
///
/// let open = breaker.try_pass().unwrap_err();
/// assert_eq!(open.retry_after(clock.now()), Some(Duration::from_secs(5)));
///
/// hand.advance(Duration::from_secs(5));
/// let trial = breaker.try_pass()?;
/// trial.end(CallOutcome::Success);
/// assert!(breaker.state().is_closed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[doc(alias = "CircuitBreaker")]
#[doc(alias = "circuit breaker")]
pub struct Breaker {
    host: Arc<Host>,
}

impl Breaker {
    /// Starts a breaker. [`BreakerBuilder`] lists the defaults.
    pub fn builder() -> BreakerBuilder {
        BreakerBuilder::new()
    }

    /// Lets a call pass, unless the breaker is open. Never waits.
    ///
    /// # Errors
    ///
    /// [`Open`] says why, and when a retry gets through.
    #[inline]
    pub fn try_pass(&self) -> Result<Pass<'_>, Open> {
        match self.host.pass_closed() {
            Some(ticket) => Ok(Pass::borrowed(self, ticket, Tick::ZERO)),
            None => self.try_pass_at(self.host.clock.now()),
        }
    }

    /// [`try_pass`](Self::try_pass) at a time of the caller's.
    ///
    /// # Errors
    ///
    /// As [`try_pass`](Self::try_pass).
    pub fn try_pass_at(&self, now: Tick) -> Result<Pass<'_>, Open> {
        self.host.admit(now).map(|ticket| Pass::borrowed(self, ticket, now))
    }

    /// Returns what [`try_pass`](Self::try_pass) would refuse with; changes nothing.
    ///
    /// # Errors
    ///
    /// [`Open`] if the call would be refused now.
    ///
    /// # Examples
    ///
    /// ```
    /// # let breaker = tollgate::Breaker::builder().build()?;
    /// breaker.hold_open();
    /// assert!(breaker.peek().is_err());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn peek(&self) -> Result<(), Open> {
        if self.host.is_closed() { Ok(()) } else { self.host.peek(self.host.clock.now()) }
    }

    /// Refuses a call as [`try_pass`](Self::try_pass) does, and counts it, but hands out no pass.
    pub(crate) fn refuse_if_open(&self) -> Result<(), Open> {
        self.peek().inspect_err(|_| self.host.count_refusal())
    }

    /// Returns the state. A break whose time is over stays `Open` until a caller comes.
    #[must_use]
    pub fn state(&self) -> BreakerState {
        self.host.state()
    }

    /// Tells whether calls that would be refused pass, see [`shadow`](Self::shadow).
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.host.is_shadow()
    }

    /// Opens it for so long, as if it had tripped. A breaker that is held stays as it is.
    pub fn trip_for(&self, length: Duration) {
        let until = self.host.clock.now().saturating_add(length);
        self.host.change(|machine| machine.trip_until(until));
    }

    /// Ends a break now: the next calls are trials. Does nothing unless it is open.
    ///
    /// For callers that learn by other means, such as a ping, that the dependency is back.
    #[doc(alias = "half_open")]
    pub fn try_now(&self) {
        self.host.change(machine::Machine::try_now);
    }

    /// Refuses every call until an operator says otherwise.
    #[doc(alias = "isolate")]
    #[doc(alias = "forced_open")]
    pub fn hold_open(&self) {
        self.host.hold(Hold::Open);
    }

    /// Lets every call pass until an operator says otherwise. Outcomes are counted, but decide
    /// nothing.
    #[doc(alias = "disable")]
    pub fn hold_closed(&self) {
        self.host.hold(Hold::Closed);
    }

    /// Decides as ever from now on, but lets calls pass that would be refused: they are counted as
    /// [`would_refuse`](BreakerCounts::would_refuse), and their outcomes decide nothing.
    #[doc(alias = "metrics_only")]
    #[doc(alias = "dry_run")]
    pub fn shadow(&self) {
        self.host.hold(Hold::Shadow);
    }

    /// Returns the decision to the breaker, which begins closed and with an empty window.
    ///
    /// # Examples
    ///
    /// ```
    /// # let breaker = tollgate::Breaker::builder().build()?;
    /// breaker.hold_open();
    /// assert!(breaker.try_pass().is_err());
    /// breaker.automatic();
    /// assert!(breaker.try_pass().is_ok());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[doc(alias = "reset")]
    pub fn automatic(&self) {
        self.host.hold(Hold::Automatic);
    }

    /// Returns what happened since it was built.
    #[must_use]
    pub fn counts(&self) -> BreakerCounts {
        self.host.counts()
    }

    /// Returns the settings in one line, for logs and `explain` output.
    ///
    /// # Examples
    ///
    /// ```
    /// let breaker = tollgate::Breaker::builder().build()?;
    /// assert_eq!(
    ///     breaker.summary(),
    ///     "opens at 50 % failures, judged from 20 calls in the last 10s; open for 5s, growing to 60s; \
    ///      3 trials, of which 3 must succeed"
    /// );
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub fn summary(&self) -> String {
        self.host.summary()
    }

    /// Returns the name given to the builder; empty by default.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.host.name
    }

    /// Returns the clock it goes by.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.host.clock
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker")
            .field("name", &self.name())
            .field("state", &self.state())
            .field("is_shadow", &self.is_shadow())
            .finish_non_exhaustive()
    }
}

impl Collector for Breaker {
    fn collect(&self, samples: &mut Samples) {
        let (state, counts) = (self.state(), self.counts());
        samples.kind("breaker");
        samples.state(state.name());
        for known in BreakerState::ALL {
            let is_it = f64::from(u8::from(known == state));
            samples.gauge_by(&family::BREAKER_STATE, known.name(), is_it);
        }
        // OVERFLOW: counts of events, here and below.
        samples.calls(counts.ended + counts.without_effect + counts.ignored, counts.refused);
        samples.count_by(&family::DECISIONS, "shadow_denied", counts.would_refuse);
        samples.count_by(&family::BREAKER_CALLS, "success", counts.ended - counts.failed);
        samples.count_by(&family::BREAKER_CALLS, "failure", counts.failed);
        samples.count_by(&family::BREAKER_CALLS, "without_effect", counts.without_effect);
        samples.count_by(&family::BREAKER_CALLS, "ignored", counts.ignored);
        samples.count(&family::BREAKER_SLOW, counts.slow);
        samples.count(&family::BREAKER_OPENED, counts.opened);
        samples.count(&family::BREAKER_TRIALS, counts.trials);
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.host, |host| Self { host })
    }
}
