//! How long calls wait, in powers of two of a millisecond.

use super::counters::StripedCounters;
use crate::clock::tick::duration_nanos;
use std::{sync::OnceLock, time::Duration};

/// Bucket 0 holds waits of zero, bucket k those up to 2^(k-1) / 1024 ms: 0.98 us, 1.95 us, .. 1.2 h.
/// So the borders between are 1, 2, 4, .. 8192 ms. The last bucket has no upper end.
const BUCKETS: usize = 34;
/// Numbers that a histogram counts: its buckets, and the microseconds of all waits.
const NUMBERS: usize = BUCKETS + 1;
const MILLISECOND: u64 = 1_000_000;
/// The bucket up to 1 ms, and the one up to 16.384 s: what metrics show.
const SHOWN: std::ops::RangeInclusive<usize> = 11..=25;

/// Waits, counted in buckets that double in width from a microsecond to an hour.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct WaitHistogram {
    counts: Vec<u64>,
    sum_us: u64,
}

impl Default for WaitHistogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], sum_us: 0 }
    }
}

/// Returns the bucket of a wait.
fn bucket(wait: Duration) -> usize {
    let nanos = duration_nanos(wait);
    // In 1/1024 ms, rounded up: a wait at a border is in the bucket below it.
    let parts = nanos.saturating_mul(1024).div_ceil(MILLISECOND);
    match parts {
        0 => 0,
        parts => ((u64::BITS - (parts - 1).leading_zeros()) as usize + 1).min(BUCKETS - 1),
    }
}

/// Returns the upper end of a bucket.
const fn upper(bucket: usize) -> Duration {
    match bucket {
        0 => Duration::ZERO,
        // OVERFLOW: 10^6 x 2^32 is below 2^52.
        bucket => Duration::from_nanos((MILLISECOND << (bucket - 1)) >> 10),
    }
}

impl WaitHistogram {
    /// Returns how many waits were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns all waits together, each rounded down to a microsecond.
    #[must_use]
    pub const fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_us)
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

    /// Returns (upper end, how many waits were not longer) for 1, 2, 4, .. 16384 ms: the buckets of
    /// metrics.
    pub fn cumulative(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        SHOWN.map(|bucket| (upper(bucket), self.counts[..=bucket].iter().sum()))
    }

    /// Counts a wait, where a lock is held anyway.
    pub(crate) fn add(&mut self, wait: Duration) {
        self.counts[bucket(wait)] += 1; // OVERFLOW: a count of events.
        self.sum_us = self.sum_us.saturating_add(micros(wait));
    }
}

fn micros(wait: Duration) -> u64 {
    wait.as_micros().try_into().unwrap_or(u64::MAX)
}

/// Takes 9 KiB from the first wait on, and nothing before.
#[derive(Debug, Default)]
pub(crate) struct StripedHistogram(OnceLock<Box<StripedCounters<NUMBERS>>>);

impl StripedHistogram {
    pub(crate) fn add(&self, wait: Duration) {
        let numbers = self.0.get_or_init(Box::default);
        numbers.add(bucket(wait), 1);
        // OVERFLOW: 2^64 us are half a million years; 10 000 that always wait make 58 of it.
        numbers.add(BUCKETS, micros(wait));
    }

    pub(crate) fn sum(&self) -> WaitHistogram {
        let Some(numbers) = self.0.get() else { return WaitHistogram::default() };
        let [counts @ .., sum_us] = numbers.sum();
        WaitHistogram { counts: counts.into(), sum_us }
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
    fn metrics_have_borders_at_doubled_milliseconds_and_a_wait_at_a_border_is_below_it() {
        let waits = StripedHistogram::default();
        for nanos in [0, 1_000_000, 1_000_001, 2_000_000, 8_192_000_000, 20_000_000_000] {
            waits.add(Duration::from_nanos(nanos));
        }
        let sum = waits.sum();
        let shown: Vec<_> = sum.cumulative().collect();
        assert_eq!(shown.len(), 15);
        assert_eq!(shown[0], (Duration::from_millis(1), 2));
        assert_eq!(shown[1], (Duration::from_millis(2), 4));
        assert_eq!(shown[12], (Duration::from_millis(4096), 4));
        assert_eq!(shown[13], (Duration::from_millis(8192), 5));
        assert_eq!(shown[14], (Duration::from_millis(16_384), 5));
        assert_eq!((sum.count(), sum.sum()), (6, Duration::from_micros(28_196_000)));
    }

    #[test]
    fn memory_of_instruments_is_as_the_builders_say() {
        let (kib, before) = (1024, size_of::<crate::observe::Instruments>());
        assert!((3 * kib..=3 * kib + 512).contains(&before), "{before} bytes until the first wait");
        assert_eq!(size_of::<StripedCounters<NUMBERS>>(), 9 * kib, "more from then on");
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
