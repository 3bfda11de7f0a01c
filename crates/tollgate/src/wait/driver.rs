//! Drivers run actions when they are due.

use crate::{Clock, ManualClock};
use std::fmt;

/// Runs the action of a debouncer, throttle, coalescer or pacer, by a clock.
///
/// | driver | who runs the action | when it is idle |
/// |---|---|---|
/// | [`Driver::thread`] | a thread of its own | no thread |
/// | `Driver::tokio` (feature `tokio`) | a task of the runtime | no task |
/// | [`Driver::manual`] | the thread that moves the hand, or triggers a job that is due at once | nothing |
///
/// Each debouncer, throttle, coalescer and pacer has a worker of its own while it has something to
/// wait for, so a slow action delays nobody else's.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Debouncer, Driver, ManualClock};
///
/// let hand = ManualClock::new();
/// let (sender, saved) = std::sync::mpsc::channel();
/// let save = Debouncer::builder(Duration::from_millis(100))
///     .driver(Driver::manual(&hand))
///     .start(move |fired| sender.send(fired.into_value()).unwrap_or(()))?;
/// save.trigger("a");
/// save.trigger("ab");
/// hand.advance(Duration::from_millis(100));
/// assert_eq!(saved.try_iter().collect::<Vec<_>>(), ["ab"]);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Driver {
    clock: Clock,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Thread,
    Manual(ManualClock),
    #[cfg(feature = "tokio")]
    Tokio(tokio::runtime::Handle),
}

impl Driver {
    /// Returns the driver that starts a thread while there is something to wait for.
    ///
    /// If the system has no thread left, what is pending stays so until the next event tries again.
    #[must_use]
    pub fn thread() -> Self {
        Self { clock: Clock::monotonic(), kind: Kind::Thread }
    }

    /// Returns the driver of the tokio runtime this is called in.
    ///
    /// It follows tokio's clock, so it stands still under `tokio::time::pause`. The runtime needs
    /// its timers enabled. An action that is no future holds up a thread of the runtime while it
    /// runs; between two runs other tasks have their turn.
    ///
    /// # Errors
    ///
    /// When this is called outside a runtime; [`Driver::on`] takes one by its handle.
    #[cfg(feature = "tokio")]
    pub fn tokio() -> Result<Self, NoRuntime> {
        tokio::runtime::Handle::try_current().map(Self::on).map_err(|_| NoRuntime)
    }

    /// Returns the driver of a tokio runtime, from anywhere.
    ///
    /// A runtime that shuts down stops what it drives, and drops an action under way where it waits.
    /// If nothing was pending then, the first event after it finds that out.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn on(runtime: tokio::runtime::Handle) -> Self {
        // The clock is that of the runtime only if it is made inside.
        let clock = {
            let _inside = runtime.enter();
            Clock::tokio()
        };
        Self { clock, kind: Kind::Tokio(runtime) }
    }

    /// Returns the driver that runs what is due inside [`ManualClock::advance`], for tests and
    /// simulation.
    ///
    /// A job that is due at once runs inside the call that triggered it.
    #[must_use]
    pub fn manual(hand: &ManualClock) -> Self {
        Self { clock: hand.clock(), kind: Kind::Manual(hand.clone()) }
    }

    /// Returns the clock that this driver follows.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Tells whether actions that are futures can run here.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_async(&self) -> bool {
        matches!(self.kind, Kind::Tokio(_))
    }
}

impl Default for Driver {
    fn default() -> Self {
        Self::thread()
    }
}

/// Whether pending jobs still run when the last handle is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnDrop {
    /// They are forgotten: the action does not run any more.
    #[default]
    Cancel,
    /// They run, as soon as they can, and then all is released.
    Flush,
}

/// There is no tokio runtime here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRuntime;

impl fmt::Display for NoRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "there is no tokio runtime with timers here; call it inside one, give its handle to \
             `Driver::on`, or use `Driver::thread`",
        )
    }
}

impl std::error::Error for NoRuntime {}
