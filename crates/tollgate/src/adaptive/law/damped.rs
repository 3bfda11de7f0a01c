//! Damped AIMD: the law for a known target latency.
//!
//! Idea: AIMD, but one decision for a window of calls instead of one for each call, and by the
//! share of bad calls instead of a single one. A call is bad if it ended with overload or took
//! longer than half of the target: at half of it there is still time to react.
//!
//! ```text
//! per window (100 ms ± 10 %, at least 10 calls that began since the last change)
//! bad > 10 %:                              L = L x 0.9
//! bad < 5 % and 2 x most in flight >= L:   L = L + max(1, L x 0.02)
//! else hold
//! ```
//!
//! The gap between 5 % and 10 % keeps the limit from swinging. State: the limit and four counters.
//! Cost: an addition and a comparison per sample, no allocation. While no time passes no window
//! ends; after a pause the next window ends with its tenth call.
//!
//! How it fails: a service that is healthy but slower than half of the target is throttled to
//! `min`. The target must lie above twice the latency of the slow but healthy service.

use super::{
    super::{Law, LimitReason, Sample, window::SampleWindow},
    BoundedLimit, LawError, Range, range_setters,
};
use crate::CallOutcome;
use std::time::Duration;

/// Damped AIMD: keeps calls below half of a target latency, one decision per window.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{CallOutcome, Tick, adaptive::{Law, LimitReason, Sample, law::DampedAimd}};
///
/// let mut law = DampedAimd::builder(Duration::from_millis(200)).initial(50).build()?;
/// for ms in 0..120 {
///     let ended = Tick::from_millis(500 + ms);
///     let began = ended.saturating_sub(Duration::from_millis(150)); // above half of the target
///     law.observe(&Sample { began, ended, in_flight: 50, outcome: CallOutcome::Success });
/// }
/// assert_eq!((law.limit(), law.reason()), (45, LimitReason::Queueing));
/// # Ok::<(), tollgate::adaptive::law::LawError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DampedAimd {
    limit: BoundedLimit,
    /// Calls that take longer are bad.
    threshold: Duration,
    window: SampleWindow,
    min_samples: u64,
    bad: u64,
}

impl DampedAimd {
    /// Starts a law for calls that should end within `target` (the service level objective).
    pub fn builder(target: Duration) -> DampedAimdBuilder {
        DampedAimdBuilder {
            target,
            range: Range { initial: 20, min: 1, max: 1000 },
            length: Duration::from_millis(100),
            min_samples: 10,
            seed: 0,
        }
    }

    fn decide(&mut self, sample: &Sample) {
        let limit = self.limit.value;
        // OVERFLOW: counts of samples; 2^64 / 20 of them do not come in one window.
        let (bad, samples) = (self.bad, self.window.samples);
        if bad * 10 > samples {
            let reason = match self.window.overloads * 10 > samples {
                true => LimitReason::Overload,
                false => LimitReason::Queueing,
            };
            self.limit.move_to(limit * 0.9, reason);
        } else if bad * 20 >= samples {
            self.limit.reason = LimitReason::Holding;
        } else if self.limit.is_application_limited(self.window.max_in_flight) {
            self.limit.reason = LimitReason::ApplicationLimited;
        } else {
            self.limit.move_to(limit + (limit * 0.02).max(1.0), LimitReason::Growing);
        }
        self.bad = 0;
        match self.limit.value == limit {
            true => self.window.restart(),
            false => self.window.restart_from(sample.ended),
        }
    }
}

impl Law for DampedAimd {
    fn observe(&mut self, sample: &Sample) -> u64 {
        if self.window.add(sample) {
            let is_bad = sample.outcome == CallOutcome::Overload || sample.rtt() > self.threshold;
            self.bad += u64::from(is_bad);
            if self.window.is_over(sample.ended) && self.window.samples >= self.min_samples {
                self.decide(sample);
            }
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
        "damped_aimd"
    }
}

/// Builds a [`DampedAimd`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct DampedAimdBuilder {
    target: Duration,
    range: Range,
    length: Duration,
    min_samples: u64,
    seed: u64,
}

impl DampedAimdBuilder {
    range_setters!(initial: 20, min: 1, max: 1000);

    /// Sets the length of the window, by default 100 ms.
    pub fn window(mut self, length: Duration) -> Self {
        self.length = length;
        self
    }

    /// Sets how many calls a window needs, by default 10: the window stays open until it has them.
    pub fn min_samples(mut self, min_samples: u64) -> Self {
        self.min_samples = min_samples;
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
    /// When a setting is outside its range, or `min <= initial <= max` does not hold.
    pub fn build(self) -> Result<DampedAimd, LawError> {
        Ok(DampedAimd {
            limit: self.range.build()?,
            threshold: LawError::check_duration("target", self.target)? / 2,
            window: SampleWindow::new(LawError::check_duration("window", self.length)?, self.seed),
            min_samples: LawError::check_count("min_samples", self.min_samples)?,
            bad: 0,
        })
    }
}
