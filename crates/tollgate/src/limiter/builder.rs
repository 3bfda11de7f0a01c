//! The builder of a limiter.

use super::{Book, Cell, EXACT, INSTRUMENTED, Limiter, OBSERVED, Shared, UNLIMITED};
use crate::{
    Algorithm, Clock, Quota, QuotaError,
    observe::{Instruments, Observer},
    reservation::ledger::Ledger,
    sync::{Arc, AtomicU64, Flags, Mutex},
    wait::{
        limiter_queue::{MAX_WAITING, QueueRules},
        queue::Order,
        queue_timer::QueueTimer,
    },
};

/// Builds a [`Limiter`]. Nothing is judged before `build`.
///
/// [`KeyedBuilder`](crate::KeyedBuilder) and [`StripedBuilder`](crate::StripedBuilder) are the same with more
/// settings.
///
/// # Examples
///
/// ```
/// use tollgate::{Algorithm, Limiter, Quota};
///
/// let logins = Limiter::builder("5 per 15min".parse()?)
///     .algorithm(Algorithm::SlidingLog)
///     .name("logins")
///     .build()?;
/// assert_eq!(logins.try_acquire().remaining(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
#[derive(Debug)]
pub struct LimiterBuilder<M = ()> {
    pub(crate) quota: Quota,
    pub(crate) algorithm: Algorithm,
    pub(crate) clock: Option<Clock>,
    pub(crate) name: Box<str>,
    pub(crate) instruments: Option<Box<Instruments>>,
    pub(crate) queue_rules: QueueRules,
    /// The settings that only this kind of limiter has.
    pub(crate) more: M,
}

/// Marks the kinds of limiters whose every decision can be observed, and that one can wait for.
pub trait Waiting {}

impl Waiting for () {}

impl<M> LimiterBuilder<M> {
    pub(crate) fn new(quota: Quota, more: M) -> Self {
        Self {
            quota,
            algorithm: Algorithm::default(),
            clock: None,
            name: Box::default(),
            instruments: None,
            queue_rules: QueueRules { order: Order::OldestFirst, max_waiting: MAX_WAITING },
            more,
        }
    }

    /// Sets the algorithm, by default [`Algorithm::Gcra`].
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// Sets the clock, by default [`Clock::monotonic`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the name that observers, logs and snapshots show, by default none.
    pub fn name(mut self, name: impl Into<Box<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Counts decisions, over all keys and stripes, for [`Limiter::counts`], [`Limiter::health`] and metrics. Off by
    /// default: it costs up to 3 ns per decision, and 3 KiB of counters; 12 KiB after the first wait.
    pub fn counted(mut self) -> Self {
        self.instruments.get_or_insert_default();
        self
    }
}

impl<M: Waiting> LimiterBuilder<M> {
    /// Tells `observer` of every decision, and counts them as [`counted`](Self::counted) does.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.instruments = Some(Box::new(Instruments::new(observer)));
        self
    }

    /// Sets how many may wait at once, for all keys together, by default 10 000. Further calls are refused at once. Keys
    /// that share a budget ([`WhenFull::Share`](crate::WhenFull::Share)) wait for that: as many again.
    ///
    /// Each place takes about 100 bytes, and a key that is waited for some 400, only once they are needed.
    pub fn max_waiting(mut self, most: usize) -> Self {
        self.queue_rules.max_waiting = most;
        self
    }

    /// Serves the newest waiter (of a key) first, instead of in the order of arrival.
    ///
    /// Under overload most of those at the end of a fair queue have given up before it is their
    /// turn; this way some are served at once, and the oldest starve until their deadlines.
    pub fn newest_first(mut self) -> Self {
        self.queue_rules.order = Order::NewestFirst;
        self
    }
}

impl LimiterBuilder {
    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// When the quota makes no sense, or not for this algorithm.
    pub fn build(self) -> Result<Limiter, QuotaError> {
        let Self { quota, algorithm, clock, name, instruments, queue_rules, more: () } = self;
        quota.check()?;
        let clock = clock.unwrap_or_default();
        let cell = Cell::new(algorithm, &quota, &clock, clock.now())?;
        let mut mode = EXACT;
        if quota.is_unlimited() {
            mode |= UNLIMITED;
        }
        if let Some(instruments) = &instruments {
            mode |= if instruments.is_observed() { INSTRUMENTED | OBSERVED } else { INSTRUMENTED };
        }
        let book = Mutex::new(Book {
            quota,
            ledger: Ledger::default(),
            queue: None,
            timer: QueueTimer::default(),
        });
        let shared = Shared {
            cell,
            early: clock.early(),
            clock,
            mode: Flags::new(mode),
            algorithm,
            name,
            instruments,
            queue_rules,
            book,
            refunded: AtomicU64::new(0),
            changes: AtomicU64::new(0),
        };
        Ok(Limiter { shared: Arc::new(shared) })
    }
}
