//! Admission: a rate, a breaker and a concurrency limit as one decision.

mod error;
mod future;
mod permit;

pub use error::AdmissionError;
pub use future::Admit;
pub use permit::AdmissionPermit;

use crate::{
    Breaker, Concurrency, Limiter, Open, Permit,
    observe::{Collector, Samples, WeakCollector},
    pace::Booked,
};
use std::time::Duration;

/// A rate limiter, a circuit breaker and a concurrency limit, each optional, all or nothing.
///
/// | I want to | use | waits |
/// |---|---|---|
/// | refuse what does not fit now | [`try_acquire`](Self::try_acquire) | never |
/// | wait in async code | [`acquire`](Self::acquire) (feature `tokio`) | for the rate, then for a slot |
/// | wait on a thread | [`acquire`](Self::acquire) and [`block`](Admit::block) | for the rate, then for a slot |
///
/// One `max_wait` bounds both waits together. The [`AdmissionPermit`] holds the slot, and its
/// [`end`](AdmissionPermit::end) tells the breaker how the call went.
///
/// # Order
///
/// ```text
/// is the breaker open? -> rate (may wait) -> concurrency (may wait) -> pass of the breaker -> call
/// ```
///
/// 1. An open breaker refuses before anything is taken: the limiter is not touched, and nobody waits
///    for a rate in order to be refused. The check is one load.
/// 2. The rate comes before the slot. A slot is held, and a caller that waits for its rate would keep
///    it from others.
/// 3. The breaker hands out the pass last, because only that cannot wait. A caller that waited meets
///    the breaker as it is now, and no caller who still waits reserves a trial call.
///
/// A part that refuses undoes the ones before it: the permits of the rate go back, as far as time
/// has not refilled them already, and so does the slot. For the moment between, others may find the
/// rate used up.
///
/// Clones ask the same parts, and each part may be used elsewhere at the same time. Give all of them
/// the same clock.
///
/// # Examples
///
/// ```
/// use tollgate::{Admission, Breaker, CallOutcome, Clock, Concurrency, Limiter, Quota};
///
/// let (clock, _hand) = Clock::manual();
/// let rate = Limiter::builder(Quota::per_second(10)).clock(clock.clone()).build()?;
/// let breaker = Breaker::builder().clock(clock).build()?;
/// let admission =
///     Admission::new().rate(&rate).breaker(&breaker).concurrency(&Concurrency::new(1)?);
///
/// let permit = admission.try_acquire()?;
/// let refused = admission.try_acquire().unwrap_err();
/// assert_eq!(refused.part(), "concurrency");
/// assert_eq!(rate.available(), 9); // the refused call gave its permit back
///
/// permit.end(CallOutcome::Success);
/// breaker.hold_open();
/// assert_eq!(admission.try_acquire().unwrap_err().part(), "breaker");
/// assert_eq!(rate.available(), 9);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[doc(alias = "Bulkhead")]
#[doc(alias = "Guard")]
pub struct Admission {
    rate: Option<Limiter>,
    breaker: Option<Breaker>,
    concurrency: Option<Concurrency>,
}

impl Admission {
    /// Returns an admission without parts, which admits everything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes permits of this limiter for every call.
    #[must_use]
    pub fn rate(mut self, limiter: &Limiter) -> Self {
        self.rate = Some(limiter.clone());
        self
    }

    /// Refuses calls while this breaker is open, and reports outcomes to it.
    #[must_use]
    pub fn breaker(mut self, breaker: &Breaker) -> Self {
        self.breaker = Some(breaker.clone());
        self
    }

    /// Takes one permit of this limit for every call, until the call ends.
    #[must_use]
    pub fn concurrency(mut self, limit: &Concurrency) -> Self {
        self.concurrency = Some(limit.clone());
        self
    }

    /// Admits a call if every part does now. Never waits.
    ///
    /// # Errors
    ///
    /// [`AdmissionError`] names the part that refused. A refusal takes nothing from any part.
    pub fn try_acquire(&self) -> Result<AdmissionPermit, AdmissionError> {
        self.try_acquire_n(1)
    }

    /// [`try_acquire`](Self::try_acquire) with `cost` permits of the rate. In flight, the call counts
    /// as one.
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub fn try_acquire_n(&self, cost: u64) -> Result<AdmissionPermit, AdmissionError> {
        self.check_breaker()?;
        let booked = self.book(cost, Duration::ZERO)?;
        let slot = self.concurrency.as_ref().map(Concurrency::try_acquire).transpose()?;
        self.pass(booked, slot)
    }

    /// Waits for the rate and then for a slot, for at most `max_wait` together.
    ///
    /// The rate is booked when the future is polled first: callers that come later act later. Only
    /// GCRA can book ahead. With another algorithm, a call that the rate does not admit at once is
    /// refused.
    ///
    /// # Errors
    ///
    /// The future, and [`block`](Admit::block), give [`AdmissionError`] at once if the breaker is
    /// open or the wait for the rate does not fit into `max_wait`; and later if the queue of the
    /// concurrency limit is full, no slot comes free in time, or the breaker opened meanwhile.
    ///
    /// # Cancel safety
    ///
    /// See [`Admit`].
    pub fn acquire(&self, max_wait: Duration) -> Admit {
        self.acquire_n(1, max_wait)
    }

    /// [`acquire`](Self::acquire) with `cost` permits of the rate.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn acquire_n(&self, cost: u64, max_wait: Duration) -> Admit {
        Admit::new(self.clone(), cost, max_wait)
    }

    /// Refuses if the breaker would; reserves no trial.
    fn check_breaker(&self) -> Result<(), Open> {
        self.breaker.as_ref().map_or(Ok(()), Breaker::refuse_if_open)
    }

    /// Books permits of the rate that are free within `max_wait`.
    fn book(&self, cost: u64, max_wait: Duration) -> Result<Booked, AdmissionError> {
        let Some(rate) = &self.rate else { return Ok(Booked::NONE) };
        Ok(Booked::new(rate.reserve_within(cost, max_wait)?))
    }

    /// Takes the breaker's pass, and keeps the permits of the rate; without a pass, all goes back.
    fn pass(
        &self,
        booked: Booked,
        slot: Option<Permit>,
    ) -> Result<AdmissionPermit, AdmissionError> {
        let pass = self.breaker.as_ref().map(Breaker::try_pass).transpose()?;
        booked.keep();
        Ok(AdmissionPermit { pass: pass.map(crate::Pass::into_owned), slot })
    }
}

/// Each part is a part of the report: `name/rate`, `name/breaker`, `name/concurrency`.
impl Collector for Admission {
    fn collect(&self, samples: &mut Samples) {
        samples.kind("admission");
        self.parts().for_each(|(name, part)| samples.part(name, part));
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of_parts("admission", self.parts())
    }
}

impl Admission {
    fn parts(&self) -> impl Iterator<Item = (&'static str, &dyn Collector)> {
        let rate = self.rate.as_ref().map(|part| ("rate", part as &dyn Collector));
        let breaker = self.breaker.as_ref().map(|part| ("breaker", part as &dyn Collector));
        let slots = self.concurrency.as_ref().map(|part| ("concurrency", part as &dyn Collector));
        [rate, breaker, slots].into_iter().flatten()
    }
}
