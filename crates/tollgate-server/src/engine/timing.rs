//! How long decisions take: a sample of them, in a histogram.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Times one of this many batches: reading the clock costs more than most decisions.
const SAMPLE: u64 = 64;

/// Upper bounds of the buckets, in nanoseconds: 1, 2 and 5 in each decade from 100 ns to 10 s.
pub const BOUNDS_NS: [u64; 25] = bounds();

const fn bounds() -> [u64; 25] {
    let (mut all, mut decade, mut index) = ([0; 25], 100, 0);
    while index < 25 {
        all[index] = decade * [1, 2, 5][index % 3];
        if index % 3 == 2 {
            decade *= 10;
        }
        index += 1;
    }
    all
}

/// A histogram of sampled times.
#[derive(Debug, Default)]
pub struct Timing {
    turn: AtomicU64,
    buckets: [AtomicU64; BOUNDS_NS.len() + 1],
    sum_ns: AtomicU64,
}

impl Timing {
    /// Tells whether this batch should be timed. Ask once per batch.
    pub fn is_due(&self) -> bool {
        // ORDERING: Relaxed, here and below. The counts are statistics.
        self.turn.fetch_add(1, Relaxed).is_multiple_of(SAMPLE)
    }

    /// Notes how long one decision took.
    pub fn note(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_NS.partition_point(|bound| *bound < ns);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(ns, Relaxed);
    }

    /// Returns the count of each bucket (the last is what is above all bounds), and the sum.
    pub fn read(&self) -> ([u64; BOUNDS_NS.len() + 1], Duration) {
        let counts = std::array::from_fn(|index| self.buckets[index].load(Relaxed));
        (counts, Duration::from_nanos(self.sum_ns.load(Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_holds_it() {
        let timing = Timing::default();
        for (ns, bucket) in [(1, 0), (100, 0), (101, 1), (5_000, 5), (10_000_000_001, 25)] {
            timing.note(Duration::from_nanos(ns));
            assert!(timing.read().0[bucket] > 0, "{ns} ns");
        }
        assert_eq!(timing.read().0.iter().sum::<u64>(), 5);
        assert_eq!(BOUNDS_NS[24], 10_000_000_000);
    }
}
