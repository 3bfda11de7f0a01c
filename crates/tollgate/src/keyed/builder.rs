//! How a keyed limiter is put together.

use super::{KeyedLimiter, Seed, Shared, Table, growing::Growing};
use crate::{
    Algorithm, Clock, Initial, Quota, QuotaError,
    algorithm::{FixedWindow, Gcra, SlidingCounter},
    sync::{Arc, Mutex},
};
use std::{fmt, marker::PhantomData, time::Duration};

/// Builds a [`KeyedLimiter`]. Nothing is judged before [`build`](Self::build).
#[must_use = "a builder does nothing until `build`"]
pub struct KeyedBuilder<K: ?Sized> {
    quota: Quota,
    algorithm: Algorithm,
    clock: Option<Clock>,
    keys: PhantomData<fn(&K)>,
}

/// Why a keyed limiter cannot be built, or its quota not be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyedError {
    /// The quota makes no sense, or not for this algorithm.
    Quota(QuotaError),
    /// A fresh key would not be full, so a key that was forgotten would be told from one at rest.
    InitialNotFull(Initial),
    /// The algorithm keeps more than a word for each key.
    NotOneWord(Algorithm),
}

impl fmt::Display for KeyedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota(error) => error.fmt(f),
            Self::InitialNotFull(initial) => write!(
                f,
                "a fresh key with an initial fill of {initial:?} differs from one at rest, whose \
                 slot is given away; start keys full"
            ),
            Self::NotOneWord(algorithm) => write!(
                f,
                "a {algorithm} of this limit keeps more than one word for each key; use a smaller \
                 limit, a sliding-counter or gcra"
            ),
        }
    }
}

impl std::error::Error for KeyedError {}

/// Checks the rules that hold for every key.
pub(super) fn check(quota: &Quota) -> Result<(), KeyedError> {
    quota.check_countable()?;
    match quota.initial_fill() {
        Initial::Full => Ok(()),
        other => Err(KeyedError::InitialNotFull(other)),
    }
}

/// Returns a sliding counter whose state fits in a word.
pub(super) fn packed_counter(quota: &Quota, epoch: Duration) -> Result<SlidingCounter, KeyedError> {
    let counter = SlidingCounter::new(quota, epoch)?;
    if counter.packs() {
        Ok(counter)
    } else {
        Err(KeyedError::NotOneWord(Algorithm::SlidingCounter))
    }
}

impl<K: ?Sized> KeyedBuilder<K> {
    pub(super) fn new(quota: Quota) -> Self {
        Self { quota, algorithm: Algorithm::default(), clock: None, keys: PhantomData }
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

    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// When the quota makes no sense for keys, or the algorithm keeps more than a word for each.
    pub fn build(self) -> Result<KeyedLimiter<K>, KeyedError> {
        let Self { quota, algorithm, clock, .. } = self;
        check(&quota)?;
        let clock = clock.unwrap_or_default();
        let epoch = clock.wall_offset();
        let table = match algorithm {
            Algorithm::Gcra => Table::Gcra(Growing::new(Gcra::new(&quota)?)),
            Algorithm::FixedWindow => {
                Table::FixedWindow(Growing::new(FixedWindow::aligned(&quota, epoch)?))
            }
            Algorithm::AnchoredWindow => {
                Table::AnchoredWindow(Growing::new(FixedWindow::anchored(&quota)?))
            }
            Algorithm::SlidingCounter => {
                Table::SlidingCounter(Growing::new(packed_counter(&quota, epoch)?))
            }
            Algorithm::SlidingLog => return Err(KeyedError::NotOneWord(algorithm)),
        };
        let shared = Shared { table, clock, seed: Seed::random(), quota: Mutex::new(quota) };
        Ok(KeyedLimiter { shared: Arc::new(shared), keys: PhantomData })
    }
}

impl<K: ?Sized> fmt::Debug for KeyedBuilder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedBuilder")
            .field("quota", &self.quota.to_string())
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}
