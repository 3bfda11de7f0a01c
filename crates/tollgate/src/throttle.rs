//! At most one run per interval.
//!
//! The idea is lodash's: a throttle is a debouncer whose longest wait is its delay. So a burst is
//! cut after every interval, and there is no second machine to be right or wrong. One rule is added
//! to it: a burst that begins soon after the last run waits for its leading edge.

use crate::{
    ConfigError, Debouncer, DebouncerBuilder, Fired,
    debounce::machine::Rules,
    observe::{Collector, Samples, WeakCollector},
};
use std::{fmt, ops::Deref, time::Duration};

/// Runs an action at most once per interval, however often it is triggered; the last value wins.
///
/// | edges | runs |
/// |---|---|
/// | both (the default) | at once, then every interval while triggers come, and once after the last |
/// | [`leading`](ThrottleBuilder::leading) | at once, then with the first trigger after an interval |
/// | [`trailing`](ThrottleBuilder::trailing) | an interval after the first trigger, and so on |
///
/// Two runs fall due at least an interval apart, with two exceptions: [`flush`](Debouncer::flush) runs
/// what is pending now, and [`cancel`](Debouncer::cancel) forgets the last run, so that the next trigger
/// runs at once. A run that had to wait for a slow one before it starts late, and so may be closer
/// to the next.
///
/// A throttle **is** a [`Debouncer`] with other rules, and has its methods: trigger, flush, cancel, stop, finish and
/// downgrade. Everything else is as with a debouncer, too: the driver, never two runs at once, slow actions,
/// panics, the end.
///
/// # Beside lodash
///
/// The list of the [`Debouncer`](Debouncer#beside-lodash) holds for `_.throttle` as well. And
/// one more thing differs: lodash runs a leading edge whenever there was no trigger for an interval,
/// even if the trailing run of the last burst was less than an interval ago. With an interval of
/// 100 ms and triggers at 0, 80 and 185 ms it runs at 0, 100 and 185 ms. Here the third run is at
/// 200 ms, because at most one run per interval is what a throttle is for. For lodash's
/// times to the millisecond, use a debouncer with both edges and a
/// [`max_wait`](DebouncerBuilder::max_wait) of its delay: that is `_.throttle` exactly. `tests/flow/servers/debounce_lodash.rs`
/// tests both.
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
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
pub struct Throttle<T: Send + 'static> {
    debouncer: Debouncer<T>,
}

impl<T: Send + 'static> Deref for Throttle<T> {
    type Target = Debouncer<T>;

    fn deref(&self) -> &Debouncer<T> {
        &self.debouncer
    }
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
    ) -> Result<Self, ConfigError> {
        Throttle::builder(interval).start(action)
    }
}

impl Throttle<()> {
    /// Returns a builder of a throttle that runs at most once per `interval`.
    pub const fn builder(interval: Duration) -> ThrottleBuilder {
        ThrottleBuilder::new(Rules::throttle(interval))
    }
}

impl<T: Send + 'static> Clone for Throttle<T> {
    fn clone(&self) -> Self {
        Self { debouncer: self.debouncer.clone() }
    }
}

impl<T: Send + 'static> fmt::Debug for Throttle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Throttle").field(&self.debouncer).finish()
    }
}

/// Builds a [`Throttle`].
pub type ThrottleBuilder = DebouncerBuilder<Throttle<()>>;

impl ThrottleBuilder {
    /// Starts it with an action that runs to its end on the worker.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the interval is zero.
    pub fn start<T: Send + 'static>(
        self,
        action: impl FnMut(Fired<T>) + Send + 'static,
    ) -> Result<Throttle<T>, ConfigError> {
        let machine = self.machine()?;
        let engine = self.options.start(machine, action);
        Ok(Throttle { debouncer: Debouncer { engine } })
    }

    /// Starts it with an action that is a future. The next run begins when that is ready.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] also if the driver has no runtime, or there is none here by default.
    #[cfg(feature = "tokio")]
    pub fn start_async<T, A, F>(self, action: A) -> Result<Throttle<T>, ConfigError>
    where
        T: Send + 'static,
        A: FnMut(Fired<T>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let machine = self.machine()?;
        let engine = self.options.start_async(machine, action)?;
        Ok(Throttle { debouncer: Debouncer { engine } })
    }
}

impl<T: Send + 'static> Collector for Throttle<T> {
    fn collect(&self, samples: &mut Samples) {
        self.debouncer.collect_as("throttle", samples);
    }

    fn weak(&self) -> WeakCollector {
        let weak = self.debouncer.downgrade();
        WeakCollector::new(move || Some(Box::new(Self { debouncer: weak.upgrade()? })))
    }
}
