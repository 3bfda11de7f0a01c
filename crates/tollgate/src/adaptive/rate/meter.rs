//! Counts the calls of a period.

use super::{super::window::Histogram, Measures, Period};
use crate::{CallOutcome, Tick, wait::Random};
use std::time::Duration;

/// The calls of one period: their outcomes and latencies.
///
/// A period lasts its length give or take a tenth, so that instances do not decide in step, and
/// until it has the calls that the law wants.
#[derive(Debug)]
pub(super) struct Meter {
    length: Duration,
    jitter: Random,
    began: Tick,
    ends: Tick,
    pub(super) measures: Measures,
    /// The counts so far; `close` fills in the rest.
    counted: Period,
    latencies: Histogram,
    longest: Duration,
}

impl Meter {
    pub(super) fn new(length: Duration, seed: u64, now: Tick) -> Self {
        let mut meter = Self {
            length,
            jitter: Random::new(seed),
            began: now,
            ends: now,
            measures: Measures::default(),
            counted: Period::default(),
            latencies: Histogram::new(),
            longest: Duration::ZERO,
        };
        meter.restart(now);
        meter
    }

    fn restart(&mut self, now: Tick) {
        self.began = now;
        self.ends = now.saturating_add(self.jitter.around(self.length));
        self.counted = Period::default();
        self.latencies.clear();
        self.longest = Duration::ZERO;
    }

    /// Adds a call; one that is ignored does not count.
    pub(super) fn add(&mut self, outcome: CallOutcome, latency: Option<Duration>) {
        let counted = &mut self.counted;
        match outcome {
            CallOutcome::Ignore => return,
            CallOutcome::Failure | CallOutcome::Overload => {
                counted.failures = counted.failures.saturating_add(1);
                return;
            }
            CallOutcome::Success => {}
        }
        let is_slow = latency.zip(self.measures.slow_above).is_some_and(|(it, above)| it > above);
        let count = if is_slow { &mut counted.slow } else { &mut counted.successes };
        *count = count.saturating_add(1);
        if let Some(latency) = latency {
            counted.least_latency =
                Some(counted.least_latency.map_or(latency, |it| it.min(latency)));
            self.longest = self.longest.max(latency);
            self.latencies.add(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// Tells whether the period is over; with `min_calls` calls at least.
    pub(super) fn is_over(&self, now: Tick, min_calls: u64) -> bool {
        now >= self.ends && self.counted.calls() >= min_calls
    }

    /// Ends the period, begins the next one, and returns what this one showed.
    pub(super) fn close(&mut self, now: Tick) -> Period {
        let percentile = self.latencies.percentile(self.measures.percentile);
        let mut period = self.counted;
        period.length = now.since(self.began);
        period.error_rate = period.success_rate().map(|share| 1.0 - share);
        // The histogram rounds; no call took longer than the longest.
        period.latency = percentile.map(|ns| Duration::from_nanos(ns as u64).min(self.longest));
        self.restart(now);
        period
    }
}
