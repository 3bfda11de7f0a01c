//! Limits on what is in flight, for all or for each key.
//!
//! A rate says how many may start in a second; it does not know how long each takes. When a
//! dependency slows down, the same rate piles up more and more calls inside it. A limit on what is
//! in flight holds that pile: a call takes a [`Permit`], and the next one enters when it comes
//! back.
//!
//! `queue.rs` decides, without locks or atomics. `word.rs` hosts it in one word and a lock,
//! `table.rs` in a table of keys, `timer.rs` ends waits, and `permit.rs` and `acquire.rs` are what callers hold.

mod acquire;
mod builder;
mod counts;
mod full;
mod keyed;
mod permit;
mod queue;
mod table;
mod timer;
mod word;

pub use acquire::Acquire;
pub use builder::{ConcurrencyBuilder, ConcurrencyError, KeyedConcurrencyBuilder};
pub use counts::ConcurrencyCounts;
pub use full::Full;
pub use keyed::KeyedConcurrency;
pub use permit::Permit;

use crate::{
    Clock,
    observe::{Collector, Samples, WaitHistogram, WeakCollector, family},
    sync::Arc,
};
use builder::check_limit;
use permit::Owner;
use queue::PermitQueue;
use std::fmt;
use word::Single;

/// A limit on what is in flight; clones share it.
///
/// | I want to | use | waits |
/// |---|---|---|
/// | turn away what does not fit now | [`try_acquire`](Self::try_acquire) | never |
/// | wait my turn in async code | [`acquire`](Self::acquire) | at most [`max_wait`](ConcurrencyBuilder::max_wait) |
/// | wait my turn on a thread | [`acquire`](Self::acquire), then [`block`](Acquire::block) | at most [`max_wait`](ConcurrencyBuilder::max_wait) |
///
/// `_n` takes a cost. A call passes when nobody waits and `in flight + cost <= limit`. Waiters of
/// one [`Priority`](crate::Priority) are
/// served first come, first served: nobody overtakes, not even a small request that would fit, so
/// a big one is never starved (`tests/limiting/concurrency.rs`: `a_big_request_is_not_starved`). A cost of 0
/// is legal; it takes no permits but waits its turn like any other.
///
/// # Concurrency
///
/// `Send + Sync`, and every method takes `&self`. While nobody waits there is no lock: taking and
/// giving back are one compare-exchange each. With waiters, giving back takes a short lock. A call
/// that does not fit is refused without a lock and without a write, waiters or not (a
/// [`counted`](ConcurrencyBuilder::counted) one counts). What a holder did before it gave back
/// comes before what the next holder does.
///
/// # Examples
///
/// ```
/// use tollgate::Concurrency;
///
/// let limit = Concurrency::new(2)?;
/// let first = limit.try_acquire()?;
/// let _second = limit.try_acquire()?;
/// assert!(limit.try_acquire().is_err());
/// drop(first); // given back
/// assert!(limit.try_acquire().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[doc(alias = "Semaphore")]
#[doc(alias = "Bulkhead")]
pub struct Concurrency {
    single: Arc<Single>,
}

impl Concurrency {
    /// The highest limit: one billion permits.
    pub const LIMIT_MAX: u64 = queue::LIMIT_MAX;

    /// The highest bound on waiters (and, for keys, on keys): one billion.
    pub const WAITING_MAX: u64 = 1_000_000_000;

    /// Returns a limit without a queue. A limit of 0 lets nothing pass until it is raised.
    ///
    /// # Errors
    ///
    /// When the limit is above [`LIMIT_MAX`](Self::LIMIT_MAX).
    pub fn new(limit: u64) -> Result<Self, ConcurrencyError> {
        Self::builder(limit).build()
    }

    /// Starts a limit with a queue, a name or counts.
    pub fn builder(limit: u64) -> ConcurrencyBuilder {
        ConcurrencyBuilder::new(limit)
    }

    /// Takes one permit if it is free now and nobody waits. Never waits.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_n`](Self::try_acquire_n).
    #[inline]
    #[doc(alias = "try_enter")]
    pub fn try_acquire(&self) -> Result<Permit, Full> {
        self.try_acquire_n(1)
    }

    /// Takes `cost` permits if all of them are free now and nobody waits. Never waits.
    ///
    /// It does not overtake: while a call waits it is refused, even if it would fit.
    ///
    /// # Errors
    ///
    /// [`Full`] says why not. A refusal changes nothing.
    #[inline]
    pub fn try_acquire_n(&self, cost: u64) -> Result<Permit, Full> {
        let answer = self.single.try_enter(|| self.owner(), cost);
        self.single.tally.answer(&answer);
        answer.map(|()| Permit::new(self.owner(), cost))
    }

    /// Waits for one permit, in turn.
    ///
    /// # Errors
    ///
    /// As [`acquire_n`](Self::acquire_n).
    ///
    /// # Cancel safety
    ///
    /// See [`Acquire`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::Concurrency;
    ///
    /// # async fn work() {}
    /// async fn guarded(limit: &Concurrency) -> Result<(), tollgate::Full> {
    ///     let _permit = limit.acquire().await?;
    ///     work().await;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// On plain threads:
    ///
    /// ```
    /// use tollgate::Concurrency;
    ///
    /// let limit = Concurrency::builder(1).max_waiting(8).build()?;
    /// std::thread::scope(|scope| {
    ///     for _ in 0..4 {
    ///         scope.spawn(|| {
    ///             let permit = limit.acquire().block();
    ///             assert!(permit.is_ok() && limit.in_flight() == 1);
    ///         });
    ///     }
    /// });
    /// # Ok::<(), tollgate::ConcurrencyError>(())
    /// ```
    pub fn acquire(&self) -> Acquire {
        self.acquire_n(1)
    }

    /// Waits for `cost` permits, in turn.
    ///
    /// The place in the queue is that of the first poll.
    ///
    /// # Errors
    ///
    /// The future gives [`Full`] at once if the cost is above the limit, the queue is full or the
    /// limit is closed; and later if the deadline, a lower limit, a more urgent call or a close ends the wait.
    ///
    /// # Cancel safety
    ///
    /// See [`Acquire`].
    pub fn acquire_n(&self, cost: u64) -> Acquire {
        Acquire::new(self.owner(), cost)
    }

    /// Changes the limit of what is in use.
    ///
    /// A higher one admits waiters at once, in order. A lower one revokes nothing: what is in
    /// flight may finish, and until then [`in_flight`](Self::in_flight) is above the limit. Waiters
    /// whose cost is above the new limit get [`Full`] with [`is_never`](Full::is_never).
    ///
    /// # Errors
    ///
    /// When the limit is above [`LIMIT_MAX`](Self::LIMIT_MAX); the old one then stays in force.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::Concurrency;
    ///
    /// let limit = Concurrency::new(4)?;
    /// let permit = limit.try_acquire_n(3)?;
    /// limit.set_limit(1)?;
    /// assert_eq!((limit.in_flight(), limit.limit(), limit.available()), (3, 1, 0));
    /// drop(permit);
    /// assert_eq!(limit.available(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_limit(&self, limit: u64) -> Result<(), ConcurrencyError> {
        let limit = check_limit(limit)?;
        self.owner().change(|queue, wakers| queue.set_limit(limit, wakers));
        Ok(())
    }

    /// Sets the limit to the nearest one that is legal and lets something pass.
    pub(crate) fn set_capped(&self, limit: u64) {
        // OVERFLOW: at most `LIMIT_MAX`, a billion.
        let limit = limit.clamp(1, Self::LIMIT_MAX) as u32;
        if u64::from(limit) != self.limit() {
            self.owner().change(|queue, wakers| queue.set_limit(limit, wakers));
        }
    }

    /// Takes a permit although the limit is reached, ahead of everybody who waits.
    pub(crate) fn acquire_beyond(&self) -> Result<Permit, Full> {
        let taken = self.owner().change(|queue, _| queue.enter_beyond(1)).unwrap_or(Ok(()));
        self.owner().permit(1, taken)
    }

    /// Returns the clock by which waits end.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.single.timer.rules.clock
    }

    /// Refuses all calls from now on, and those that wait. Calls in flight may finish.
    ///
    /// There is no way back: it is the end of a service.
    pub fn close(&self) {
        self.owner().change(PermitQueue::close);
    }

    /// Tells whether the limit is closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.single.gauge().closed
    }

    /// Returns the limit in force.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.single.gauge().limit.into()
    }

    /// Returns how many permits are in flight, with those set aside for waiters that are being
    /// woken.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.single.gauge().in_flight.into()
    }

    /// Returns how many permits [`try_acquire_n`](Self::try_acquire_n) could take now: 0 while
    /// a call waits.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.single.gauge().available()
    }

    /// Returns how many wait.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.single.waiting()
    }

    /// Returns how many may wait.
    #[must_use]
    pub fn max_waiting(&self) -> u64 {
        self.single.timer.rules.max_waiting
    }

    /// Returns the name given to the builder; empty by default.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.single.name
    }

    /// Returns how long calls that passed had to wait in the queue; empty unless built with
    /// [`counted`](ConcurrencyBuilder::counted). Calls that passed at once are not in it.
    #[must_use]
    pub fn waits(&self) -> WaitHistogram {
        self.single.tally.waits()
    }

    /// Returns what happened so far; all zero unless built with
    /// [`counted`](ConcurrencyBuilder::counted).
    #[must_use]
    pub fn counts(&self) -> ConcurrencyCounts {
        self.single.tally.sum()
    }

    fn owner(&self) -> Owner {
        Owner::Single(Arc::clone(&self.single))
    }
}

impl fmt::Debug for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Concurrency")
            .field("name", &self.name())
            .field("limit", &self.limit())
            .field("in_flight", &self.in_flight())
            .field("waiting", &self.waiting())
            .field("closed", &self.is_closed())
            .finish()
    }
}

impl Collector for Concurrency {
    fn collect(&self, samples: &mut Samples) {
        samples.kind("concurrency");
        samples.gauge(&family::IN_FLIGHT, self.in_flight() as f64);
        samples.gauge(&family::IN_FLIGHT_LIMIT, self.limit() as f64);
        samples.queue(self.waiting(), self.max_waiting());
        if self.is_closed() {
            samples.state("closed");
        }
        self.single.tally.collect(samples);
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.single, |single| Self { single })
    }
}
