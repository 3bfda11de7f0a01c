//! The builder of a self-throttling client.

use super::{LevelCalls, Rules, SelfThrottle, Shared};
use crate::{
    Clock, ConfigError, Priority,
    breaker::window::{CallWindow, Extent},
    sync::{Arc, AtomicU64},
};
use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// Sets up a [`SelfThrottle`]. Nothing is checked before [`build`](Self::build).
///
/// | setting | default | reason |
/// |---|---|---|
/// | [`k`](Self::k) | 2; 1.5 from [`Priority::LOW`] down | Google: one refused call for each that is served shows soon enough that there is room again |
/// | [`window`](Self::window) | 2 min | Google; Envoy takes 30 s |
/// | [`min_calls`](Self::min_calls) | 10 | below that a share says nothing |
/// | [`max_refusal_percent`](Self::max_refusal_percent) | 90 | failsafe-go; one call of ten finds out whether the server has recovered |
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct SelfThrottleBuilder {
    k: [f64; Priority::LEVELS],
    window: Duration,
    min_calls: u64,
    max_refusal_percent: u32,
    clock: Option<Clock>,
    seed: Option<u64>,
}

impl SelfThrottleBuilder {
    pub(super) fn new() -> Self {
        let k = std::array::from_fn(|level| if level < Priority::LOW.level() { 2.0 } else { 1.5 });
        Self {
            k,
            window: Duration::from_secs(120),
            min_calls: 10,
            max_refusal_percent: 90,
            clock: None,
            seed: None,
        }
    }

    /// Sets how many calls are sent for each that the server accepts, for all priorities; more than 1
    /// and at most 1000. The default is 2, and 1.5 from [`Priority::LOW`] down.
    ///
    /// A smaller one spares the server, and needs more accepted calls to see that it has recovered: 10
    /// in a row with 2, 18 with 1.5, 73 with 1.1.
    pub fn k(mut self, k: f64) -> Self {
        self.k = [k; Priority::LEVELS];
        self
    }

    /// Sets [`k`](Self::k) for one priority.
    pub fn k_for(mut self, priority: Priority, k: f64) -> Self {
        self.k[priority.level()] = k;
        self
    }

    /// Sets how far back calls count, in ten steps; 1 ms to a day. The default is 2 min.
    pub const fn window(mut self, length: Duration) -> Self {
        self.window = length;
        self
    }

    /// Sets how many calls of a priority must be in the window before any is refused; at least 1. The
    /// default is 10.
    pub const fn min_calls(mut self, count: u64) -> Self {
        self.min_calls = count;
        self
    }

    /// Sets how many percent of the calls are refused at most, 1 to 99. The default is 90.
    pub const fn max_refusal_percent(mut self, percent: u32) -> Self {
        self.max_refusal_percent = percent;
        self
    }

    /// Sets the clock. The default is [`Clock::monotonic`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets what refusals are drawn from, so that tests repeat. The default is the system's
    /// randomness.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Builds the throttle.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the setting, its value and the rule.
    pub fn build(self) -> Result<SelfThrottle, ConfigError> {
        if let Some(k) = self.k.iter().find(|k| !(**k > 1.0 && **k <= 1000.0)) {
            return Err(ConfigError::new(format!(
                "k {k} is out of range: with 1 or less, calls stay refused when the server has \
                 recovered; use more than 1 and at most 1000, such as 2"
            )));
        }
        ConfigError::check_window("window", self.window)?;
        if self.min_calls == 0 {
            let text =
                "min_calls 0 is out of range: no share can be taken of nothing; use at least 1";
            return Err(ConfigError::new(text));
        }
        let percent = self.max_refusal_percent;
        if !(1..=99).contains(&percent) {
            return Err(ConfigError::new(format!(
                "max_refusal_percent {percent} is out of range: some calls must get through to show \
                 that the server has recovered; use 1 to 99"
            )));
        }
        let Self { k, min_calls, window, .. } = self;
        let rules = Rules { k, max_refusal: f64::from(percent) / 100.0, min_calls, window };
        let shared = Shared {
            rules,
            // One stripe: every decision sums it up, and calls over a network do not contend.
            levels: std::array::from_fn(|_| LevelCalls {
                window: CallWindow::new(Extent::Time(self.window), 1),
                refused_ns: AtomicU64::new(0),
                accepts: AtomicU64::new(0),
            }),
            clock: self.clock.unwrap_or_else(Clock::monotonic),
            seed: self.seed.unwrap_or_else(|| RandomState::new().hash_one("tollgate throttle")),
            drawn: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        };
        Ok(SelfThrottle { shared: Arc::new(shared) })
    }
}
