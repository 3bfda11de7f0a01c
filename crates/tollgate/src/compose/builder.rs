//! How compositions are put together, and what can be wrong with that.

use super::{DebounceThen, debounced::Chain, gate::Gate, pace::Pace, then::Then};
use crate::{
    Driver, Fired, Limiter, NoRuntime, OnDrop, Panicked,
    debounce::machine::{Debounce, Rules},
    wait::{Action, Engine, Machine, Reporter},
};
use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

/// Builds a [`DebounceThen`]. Nothing is judged before [`start`](Self::start).
#[must_use = "a builder does nothing until `start`"]
pub struct DebounceThenBuilder<T> {
    quiet: Duration,
    max_wait: Option<Duration>,
    interval: Option<Duration>,
    limiter: Option<Limiter>,
    driver: Option<Driver>,
    on_drop: OnDrop,
    on_panic: Option<Reporter>,
    values: PhantomData<fn(T)>,
}

impl<T> DebounceThenBuilder<T> {
    pub(super) fn new(
        quiet: Duration,
        interval: Option<Duration>,
        limiter: Option<Limiter>,
    ) -> Self {
        Self {
            quiet,
            max_wait: None,
            interval,
            limiter,
            driver: None,
            on_drop: OnDrop::default(),
            on_panic: None,
            values: PhantomData,
        }
    }

    /// Caps the quiet time: a burst that does not end fires at the latest this long after its first
    /// trigger. By default there is no cap.
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Sets who runs the action, by default [`Driver::thread`].
    pub fn driver(mut self, driver: Driver) -> Self {
        self.driver = Some(driver);
        self
    }

    /// Sets what becomes of what is pending when the last handle is dropped, by default
    /// [`OnDrop::Cancel`]. A flush still waits for its pace.
    pub fn on_drop(mut self, on_drop: OnDrop) -> Self {
        self.on_drop = on_drop;
        self
    }

    /// Is told of every run that panicked; by default nobody is. The next one runs all the same.
    pub fn on_panic(mut self, report: impl Fn(&Panicked) + Send + Sync + 'static) -> Self {
        self.on_panic = Some(Arc::new(report));
        self
    }
}

#[cfg(feature = "tokio")]
type Running = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

impl<T: Send + 'static> DebounceThenBuilder<T> {
    /// Starts it, with an action that is a function.
    ///
    /// # Errors
    ///
    /// [`ComposeError`] says what does not fit together.
    pub fn start(
        self,
        mut action: impl FnMut(Fired<T>) + Send + 'static,
    ) -> Result<DebounceThen<T>, ComposeError> {
        let driver = self.driver.clone().unwrap_or_default();
        self.start_with(driver, Action::Call(Box::new(move |passed| action(passed.open()))))
    }

    /// Starts it, with an action that is awaited.
    ///
    /// Without [`driver`](Self::driver) it runs on the tokio runtime this is called in.
    ///
    /// # Errors
    ///
    /// [`ComposeError`] says what does not fit together, or that there is no runtime.
    #[cfg(feature = "tokio")]
    pub fn start_async<F>(
        self,
        mut action: impl FnMut(Fired<T>) -> F + Send + 'static,
    ) -> Result<DebounceThen<T>, ComposeError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let driver = match self.driver.clone() {
            Some(driver) if driver.is_async() => driver,
            Some(_) => return Err(ComposeError::NotAsync),
            None => Driver::tokio().map_err(ComposeError::NoRuntime)?,
        };
        let begin = move |passed: super::then::Passed<Fired<T>, T>| -> Running {
            Box::pin(action(passed.open()))
        };
        self.start_with(driver, Action::Async(Box::new(begin)))
    }

    fn start_with(
        self,
        driver: Driver,
        action: Action<<Chain<T> as Machine>::Job>,
    ) -> Result<DebounceThen<T>, ComposeError> {
        let (quiet, max_wait) = (self.quiet, self.max_wait);
        if quiet.is_zero() {
            return Err(ComposeError::QuietZero);
        }
        if let Some(max_wait) = max_wait.filter(|max_wait| *max_wait < quiet) {
            return Err(ComposeError::MaxWaitBelowQuiet { max_wait, quiet });
        }
        let pace = pace(self.interval, self.limiter)?;
        let rules = Rules { delay: quiet, max_wait, leading: false, trailing: true };
        let chain = Then::new(Debounce::new(rules), Gate::new(pace));
        let engine = Engine::start(chain, driver, (action, self.on_panic), self.on_drop);
        Ok(DebounceThen { engine })
    }
}

impl<T> fmt::Debug for DebounceThenBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DebounceThenBuilder")
            .field("quiet", &self.quiet)
            .field("max_wait", &self.max_wait)
            .field("interval", &self.interval)
            .field("limiter", &self.limiter)
            .field("driver", &self.driver)
            .field("on_drop", &self.on_drop)
            .finish_non_exhaustive()
    }
}

/// Checks what a pace is made of.
pub(crate) fn pace(
    interval: Option<Duration>,
    limiter: Option<Limiter>,
) -> Result<Pace, PaceError> {
    match (interval, limiter) {
        (None, None) => Ok(Pace::FREE),
        (Some(Duration::ZERO), None) => Err(PaceError::IntervalZero),
        (Some(interval), None) => Ok(Pace::every(interval)),
        (None, Some(limiter)) => {
            if limiter.peek().is_never() {
                return Err(PaceError::Never);
            }
            Ok(Pace::limited(limiter))
        }
        (Some(interval), Some(_)) => Err(PaceError::Both { interval }),
    }
}

/// Why a pace is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PaceError {
    /// The interval is zero.
    IntervalZero,
    /// There is an interval and a limiter.
    Both {
        /// The interval.
        interval: Duration,
    },
    /// The limiter never lets one pass.
    Never,
}

impl fmt::Display for PaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::IntervalZero => {
                f.write_str("an interval of zero is no pace; set one above zero, or leave it out")
            }
            Self::Both { interval } => write!(
                f,
                "an interval of {interval:?} and a limiter are both set; take one of them, a limiter \
                 with burst 1 is an interval"
            ),
            Self::Never => f.write_str(
                "the limiter never lets cost 1 pass; raise its burst, or refill what it had",
            ),
        }
    }
}

impl std::error::Error for PaceError {}

/// Why no composition was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ComposeError {
    /// The quiet time is zero.
    QuietZero,
    /// The cap is below what it caps.
    MaxWaitBelowQuiet {
        /// The longest wait.
        max_wait: Duration,
        /// The quiet time.
        quiet: Duration,
    },
    /// The pace is no pace.
    Pace(PaceError),
    /// An action that is a future needs a tokio driver.
    NotAsync,
    /// There is no runtime for an action that is a future.
    NoRuntime(NoRuntime),
}

impl From<PaceError> for ComposeError {
    fn from(error: PaceError) -> Self {
        Self::Pace(error)
    }
}

impl fmt::Display for ComposeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QuietZero => f.write_str(
                "a quiet time of zero is no silence; set one above zero, or use a throttle alone",
            ),
            Self::MaxWaitBelowQuiet { max_wait, quiet } => write!(
                f,
                "max_wait {max_wait:?} is below quiet {quiet:?}, which would never come true; raise \
                 max_wait, or lower quiet"
            ),
            Self::Pace(error) => error.fmt(f),
            Self::NotAsync => f.write_str(
                "the driver cannot run futures; use `Driver::tokio` or `Driver::on`, or `start`",
            ),
            Self::NoRuntime(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ComposeError {}
