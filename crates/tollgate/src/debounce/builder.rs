//! The settings of debouncers, keyed debouncers and throttles.

use super::{Debouncer, Fired, machine::Rules, paced::PacedDebounce};
use crate::{
    ConfigError, Driver, Limiter, OnDrop, Panicked, keyed_debounce::Bounds, pace::Pace,
    wait::ActionOptions,
};
use std::{marker::PhantomData, sync::Arc, time::Duration};

/// Builds a [`Debouncer`], a [`KeyedDebouncer`](crate::KeyedDebouncer) or a
/// [`Throttle`](crate::Throttle). Nothing is checked before the start.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `start`"]
pub struct DebouncerBuilder<D = Debouncer<()>> {
    pub(crate) rules: Rules,
    interval: Option<Duration>,
    limiter: Option<Limiter>,
    /// For keys only.
    pub(crate) bounds: Bounds,
    pub(crate) options: ActionOptions,
    builds: PhantomData<fn() -> D>,
}

impl<D> DebouncerBuilder<D> {
    pub(crate) const fn new(rules: Rules) -> Self {
        let options = ActionOptions::new(OnDrop::Cancel);
        let (interval, limiter, bounds) = (None, None, Bounds::DEFAULT);
        Self { rules, interval, limiter, bounds, options, builds: PhantomData }
    }

    /// Runs at the first trigger of a burst only; the others of the burst are dropped. A throttle runs at once, and
    /// drops the triggers of the interval after that.
    pub const fn leading(mut self) -> Self {
        (self.rules.leading, self.rules.trailing) = (true, false);
        self
    }

    /// Runs at the end of a burst only, the default of a debouncer. A throttle runs only at the end of an interval.
    pub const fn trailing(mut self) -> Self {
        (self.rules.leading, self.rules.trailing) = (false, true);
        self
    }

    /// Runs at the first trigger of a burst, and at its end if there were more. The default of a throttle: it runs at
    /// once, and at the end of an interval in which more was triggered.
    pub const fn both_edges(mut self) -> Self {
        (self.rules.leading, self.rules.trailing) = (true, true);
        self
    }

    /// Sets the driver that runs the action. The default is a thread, and the current tokio runtime for
    /// actions that are futures.
    pub fn driver(mut self, driver: Driver) -> Self {
        self.options.driver = Some(driver);
        self
    }

    /// Sets whether a pending run is forgotten or runs when the last handle is dropped. The default is to
    /// forget it: an owner that is gone mostly does not want its action to run.
    pub const fn on_drop(mut self, on_drop: OnDrop) -> Self {
        self.options.on_drop = on_drop;
        self
    }

    /// Sets a function that receives every panic of a run, on the thread of that run, after the panic hook. By default
    /// there is none.
    pub fn on_panic(mut self, report: impl Fn(&Panicked) + Send + Sync + 'static) -> Self {
        self.options.on_panic = Some(Arc::new(report));
        self
    }

    pub(crate) fn machine<T>(&self) -> Result<PacedDebounce<T>, ConfigError> {
        self.rules.check()?;
        let pace = Pace::new(self.interval, self.limiter.clone())?;
        Ok(PacedDebounce::new(self.rules, pace))
    }
}

impl DebouncerBuilder {
    /// Cuts a burst that has lasted for `max_wait`. By default a burst may last for ever.
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.rules.max_wait = Some(max_wait);
        self
    }

    /// Starts at most one run in each `interval`: debounce, then throttle. By default there is no such bound.
    ///
    /// Intervals count from the start of one run to the start of the next. A fire that comes within the
    /// interval waits for its end, and is pending; a later fire takes its place, and
    /// [`Fired::triggers`] counts the triggers of both.
    ///
    /// ```text
    /// triggers  a b c      d      e f
    /// quiet           c        d        f      one fire for each burst
    /// runs            c                 f      d was held back, then f took its place
    /// ```
    ///
    /// [`flush`](Debouncer::flush) and [`finish`](Debouncer::finish) end the burst, and the run still waits
    /// for its interval. [`cancel`](Debouncer::cancel) forgets what waits, but not when the last run was.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Debouncer, Driver, ManualClock};
    ///
    /// let (quiet, interval) = (Duration::from_millis(20), Duration::from_millis(100));
    /// let hand = ManualClock::new();
    /// let (sender, sent) = std::sync::mpsc::channel();
    /// let search = Debouncer::builder(quiet)
    ///     .at_most_every(interval)
    ///     .driver(Driver::manual(&hand))
    ///     .start(move |fired| sender.send(fired.into_value()).unwrap_or(()))?;
    /// for text in ["c", "ca", "cat", "cats"] {
    ///     search.trigger(text);
    ///     hand.advance(quiet);
    /// }
    /// assert_eq!(sent.try_iter().collect::<Vec<_>>(), ["c"]); // at 20 ms
    /// hand.advance(interval);
    /// assert_eq!(sent.try_iter().collect::<Vec<_>>(), ["cats"]); // at 120 ms
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub const fn at_most_every(mut self, interval: Duration) -> Self {
        self.interval = Some(interval);
        self
    }

    /// Takes a permit of `limiter` for each run: a rate that other code shares. By default there is no limiter.
    ///
    /// A run that the limiter does not admit at once books its permit and waits for it; the last value
    /// wins meanwhile. So callers that wait in the limiter's queue cannot starve it. A window cannot be
    /// booked: the debouncer then retries when the limiter's decision says. A
    /// [`cancel`](Debouncer::cancel) gives the booked permit back. The debouncer calls the limiter while
    /// it holds its own lock, so an observer of the limiter must not call the debouncer.
    pub fn limit(mut self, limiter: &Limiter) -> Self {
        self.limiter = Some(limiter.clone());
        self
    }

    /// Starts it with an action that runs to its end on the worker.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if the delay or the interval is zero, the longest wait is below the delay, there is an
    /// interval and a limiter, or the limiter never admits anything.
    pub fn start<T: Send + 'static>(
        self,
        action: impl FnMut(Fired<T>) + Send + 'static,
    ) -> Result<Debouncer<T>, ConfigError> {
        let machine = self.machine()?;
        Ok(Debouncer { engine: self.options.start(machine, action) })
    }

    /// Starts it with an action that is a future. The next run begins when that is ready.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] also if the driver has no runtime, or there is none here by default.
    #[cfg(feature = "tokio")]
    pub fn start_async<T, A, F>(self, action: A) -> Result<Debouncer<T>, ConfigError>
    where
        T: Send + 'static,
        A: FnMut(Fired<T>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let machine = self.machine()?;
        let engine = self.options.start_async(machine, action)?;
        Ok(Debouncer { engine })
    }
}
