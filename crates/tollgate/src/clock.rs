//! Where time comes from.
//!
//! Every limiter owns a [`Clock`] and reads it once per decision. No other module reads a clock:
//! `clippy.toml` forbids it, so CI fails.
//!
//! | clock | for | error of a decision |
//! |---|---|---|
//! | [`Clock::monotonic`] | production, the default | none (see below) |
//! | [`Clock::cached`] | limiters so hot that 5 ns matter | at most rate x 1 ms |
//! | [`Clock::manual`] | tests and simulation | none |
//! | `Clock::tokio` (feature `tokio`) | async tests with paused time | none |
//!
//! # How the monotonic clock decides cheaply and exactly
//!
//! Reading the time is 95 % of the cost of a decision. The kernel offers a coarse clock at half
//! the price, which lags behind by less than a margin `m` (three of its ticks, 12 ms at 250 Hz).
//! If it says `c`, the time is in `[c, c + m]`. A decision that comes out the same at both ends of
//! that interval needs no better clock; only the others read the precise one. So decisions are
//! exact, and only [`Decision::remaining`](crate::Decision::remaining) is a lower bound.
//!
//! Should the machine stall so badly that the coarse clock lags by more than `m`, decisions made
//! meanwhile are off by at most rate x (lag - m). Each thread compares the two clocks on every
//! 64th reading, and once it has seen a lag beyond `m` it compares on every one until the coarse
//! clock has caught up.
//!
//! # Time that goes backwards, or stands still, or jumps
//!
//! A clock that goes backwards counts as standing still: [`Clock::now`] never returns less than
//! before by more than the few nanoseconds that processor cores differ. A jump ahead refills at
//! most to full. Tests: `tests/limiting/time.rs`.
//!
//! # Wall time
//!
//! Windows aligned to the epoch, `Reset` headers and snapshots need the wall clock. A clock
//! measures the distance between its origin and the Unix epoch **once**, when it is made, and
//! keeps it: when the wall clock is set (by hand, or by NTP after a bad start), running windows
//! neither repeat nor vanish. [`Clock::resync_wall`] measures again; limiters that are built or
//! given a new quota after that follow it; a keyed limiter or a store keeps the distance that it began with.

pub(crate) mod cached;
mod manual;
mod monotonic;
mod system;
pub(crate) mod tick;

pub use manual::{ManualClock, TimerId};
pub use tick::Tick;

use cached::Cached;
use monotonic::Monotonic;
pub(crate) use monotonic::{Monotonic as Early, Reading};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// A source of time. Clones read the same one.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Clock, Limiter, Quota};
///
/// let (clock, hand) = Clock::manual();
/// let limiter = Limiter::builder(Quota::per_second(1)).clock(clock).build()?;
/// assert!(limiter.try_acquire().is_allowed());
/// assert!(limiter.try_acquire().is_denied());
/// hand.advance(Duration::from_secs(1));
/// assert!(limiter.try_acquire().is_allowed());
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Clock {
    source: Source,
    /// Nanoseconds from the Unix epoch to the clock's origin.
    wall: Arc<AtomicU64>,
}

/// The private half, so that adding a source breaks nobody.
#[derive(Clone, Debug)]
enum Source {
    Monotonic(Monotonic),
    Cached(Arc<Cached>),
    Manual(ManualClock),
    #[cfg(feature = "tokio")]
    Tokio(tokio::time::Instant),
}

impl Clock {
    /// Returns the system's monotonic clock, which all its users in this process share.
    #[must_use]
    pub fn monotonic() -> Self {
        Self::new(Source::Monotonic(Monotonic::shared()))
    }

    /// Returns a clock that a thread of its own sets every millisecond.
    ///
    /// Reading it costs less than a nanosecond. In exchange it runs up to 1 ms late (more if the
    /// thread is not scheduled), so a decision is off by at most rate x lateness. The thread ends
    /// with the last clone.
    ///
    /// # Errors
    ///
    /// When the system cannot start another thread.
    pub fn cached() -> std::io::Result<Self> {
        Ok(Self::new(Source::Cached(Cached::start(Monotonic::shared())?)))
    }

    /// Returns a clock that moves only by its hand, and the hand.
    ///
    /// It starts at [`Tick::ZERO`], which is also the Unix epoch, so aligned windows start there.
    #[must_use]
    pub fn manual() -> (Self, ManualClock) {
        let hand = ManualClock::new();
        (hand.clock(), hand)
    }

    /// Returns tokio's clock, which stands still under `tokio::time::pause`.
    #[cfg(feature = "tokio")]
    #[must_use]
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub fn tokio() -> Self {
        Self::new(Source::Tokio(tokio::time::Instant::now()))
    }

    fn new(source: Source) -> Self {
        let clock = Self { source, wall: Arc::default() };
        clock.resync_wall();
        clock
    }

    /// Returns the time now.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Tick {
        match &self.source {
            Source::Monotonic(monotonic) => monotonic.now(),
            Source::Cached(cached) => cached.now(),
            _ => self.test_time(),
        }
    }

    /// The clocks of tests, out of the way of the others.
    #[cold]
    #[inline(never)]
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    fn test_time(&self) -> Tick {
        match &self.source {
            Source::Monotonic(monotonic) => monotonic.now(),
            Source::Cached(cached) => cached.now(),
            Source::Manual(hand) => hand.latest(),
            #[cfg(feature = "tokio")]
            Source::Tokio(origin) => Tick::from_nanos(tick::duration_nanos(origin.elapsed())),
        }
    }

    /// Returns the cheap reading of this clock, if it has one: a tick that lies before the time
    /// now by less than its margin.
    pub(crate) fn early(&self) -> Early {
        match &self.source {
            Source::Monotonic(monotonic) => *monotonic,
            _ => Early::NONE,
        }
    }

    /// Returns the time, or where that is cheaper the early reading: then a few milliseconds old.
    #[inline]
    pub(crate) fn about_now(&self) -> Tick {
        match &self.source {
            Source::Monotonic(monotonic) => monotonic.read().unwrap_or_else(|| monotonic.now()),
            _ => self.now(),
        }
    }

    /// Tells whether this is a clock of tests, which can stand still.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_of_tests(&self) -> bool {
        matches!(self.source, Source::Manual(_) | Source::Tokio(_))
    }

    /// Returns the hand of a manual clock, whose timers wake waiting tasks and threads.
    pub(crate) fn hand(&self) -> Option<&ManualClock> {
        match &self.source {
            Source::Manual(hand) => Some(hand),
            _ => None,
        }
    }

    /// Returns the time between the Unix epoch and the clock's origin.
    #[must_use]
    pub fn wall_offset(&self) -> Duration {
        // ORDERING: Relaxed. The offset is one word and publishes nothing else.
        Duration::from_nanos(self.wall.load(Ordering::Relaxed))
    }

    /// Sets the time between the Unix epoch and the clock's origin, for tests and simulation.
    pub fn set_wall_offset(&self, offset: Duration) {
        // ORDERING: Relaxed, as in `wall_offset`.
        self.wall.store(tick::duration_nanos(offset), Ordering::Relaxed);
    }

    /// Measures the distance to the wall clock again, after it was set.
    ///
    /// Running windows keep the alignment they were built with. A manual clock has no wall clock
    /// to follow and keeps its offset.
    pub fn resync_wall(&self) {
        if !matches!(self.source, Source::Manual(_)) {
            let offset = system::wall_ns().saturating_sub(self.now().as_nanos());
            self.set_wall_offset(Duration::from_nanos(offset));
        }
    }

    /// Returns the wall time of a tick, as time since the Unix epoch.
    #[must_use]
    pub fn to_wall(&self, tick: Tick) -> Duration {
        self.wall_offset().saturating_add(Duration::from_nanos(tick.as_nanos()))
    }

    /// Returns the tick of a wall time given as time since the Unix epoch; the origin if earlier.
    #[must_use]
    pub fn from_wall(&self, wall: Duration) -> Tick {
        Tick::from_nanos(tick::duration_nanos(wall.saturating_sub(self.wall_offset())))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::monotonic()
    }
}
