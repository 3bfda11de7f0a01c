//! Log throttling, also called log sampling: a flood of log lines becomes a few, and a count of the others.
//!
//! [`LogThrottle`] wraps the output layer of `tracing`. It gives each callsite (each `info!` or `error!` in the source) a
//! quota of its own, so one noisy line cannot hide the others. Lines beyond the quota are counted and not even
//! formatted, and a notice tells how many there were. No count is lost: lines that passed plus lines in notices are all
//! lines.
//!
//! ```
//! use tollgate::{Quota, log::LogThrottle};
//! use tracing_subscriber::{EnvFilter, Layer, fmt, prelude::*};
//!
//! let throttle = LogThrottle::builder(Quota::per_minute(60).burst(20)).build()?;
//! let _handle = throttle.handle(); // keep it in `main`: dropping it writes the last notices
//! let output = throttle.wrap(fmt::layer()).with_filter(EnvFilter::new("info"));
//! let subscriber = tracing_subscriber::registry().with(output); // in a program: `.init()`
//! tracing::subscriber::with_default(subscriber, || {
//!     for attempt in 0..1000 {
//!         tracing::warn!(attempt, "cannot connect"); // 20 lines, and then "980 log lines left out"
//!     }
//! });
//! # Ok::<(), tollgate::log::LogThrottleError>(())
//! ```
//!
//! [`LossyWriter`] is for the other end: it never blocks the program when the disk is full or the reader of a pipe is slow, but
//! drops lines and counts them. For a single line without `tracing`, see [`Sometimes`](crate::Sometimes).

mod layer;
mod notice;
mod state;
mod writer;

pub use layer::ThrottledLayer;
pub use writer::{LossyWriter, LossyWriterBuilder};

use crate::{
    ConfigError, Driver, KeyedError, Quota, Throttle,
    observe::{Collector, Samples, WeakCollector, family},
};
use state::State;
use std::{error::Error, fmt, sync::Arc, time::Duration};

/// A quota for each callsite of a log, built by [`builder`](Self::builder) and put to use by [`wrap`](Self::wrap).
///
/// # Lines that share a quota
///
/// A callsite is one place in the source that logs. With [`by`](LogThrottleBuilder::by) each value of a field counts by
/// itself. A callsite can bring its own quota, as a field of the event: `info!(tollgate.rate = "5/min", "...")`, or
/// `tollgate.rate = false` for a line that is never left out. The first event of a callsite decides.
///
/// # Notices
///
/// A notice is an event with the level of the lines it stands for, the target `tollgate::log`, and the fields `callsite`,
/// `left_out` and, with `by`, `key`. It goes to the wrapped layer only: before the next line of that callsite that
/// passes, at the latest [`notice_after`](LogThrottleBuilder::notice_after) the first lost line, or by
/// [`flush`](LogThrottleHandle::flush).
///
/// # Filters
///
/// Put filters outside, `throttle.wrap(layer).with_filter(filter)`, or over all layers: then only lines that the filter
/// wants are counted. A filter inside, `throttle.wrap(layer.with_filter(filter))`, works: it sees the lines that pass, and a
/// notice is written if it wants the lines that the notice stands for. But [`counts`](LogThrottleHandle::counts) then
/// includes lines that it drops, and `tracing` cannot switch off their callsites.
///
/// # Two outputs
///
/// One throttle decides once, for one layer. For one decision about two outputs, wrap `first.and_then(second)`; for two
/// decisions, build two throttles.
#[derive(Debug)]
pub struct LogThrottle {
    shared: Arc<Shared>,
}

/// What the layer and its handles share.
#[derive(Debug)]
struct Shared {
    state: Arc<State>,
    /// Flushes a while after a line was left out. It holds the state, and not the other way round.
    timer: Throttle<()>,
}

impl LogThrottle {
    /// Returns a builder of a throttle that lets `quota` lines of each callsite pass.
    pub fn builder(quota: Quota) -> LogThrottleBuilder {
        LogThrottleBuilder {
            quota,
            unit: LogUnit::Lines,
            by: None,
            exempt: Vec::new(),
            notice_after: Duration::from_secs(30),
            max_keys: 10_000,
            driver: Driver::thread(),
        }
    }

    /// Wraps an output layer, such as `tracing_subscriber::fmt::layer()`.
    ///
    /// A layer that others look up by its type in the subscriber, such as that of OpenTelemetry, is not found inside.
    pub fn wrap<L>(self, layer: L) -> ThrottledLayer<L> {
        ThrottledLayer::new(layer, self.shared)
    }

    /// Returns a handle that reads counts and flushes.
    pub fn handle(&self) -> LogThrottleHandle {
        LogThrottleHandle { shared: Arc::clone(&self.shared) }
    }
}

/// Reads the counts of a [`LogThrottle`], and flushes it. Dropping a handle flushes as well.
#[derive(Clone, Debug)]
#[must_use = "dropped at once it flushes at once; keep it until the program ends"]
pub struct LogThrottleHandle {
    shared: Arc<Shared>,
}

impl LogThrottleHandle {
    /// Writes the notices of all lines left out that have none yet.
    ///
    /// Without a subscriber, that is before the layer is in use or after it is gone, nothing is written and nothing is
    /// forgotten. The same holds for a layer in an `Option` or a `Vec` if the subscriber is not the global one: those do not tell
    /// their layers which subscriber they belong to.
    pub fn flush(&self) {
        self.shared.state.flush();
    }

    /// Returns how many lines passed, and how many were left out.
    #[must_use]
    pub fn counts(&self) -> LogCounts {
        self.shared.state.counts()
    }
}

impl Drop for LogThrottleHandle {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Lines since the throttle was built. The two add up to all lines that reached it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogCounts {
    /// Lines that passed, without notices.
    pub passed: u64,
    /// Lines that were left out.
    pub left_out: u64,
}

/// What the quota of a [`LogThrottle`] counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogUnit {
    /// Lines.
    #[default]
    Lines,
    /// Bytes of the message and the fields, names included. A line passes if one byte is free, and the next ones wait
    /// until it is paid for. What the output adds (time, level, target, spans) does not count.
    Bytes,
}

/// Builds a [`LogThrottle`]. Nothing is checked before [`build`](Self::build).
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct LogThrottleBuilder {
    quota: Quota,
    unit: LogUnit,
    by: Option<Box<str>>,
    exempt: Vec<Box<str>>,
    notice_after: Duration,
    max_keys: u64,
    driver: Driver,
}

impl LogThrottleBuilder {
    /// Sets what the quota counts, by default [lines](LogUnit::Lines).
    pub fn unit(mut self, unit: LogUnit) -> Self {
        self.unit = unit;
        self
    }

    /// Counts each value of this field by itself: that of the event, else that of the innermost span that has it. By default
    /// fields do not count.
    pub fn by(mut self, field: impl Into<Box<str>>) -> Self {
        self.by = Some(field.into());
        self
    }

    /// Never leaves out lines of this target or below it: `audit` also stands for `audit::login`. May be called again.
    pub fn exempt_target(mut self, target: impl Into<Box<str>>) -> Self {
        self.exempt.push(target.into());
        self
    }

    /// Sets how long after a line was left out its notice comes at the latest, by default 30 seconds.
    pub fn notice_after(mut self, notice_after: Duration) -> Self {
        self.notice_after = notice_after;
        self
    }

    /// Sets how many callsites, or values of them, have a quota each, by default 10 000. Beyond that the one that has used
    /// the least of its quota starts anew, and lines left out are counted under one common notice.
    pub fn max_keys(mut self, keys: u64) -> Self {
        self.max_keys = keys;
        self
    }

    /// Sets the driver that writes late notices, and its clock, by default [`Driver::thread`]: a thread while there is a notice to write.
    pub fn driver(mut self, driver: Driver) -> Self {
        self.driver = driver;
        self
    }

    /// Builds the throttle.
    ///
    /// # Errors
    ///
    /// When the quota makes no sense for many callsites, `max_keys` is zero or too large, or `notice_after` is zero.
    pub fn build(self) -> Result<LogThrottle, LogThrottleError> {
        let timer = Throttle::builder(self.notice_after).trailing().driver(self.driver.clone());
        let state = Arc::new(State::new(self).map_err(LogThrottleError::Limit)?);
        let flushed = Arc::clone(&state);
        let timer = timer.start(move |_| flushed.flush()).map_err(LogThrottleError::Notice)?;
        Ok(LogThrottle { shared: Arc::new(Shared { state, timer }) })
    }
}

/// Why a [`LogThrottle`] cannot be built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogThrottleError {
    /// The quota or the number of keys makes no sense.
    Limit(KeyedError),
    /// The time until a notice makes no sense.
    Notice(ConfigError),
}

impl fmt::Display for LogThrottleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Limit(_) => "the quota or max_keys of a log throttle cannot be used",
            Self::Notice(_) => "notice_after of a log throttle cannot be used",
        })
    }
}

impl Error for LogThrottleError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Limit(error) => Some(error),
            Self::Notice(error) => Some(error),
        }
    }
}

impl Collector for LogThrottleHandle {
    fn collect(&self, samples: &mut Samples) {
        self.shared.state.collect(samples);
    }

    fn weak(&self) -> WeakCollector {
        self.shared.state.weak()
    }
}

/// The registry reads the state and not a handle: dropping a handle flushes.
impl Collector for Arc<State> {
    fn collect(&self, samples: &mut Samples) {
        let counts = self.counts();
        samples.kind("log_throttle");
        samples.count_by(&family::LOG_LINES, "passed", counts.passed);
        samples.count_by(&family::LOG_LINES, "left_out", counts.left_out);
    }

    fn weak(&self) -> WeakCollector {
        let state = Arc::downgrade(self);
        WeakCollector::new(move || Some(Box::new(state.upgrade()?)))
    }
}
