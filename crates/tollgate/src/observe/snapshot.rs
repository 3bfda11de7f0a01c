//! A picture of a limiter.

use super::Counts;
use crate::{Algorithm, Limiter, Quota, Tick};

/// What a limiter looked like at one moment, to print or to send.
///
/// With the feature `serde` it serialises; times are nanoseconds of the limiter's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// Name of the limiter.
    pub name: String,
    /// Name of its algorithm.
    pub algorithm: &'static str,
    /// Its quota.
    pub quota: Quota,
    /// When the picture was taken.
    pub at_ns: u64,
    /// Whole permits that were free.
    pub available: u64,
    /// The most that can be free.
    pub capacity: u64,
    /// When it is full again; `None` if never.
    pub full_at_ns: Option<u64>,
    /// Whether it was bypassed.
    pub bypassed: bool,
    /// Reservations that can still be given back.
    pub open_reservations: usize,
    /// Decisions so far, if they are counted.
    pub counts: Option<Counts>,
}

impl Snapshot {
    pub(super) fn of(limiter: &Limiter, now: Tick) -> Self {
        let algorithm: Algorithm = limiter.algorithm();
        let quota = limiter.quota();
        let level = limiter.exempt(now, 0).filter(|_| quota.is_unlimited());
        let level = level.unwrap_or_else(|| limiter.level_at(now));
        Self {
            name: limiter.name().to_owned(),
            algorithm: algorithm.name(),
            quota,
            at_ns: now.as_nanos(),
            available: level.remaining(),
            capacity: level.limit(),
            full_at_ns: level.full_at().map(Tick::as_nanos),
            bypassed: limiter.is_bypassed(),
            open_reservations: limiter.book().ledger.len(),
            counts: limiter.instruments().map(|_| limiter.counts()),
        }
    }
}
