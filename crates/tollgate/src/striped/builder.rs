//! The builder of a striped limiter, and its errors.

use super::{Reach, Shared, StripedLimiter, share};
use crate::{
    Algorithm, Clock, Limiter, LimiterBuilder, Quota, QuotaError,
    keyed::fingerprint::Seed,
    sync::{Arc, Mutex, Padded},
};
use std::{fmt, hash::Hash, thread, time::Duration};

/// Builds a [`StripedLimiter`]. Nothing is judged before [`build`](Self::build).
///
/// # Examples
///
/// ```
/// use tollgate::{Quota, Reach, StripedLimiter};
///
/// let limiter = StripedLimiter::builder(Quota::per_second(200_000).burst(4_000))
///     .stripes(16)
///     .reach(Reach::Home)
///     .name("ingest")
///     .build()?;
/// assert_eq!(limiter.stripes(), 16);
/// # Ok::<(), tollgate::StripedError>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
#[derive(Debug)]
pub struct StripedBuilder {
    /// What a striped limiter has in common with a single one.
    common: LimiterBuilder,
    stripes: Option<usize>,
    reach: Reach,
    seed: Seed,
    exempt: Vec<u64>,
}

/// Why a quota cannot be striped. Each text names the value, the rule and a way out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StripedError {
    /// The quota makes no sense, or not for this algorithm.
    Quota(QuotaError),
    /// There is nothing to split.
    Unlimited,
    /// There are no stripes, or more than [`StripedLimiter::STRIPES_MAX`].
    StripesOutOfRange(usize),
    /// Some stripe would have no burst, so it could never admit anything.
    BurstBelowStripes {
        /// The burst, or the limit of the window.
        burst: u64,
        /// The number of stripes.
        stripes: usize,
    },
    /// A stripe would refill slower than any quota may.
    ShareTooSlow {
        /// Permits per period of the whole.
        count: u64,
        /// The number of stripes.
        stripes: usize,
        /// The period that each stripe would need.
        period: Duration,
    },
    /// The bound of this algorithm does not add up over stripes.
    NotSplittable(Algorithm),
    /// More keys are exempt than [`StripedLimiter::EXEMPT_MAX`].
    TooManyExempt(usize),
}

impl fmt::Display for StripedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota(error) => error.fmt(f),
            Self::Unlimited => f.write_str(
                "an unlimited quota has nothing to split into stripes; use a limiter, or give a \
                 rate",
            ),
            Self::StripesOutOfRange(stripes) => write!(
                f,
                "{stripes} stripes is out of range; use 1 to {}, about as many as processors",
                StripedLimiter::STRIPES_MAX
            ),
            Self::BurstBelowStripes { burst, stripes } => write!(
                f,
                "burst {burst} is below {stripes}, the number of stripes, but each stripe needs a \
                 permit; raise the burst, or use fewer stripes"
            ),
            Self::ShareTooSlow { count, stripes, period } => write!(
                f,
                "{count} permits over {stripes} stripes would give each a period of {period:?}, \
                 longer than 366 days; use fewer stripes, or a limiter"
            ),
            Self::NotSplittable(algorithm) => write!(
                f,
                "{algorithm} cannot be split, because the bounds of its stripes do not add up to \
                 the whole; use gcra, fixed-window or sliding-log"
            ),
            Self::TooManyExempt(keys) => write!(
                f,
                "{keys} exempt keys are more than {}; exempt fewer, or use a limiter of their own",
                StripedLimiter::EXEMPT_MAX
            ),
        }
    }
}

impl std::error::Error for StripedError {}

/// A quota's error is one of stripes too.
impl From<QuotaError> for StripedError {
    fn from(error: QuotaError) -> Self {
        Self::Quota(error)
    }
}

impl StripedBuilder {
    pub(super) fn new(quota: Quota) -> Self {
        Self {
            common: Limiter::builder(quota),
            stripes: None,
            reach: Reach::default(),
            seed: Seed::random(),
            exempt: Vec::new(),
        }
    }

    /// Sets the number of stripes, 1 to 64.
    ///
    /// By default the first power of two that is not below the number of processors, at most 64; or
    /// a lower one, if the quota cannot be split over so many: a program that starts on a small
    /// machine starts on a large one.
    pub fn stripes(mut self, stripes: usize) -> Self {
        self.stripes = Some(stripes);
        self
    }

    /// Sets the algorithm, by default [`Algorithm::Gcra`].
    ///
    /// [`FixedWindow`](Algorithm::FixedWindow) and [`SlidingLog`](Algorithm::SlidingLog) can be
    /// split too, the others not.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.common = self.common.algorithm(algorithm);
        self
    }

    /// Sets the clock, by default [`Clock::monotonic`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.common = self.common.clock(clock);
        self
    }

    /// Sets where calls without a key look when their thread's stripe refuses, by default
    /// [`Reach::All`].
    pub fn reach(mut self, reach: Reach) -> Self {
        self.reach = reach;
        self
    }

    /// Sets the name that is shown, by default none.
    pub fn name(mut self, name: impl Into<Box<str>>) -> Self {
        self.common = self.common.name(name);
        self
    }

    /// Counts decisions, for [`StripedLimiter::counts`], [`StripedLimiter::health`] and metrics. Off by
    /// default: it costs a few nanoseconds per decision, and 3 KiB of counters.
    pub fn counted(mut self) -> Self {
        self.common = self.common.counted();
        self
    }

    /// Exempts a key from striping: it is never refused while permits are free on any stripe.
    ///
    /// The key is not stored, only its 64-bit fingerprint. For at most
    /// [`StripedLimiter::EXEMPT_MAX`] keys.
    pub fn exempt<Q: Hash + ?Sized>(mut self, key: &Q) -> Self {
        self.exempt.push(self.seed.fingerprint(key));
        self
    }

    /// [Exempts](Self::exempt) each of these keys.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Quota, StripedLimiter};
    ///
    /// let paying = ["alice", "bob"];
    /// let quota = Quota::per_second(1_000);
    /// let limiter = StripedLimiter::builder(quota).exempt_keys(paying).build()?;
    /// assert!(limiter.is_exempt("bob"));
    /// assert!(!limiter.is_exempt("eve"));
    /// # Ok::<(), tollgate::StripedError>(())
    /// ```
    pub fn exempt_keys<Q: Hash>(mut self, keys: impl IntoIterator<Item = Q>) -> Self {
        let seed = self.seed;
        self.exempt.extend(keys.into_iter().map(|key| seed.fingerprint(&key)));
        self
    }

    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// When the quota makes no sense, or cannot be split like this: [`StripedError`] says why.
    pub fn build(self) -> Result<StripedLimiter, StripedError> {
        let Self { common, stripes, reach, seed, mut exempt } = self;
        let LimiterBuilder { quota, algorithm, clock, name, instruments, .. } = common;
        let shares = match stripes {
            Some(stripes) if (1..=StripedLimiter::STRIPES_MAX).contains(&stripes) => {
                share::split(&quota, stripes, algorithm)?
            }
            Some(stripes) => return Err(StripedError::StripesOutOfRange(stripes)),
            None => split_by_default(&quota, algorithm)?,
        };
        exempt.sort_unstable();
        exempt.dedup();
        if exempt.len() > StripedLimiter::EXEMPT_MAX {
            return Err(StripedError::TooManyExempt(exempt.len()));
        }
        let clock = clock.unwrap_or_default();
        let stripe = |share| {
            let builder = Limiter::builder(share).algorithm(algorithm).clock(clock.clone());
            builder.name(name.clone()).build()
        };
        let stripes = shares.into_iter().map(stripe).collect::<Result<_, _>>()?;
        let (exempt, book) = (exempt.into(), Mutex::new(quota));
        let next_permit = Padded::default();
        let shared = Shared { stripes, reach, name, seed, exempt, book, next_permit, instruments };
        Ok(StripedLimiter { shared: Arc::new(shared) })
    }
}

/// Splits over the default number of stripes, or the most powers of two below it that will do.
fn split_by_default(quota: &Quota, algorithm: Algorithm) -> Result<Vec<Quota>, StripedError> {
    let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut stripes = processors.next_power_of_two().min(StripedLimiter::STRIPES_MAX);
    loop {
        match share::split(quota, stripes, algorithm) {
            Err(_) if stripes > 1 => stripes /= 2,
            done => return done,
        }
    }
}
