//! Decides whether a call passes.

use tollgate::{
    Breaker, CallOutcome, Clock, Concurrency, Limiter, Pass, Priority,
    adaptive::{AdaptiveConcurrency, Law, LimitReason, Sample},
    self_throttle::SelfThrottle,
};

/// The action at the end of a call that was admitted.
pub type Ending = Box<dyn FnOnce(CallOutcome)>;

/// Decides whether a call passes, and learns how it ended.
///
/// Tollgate's types that do so implement this trait; implement it to simulate one of your own.
///
/// # Examples
///
/// ```
/// use tollgate::{Breaker, CallOutcome, Trip};
/// use tollgate_simulator::Admission;
///
/// let mut breaker = Breaker::builder().trip(Trip::consecutive(1)).build()?;
/// let call = breaker.try_enter().ok_or("refused")?;
/// call(CallOutcome::Failure);
/// assert!(breaker.try_enter().is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Admission {
    /// Admits a call, or refuses it.
    fn try_enter(&mut self) -> Option<Ending>;

    /// Returns the limit on calls in flight that is in force, for reports; 0 if it has none.
    fn limit(&self) -> u64 {
        0
    }
}

impl Admission for AdaptiveConcurrency {
    fn try_enter(&mut self) -> Option<Ending> {
        let permit = self.try_acquire().ok()?;
        Some(Box::new(move |outcome| permit.end(outcome)))
    }

    fn limit(&self) -> u64 {
        self.concurrency().limit()
    }
}

impl Admission for Breaker {
    fn try_enter(&mut self) -> Option<Ending> {
        let pass = self.try_pass().map(Pass::into_owned).ok()?;
        Some(Box::new(move |outcome| pass.end(outcome)))
    }
}

/// All calls have [`Priority::NORMAL`].
impl Admission for SelfThrottle {
    fn try_enter(&mut self) -> Option<Ending> {
        let pass = self.try_pass(Priority::NORMAL).ok()?;
        Some(Box::new(move |outcome| pass.end(outcome)))
    }
}

/// Each call takes one permit.
impl Admission for Limiter {
    fn try_enter(&mut self) -> Option<Ending> {
        self.try_acquire().is_allowed().then(|| -> Ending { Box::new(|_| {}) })
    }
}

/// Returns a limit that a law moves, on the clock of a simulation.
///
/// # Examples
///
/// ```
/// use tollgate::Clock;
/// use tollgate_simulator::{Admission, FixedLimit, limited_by};
///
/// let (clock, _hand) = Clock::manual();
/// let mut limit = limited_by(FixedLimit(1), &clock);
/// let first = limit.try_enter();
/// assert!(first.is_some() && limit.try_enter().is_none());
/// ```
pub fn limited_by(law: impl Law + 'static, clock: &Clock) -> AdaptiveConcurrency {
    let enforced = Concurrency::builder(0).clock(clock.clone()).build();
    let enforced = enforced.expect("a limit of 0 is legal");
    AdaptiveConcurrency::over(enforced, law)
}

/// A law that never changes its limit, for comparison.
#[derive(Clone, Copy, Debug)]
pub struct FixedLimit(
    /// The limit.
    pub u64,
);

impl FixedLimit {
    /// Returns a limit that refuses nothing: one billion.
    #[must_use]
    pub fn none() -> Self {
        Self(Concurrency::LIMIT_MAX)
    }
}

impl Law for FixedLimit {
    fn observe(&mut self, _: &Sample) -> u64 {
        self.0
    }

    fn limit(&self) -> u64 {
        self.0
    }

    fn reason(&self) -> LimitReason {
        LimitReason::Holding
    }

    fn name(&self) -> &'static str {
        "fixed"
    }
}
