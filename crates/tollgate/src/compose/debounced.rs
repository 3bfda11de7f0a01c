//! A debouncer, and a pace behind it.

use crate::{Debouncer, StopAndWait, WeakDebouncer};
use std::{fmt, time::Duration};

/// Runs once when a burst of triggers is over, and not more often than a pace allows.
///
/// Made by [`debounce_then_throttle`](crate::debounce_then_throttle) or
/// [`debounce_then_limit`](crate::debounce_then_limit). Clones are handles of the same one.
///
/// ```text
/// triggers  a b c      d      e f
/// quiet           c        d        f      one fire for each burst
/// pace            c                 f      d was held back, then f took its place
/// ```
///
/// The last value wins at each stage, and [`Fired`](crate::Fired) tells how many triggers a run
/// stands for, from both stages together.
///
/// # Concurrency
///
/// `Send + Sync`, and every method takes `&self`. The action runs without a lock, one run at a time,
/// and may trigger again. A run that falls due meanwhile waits for it.
pub struct DebounceThen<T: Send + 'static> {
    pub(super) inner: Debouncer<T>,
}

impl<T: Send + 'static> DebounceThen<T> {
    /// Says that something has happened. Tells whether it counts: after a stop it does not.
    #[allow(clippy::must_use_candidate, reason = "triggering is the point")]
    pub fn trigger(&self, value: T) -> bool {
        self.inner.trigger(value)
    }

    /// Ends the burst now. The run still waits for its pace: a rate is a promise to others.
    ///
    /// Returns whether there is something to run.
    #[allow(clippy::must_use_candidate, reason = "flushing is the point")]
    pub fn flush(&self) -> bool {
        self.inner.flush()
    }

    /// Forgets what is pending, in both stages. The pace is kept.
    ///
    /// Returns whether there was something that would have run. No permit is lost by it: one that
    /// was booked goes back to the limiter.
    #[allow(clippy::must_use_candidate, reason = "cancelling is the point")]
    pub fn cancel(&self) -> bool {
        self.inner.cancel()
    }

    /// Tells whether a burst is under way, or a run waits for its pace or its turn.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.inner.is_pending()
    }

    /// Returns a handle that does not keep this alive, for the action itself.
    #[must_use]
    pub fn downgrade(&self) -> WeakDebounceThen<T> {
        WeakDebounceThen { inner: self.inner.downgrade() }
    }

    /// Tells whether the action runs at this moment.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.inner.is_running()
    }

    /// Tells whether it is stopped.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.inner.is_stopped()
    }

    /// Returns how many runs have panicked.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.inner.panics()
    }

    /// Ends it: no run starts after this has returned. What is pending is forgotten, and a run that
    /// has started goes on.
    pub fn stop(&self) {
        self.inner.stop();
    }

    /// [`stop`](Self::stop), and waits at most for `within` for a run that has started.
    pub fn stop_and_wait(&self, within: Duration) -> StopAndWait {
        self.inner.stop_and_wait(within)
    }

    /// Takes no trigger any more, runs what is pending at its pace, and stops.
    pub fn finish(&self) {
        self.inner.finish();
    }

    /// [`finish`](Self::finish), and waits at most for `within` until that has run.
    pub fn finish_and_wait(&self, within: Duration) -> StopAndWait {
        self.inner.finish_and_wait(within)
    }
}

/// A handle of a [`DebounceThen`] that does not keep it alive.
pub struct WeakDebounceThen<T: Send + 'static> {
    inner: WeakDebouncer<T>,
}

impl<T: Send + 'static> WeakDebounceThen<T> {
    /// Returns a handle, if there is still one.
    #[must_use]
    pub fn upgrade(&self) -> Option<DebounceThen<T>> {
        self.inner.upgrade().map(|inner| DebounceThen { inner })
    }
}

impl<T: Send + 'static> Clone for WeakDebounceThen<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<T: Send + 'static> fmt::Debug for WeakDebounceThen<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakDebounceThen")
    }
}

impl<T: Send + 'static> Clone for DebounceThen<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<T: Send + 'static> fmt::Debug for DebounceThen<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DebounceThen")
            .field("pending", &self.is_pending())
            .field("running", &self.is_running())
            .field("stopped", &self.is_stopped())
            .finish_non_exhaustive()
    }
}
