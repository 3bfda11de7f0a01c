//! Gradient2: the limit follows the ratio of a long to a short average of latency.
//!
//! Idea: if calls take longer now than they did on average, they queue: shrink by that ratio.
//! Otherwise grow by a fixed head-room. As Netflix publishes it (concurrency-limits,
//! `Gradient2Limit`).
//!
//! ```text
//! long = average of the first 10 round trips, then an exponential one over 600 samples
//! long / rtt > 2: long = 0.95 x long (for the next sample)
//! in flight < L / 2: hold
//! gradient = clamp(tolerance x long / rtt, 0.5, 1)
//! L = (1 - smoothing) x L + smoothing x (L x gradient + queue)
//! ```
//!
//! State: limit and the long average. Cost: some float operations per sample, no allocation.
//!
//! How it fails: the long average learns a lasting overload and then finds it normal; with a
//! sample for every call it does so within 600 calls. Overloads do not move it: a timeout shows as
//! a long round trip, a refusal that comes back at once as a short one.

use super::{
    super::{Law, LimitReason, Sample},
    BoundedLimit, LawError, Range, range_setters,
};

/// Samples over which the long average is a plain mean.
const WARM_UP: u64 = 10;

/// Gradient2: short against long average of latency, one step for each sample.
///
/// # Examples
///
/// Wrapped in a window, as its authors advise:
///
/// ```
/// use tollgate::adaptive::{Law, law::{Gradient2, Windowed}};
///
/// let law = Windowed::builder(Gradient2::builder().max(1000).build()?).build()?;
/// assert_eq!((law.name(), law.limit()), ("gradient2", 20));
/// # Ok::<(), tollgate::adaptive::law::LawError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Gradient2 {
    limit: BoundedLimit,
    smoothing: f64,
    tolerance: f64,
    queue: f64,
    /// The weight of one sample in the long average after the warm-up.
    long_weight: f64,
    long_ns: f64,
    long_samples: u64,
}

impl Gradient2 {
    /// Starts a law with Netflix's defaults.
    pub fn builder() -> Gradient2Builder {
        Gradient2Builder {
            range: Range { initial: 20, min: 20, max: 200 },
            smoothing: 0.2,
            tolerance: 1.5,
            queue: 4,
            long_window: 600,
        }
    }

    /// Adds a round trip to the long average and returns the average to judge by.
    fn long_average(&mut self, rtt_ns: f64) -> f64 {
        self.long_samples = self.long_samples.saturating_add(1);
        let weight = match self.long_samples {
            warming if warming <= WARM_UP => 1.0 / warming as f64,
            _ => self.long_weight,
        };
        self.long_ns += (rtt_ns - self.long_ns) * weight;
        let long_ns = self.long_ns;
        if long_ns / rtt_ns > 2.0 {
            self.long_ns *= 0.95;
        }
        long_ns
    }
}

impl Law for Gradient2 {
    fn observe(&mut self, sample: &Sample) -> u64 {
        if !sample.is_used() {
            return self.limit.whole();
        }
        let rtt_ns = sample.rtt_ns();
        let long_ns = self.long_average(rtt_ns);
        if self.limit.is_application_limited(sample.in_flight) {
            self.limit.reason = LimitReason::ApplicationLimited;
            return self.limit.whole();
        }
        let limit = self.limit.value;
        let gradient = (self.tolerance * long_ns / rtt_ns).clamp(0.5, 1.0);
        let wanted =
            limit * (1.0 - self.smoothing) + (limit * gradient + self.queue) * self.smoothing;
        let reason = if wanted > limit {
            LimitReason::Growing
        } else if wanted < limit {
            LimitReason::Queueing
        } else {
            LimitReason::Holding
        };
        self.limit.move_to(wanted, reason);
        self.limit.whole()
    }

    fn limit(&self) -> u64 {
        self.limit.whole()
    }

    fn reason(&self) -> LimitReason {
        self.limit.reason
    }

    fn name(&self) -> &'static str {
        "gradient2"
    }
}

/// Builds a [`Gradient2`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct Gradient2Builder {
    range: Range,
    smoothing: f64,
    tolerance: f64,
    queue: u64,
    long_window: u64,
}

impl Gradient2Builder {
    range_setters!(initial: 20, min: 20, max: 200);

    /// Sets how much of each step is taken, by default 0.2. Above 0, at most 1.
    pub fn smoothing(mut self, smoothing: f64) -> Self {
        self.smoothing = smoothing;
        self
    }

    /// Sets how much longer than the long average a call may take before the limit shrinks, as a
    /// factor; by default 1.5. At least 1.
    pub fn tolerance(mut self, tolerance: f64) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Sets the head-room added at each step, by default 4.
    pub fn queue(mut self, queue: u64) -> Self {
        self.queue = queue;
        self
    }

    /// Sets over how many samples the long average goes, by default 600.
    pub fn long_window(mut self, samples: u64) -> Self {
        self.long_window = samples;
        self
    }

    /// Builds the law.
    ///
    /// # Errors
    ///
    /// When a setting is outside its range, or `min <= initial <= max` does not hold.
    pub fn build(self) -> Result<Gradient2, LawError> {
        let smoothing = "is not at least 0.001 and at most 1; 0.2 takes a fifth of each step";
        let tolerance = "is not between 1 and 1000; 1.5 accepts half as long again";
        Ok(Gradient2 {
            limit: self.range.build()?,
            smoothing: LawError::check("smoothing", self.smoothing, 0.001..=1.0, smoothing)?,
            tolerance: LawError::check("tolerance", self.tolerance, 1.0..=1000.0, tolerance)?,
            queue: LawError::check_count("queue", self.queue)? as f64,
            long_weight: 2.0 / (LawError::check_count("long_window", self.long_window)? + 1) as f64,
            long_ns: 0.0,
            long_samples: 0,
        })
    }
}
