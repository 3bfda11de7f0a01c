//! AIMD: additive increase, multiplicative decrease.
//!
//! Idea: raise the limit a little after each good call that used it, cut it by a factor after each
//! overload or slow call. TCP Reno's law, here as Netflix publishes it (concurrency-limits,
//! `AIMDLimit`).
//!
//! ```text
//! overload or rtt > timeout:  L = floor(L x backoff)
//! else if 2 x in flight >= L: L = L + increase
//! ```
//!
//! State: the limit, a whole number. Exact. Cost: a few instructions per sample, no allocation.
//! How it fails: one congested round trip carries up to L late calls, and each of them cuts: the
//! limit collapses to L x backoff^k. [`Windowed`](super::Windowed) makes that one cut.

use super::{
    super::{Law, LimitReason, Sample},
    BoundedLimit, LawError, Range, range_setters,
};
use crate::CallOutcome;
use std::time::Duration;

/// AIMD: additive increase, multiplicative decrease, one step for each sample.
///
/// A round trip equal to the timeout is still good.
///
/// # Examples
///
/// ```
/// use tollgate::{CallOutcome, Tick, adaptive::{Law, Sample, law::Aimd}};
///
/// let mut law =
///     Aimd::builder().initial(100).min(10).max(200).increase(5).backoff(0.5).build()?;
/// let mut call = Sample {
///     began: Tick::ZERO,
///     ended: Tick::from_millis(20),
///     in_flight: 100,
///     outcome: CallOutcome::Success,
/// };
/// assert_eq!([law.observe(&call), law.observe(&call)], [105, 110]);
/// call.outcome = CallOutcome::Overload;
/// assert_eq!([law.observe(&call), law.observe(&call)], [55, 27]);
/// # Ok::<(), tollgate::adaptive::law::LawError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Aimd {
    limit: BoundedLimit,
    increase: f64,
    backoff: f64,
    timeout: Duration,
}

impl Aimd {
    /// Starts a law with Netflix's defaults.
    pub fn builder() -> AimdBuilder {
        AimdBuilder {
            range: Range { initial: 20, min: 20, max: 200 },
            increase: 1,
            backoff: 0.9,
            timeout: Duration::from_secs(5),
        }
    }

    fn cut(&mut self, reason: LimitReason) {
        self.limit.move_to((self.limit.value * self.backoff).floor(), reason);
    }
}

impl Law for Aimd {
    fn observe(&mut self, sample: &Sample) -> u64 {
        if !sample.is_used() {
            return self.limit.whole();
        }
        if sample.outcome == CallOutcome::Overload {
            self.cut(LimitReason::Overload);
        } else if sample.rtt() > self.timeout {
            self.cut(LimitReason::Queueing);
        } else if self.limit.is_application_limited(sample.in_flight) {
            self.limit.reason = LimitReason::ApplicationLimited;
        } else {
            self.limit.move_to(self.limit.value + self.increase, LimitReason::Growing);
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
        "aimd"
    }
}

/// Builds an [`Aimd`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct AimdBuilder {
    range: Range,
    increase: u64,
    backoff: f64,
    timeout: Duration,
}

impl AimdBuilder {
    range_setters!(initial: 20, min: 20, max: 200);

    /// Sets the step up, by default 1.
    pub fn increase(mut self, increase: u64) -> Self {
        self.increase = increase;
        self
    }

    /// Sets the factor of a cut, by default 0.9. At least 0.5 and below 1.
    pub fn backoff(mut self, backoff: f64) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets the round trip above which a call counts as overload, by default 5 s.
    ///
    /// Set it below the callers' deadline: one that never fires leaves only overloads as a signal.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Builds the law.
    ///
    /// # Errors
    ///
    /// When a setting is outside its range, or `min <= initial <= max` does not hold.
    pub fn build(self) -> Result<Aimd, LawError> {
        let rule = "is not at least 0.5 and below 1; 0.9 cuts by a tenth";
        Ok(Aimd {
            limit: self.range.build()?,
            increase: LawError::check_count("increase", self.increase)? as f64,
            backoff: LawError::check("backoff", self.backoff, 0.5..1.0, rule)?,
            timeout: LawError::check_duration("timeout", self.timeout)?,
        })
    }
}
