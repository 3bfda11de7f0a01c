//! The builder of a striped limiter, and its errors.

use super::{Reach, Shared, StripedLimiter, share};
use crate::{
    Algorithm, ConfigError, Limiter, LimiterBuilder, Quota,
    keyed::fingerprint::Seed,
    sync::{Arc, Mutex, Padded},
};
use std::{hash::Hash, thread};

/// Builds a [`StripedLimiter`]. Nothing is judged before `build`.
///
/// [`FixedWindow`](crate::Algorithm::FixedWindow) and [`SlidingLog`](crate::Algorithm::SlidingLog) can be split as
/// [`Gcra`](crate::Algorithm::Gcra) can, the other algorithms not.
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
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
pub type StripedBuilder = LimiterBuilder<StripedOptions>;

/// What only a striped limiter can be given.
#[derive(Debug)]
pub struct StripedOptions {
    stripes: Option<usize>,
    reach: Reach,
    seed: Seed,
    exempt: Vec<u64>,
}

impl Default for StripedOptions {
    fn default() -> Self {
        Self { stripes: None, reach: Reach::default(), seed: Seed::random(), exempt: Vec::new() }
    }
}

impl StripedBuilder {
    /// Sets the number of stripes, 1 to 64.
    ///
    /// By default the first power of two that is not below the number of processors, at most 64; or
    /// a lower one, if the quota cannot be split over so many: a program that starts on a small
    /// machine starts on a large one.
    pub fn stripes(mut self, stripes: usize) -> Self {
        self.more.stripes = Some(stripes);
        self
    }

    /// Sets where calls without a key look when their thread's stripe refuses, by default
    /// [`Reach::All`].
    pub fn reach(mut self, reach: Reach) -> Self {
        self.more.reach = reach;
        self
    }

    /// Exempts a key from striping: it is never refused while permits are free on any stripe.
    ///
    /// The key is not stored, only its 64-bit fingerprint. For at most
    /// [`StripedLimiter::EXEMPT_MAX`] keys.
    pub fn exempt<Q: Hash + ?Sized>(mut self, key: &Q) -> Self {
        self.more.exempt.push(self.more.seed.fingerprint(key));
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
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn exempt_keys<Q: Hash>(mut self, keys: impl IntoIterator<Item = Q>) -> Self {
        let seed = self.more.seed;
        self.more.exempt.extend(keys.into_iter().map(|key| seed.fingerprint(&key)));
        self
    }

    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// When the quota makes no sense, or cannot be split like this: [`ConfigError`] says why.
    pub fn build(self) -> Result<StripedLimiter, ConfigError> {
        let Self { quota, algorithm, clock, name, instruments, more, .. } = self;
        let StripedOptions { stripes, reach, seed, mut exempt } = more;
        let shares = match stripes {
            Some(stripes) if (1..=StripedLimiter::STRIPES_MAX).contains(&stripes) => {
                share::split(&quota, stripes, algorithm)?
            }
            Some(stripes) => {
                return Err(ConfigError::new(format!(
                    "{stripes} stripes is out of range; use 1 to {}, about as many as processors",
                    StripedLimiter::STRIPES_MAX
                )));
            }
            None => split_by_default(&quota, algorithm)?,
        };
        exempt.sort_unstable();
        exempt.dedup();
        if exempt.len() > StripedLimiter::EXEMPT_MAX {
            return Err(ConfigError::new(format!(
                "{} exempt keys are more than {}; exempt fewer, or use a limiter of their own",
                exempt.len(),
                StripedLimiter::EXEMPT_MAX
            )));
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
fn split_by_default(quota: &Quota, algorithm: Algorithm) -> Result<Vec<Quota>, ConfigError> {
    let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut stripes = processors.next_power_of_two().min(StripedLimiter::STRIPES_MAX);
    loop {
        match share::split(quota, stripes, algorithm) {
            Err(_) if stripes > 1 => stripes /= 2,
            done => return done,
        }
    }
}
