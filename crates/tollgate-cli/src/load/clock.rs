//! Real time for measurements.
//!
//! The rest of the program receives the time as a value. A load generator measures how long a
//! server takes, so it needs real time, and this file is the only place that reads the clock.

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
    /// Starts a clock at zero.
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Returns the nanoseconds since the start.
    pub(crate) fn now_ns(&self) -> u64 {
        ns(self.start.elapsed())
    }
}

/// Returns a duration in nanoseconds; one that does not fit (584 years) becomes the largest number.
pub(crate) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
