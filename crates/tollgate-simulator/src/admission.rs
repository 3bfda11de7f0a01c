//! What decides whether a call enters the server.

use tollgate::{
    CallOutcome, Concurrency, Permit, Tick,
    adaptive::{Law, LimitReason, Sample},
};

/// What decides whether a call enters the server, and learns how it ended.
///
/// [`LawLimit`] is the one that ships; implement it to simulate a limit of your own.
pub trait Admission {
    /// What a call holds while it is in the server.
    type Guard;

    /// Lets a call in, or refuses it.
    fn try_enter(&mut self, now: Tick) -> Option<Self::Guard>;

    /// Takes note of the end of a call.
    fn leave(&mut self, guard: Self::Guard, now: Tick, outcome: CallOutcome);

    /// Returns the limit in force, for reports.
    fn limit(&self) -> u64;
}

/// A [`Concurrency`] whose limit a [`Law`] moves.
///
/// # Examples
///
/// ```
/// use tollgate::Tick;
/// use tollgate_simulator::{Admission, FixedLimit, LawLimit};
///
/// let mut limit = LawLimit::new(FixedLimit(1));
/// let first = limit.try_enter(Tick::ZERO);
/// assert!(first.is_some() && limit.try_enter(Tick::ZERO).is_none());
/// ```
#[derive(Debug)]
pub struct LawLimit<L> {
    concurrency: Concurrency,
    law: L,
}

impl<L: Law> LawLimit<L> {
    /// Returns a limit that starts where the law does.
    ///
    /// # Panics
    ///
    /// When the law's limit is above [`Concurrency::LIMIT_MAX`].
    pub fn new(law: L) -> Self {
        let concurrency =
            Concurrency::new(law.limit()).expect("a law's limit is at most LIMIT_MAX");
        Self { concurrency, law }
    }
}

/// What a call holds in a [`LawLimit`].
#[derive(Debug)]
pub struct InFlight {
    permit: Permit,
    began: Tick,
    in_flight: u64,
}

impl<L: Law> Admission for LawLimit<L> {
    type Guard = InFlight;

    fn try_enter(&mut self, now: Tick) -> Option<InFlight> {
        let permit = self.concurrency.try_acquire().ok()?;
        Some(InFlight { permit, began: now, in_flight: self.concurrency.in_flight() })
    }

    fn leave(&mut self, guard: InFlight, now: Tick, outcome: CallOutcome) {
        let InFlight { permit, began, in_flight } = guard;
        drop(permit);
        let before = self.law.limit();
        let limit = self.law.observe(&Sample { began, ended: now, in_flight, outcome });
        if limit != before {
            self.concurrency.set_limit(limit).expect("a law's limit is at most LIMIT_MAX");
        }
    }

    fn limit(&self) -> u64 {
        self.law.limit()
    }
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
