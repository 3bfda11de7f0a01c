//! How a breaker is set up.

use super::{
    Breaker, KeyedBreaker,
    host::Host,
    machine::Rules,
    window::{BreakerWindow, Extent, Threshold, Trip},
};
use crate::{Clock, ConfigError, observe::STRIPES, sync::Arc};
use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// Sets up a [`Breaker`], or one for each key. Nothing is checked before the build.
///
/// | setting | default | reason |
/// |---|---|---|
/// | [`trip`](Self::trip) | 50 % failures | resilience4j, Hystrix |
/// | [`window`](Self::window) | the last 10 s | a count of calls makes a quiet service slow to react |
/// | [`min_calls`](Self::min_calls) | 20 | Hystrix; 100 never trips at 5 calls/s |
/// | [`open_for`](Self::open_for) | 5 s | Polly, Hystrix |
/// | [`growth`](Self::growth), [`most`](Self::most) | 2, 60 s | breaks of 5, 10, 20, 40, 60, 60 s |
/// | [`jitter`](Self::jitter) | 10 % | many clients do not come back at once |
/// | [`trials`](Self::trials), [`close_after`](Self::close_after) | 3, all of them | one success may be luck |
/// | [`patience`](Self::patience) | `open_for`, at least 1 s | a trial that hangs blocks nobody for longer |
#[derive(Clone, Debug)]
#[must_use = "it does nothing until it is built"]
pub struct BreakerBuilder {
    trips: Vec<Trip>,
    window: Extent,
    min_calls: Option<u64>,
    open_for: Duration,
    growth: u32,
    most: Option<Duration>,
    jitter_percent: u32,
    trials: u32,
    close_after: Option<u32>,
    patience: Option<Duration>,
    idle_after: Option<Duration>,
    clock: Option<Clock>,
    seed: Option<u64>,
    name: Box<str>,
}

impl BreakerBuilder {
    pub(super) fn new() -> Self {
        Self {
            trips: Vec::new(),
            window: Extent::Time(Duration::from_secs(10)),
            min_calls: None,
            open_for: Duration::from_secs(5),
            growth: 2,
            most: None,
            jitter_percent: 10,
            trials: 3,
            close_after: None,
            patience: None,
            idle_after: None,
            clock: None,
            seed: None,
            name: Box::default(),
        }
    }

    /// Adds a threshold; any of several opens the breaker. The default is
    /// [`Trip::failure_percent(50)`](Trip::failure_percent) alone.
    pub fn trip(mut self, trip: Trip) -> Self {
        self.trips.push(trip);
        self
    }

    /// Sets which calls count. The default is the last 10 s.
    pub fn window(mut self, window: BreakerWindow) -> Self {
        self.window = window.0;
        self
    }

    /// Sets how many calls must be in the window before a share of them trips; at least 1, and at
    /// most the window if that is a number of calls. The default is 20, or the window if smaller.
    pub fn min_calls(mut self, count: u64) -> Self {
        self.min_calls = Some(count);
        self
    }

    /// Sets how long the first break lasts, at least 1 ms. The default is 5 s.
    pub fn open_for(mut self, length: Duration) -> Self {
        self.open_for = length;
        self
    }

    /// Sets by how much each break is longer than the one before, until the breaker closes; at
    /// least 1, which keeps it constant. The default is 2.
    pub fn growth(mut self, factor: u32) -> Self {
        self.growth = factor;
        self
    }

    /// Sets how long a break lasts at most. The default is 60 s, or `open_for` if that is longer.
    pub fn most(mut self, longest: Duration) -> Self {
        self.most = Some(longest);
        self
    }

    /// Shortens each break at random by up to so many percent, 0 to 100. The default is 10.
    pub fn jitter(mut self, percent: u32) -> Self {
        self.jitter_percent = percent;
        self
    }

    /// Sets how many trials run at once, 1 to 1000. The default is 3.
    pub fn trials(mut self, count: u32) -> Self {
        self.trials = count;
        self
    }

    /// Sets how many trials must succeed, at most as many as there are. The default is all.
    pub fn close_after(mut self, successes: u32) -> Self {
        self.close_after = Some(successes);
        self
    }

    /// Sets after what time a trial that has not ended loses its slot to the next caller. The
    /// default is `open_for`, at least 1 s.
    pub fn patience(mut self, longest: Duration) -> Self {
        self.patience = Some(longest);
        self
    }

    /// Sets after what time without a call a key of a [`KeyedBreaker`] may be evicted, if it is
    /// closed. The default is the window if that is a time, else 60 s.
    pub fn idle_after(mut self, time: Duration) -> Self {
        self.idle_after = Some(time);
        self
    }

    /// Sets the clock. The default is [`Clock::monotonic`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets what jitter is drawn from, so that tests repeat. The default is the system's randomness.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the name for metrics and logs.
    pub fn name(mut self, name: impl Into<Box<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Builds the breaker, closed.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the setting, its value and the rule.
    pub fn build(self) -> Result<Breaker, ConfigError> {
        let template = self.check()?;
        Ok(template.breaker(0, if cfg!(tollgate_loom) { 2 } else { STRIPES }))
    }

    /// Builds a breaker for each key, for at most `max_keys` keys at a time.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build), and if `max_keys` is 0 or above a billion.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Breaker, KeyedBreaker};
    ///
    /// let hosts: KeyedBreaker<str> = Breaker::builder().build_keyed(10_000)?;
    /// assert!(hosts.try_pass("10.0.0.1:80").is_ok());
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn build_keyed<K: ?Sized>(self, max_keys: u64) -> Result<KeyedBreaker<K>, ConfigError> {
        ConfigError::check_range("max_keys", max_keys, 1..=1_000_000_000)?;
        Ok(KeyedBreaker::new(self.check()?, max_keys))
    }

    fn check(mut self) -> Result<Template, ConfigError> {
        if self.trips.is_empty() {
            self.trips.push(Trip::failure_percent(50));
        }
        let mut calls_max = u64::from(u32::MAX);
        match self.window {
            Extent::Time(length) => check_time("window", length)?,
            Extent::Calls(count) => {
                ConfigError::check_range("window", count, 1..=100_000)?;
                calls_max = count.into();
            }
        }
        for trip in &self.trips {
            match trip.0 {
                Threshold::FailurePercent(percent) => {
                    ConfigError::check_range("failure_percent", percent, 1..=100)?;
                }
                Threshold::FailureCount(count) => {
                    ConfigError::check_range("failure_count", count, 1..=calls_max)?;
                }
                Threshold::Consecutive(count) => {
                    ConfigError::check_range("consecutive", count, 1..=u32::MAX.into())?;
                }
                Threshold::SlowPercent(percent, longer_than) => {
                    ConfigError::check_range("slow_percent", percent, 1..=100)?;
                    check_time("slow_percent", longer_than)?;
                }
            }
        }
        let slow = |trip: &&Trip| matches!(trip.0, Threshold::SlowPercent(..));
        let slow = self.trips.iter().filter(slow).count();
        ConfigError::check_range("slow_percent given", slow, 0..=1)?;
        let min_calls = self.min_calls.unwrap_or(calls_max.min(20));
        ConfigError::check_range("min_calls", min_calls, 1..=calls_max)?;
        self.check_breaks(min_calls)
    }

    fn check_breaks(self, min_calls: u64) -> Result<Template, ConfigError> {
        let close_after = self.close_after.unwrap_or(self.trials);
        ConfigError::check_range("growth", self.growth, 1..=1000)?;
        ConfigError::check_range("jitter", self.jitter_percent, 0..=100)?;
        ConfigError::check_range("trials", self.trials, 1..=1000)?;
        ConfigError::check_range("close_after", close_after, 1..=self.trials)?;
        check_time("open_for", self.open_for)?;
        let most = self.most.unwrap_or(self.open_for.max(Duration::from_secs(60)));
        if most < self.open_for {
            return Err(ConfigError::new(format!(
                "most {most:?} is below open_for {:?}; raise it, or shorten the first break",
                self.open_for
            )));
        }
        let patience = self.patience.unwrap_or(self.open_for.max(Duration::from_secs(1)));
        check_time("patience", patience)?;
        let idle_after = self.idle_after.unwrap_or(match self.window {
            Extent::Time(length) => length,
            Extent::Calls(_) => Duration::from_secs(60),
        });
        let rules = Rules {
            open_for: self.open_for,
            growth: self.growth,
            most,
            jitter_percent: self.jitter_percent,
            trials: self.trials,
            close_after,
            patience,
        };
        Ok(Template {
            rules,
            window: self.window,
            trips: self.trips.into(),
            min_calls,
            idle_after,
            clock: self.clock.unwrap_or_else(Clock::monotonic),
            seed: self.seed.unwrap_or_else(|| RandomState::new().hash_one("tollgate breaker")),
            name: self.name,
        })
    }
}

/// Checked settings, from which breakers are made.
#[derive(Clone, Debug)]
pub(super) struct Template {
    pub(super) rules: Rules,
    pub(super) window: Extent,
    pub(super) trips: Box<[Trip]>,
    pub(super) min_calls: u64,
    pub(super) idle_after: Duration,
    pub(super) clock: Clock,
    pub(super) seed: u64,
    pub(super) name: Box<str>,
}

impl Template {
    /// Returns the breaker of a key; see [`Host::new`].
    pub(super) fn breaker(&self, key: u64, stripes: usize) -> Breaker {
        Breaker { host: Arc::new(Host::new(self, key, stripes)) }
    }
}

fn check_time(setting: &str, value: Duration) -> Result<(), ConfigError> {
    if value >= Duration::from_millis(1) {
        return Ok(());
    }
    Err(ConfigError::new(format!("{setting} {value:?} is too short; use at least 1 ms")))
}
