//! Vegas: the limit follows an estimate of the queue.
//!
//! Idea: the fastest call seen is one without a queue. If calls now take longer, the difference is
//! the queue; grow while it is short, shrink while it is long. As Netflix publishes it
//! (concurrency-limits, `VegasLimit`), after TCP Vegas.
//!
//! ```text
//! g = max(1, floor(log10 L)), alpha = 3g, beta = 6g
//! q = ceil(L x (1 - baseline / rtt))
//! overload: L - g     2 x in flight < L: hold
//! q <= g: L + beta    q < alpha: L + g    q > beta: L - g    else hold
//! new limit = (1 - smoothing) x L + smoothing x that
//! ```
//!
//! The baseline is the least round trip, and about every 30 x L samples the current one, so that a
//! service that got slower for good is believed. State: limit, baseline, a counter. Cost: some
//! float operations per sample, no allocation.
//!
//! Departures from the source: (1) an overload is judged before its round trip is, so that a
//! refusal that comes back at once does not become the baseline; (2) the jitter of the probe
//! comes from a seed; (3) the minimum can be set.
//!
//! How it fails: with widely spread latencies the least one is far below the usual one, every call
//! looks queued, and the limit ends near 6. The baseline may also be taken during an overload.

use super::{
    super::{Law, LimitReason, Sample},
    BoundedLimit, LawError, Range, range_setters,
};
use crate::{CallOutcome, wait::Random};

/// Samples between two new baselines, per unit of the limit, before jitter.
const PROBE_MULTIPLIER: f64 = 30.0;

/// Vegas: estimates the queue from the least round trip, one step for each sample.
///
/// # Examples
///
/// ```
/// use tollgate::{CallOutcome, Tick, adaptive::{Law, Sample, law::Vegas}};
///
/// let mut law = Vegas::builder().build()?;
/// let call = |ms| Sample {
///     began: Tick::ZERO,
///     ended: Tick::from_millis(ms),
///     in_flight: 20,
///     outcome: CallOutcome::Success,
/// };
/// assert_eq!(law.observe(&call(20)), 20); // the baseline
/// assert_eq!(law.observe(&call(20)), 26); // no queue
/// assert_eq!(law.observe(&call(40)), 25); // half of the 26 are queued
/// # Ok::<(), tollgate::adaptive::law::LawError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Vegas {
    limit: BoundedLimit,
    smoothing: f64,
    /// The round trip without a queue, in nanoseconds.
    baseline_ns: Option<f64>,
    samples_since_probe: u64,
    jitter: Random,
    /// Between 0.5 and 1.
    probe_jitter: f64,
}

impl Vegas {
    /// Starts a law with Netflix's defaults.
    pub fn builder() -> VegasBuilder {
        VegasBuilder { range: Range { initial: 20, min: 1, max: 1000 }, smoothing: 1.0, seed: 0 }
    }

    /// Takes a round trip as the baseline if it is the least one, or a probe is due.
    fn measure(&mut self, rtt_ns: f64) -> bool {
        self.samples_since_probe += 1;
        let due = self.probe_jitter * PROBE_MULTIPLIER * self.limit.value;
        let is_probe = due <= self.samples_since_probe as f64;
        if is_probe {
            self.probe_jitter = 0.5 + 0.5 * self.jitter.fraction();
            self.samples_since_probe = 0;
        }
        let is_baseline = is_probe || self.baseline_ns.is_none_or(|baseline| rtt_ns < baseline);
        if is_baseline {
            self.baseline_ns = Some(rtt_ns);
            self.limit.reason = LimitReason::Holding;
        }
        is_baseline
    }

    fn step(&mut self, rtt_ns: f64) {
        let limit = self.limit.value;
        let baseline = self.baseline_ns.unwrap_or(rtt_ns);
        let queue = (limit * (1.0 - baseline / rtt_ns)).ceil();
        let g = self.unit();
        if queue <= g {
            self.smooth_to(limit + 6.0 * g, LimitReason::Growing);
        } else if queue < 3.0 * g {
            self.smooth_to(limit + g, LimitReason::Growing);
        } else if queue > 6.0 * g {
            self.smooth_to(limit - g, LimitReason::Queueing);
        } else {
            self.limit.reason = LimitReason::Holding;
        }
    }

    /// The unit of all steps and thresholds: how many digits the limit has, less one; at least 1.
    fn unit(&self) -> f64 {
        self.limit.value.log10().floor().max(1.0)
    }

    fn smooth_to(&mut self, wanted: f64, reason: LimitReason) {
        let target = wanted.clamp(self.limit.min, self.limit.max);
        let smoothed = (1.0 - self.smoothing) * self.limit.value + self.smoothing * target;
        // At a bound there is nothing to smooth, and the limit says that it stands there.
        let is_at_bound = target == self.limit.value;
        self.limit.move_to(if is_at_bound { wanted } else { smoothed }, reason);
    }
}

impl Law for Vegas {
    fn observe(&mut self, sample: &Sample) -> u64 {
        let rtt_ns = sample.rtt_ns();
        match sample.outcome {
            CallOutcome::Failure | CallOutcome::Ignore => {}
            CallOutcome::Overload => {
                self.smooth_to(self.limit.value - self.unit(), LimitReason::Overload);
            }
            CallOutcome::Success if self.measure(rtt_ns) => {}
            CallOutcome::Success if self.limit.is_application_limited(sample.in_flight) => {
                self.limit.reason = LimitReason::ApplicationLimited;
            }
            CallOutcome::Success => self.step(rtt_ns),
        }
        self.limit.whole()
    }

    fn limit(&self) -> u64 {
        self.limit.whole()
    }

    fn reason(&self) -> LimitReason {
        self.limit.reason
    }

    fn name(&self) -> &'static str {
        "vegas"
    }
}

/// Builds a [`Vegas`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct VegasBuilder {
    range: Range,
    smoothing: f64,
    seed: u64,
}

impl VegasBuilder {
    range_setters!(initial: 20, min: 1, max: 1000);

    /// Sets how much of each step is taken, by default 1: all of it. Above 0.
    pub fn smoothing(mut self, smoothing: f64) -> Self {
        self.smoothing = smoothing;
        self
    }

    /// Sets the seed of the probes' jitter, by default 0. Instances with different seeds probe at
    /// different times.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Builds the law.
    ///
    /// # Errors
    ///
    /// When a setting is outside its range, or `min <= initial <= max` does not hold.
    pub fn build(self) -> Result<Vegas, LawError> {
        let rule = "is not at least 0.001 and at most 1; 1 takes every step in full";
        let mut jitter = Random::new(self.seed);
        Ok(Vegas {
            limit: self.range.build()?,
            smoothing: LawError::check("smoothing", self.smoothing, 0.001..=1.0, rule)?,
            baseline_ns: None,
            samples_since_probe: 0,
            probe_jitter: 0.5 + 0.5 * jitter.fraction(),
            jitter,
        })
    }
}
