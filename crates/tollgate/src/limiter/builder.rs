//! How a limiter is put together.

use super::{Book, Cell, EXACT, Limiter, Shared, UNLIMITED, WATCHED};
use crate::{
    Algorithm, Clock, Quota, QuotaError,
    reservation::ledger::Ledger,
    sync::{Arc, AtomicU8, AtomicU64, Mutex},
    wait::{
        alarm::Alarm,
        line::{LineRules, MAX_WAITING},
        queue::Order,
    },
    watch::{Observer, Watch},
};

/// Builds a [`Limiter`]. Nothing is judged before [`build`](Self::build).
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
pub struct LimiterBuilder {
    pub(crate) quota: Quota,
    pub(crate) algorithm: Algorithm,
    pub(crate) clock: Option<Clock>,
    pub(crate) name: Box<str>,
    pub(crate) watch: Option<Box<Watch>>,
    pub(crate) line_rules: LineRules,
}

impl LimiterBuilder {
    pub(super) fn new(quota: Quota) -> Self {
        Self {
            quota,
            algorithm: Algorithm::default(),
            clock: None,
            name: Box::default(),
            watch: None,
            line_rules: LineRules { order: Order::OldestFirst, max_waiting: MAX_WAITING },
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

    /// Counts decisions, for [`Limiter::counts`] and [`Limiter::health`]. Off by default: it costs
    /// a few nanoseconds per decision.
    pub fn counted(mut self) -> Self {
        self.watch.get_or_insert_default();
        self
    }

    /// Tells `observer` of every decision, and counts them.
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.watch = Some(Box::new(Watch::new(observer)));
        self
    }

    /// Sets how many may wait at once, by default 10 000. Whoever comes then is refused at once.
    ///
    /// Each place takes about 100 bytes, and only once it is needed.
    pub fn max_waiting(mut self, most: usize) -> Self {
        self.line_rules.max_waiting = most;
        self
    }

    /// Serves whoever came last first, instead of in the order of arrival.
    ///
    /// Under overload most of those at the end of a fair queue have given up before it is their
    /// turn; this way some are served at once, and the oldest starve until their deadlines.
    pub fn newest_first(mut self) -> Self {
        self.line_rules.order = Order::NewestFirst;
        self
    }

    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// When the quota makes no sense, or not for this algorithm.
    pub fn build(self) -> Result<Limiter, QuotaError> {
        let Self { quota, algorithm, clock, name, watch, line_rules } = self;
        quota.check()?;
        let clock = clock.unwrap_or_default();
        let cell = Cell::new(algorithm, &quota, &clock, clock.now())?;
        let mut mode = EXACT;
        if quota.is_unlimited() {
            mode |= UNLIMITED;
        }
        if watch.is_some() {
            mode |= WATCHED;
        }
        let book = Mutex::new(Book {
            quota,
            ledger: Ledger::default(),
            line: None,
            alarm: Alarm::default(),
        });
        let shared = Shared {
            cell,
            early: clock.early(),
            clock,
            mode: AtomicU8::new(mode),
            algorithm,
            name,
            watch,
            line_rules,
            book,
            refunded: AtomicU64::new(0),
            changes: AtomicU64::new(0),
        };
        Ok(Limiter { shared: Arc::new(shared) })
    }
}
