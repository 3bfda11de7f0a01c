//! How long reservations wait, in powers of two.

use super::counters::StripedCounters;
use crate::clock::tick::duration_nanos;
use std::time::Duration;

/// Bucket 0 holds waits of zero, bucket k those below 2^(k-1) x 1024 ns: 1 us, 2 us, .. 1.1 h.
const BUCKETS: usize = 34;

/// Waits, counted in buckets that double in width from a microsecond to an hour.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct WaitHistogram {
    counts: Vec<u64>,
}

impl Default for WaitHistogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS] }
    }
}

/// Returns the bucket of a wait.
fn bucket(wait: Duration) -> usize {
    let nanos = duration_nanos(wait);
    let width = (u64::BITS - (nanos >> 10).leading_zeros()) as usize;
    if nanos == 0 { 0 } else { (width + 1).min(BUCKETS - 1) }
}

/// Returns the upper end of a bucket.
const fn upper(bucket: usize) -> Duration {
    match bucket {
        0 => Duration::ZERO,
        bucket => Duration::from_nanos(1024 << (bucket - 1)),
    }
}

impl WaitHistogram {
    /// Returns how many waits were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns an upper bound of the wait that the share `percent` of all waits stayed within: at
    /// most twice the true one. `None` if nothing was counted or `percent` is above 100.
    #[must_use]
    pub fn percentile(&self, percent: u32) -> Option<Duration> {
        let count = self.count();
        if count == 0 || percent > 100 {
            return None;
        }
        // OVERFLOW: counts are far below 2^57.
        let rank = (count * u64::from(percent)).div_ceil(100).max(1);
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        found.map(upper)
    }

    /// Returns the buckets that hold something, as (upper end, count).
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (upper(bucket), *count))
    }
}

#[derive(Debug, Default)]
pub(super) struct StripedHistogram(StripedCounters<BUCKETS>);

impl StripedHistogram {
    pub(super) fn add(&self, wait: Duration) {
        self.0.add(bucket(wait), 1);
    }

    pub(super) fn sum(&self) -> WaitHistogram {
        WaitHistogram { counts: self.0.sum().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_lies_below_the_upper_end_of_its_bucket_and_above_half_of_it() {
        for nanos in [1, 1023, 1024, 1025, 1_000_000, 999_999_999, 3_600_000_000_000] {
            let wait = Duration::from_nanos(nanos);
            let end = upper(bucket(wait));
            assert!(wait <= end, "{wait:?} in the bucket up to {end:?}");
            assert!(nanos < 1024 || wait >= end / 2, "{wait:?} in the bucket up to {end:?}");
        }
        assert_eq!(bucket(Duration::ZERO), 0);
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_upper_bounds() {
        let waits = StripedHistogram::default();
        assert_eq!(waits.sum().percentile(50), None);
        for ms in 1..=100 {
            waits.add(Duration::from_millis(ms));
        }
        let sum = waits.sum();
        assert_eq!(sum.count(), 100);
        let half = sum.percentile(50).unwrap();
        assert!(half >= Duration::from_millis(50) && half <= Duration::from_millis(100));
        assert!(sum.percentile(100).unwrap() >= Duration::from_millis(100));
        assert_eq!(sum.percentile(101), None);
    }
}
