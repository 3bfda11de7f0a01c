//! Real time, for measuring.
//!
//! The rest of the program is told the time. A load generator measures how long a server takes, so
//! it needs the clock on the wall, and this file is the only place that reads it.

#![allow(
    clippy::disallowed_methods,
    reason = "a load generator measures real time; nothing decides by this clock"
)]

use std::time::Duration;
use tokio::time::Instant;

/// Counts nanoseconds since the start of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    /// Starts at zero, now.
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Returns the nanoseconds since the start.
    pub(crate) fn now_ns(&self) -> u64 {
        ns(self.start.elapsed())
    }
}

/// Returns a duration in nanoseconds; what does not fit (584 years) is the largest number.
pub(crate) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
