//! The window that laws share which decide once per window, and its histogram, which hedging uses too.

use super::Sample;
use crate::{CallOutcome, Tick, wait::Random};
use std::{fmt, time::Duration};

/// A window of samples: from the first one on, for its length give or take a tenth.
///
/// Samples that began before the limit last changed show the old limit, so they do not count. The
/// order of samples inside a window does not matter.
#[derive(Clone, Debug)]
pub(super) struct SampleWindow {
    pub(super) length: Duration,
    pub(super) jitter: Random,
    /// Samples that began earlier do not count.
    from: Tick,
    /// When it opened and when it is over; `None` until its first sample.
    span: Option<(Tick, Tick)>,
    pub(super) samples: u64,
    pub(super) overloads: u64,
    pub(super) max_in_flight: u64,
}

impl SampleWindow {
    pub(super) fn new(length: Duration, seed: u64) -> Self {
        Self {
            length,
            jitter: Random::new(seed),
            from: Tick::ZERO,
            span: None,
            samples: 0,
            overloads: 0,
            max_in_flight: 0,
        }
    }

    /// Adds a sample; tells whether it counts.
    pub(super) fn add(&mut self, sample: &Sample) -> bool {
        if !sample.is_used() || sample.began < self.from {
            return false;
        }
        if self.span.is_none() {
            let length = self.jitter.around(self.length);
            self.span = Some((sample.ended, sample.ended.saturating_add(length)));
        }
        self.samples += 1;
        self.overloads += u64::from(sample.outcome == CallOutcome::Overload);
        self.max_in_flight = self.max_in_flight.max(sample.in_flight);
        true
    }

    pub(super) fn is_over(&self, now: Tick) -> bool {
        self.span.is_some_and(|(_, end)| now >= end)
    }

    /// Returns how long the window has been open.
    pub(super) fn age(&self, now: Tick) -> Duration {
        self.span.map_or(Duration::ZERO, |(opened, _)| now.since(opened))
    }

    /// Starts over, with samples that began since `from`.
    pub(super) fn restart_from(&mut self, from: Tick) {
        self.from = self.from.max(from);
        self.restart();
    }

    /// Starts over. Samples that have begun already still count.
    pub(super) fn restart(&mut self) {
        self.span = None;
        (self.samples, self.overloads, self.max_in_flight) = (0, 0, 0);
    }
}

/// Linear steps in each power of two.
const STEPS: usize = 32;
/// The first 32 nanoseconds one by one, then 32 steps for each of the 59 powers of two above.
const BUCKETS: usize = STEPS * 60;

/// A histogram of durations: each power of two in 32 equal steps.
///
/// A percentile is the middle of its step: off by at most 1/64, 1.6 %. 7.5 KiB, whatever is added.
#[derive(Clone)]
pub(crate) struct Histogram {
    counts: Box<[u32]>,
    total: u64,
}

impl Histogram {
    pub(crate) fn new() -> Self {
        Self { counts: vec![0; BUCKETS].into(), total: 0 }
    }

    pub(crate) fn add(&mut self, nanos: u64) {
        let count = &mut self.counts[bucket(nanos)];
        *count = count.saturating_add(1);
        self.total += 1;
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the least duration, in nanoseconds, that `percent` of those added do not exceed.
    /// At least 1; `None` if none was added.
    pub(crate) fn percentile(&self, percent: f64) -> Option<f64> {
        let rank = (self.total as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += u64::from(*count);
            seen >= rank
        })?;
        Some(middle(found).max(1.0))
    }

    pub(crate) fn clear(&mut self) {
        self.counts.fill(0);
        self.total = 0;
    }
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Histogram").field("total", &self.total).finish_non_exhaustive()
    }
}

fn bucket(nanos: u64) -> usize {
    if nanos < STEPS as u64 {
        return nanos as usize;
    }
    // OVERFLOW: 32 and above has at most 58 leading zeros; the shifted value is between 32 and 63.
    let shift = (58 - nanos.leading_zeros()) as usize;
    STEPS * shift + (nanos >> shift) as usize
}

fn middle(bucket: usize) -> f64 {
    if bucket < STEPS {
        return bucket as f64;
    }
    let shift = bucket / STEPS - 1;
    let width = (1_u64 << shift) as f64;
    ((STEPS + bucket % STEPS) as f64 + 0.5) * width
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_off_by_at_most_a_64th() {
        for exponent in 0..64 {
            for nanos in
                [1_u64 << exponent, (1 << exponent) | ((1 << exponent) / 3), u64::MAX >> exponent]
            {
                let mut histogram = Histogram::new();
                histogram.add(nanos);
                let found = histogram.percentile(50.0).unwrap();
                let error = (found - nanos as f64).abs() / nanos as f64;
                assert!(error <= 1.0 / 64.0, "{nanos}: {found}");
            }
        }
    }

    #[test]
    fn buckets_follow_each_other() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        for exponent in 0..64 {
            let power = 1_u64 << exponent;
            assert_eq!(bucket(power - 1) + 1, bucket(power), "{power}");
        }
    }

    #[test]
    fn percentiles_are_by_rank() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.percentile(50.0), None);
        for nanos in 1..=20 {
            histogram.add(nanos);
        }
        assert_eq!(
            [0.0, 50.0, 51.0, 100.0].map(|p| histogram.percentile(p).unwrap()),
            [1.0, 10.0, 11.0, 20.0]
        );
        histogram.clear();
        histogram.add(0);
        assert_eq!(histogram.percentile(50.0), Some(1.0));
    }
}
