//! How many processes there are.
//!
//! Each process beats: it puts its random name into a sorted set, with the time at which it counts no
//! more, and learns how many names are in there. The time is the server's, so the clocks of the
//! processes do not matter.
//!
//! | what happens | the count is | for |
//! |---|---|---|
//! | a process joins | too low by one | one interval |
//! | a process leaves | too high by one | one life |
//! | a process is killed | too high by one | two lives |
//! | the set is lost | right, see below; too low for who joins just then | one interval |
//! | the store is away | the last one | as long as it is away |
//!
//! A count is the highest answer of the last life, so that a set that was lost and fills again is not
//! mistaken for a small fleet. Too low a count over-admits (a process that takes 1/n with n too low by
//! d gives (n + d)/n of the limit to the fleet), too high a count under-admits.

mod heartbeat;
mod name;
mod recent_max;

pub use heartbeat::{Heartbeat, HeartbeatSettings};
pub(crate) use name::escaped;

use crate::Link;
use std::{
    error::Error,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

/// How many processes share the limits. Clones are the same count.
///
/// Leases and the local share are sized by it: too low a count over-admits by as much, too high a
/// count under-admits.
#[derive(Clone)]
pub struct FleetSize(Arc<AtomicU32>);

impl FleetSize {
    /// Returns a count that is configured. Zero counts as one.
    #[must_use]
    pub fn fixed(processes: u32) -> Self {
        Self(Arc::new(AtomicU32::new(processes.max(1))))
    }

    /// Joins the fleet `name` and keeps its count, until the guard is dropped. Needs a tokio runtime.
    ///
    /// Until the first answer the count is [`HeartbeatSettings::expected`].
    ///
    /// # Errors
    ///
    /// When the name or the settings are invalid, or there is no runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use tollgate_redis::{FleetSize, HeartbeatSettings, Link};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let link = Link::open("redis://localhost:6379".parse()?)?;
    /// let (fleet, heartbeat) = FleetSize::counted(link, "gateways", HeartbeatSettings::new())?;
    /// heartbeat.ready(Duration::from_secs(1)).await;
    /// println!("one of {}", fleet.get());
    /// heartbeat.leave().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn counted(
        link: Link,
        name: &str,
        settings: HeartbeatSettings,
    ) -> Result<(Self, Heartbeat), JoinError> {
        let fleet = Self::fixed(settings.expected);
        let heartbeat = Heartbeat::start(link, name, settings, fleet.clone())?;
        Ok((fleet, heartbeat))
    }

    /// Returns the count; at least one.
    #[must_use]
    pub fn get(&self) -> u32 {
        // ORDERING: Relaxed, here and below. A number that is a little old as it is.
        self.0.load(Relaxed)
    }

    /// Changes the count. Zero counts as one.
    pub fn set(&self, processes: u32) {
        self.0.store(processes.max(1), Relaxed);
    }
}

impl fmt::Debug for FleetSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FleetSize({})", self.get())
    }
}

/// Why a fleet or a fair share cannot be joined: an invalid setting, or no runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinError(String);

impl JoinError {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for JoinError {}

/// Returns the runtime to run in.
pub(crate) fn runtime() -> Result<tokio::runtime::Handle, JoinError> {
    tokio::runtime::Handle::try_current()
        .map_err(|_| JoinError::new("there is no tokio runtime here; join from inside one"))
}

/// Returns a time within a tenth of `around`, so that processes started together spread out.
pub(crate) fn jittered(around: Duration) -> Duration {
    around.mul_f64(0.9 + 0.2 * fastrand::f64())
}

/// Returns a name that no other process has: 128 random bits.
pub(crate) fn random_name() -> String {
    format!("{:032x}", fastrand::u128(..))
}

/// The page, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/redis-shares.md")]
struct Page;
