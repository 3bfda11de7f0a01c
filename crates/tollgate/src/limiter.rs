//! One shared limiter.

pub(crate) mod backoff;
mod builder;
pub(crate) mod cell;
mod verbs;
mod waiting;
mod word;

pub use builder::LimiterBuilder;
pub(crate) use builder::Waiting;

use crate::{
    Algorithm, Clock, Decision, Inherit, Quota, QuotaError, Tick,
    clock::Early,
    observe::{Collector, Event, Instruments, Samples, Verb, WeakCollector},
    reservation::ledger::Ledger,
    sync::{Arc, AtomicU64, Flags, Mutex, MutexGuard, Ordering::Relaxed, lock},
    verbs::StateRef,
    wait::{
        limiter_queue::{LimiterQueue, QueueRules},
        queue_timer::QueueTimer,
    },
};
use cell::Cell;
use std::fmt;

/// One limit, shared by all clones: decides whether an event may pass now, later or never.
///
/// Most callers want [`try_acquire`](Self::try_acquire).
///
/// | I want to | use | never waits | may deny |
/// |---|---|---|---|
/// | drop what exceeds the rate | [`try_acquire`](Self::try_acquire) | yes | yes |
/// | wait my turn | [`acquire`](Self::acquire) | no | if it takes too long |
/// | know when to act, and act then | [`reserve`](Self::reserve) | yes | yes |
/// | take as much of a batch as fits | [`up_to`](Self::up_to) | yes | yes |
/// | look without taking | [`peek`](Self::peek) | yes | yes |
/// | let one call overshoot, and the next pay | [`try_acquire_on_credit`](Self::try_acquire_on_credit) | yes | yes |
/// | charge what is known only afterwards | [`force`](Self::force) | yes | only absurd debts |
///
/// `_n` takes a cost. `_at` takes the time: it is the real function, and the short form is one
/// line. Passing one reading of the clock to many decisions saves most of their price.
///
/// # Concurrency
///
/// `Send + Sync`, and every method takes `&self`. Where the state is one word (all but the sliding
/// log, and sliding counters with huge limits) there is no lock: a decision is one compare-exchange,
/// and a denial writes nothing.
///
/// # Examples
///
/// ```
/// use tollgate::{Limiter, Quota};
///
/// let limiter = Limiter::new(Quota::per_second(100).burst(20))?;
/// match limiter.try_acquire() {
///     decision if decision.is_allowed() => println!("go, {} left", decision.remaining()),
///     decision => println!("wait {:?}", decision.retry_after(limiter.now())),
/// }
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
#[derive(Clone)]
#[doc(alias = "RateLimiter")]
pub struct Limiter {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) cell: Cell,
    pub(crate) clock: Clock,
    /// The clock's early reading, if it has one.
    pub(crate) early: Early,
    /// Which path a decision takes: see the constants.
    mode: Flags,
    algorithm: Algorithm,
    name: Box<str>,
    instruments: Option<Box<Instruments>>,
    queue_rules: QueueRules,
    /// Lock order: book, then cell.
    book: Mutex<Book>,
    /// Units given back so far, and how often all claims were forgotten or rescaled: what a lease
    /// needs to know to give back without an entry in the ledger.
    refunded: AtomicU64,
    changes: AtomicU64,
}

impl Shared {
    /// ORDERING: Relaxed, here and in `claim_base`. The book's lock orders refunds; a
    /// lease reads them without it before its take, and an old value only makes its claim smaller.
    pub(crate) fn count_refund(&self, units: u64) {
        self.refunded.fetch_add(units, Relaxed);
    }

    /// Returns (units refunded so far, changes so far).
    pub(crate) fn claim_base(&self) -> (u64, u64) {
        (self.refunded.load(Relaxed), self.changes.load(Relaxed))
    }
}

/// The quota, open reservations and the queue: they change rarely.
pub(crate) struct Book {
    quota: Quota,
    pub(crate) ledger: Ledger,
    /// The queue of waiting callers; none before the first wait.
    pub(crate) queue: Option<Box<LimiterQueue>>,
    /// The timer for the next due time of the queue.
    timer: QueueTimer,
}

impl Book {
    /// Makes all open reservations and leases final.
    fn forget_claims(&mut self, shared: &Shared) {
        self.ledger.clear();
        self.queue.iter_mut().for_each(|queue| queue.forget_claims());
        // ORDERING: Relaxed, see `Shared::count_refund`.
        shared.changes.fetch_add(1, Relaxed);
    }
}

/// Read the precise clock first: the last decision could not be made from the early reading.
const EXACT: u8 = 1;
/// Admit everything.
const BYPASS: u8 = 2;
/// There is no limit.
const UNLIMITED: u8 = 4;
/// Decisions are counted.
const INSTRUMENTED: u8 = 8;
/// Somebody waits for a window, and may not be overtaken.
const WAITED: u8 = 16;
/// Somebody waits, with a booking: nobody can overtake.
const QUEUED: u8 = 32;
/// An observer receives whole decisions.
const OBSERVED: u8 = 64;
/// The modes in which more is to do than to decide and to count.
const SPECIAL: u8 = BYPASS | UNLIMITED | WAITED | OBSERVED;

/// Whether a limiter is out of force: an emergency switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Bypass {
    /// Everything passes and nothing is charged.
    On,
    /// The limit holds.
    Off,
}

impl Limiter {
    /// Returns a GCRA limiter (token bucket) on the monotonic clock.
    ///
    /// # Errors
    ///
    /// When the quota makes no sense: the error says why and what to do.
    pub fn new(quota: Quota) -> Result<Self, QuotaError> {
        Self::builder(quota).build()
    }

    /// Starts a limiter with another algorithm, clock or observer.
    pub fn builder(quota: Quota) -> LimiterBuilder {
        LimiterBuilder::new(quota, ())
    }

    /// Returns the time by this limiter's clock.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Tick {
        self.shared.clock.now()
    }

    /// Returns this limiter's clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Returns the name given to the builder; empty by default.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.shared.algorithm
    }

    /// Returns the quota in force.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.book().quota
    }

    /// Changes the quota of a limiter in use, and keeps its past as `how` says.
    ///
    /// No decision ever pairs the old quota with the new state. Coming from an unlimited quota
    /// there is no past, so the limiter starts anew. Open reservations of window algorithms become
    /// final.
    ///
    /// # Errors
    ///
    /// When the new quota makes no sense for this algorithm; the old one then stays in force.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Inherit, Limiter, Quota};
    ///
    /// let limiter = Limiter::new(Quota::once(100))?;
    /// let _ = limiter.try_acquire_n(60);
    /// limiter.set_quota(Quota::once(500), Inherit::AsIs)?;
    /// assert_eq!(limiter.available(), 40);
    /// # Ok::<(), tollgate::QuotaError>(())
    /// ```
    #[doc(alias = "SetLimit")]
    #[doc(alias = "SetBurst")]
    #[doc(alias = "setRate")]
    pub fn set_quota(&self, quota: Quota, how: Inherit) -> Result<(), QuotaError> {
        self.set_quota_at(self.now(), quota, how)
    }

    /// [`set_quota`](Self::set_quota) as of `now`.
    ///
    /// # Errors
    ///
    /// As [`set_quota`](Self::set_quota).
    pub fn set_quota_at(&self, now: Tick, quota: Quota, how: Inherit) -> Result<(), QuotaError> {
        let Shared { cell, clock, mode, .. } = &*self.shared;
        let mut book = self.book();
        if quota.is_unlimited() {
            quota.check()?;
            self.unbook_all(&mut book, now);
            mode.set(UNLIMITED, true);
            book.forget_claims(&self.shared);
        } else {
            let how = if book.quota.is_unlimited() { Inherit::Reset } else { how };
            cell.check_quota(self.algorithm(), &quota, clock)?;
            self.unbook_all(&mut book, now);
            let change = cell.set_quota(&quota, clock, now, how)?;
            match change {
                Some((old, new)) => book.ledger.rescale(&old, &new, now, how),
                None => book.ledger.clear(),
            }
            // ORDERING: Relaxed, see `Shared::count_refund`.
            self.shared.changes.fetch_add(1, Relaxed);
            // The new state is in place already.
            mode.set(UNLIMITED, false);
        }
        book.quota = quota;
        // Waiting callers are booked again.
        self.release(book);
        Ok(())
    }

    /// Takes the limiter out of force, or puts it back: for emergencies.
    ///
    /// While bypassed, everything passes, nothing is charged, and every decision says
    /// [`is_bypassed`](Decision::is_bypassed).
    pub fn bypass(&self, bypass: Bypass) {
        self.shared.mode.set(BYPASS, bypass == Bypass::On);
        // Those who wait pass at once.
        self.release(self.book());
    }

    /// Tells whether the limiter is out of force.
    #[must_use]
    pub fn is_bypassed(&self) -> bool {
        self.mode() & BYPASS != 0
    }

    #[inline]
    fn mode(&self) -> u8 {
        self.shared.mode.get()
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.shared.book)
    }

    /// Returns where the book lies, for callers that lock several at once.
    pub(crate) fn book_address(&self) -> usize {
        std::ptr::from_ref(&self.shared.book) as usize
    }

    pub(crate) fn instruments(&self) -> Option<&Instruments> {
        self.shared.instruments.as_deref()
    }

    /// Tells whether there is more to do than to decide.
    #[inline]
    pub(crate) fn is_special(&self) -> bool {
        self.mode() & (SPECIAL | INSTRUMENTED) != 0
    }

    pub(crate) fn is_unlimited(&self) -> bool {
        self.mode() & UNLIMITED != 0
    }

    /// Answers without the cell if the limiter is bypassed or unlimited.
    pub(crate) fn exempt(&self, now: Tick, cost: u64) -> Option<Decision> {
        let mode = self.mode();
        if mode & UNLIMITED != 0 {
            Some(Decision::unlimited(now, cost))
        } else if mode & BYPASS != 0 {
            Some(self.level_at(now).with_bypass(cost))
        } else {
            None
        }
    }

    /// The level as of `now`, as a decision about nothing.
    pub(crate) fn level_at(&self, now: Tick) -> Decision {
        self.shared.cell.update(|entry| entry.peek(now, 0))
    }

    /// Writes the quota and the level.
    pub(crate) fn collect_level(&self, samples: &mut Samples) {
        let level = StateRef::Limiter(self).level(self.now());
        samples.quota(self.quota());
        samples.level(level.remaining(), level.limit());
    }

    /// Counts what the fast path has decided, if the limiter is counted.
    #[inline(always)]
    fn count(&self, decision: &Decision) {
        if let Some(instruments) = self.instruments() {
            instruments.count_taken(decision.outcome_of_taken(), decision.cost());
        }
    }

    /// Counts and reports a decision, if the limiter does so.
    #[inline]
    pub(crate) fn report(&self, verb: Verb, decision: &Decision) {
        if let Some(instruments) = self.instruments() {
            instruments.decided(verb, decision, || Event::of_limiter(self, verb, decision));
        }
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("name", &self.name())
            .field("algorithm", &self.algorithm())
            .field("quota", &self.quota().to_string())
            .field("available", &self.available())
            .field("bypassed", &self.is_bypassed())
            .finish()
    }
}

impl Collector for Limiter {
    fn collect(&self, samples: &mut Samples) {
        samples.kind("limiter");
        self.collect_level(samples);
        samples.queue(self.waiting() as u64, self.shared.queue_rules.max_waiting as u64);
        if self.is_bypassed() {
            samples.state("bypassed");
        }
        if let Some(instruments) = self.instruments() {
            instruments.collect(samples, self.now());
        }
    }

    fn weak(&self) -> WeakCollector {
        WeakCollector::of(&self.shared, |shared| Self { shared })
    }
}
