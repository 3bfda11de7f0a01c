//! What decides whether a call enters the server.

use tollgate::{
    CallOutcome, Clock, Concurrency,
    adaptive::{AdaptiveConcurrency, Law, LimitReason, MeasuredPermit, Sample},
};

/// What decides whether a call enters the server, and learns how it ended.
///
/// [`AdaptiveConcurrency`] is one; implement it to simulate a limit of your own.
pub trait Admission {
    /// What a call holds while it is in the server.
    type Guard;

    /// Lets a call in, or refuses it.
    fn try_enter(&mut self) -> Option<Self::Guard>;

    /// Takes note of the end of a call.
    fn leave(&mut self, guard: Self::Guard, outcome: CallOutcome);

    /// Returns the limit in force, for reports.
    fn limit(&self) -> u64;
}

impl Admission for AdaptiveConcurrency {
    type Guard = MeasuredPermit;

    fn try_enter(&mut self) -> Option<MeasuredPermit> {
        self.try_acquire().ok()
    }

    fn leave(&mut self, guard: MeasuredPermit, outcome: CallOutcome) {
        guard.end(outcome);
    }

    fn limit(&self) -> u64 {
        self.concurrency().limit()
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

/// A law that never moves, to compare with.
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
