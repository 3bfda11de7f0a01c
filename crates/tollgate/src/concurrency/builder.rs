//! Builders of concurrency limits, and their errors.

use super::{
    Concurrency, KeyedConcurrency,
    counts::Tally,
    queue::LIMIT_MAX,
    table::{Bounds, Table},
    timer::WaitRules,
    word::Single,
};
use crate::{Clock, sync::Arc, wait::queue::Order};
use std::{fmt, marker::PhantomData, time::Duration};

/// Builds a [`Concurrency`] or a [`KeyedConcurrency`]. Nothing is checked before `build`.
///
/// # Examples
///
/// ```
/// use tollgate::{Concurrency, KeyedConcurrency};
///
/// let limit = Concurrency::builder(20).name("database").max_waiting(100).counted().build()?;
/// assert_eq!((limit.name(), limit.max_waiting()), ("database", 100));
///
/// let limit: KeyedConcurrency<str> =
///     KeyedConcurrency::builder(5).max_waiting(10).max_keys(50_000).build()?;
/// assert_eq!(limit.limit(), 5);
/// # Ok::<(), tollgate::ConcurrencyError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct ConcurrencyBuilder<L = Concurrency> {
    limit: u64,
    /// For keys only.
    bounds: Bounds,
    rules: WaitRules,
    name: Box<str>,
    counted: bool,
    builds: PhantomData<fn() -> L>,
}

/// Builds a [`KeyedConcurrency`].
pub type KeyedConcurrencyBuilder<K> = ConcurrencyBuilder<KeyedConcurrency<K>>;

impl<L> ConcurrencyBuilder<L> {
    pub(super) fn new(limit: u64) -> Self {
        let bounds =
            Bounds { max_waiting_total: 100_000, max_keys: 1_000_000, max_overrides: 10_000 };
        let (rules, name) = (WaitRules::new(), Box::default());
        Self { limit, bounds, rules, name, counted: false, builds: PhantomData }
    }

    /// Sets the name, by default none.
    pub fn name(mut self, name: impl Into<Box<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets how many may wait (for keys: for one key), by default 0: a queue hides overload, so it has to be asked for.
    ///
    /// At most [`Concurrency::WAITING_MAX`]. A good start is what one limit's worth of holders
    /// works off in the longest wait that a caller accepts.
    pub fn max_waiting(mut self, max_waiting: u64) -> Self {
        self.rules.max_waiting = max_waiting;
        self
    }

    /// Sets how long a call may wait that does not say so itself, by default 10 seconds. A call that is not served by then
    /// is refused. [`Duration::MAX`] waits for as long as the caller does.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.rules.max_wait = max_wait;
        self
    }

    /// Serves the newest of equal priority first, by default the oldest.
    ///
    /// Under overload the oldest have often given up already, so that the newest are more likely to be still there. The
    /// others wait until their deadline.
    #[doc(alias = "lifo")]
    pub fn newest_first(mut self) -> Self {
        self.rules.order = Order::NewestFirst;
        self
    }

    /// Sets the clock by which waits end, by default the monotonic one.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.rules.clock = clock;
        self
    }

    /// Counts, for [`Concurrency::counts`] and [`KeyedConcurrency::counts`]. Off by default: it costs a few nanoseconds
    /// per call, and 3 KiB of counters; 12 KiB once a call has waited.
    pub fn counted(mut self) -> Self {
        self.counted = true;
        self
    }
}

impl ConcurrencyBuilder {
    /// Builds the limit.
    ///
    /// # Errors
    ///
    /// When the limit is above [`Concurrency::LIMIT_MAX`], or `max_waiting` above
    /// [`Concurrency::WAITING_MAX`].
    pub fn build(self) -> Result<Concurrency, ConcurrencyError> {
        let limit = check_limit(self.limit)?;
        check_most("max_waiting", self.rules.max_waiting)?;
        Ok(self.build_of(limit))
    }

    /// Builds a limit from what was checked.
    pub(crate) fn build_of(self, limit: u32) -> Concurrency {
        let single = Single::new(limit, self.rules, self.name, Tally::new(self.counted));
        Concurrency { single: Arc::new(single) }
    }
}

impl<K: ?Sized> KeyedConcurrencyBuilder<K> {
    /// Sets how many may wait for all keys together, by default 100,000: some tens of
    /// megabytes of queue, without the futures themselves.
    pub fn max_waiting_total(mut self, max_waiting_total: u64) -> Self {
        self.bounds.max_waiting_total = max_waiting_total;
        self
    }

    /// Sets how many keys may be in use at once, by default 1,000,000: up to 76 MB of
    /// table ([docs/concurrency.md], "many keys").
    ///
    /// A key beyond that is refused with [`Full::is_too_many_keys`](super::Full::is_too_many_keys).
    /// Keys in use go on as before.
    ///
    /// [docs/concurrency.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/concurrency.md
    pub fn max_keys(mut self, max_keys: u64) -> Self {
        self.bounds.max_keys = max_keys;
        self
    }

    /// Sets how many keys may have a limit of their own, by default 10,000: those take memory
    /// whether they are in use or not.
    pub fn max_key_limits(mut self, max_key_limits: u64) -> Self {
        self.bounds.max_overrides = max_key_limits;
        self
    }

    /// Builds the limit.
    ///
    /// # Errors
    ///
    /// When the limit is above [`Concurrency::LIMIT_MAX`], one of the other numbers above
    /// [`Concurrency::WAITING_MAX`], or `max_keys` is zero.
    pub fn build(self) -> Result<KeyedConcurrency<K>, ConcurrencyError> {
        let limit = check_limit(self.limit)?;
        let Bounds { max_waiting_total, max_keys, max_overrides } = self.bounds;
        check_most("max_waiting", self.rules.max_waiting)?;
        check_most("max_waiting_total", max_waiting_total)?;
        check_most("max_keys", max_keys)?;
        check_most("max_key_limits", max_overrides)?;
        if max_keys == 0 {
            return Err(ConcurrencyError::NoKeys);
        }
        let tally = Tally::new(self.counted);
        let table = Table::new(limit, (self.bounds, self.rules), self.name, tally);
        Ok(KeyedConcurrency { table: Arc::new(table), keys: PhantomData })
    }
}

/// Why a limit on what is in flight cannot be built or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConcurrencyError {
    /// The limit is above [`Concurrency::LIMIT_MAX`].
    LimitTooLarge {
        /// The limit.
        limit: u64,
    },
    /// A bound on waiters or keys is above [`Concurrency::WAITING_MAX`].
    BoundTooLarge {
        /// Which bound: the name of its setter.
        bound: &'static str,
        /// Its value.
        value: u64,
    },
    /// No key may be in use.
    NoKeys,
    /// As many keys have a limit of their own as may.
    TooManyKeyLimits {
        /// How many may.
        max_key_limits: u64,
    },
}

impl fmt::Display for ConcurrencyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LimitTooLarge { limit } => write!(
                f,
                "limit {limit} is above {LIMIT_MAX} in flight; lower it, or count in larger units"
            ),
            Self::BoundTooLarge { bound, value } => write!(
                f,
                "{bound} {value} is above {}; lower it to what memory can hold",
                Concurrency::WAITING_MAX
            ),
            Self::NoKeys => f.write_str(
                "max_keys 0 would refuse every key; give at least 1, or a limit of 0 to let \
                 nothing pass",
            ),
            Self::TooManyKeyLimits { max_key_limits } => write!(
                f,
                "{max_key_limits} keys have a limit of their own, the maximum of max_key_limits; \
                 clear one, or raise max_key_limits"
            ),
        }
    }
}

impl std::error::Error for ConcurrencyError {}

pub(super) fn check_limit(limit: u64) -> Result<u32, ConcurrencyError> {
    match u32::try_from(limit) {
        Ok(small) if limit <= LIMIT_MAX => Ok(small),
        _ => Err(ConcurrencyError::LimitTooLarge { limit }),
    }
}

fn check_most(bound: &'static str, value: u64) -> Result<(), ConcurrencyError> {
    match value <= Concurrency::WAITING_MAX {
        true => Ok(()),
        false => Err(ConcurrencyError::BoundTooLarge { bound, value }),
    }
}
