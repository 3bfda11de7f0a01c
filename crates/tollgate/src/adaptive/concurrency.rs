//! A limit on calls in flight that a law moves.

use super::{Law, LimitReason, Sample, law::ProbingGradient};
use crate::{
    Acquire, CallOutcome, Clock, Concurrency, Full, Permit, Priority, Tick,
    observe::{Collector, Samples, WeakCollector},
    sync::{Arc, Mutex, lock},
};
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

/// A limit on calls in flight that follows what the other side can do; clones share it.
///
/// A [`Concurrency`] enforces the limit, and a [`Law`] sets it. Each call takes a [`MeasuredPermit`], works, and ends it
/// with a [`CallOutcome`]: that is a sample for the law. A guard that is just dropped gives its slot back, and the law
/// learns nothing.
///
/// # Concurrency
///
/// `Send + Sync`, and every method takes `&self`. Taking a slot costs what it costs in [`Concurrency`], and a reading of
/// the clock. Ending a call takes a short lock for the law.
///
/// # Examples
///
/// ```
/// use tollgate::{CallOutcome, adaptive::AdaptiveConcurrency};
///
/// let limit = AdaptiveConcurrency::new();
/// match limit.try_acquire() {
///     Ok(call) => {
///         // ... call the other side ...
///         call.end(CallOutcome::Success);
///     }
///     Err(full) => println!("{full}"), // answer 503, or do without
/// }
/// assert_eq!(limit.report().in_flight, 0);
/// ```
#[derive(Clone)]
#[doc(alias = "Limiter")]
#[doc(alias = "AdaptiveLimiter")]
pub struct AdaptiveConcurrency {
    shared: Arc<Shared>,
}

struct Shared {
    enforced: Concurrency,
    /// Also held while the limit is set, so that limits are set in the order in which they were found.
    law: Mutex<Box<dyn Law>>,
}

impl AdaptiveConcurrency {
    /// Returns a limit without a queue that needs no target: [`ProbingGradient`] with its defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::over(Concurrency::builder(0).build_of(0), ProbingGradient::default())
    }

    /// Lets `law` move the limit of `enforced`, which brings its queue, its clock, its name and its counts.
    ///
    /// The limit is the law's from now on. A law that returns 0 or more than
    /// [`Concurrency::LIMIT_MAX`] gets 1 or that.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Concurrency, adaptive::{AdaptiveConcurrency, law::DampedAimd}};
    ///
    /// let queue = Concurrency::builder(0).name("database").max_waiting(100).build()?;
    /// let law = DampedAimd::builder(Duration::from_millis(200)).build()?;
    /// let limit = AdaptiveConcurrency::over(queue, law);
    /// assert_eq!((limit.concurrency().name(), limit.report().law), ("database", "damped_aimd"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn over(enforced: Concurrency, law: impl Law + 'static) -> Self {
        enforced.set_capped(law.limit());
        Self { shared: Arc::new(Shared { enforced, law: Mutex::new(Box::new(law)) }) }
    }

    /// Takes a slot if there is one and nobody waits. Never waits.
    ///
    /// # Errors
    ///
    /// [`Full`] says why not. A refusal is no sample: it says nothing about the other side.
    pub fn try_acquire(&self) -> Result<MeasuredPermit, Full> {
        self.shared.enforced.try_acquire().map(|permit| self.measured(Some(permit)))
    }

    /// Waits for a slot, in turn.
    ///
    /// # Errors
    ///
    /// As [`Concurrency::acquire`].
    pub fn acquire(&self) -> AcquireMeasured {
        AcquireMeasured { limit: self.clone(), acquire: self.shared.enforced.acquire() }
    }

    /// Returns a guard for a call that takes no slot and is no sample: health checks, administration.
    pub fn bypass(&self) -> MeasuredPermit {
        self.measured(None)
    }

    pub(super) fn measured(&self, permit: Option<Permit>) -> MeasuredPermit {
        let enforced = &self.shared.enforced;
        let (began, in_flight) = (enforced.clock().now(), enforced.in_flight());
        let is_measured = permit.is_none();
        MeasuredPermit { limit: self.clone(), permit, began, in_flight, is_measured }
    }

    /// Gives a sample to the law, and enforces what it says.
    ///
    /// [`MeasuredPermit::end`] does so. Call it for calls that were measured elsewhere.
    pub fn observe(&self, sample: &Sample) {
        if !sample.is_used() {
            return;
        }
        let mut law = lock(&self.shared.law);
        self.shared.enforced.set_capped(law.observe(sample));
    }

    /// Returns what enforces the limit: for its queue, its counts and its gauges.
    #[must_use]
    pub fn concurrency(&self) -> &Concurrency {
        &self.shared.enforced
    }

    /// Returns the clock that measures calls.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        self.shared.enforced.clock()
    }

    /// Returns the limit, what is in flight, and why the limit is what it is.
    #[must_use]
    pub fn report(&self) -> AdaptiveReport {
        let enforced = &self.shared.enforced;
        let law = lock(&self.shared.law);
        AdaptiveReport {
            law: law.name(),
            limit: enforced.limit(),
            in_flight: enforced.in_flight(),
            waiting: enforced.waiting(),
            reason: law.reason(),
        }
    }
}

impl Default for AdaptiveConcurrency {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for AdaptiveConcurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.report().fmt(f)
    }
}

/// What an [`AdaptiveConcurrency`] does at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AdaptiveReport {
    /// The name of the law.
    pub law: &'static str,
    /// The limit in force.
    pub limit: u64,
    /// Calls in flight.
    pub in_flight: u64,
    /// Calls that wait for a slot.
    pub waiting: u64,
    /// Why the limit is what it is.
    pub reason: LimitReason,
}

/// A slot for one call, with the time at which the call began.
///
/// End it with what became of the call. A plain drop is [`CallOutcome::Ignore`]: the slot comes back, and the law learns
/// nothing. So a call that panics or is cancelled disturbs nobody.
#[must_use = "a slot that is dropped at once limits nothing, and measures nothing"]
pub struct MeasuredPermit {
    limit: AdaptiveConcurrency,
    /// None if the call takes no slot.
    permit: Option<Permit>,
    began: Tick,
    in_flight: u64,
    /// There is no more to learn from the call.
    is_measured: bool,
}

impl MeasuredPermit {
    /// Returns when the call began.
    #[must_use]
    pub const fn began(&self) -> Tick {
        self.began
    }

    /// Ends the call now: gives the slot back and tells the law.
    pub fn end(mut self, outcome: CallOutcome) {
        self.measure(outcome);
    }

    /// Tells the law how the call went, and keeps the slot until the guard is dropped: for a response whose head is there,
    /// and whose body is still to come. Only the first call of this function counts.
    pub fn measure(&mut self, outcome: CallOutcome) {
        if std::mem::replace(&mut self.is_measured, true) {
            return;
        }
        let Self { began, in_flight, .. } = *self;
        let ended = self.limit.clock().now();
        self.limit.observe(&Sample { began, ended, in_flight, outcome });
    }
}

impl fmt::Debug for MeasuredPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeasuredPermit")
            .field("began", &self.began)
            .field("has_slot", &self.permit.is_some())
            .finish_non_exhaustive()
    }
}

/// Waits its turn for a slot; made by [`AdaptiveConcurrency::acquire`].
///
/// # Cancel safety
///
/// As [`Acquire`].
#[must_use = "a future does nothing until it is polled or awaited"]
#[derive(Debug)]
pub struct AcquireMeasured {
    limit: AdaptiveConcurrency,
    acquire: Acquire,
}

impl AcquireMeasured {
    /// As [`Acquire::within`].
    pub fn within(mut self, longest: Duration) -> Self {
        self.acquire = self.acquire.within(longest);
        self
    }

    /// As [`Acquire::until`].
    pub fn until(mut self, deadline: Tick) -> Self {
        self.acquire = self.acquire.until(deadline);
        self
    }

    /// As [`Acquire::priority`].
    pub fn priority(mut self, priority: Priority) -> Self {
        self.acquire = self.acquire.priority(priority);
        self
    }

    /// Waits on this thread.
    ///
    /// # Errors
    ///
    /// As the future.
    pub fn block(self) -> Result<MeasuredPermit, Full> {
        let permit = self.acquire.block()?;
        Ok(self.limit.measured(Some(permit)))
    }
}

impl Future for AcquireMeasured {
    type Output = Result<MeasuredPermit, Full>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let permit = ready!(Pin::new(&mut self.acquire).poll(context));
        Poll::Ready(permit.map(|permit| self.limit.measured(Some(permit))))
    }
}

/// As the [`Concurrency`] that enforces the limit; the state is why the limit is what it is.
impl Collector for AdaptiveConcurrency {
    fn collect(&self, samples: &mut Samples) {
        self.shared.enforced.collect(samples);
        samples.kind("adaptive_concurrency");
        samples.state(self.report().reason.as_str());
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.shared, |shared| Self { shared })
    }
}
