//! A window in front of a per-sample law.
//!
//! Idea: collect samples for a second and hand the law one sample made of them: the mean or a
//! percentile of the round trips, the most calls in flight, and whether any call ended with
//! overload. As Netflix publishes it (concurrency-limits, `WindowedLimit`).
//!
//! A window with fewer than the minimum of samples is thrown away, so that a few health checks do
//! not become the baseline. Round trips below 100 µs are ignored: those calls did no work. An
//! overload counts as such, but its round trip does not.
//!
//! Departures from the source: (1) calls that began before the law last changed the limit do not
//! count; (2) the window's length has ±10 % jitter, so that instances do not decide in step; (3) it
//! does not stretch to twice the least round trip, since (1) does that.
//!
//! The mean is exact; a percentile is off by at most 1.6 % (a histogram of 7.5 KiB, whatever the
//! load). Cost: an addition per sample.

use super::{
    super::{
        Law, LimitReason, Sample,
        window::{Histogram, SampleWindow},
    },
    LawError,
};
use crate::CallOutcome;
use std::time::Duration;

/// Round trips below this did no work: answers from a cache, or refusals.
const RTT_MIN: Duration = Duration::from_micros(100);

/// Hands a per-sample law one sample for each window.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::adaptive::{Law, law::{Aimd, Measure, Windowed}};
///
/// let aimd = Aimd::builder().timeout(Duration::from_millis(100)).build()?;
/// let law = Windowed::builder(aimd).measure(Measure::Percentile(90.0)).build()?;
/// assert_eq!(law.limit(), 20);
/// # Ok::<(), tollgate::adaptive::law::LawError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Windowed<L> {
    law: L,
    window: SampleWindow,
    min_samples: u64,
    measure: Measure,
    round_trips: Histogram,
    sum_ns: u128,
}

/// Which round trip stands for a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// The mean.
    Mean,
    /// The round trip that so many percent do not exceed: 50 is the median.
    Percentile(f64),
}

impl<L: Law> Windowed<L> {
    /// Starts a window around `law`, with Netflix's defaults.
    pub fn builder(law: L) -> WindowedBuilder<L> {
        WindowedBuilder {
            law,
            length: Duration::from_secs(1),
            min_samples: 10,
            measure: Measure::Mean,
            seed: 0,
        }
    }

    fn rtt_ns(&self) -> Option<u64> {
        match self.measure {
            // OVERFLOW: a mean of numbers below 2^64.
            Measure::Mean => {
                self.sum_ns.checked_div(self.round_trips.total().into()).map(|mean| mean as u64)
            }
            Measure::Percentile(percent) => {
                self.round_trips.percentile(percent).map(|ns| ns as u64)
            }
        }
    }

    fn close(&mut self, sample: &Sample) {
        let limit = self.law.limit();
        if let Some(rtt_ns) = self.rtt_ns().filter(|_| self.round_trips.total() >= self.min_samples)
        {
            self.law.observe(&Sample {
                began: sample.ended.saturating_sub(Duration::from_nanos(rtt_ns)),
                ended: sample.ended,
                in_flight: self.window.max_in_flight,
                outcome: match self.window.overloads {
                    0 => CallOutcome::Success,
                    _ => CallOutcome::Overload,
                },
            });
        }
        match self.law.limit() == limit {
            true => self.window.restart(),
            false => self.window.restart_from(sample.ended),
        }
        self.round_trips.clear();
        self.sum_ns = 0;
    }
}

impl<L: Law> Law for Windowed<L> {
    fn observe(&mut self, sample: &Sample) -> u64 {
        if sample.rtt() >= RTT_MIN && self.window.add(sample) {
            if sample.outcome == CallOutcome::Success {
                let rtt = sample.rtt().as_nanos();
                // OVERFLOW: a round trip is a difference of ticks, below 2^64; 2^64 of them fit.
                self.sum_ns += rtt;
                self.round_trips.add(rtt as u64);
            }
            if self.window.is_over(sample.ended) {
                self.close(sample);
            }
        }
        self.law.limit()
    }

    fn limit(&self) -> u64 {
        self.law.limit()
    }

    fn reason(&self) -> LimitReason {
        self.law.reason()
    }

    fn name(&self) -> &'static str {
        self.law.name()
    }
}

/// Builds a [`Windowed`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct WindowedBuilder<L> {
    law: L,
    length: Duration,
    min_samples: u64,
    measure: Measure,
    seed: u64,
}

impl<L: Law> WindowedBuilder<L> {
    /// Sets the length of the window, by default 1 s.
    pub fn window(mut self, length: Duration) -> Self {
        self.length = length;
        self
    }

    /// Sets how many round trips a window needs, by default 10.
    pub fn min_samples(mut self, min_samples: u64) -> Self {
        self.min_samples = min_samples;
        self
    }

    /// Sets which round trip stands for the window, by default the mean.
    pub fn measure(mut self, measure: Measure) -> Self {
        self.measure = measure;
        self
    }

    /// Sets the seed of the jitter, by default 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Builds the law.
    ///
    /// # Errors
    ///
    /// When a setting is outside its range.
    pub fn build(self) -> Result<Windowed<L>, LawError> {
        if let Measure::Percentile(percent) = self.measure {
            let rule = "is not between 0 and 100; 50 is the median";
            LawError::check("percentile", percent, 0.0..=100.0, rule)?;
        }
        Ok(Windowed {
            law: self.law,
            window: SampleWindow::new(LawError::check_duration("window", self.length)?, self.seed),
            min_samples: LawError::check_count("min_samples", self.min_samples)?,
            measure: self.measure,
            round_trips: Histogram::new(),
            sum_ns: 0,
        })
    }
}
