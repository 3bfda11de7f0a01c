//! At most one run per interval.
//!
//! The idea is lodash's: a throttle is a debouncer whose longest wait is its delay. So a burst is
//! cut after every interval, and there is no second machine to be right or wrong. One rule is added
//! to it: a burst that begins soon after the last run waits for its leading edge.

use crate::{
    DebounceBuilder, DebounceError, Debouncer, Driver, Fired, OnDrop, Panicked, StopAndWait,
    WeakDebouncer,
};
use std::{fmt, time::Duration};

/// Runs an action at most once per interval, however often it is triggered; the last value wins.
///
/// | edges | runs |
/// |---|---|
/// | both (the default) | at once, then every interval while triggers come, and once after the last |
/// | [`leading`](ThrottleBuilder::leading) | at once, then with the first trigger after an interval |
/// | [`trailing`](ThrottleBuilder::trailing) | an interval after the first trigger, and so on |
///
/// Two runs fall due at least an interval apart, with two exceptions: [`flush`](Self::flush) runs
/// what is pending now, and [`cancel`](Self::cancel) forgets the last run, so that the next trigger
/// runs at once. A run that had to wait for a slow one before it starts late, and so may be closer
/// to the next.
///
/// Everything else is as with a [`Debouncer`]: who runs the action, never two runs at once, slow
/// actions, panics, the end.
///
/// # Beside lodash
///
/// What is said of the [`Debouncer`](Debouncer#beside-lodash) holds for `_.throttle` as well. And
/// one more thing differs: lodash runs a leading edge whenever there was no trigger for an interval,
/// even if the trailing run of the last burst was less than an interval ago. With an interval of
/// 100 ms and triggers at 0, 80 and 185 ms it runs at 0, 100 and 185 ms. Here the third run is at
/// 200 ms, because at most one run per interval is what a throttle is for. Whoever wants lodash's
/// times to the millisecond takes a debouncer with both edges and a
/// [`max_wait`](DebounceBuilder::max_wait) of its delay: that is `_.throttle` exactly. Both are
/// held by `tests/flow/servers/debounce_lodash.rs`.
///
/// # Examples
///
/// Reports progress four times a second, and the last state always:
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Driver, ManualClock, Throttle};
///
/// let hand = ManualClock::new();
/// let (sender, shown) = std::sync::mpsc::channel();
/// let show = Throttle::builder(Duration::from_millis(250))
///     .driver(Driver::manual(&hand)) // in a program: leave this out, or `Driver::tokio()?`
///     .start(move |fired| sender.send(fired.into_value()).unwrap_or(()))?;
/// for percent in 0..=10 {
///     show.trigger(percent);
///     hand.advance(Duration::from_millis(100));
/// }
/// hand.advance(Duration::from_secs(1));
/// assert_eq!(shown.try_iter().collect::<Vec<_>>(), [0, 2, 5, 7, 10]);
/// # Ok::<(), tollgate::DebounceError>(())
/// ```
pub struct Throttle<T: Send + 'static> {
    inner: Debouncer<T>,
}

impl<T: Send + 'static> Throttle<T> {
    /// Starts a throttle with both edges, driven by a thread.
    ///
    /// # Errors
    ///
    /// If the interval is zero.
    pub fn new(
        interval: Duration,
        action: impl FnMut(Fired<T>) + Send + 'static,
    ) -> Result<Self, DebounceError> {
        ThrottleBuilder::new(interval).start(action)
    }

    /// Notes that something has happened; see [`Debouncer::trigger`].
    #[allow(clippy::must_use_candidate, reason = "triggering is the point")]
    pub fn trigger(&self, value: T) -> bool {
        self.inner.trigger(value)
    }

    /// Runs what is pending now; see [`Debouncer::flush`].
    #[allow(clippy::must_use_candidate, reason = "flushing is the point")]
    pub fn flush(&self) -> bool {
        self.inner.flush()
    }

    /// Forgets what is pending, and the last run; see [`Debouncer::cancel`].
    #[allow(clippy::must_use_candidate, reason = "cancelling is the point")]
    pub fn cancel(&self) -> bool {
        self.inner.cancel()
    }

    /// Tells whether an interval is under way, or a run waits; see [`Debouncer::is_pending`].
    #[must_use]
    pub fn is_pending(&self) -> bool {
        self.inner.is_pending()
    }

    /// Tells whether the action runs at this moment.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.inner.is_running()
    }

    /// Returns how many runs have panicked.
    #[must_use]
    pub fn panics(&self) -> u64 {
        self.inner.panics()
    }

    /// Tells whether triggers are refused; see [`Debouncer::is_stopped`].
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.inner.is_stopped()
    }

    /// Stops: once this has returned the action does not start any more.
    pub fn stop(&self) {
        self.inner.stop();
    }

    /// Stops, and returns what waits for the end; see [`Debouncer::stop_and_wait`].
    pub fn stop_and_wait(&self, within: Duration) -> StopAndWait {
        self.inner.stop_and_wait(within)
    }

    /// Takes no trigger any more, runs what is pending, and stops; see [`Debouncer::finish`].
    pub fn finish(&self) {
        self.inner.finish();
    }

    /// Finishes, and returns what waits for the end; see [`Debouncer::finish_and_wait`].
    pub fn finish_and_wait(&self, within: Duration) -> StopAndWait {
        self.inner.finish_and_wait(within)
    }

    /// Returns a handle that does not keep this throttle alive, for the action itself.
    #[must_use]
    pub fn downgrade(&self) -> WeakThrottle<T> {
        WeakThrottle { inner: self.inner.downgrade() }
    }
}

impl Throttle<()> {
    /// Returns a builder of a throttle that runs at most once per `interval`.
    pub const fn builder(interval: Duration) -> ThrottleBuilder {
        ThrottleBuilder::new(interval)
    }
}

impl<T: Send + 'static> Clone for Throttle<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<T: Send + 'static> fmt::Debug for Throttle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Throttle").field(&self.inner).finish()
    }
}

/// A handle of a [`Throttle`] that does not keep it alive; see [`WeakDebouncer`].
pub struct WeakThrottle<T: Send + 'static> {
    inner: WeakDebouncer<T>,
}

impl<T: Send + 'static> WeakThrottle<T> {
    /// Does what [`Throttle::trigger`] does; `false` also if the last handle is gone.
    #[allow(clippy::must_use_candidate, reason = "triggering is the point")]
    pub fn trigger(&self, value: T) -> bool {
        self.inner.trigger(value)
    }

    /// Returns a full handle, unless the last one is gone.
    #[must_use]
    pub fn upgrade(&self) -> Option<Throttle<T>> {
        self.inner.upgrade().map(|inner| Throttle { inner })
    }
}

impl<T: Send + 'static> Clone for WeakThrottle<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<T: Send + 'static> fmt::Debug for WeakThrottle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakThrottle")
    }
}

/// Sets up a [`Throttle`]. Nothing is judged before the start.
#[derive(Clone, Debug)]
#[must_use = "it does nothing until it is started"]
pub struct ThrottleBuilder {
    inner: DebounceBuilder,
}

impl ThrottleBuilder {
    const fn new(interval: Duration) -> Self {
        Self { inner: DebounceBuilder::new(interval).max_wait(interval).both_edges().spaced() }
    }

    /// Runs at once, and drops what is triggered within the interval after that.
    pub fn leading(mut self) -> Self {
        self.inner = self.inner.leading();
        self
    }

    /// Runs only at the end of an interval.
    pub fn trailing(mut self) -> Self {
        self.inner = self.inner.trailing();
        self
    }

    /// Runs at once, and at the end of an interval if more was triggered. This is the default.
    pub fn both_edges(mut self) -> Self {
        self.inner = self.inner.both_edges();
        self
    }

    /// Says who runs the action; see [`DebounceBuilder::driver`].
    pub fn driver(mut self, driver: Driver) -> Self {
        self.inner = self.inner.driver(driver);
        self
    }

    /// Says what dropping the last handle does; see [`DebounceBuilder::on_drop`].
    pub fn on_drop(mut self, on_drop: OnDrop) -> Self {
        self.inner = self.inner.on_drop(on_drop);
        self
    }

    /// Is told of every run that panics; see [`DebounceBuilder::on_panic`].
    pub fn on_panic(mut self, report: impl Fn(&Panicked) + Send + Sync + 'static) -> Self {
        self.inner = self.inner.on_panic(report);
        self
    }

    /// Starts it with an action that runs to its end on the worker.
    ///
    /// # Errors
    ///
    /// [`DebounceError`] if the interval is zero.
    pub fn start<T: Send + 'static>(
        self,
        action: impl FnMut(Fired<T>) + Send + 'static,
    ) -> Result<Throttle<T>, DebounceError> {
        Ok(Throttle { inner: self.inner.start(action)? })
    }

    /// Starts it with an action that is a future. The next run begins when that is ready.
    ///
    /// # Errors
    ///
    /// [`DebounceError`] also if the driver has no runtime, or there is none here by default.
    #[cfg(feature = "tokio")]
    pub fn start_async<T, A, F>(self, action: A) -> Result<Throttle<T>, DebounceError>
    where
        T: Send + 'static,
        A: FnMut(Fired<T>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        Ok(Throttle { inner: self.inner.start_async(action)? })
    }
}
