//! How compositions are put together, and what can be wrong with that.

use super::{DebounceThen, pace::Pace};
use crate::{
    DebounceBuilder, DebounceError, Debouncer, Fired, Limiter, NoRuntime,
    debounce::paced::PacedDebounce,
};
use std::{fmt, time::Duration};

/// Builds a [`DebounceThen`]. Nothing is judged before [`start`](Self::start).
///
/// The driver, the edges, the end and who is told of panics are those of the debouncer that it is
/// made of.
#[derive(Clone, Debug)]
#[must_use = "it does nothing until it is started"]
pub struct DebounceThenBuilder {
    pub(super) debounce: DebounceBuilder,
    pub(super) interval: Option<Duration>,
    pub(super) limiter: Option<Limiter>,
}

impl DebounceThenBuilder {
    /// Starts it with an action that runs to its end on the worker.
    ///
    /// # Errors
    ///
    /// [`ComposeError`] says which stage is set up wrongly.
    pub fn start<T: Send + 'static>(
        self,
        action: impl FnMut(Fired<T>) + Send + 'static,
    ) -> Result<DebounceThen<T>, ComposeError> {
        let machine = self.machine()?;
        let engine = self.debounce.options.start(machine, action);
        Ok(Debouncer { engine })
    }

    /// Starts it with an action that is a future. The next run begins when that is ready.
    ///
    /// # Errors
    ///
    /// [`ComposeError`] also if the driver has no runtime, or there is none here by default.
    #[cfg(feature = "tokio")]
    pub fn start_async<T, A, F>(self, action: A) -> Result<DebounceThen<T>, ComposeError>
    where
        T: Send + 'static,
        A: FnMut(Fired<T>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let machine = self.machine()?;
        let options = self.debounce.options;
        let engine = options.start_async(machine, action, DebounceError::NotAsync)?;
        Ok(Debouncer { engine })
    }

    fn machine<T>(&self) -> Result<PacedDebounce<T>, ComposeError> {
        self.debounce.rules.judge()?;
        let pace = Pace::new(self.interval, self.limiter.clone())?;
        Ok(PacedDebounce::new(self.debounce.rules, pace))
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
                f.write_str("the interval is zero; set one above zero, or leave it out")
            }
            Self::Both { interval } => write!(
                f,
                "an interval of {interval:?} and a limiter are both set; use one of them: a \
                 limiter with burst 1 acts as an interval"
            ),
            Self::Never => {
                f.write_str("the limiter never admits cost 1; raise its burst, or reset it")
            }
        }
    }
}

impl std::error::Error for PaceError {}

/// Why a [`DebounceThen`] does not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ComposeError {
    /// The debouncer is set up wrongly, or cannot be driven.
    Debounce(DebounceError),
    /// The pace behind it is none.
    Pace(PaceError),
}

impl From<DebounceError> for ComposeError {
    fn from(error: DebounceError) -> Self {
        Self::Debounce(error)
    }
}

impl From<PaceError> for ComposeError {
    fn from(error: PaceError) -> Self {
        Self::Pace(error)
    }
}

impl From<NoRuntime> for ComposeError {
    fn from(error: NoRuntime) -> Self {
        Self::Debounce(error.into())
    }
}

impl fmt::Display for ComposeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Debounce(error) => error.fmt(f),
            Self::Pace(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ComposeError {}
