//! How a debouncer is set up.

use super::{
    DebounceError, Debouncer, Fired,
    machine::{Debounce, Rules},
};
use crate::{
    Driver, OnDrop, Panicked,
    wait::{Action, Engine, Reporter},
};
use std::{fmt, sync::Arc, time::Duration};

/// Sets up a [`Debouncer`]. Nothing is judged before the start.
#[derive(Clone)]
#[must_use = "it does nothing until it is started"]
pub struct DebounceBuilder {
    rules: Rules,
    driver: Option<Driver>,
    on_drop: OnDrop,
    report: Option<Reporter>,
}

/// What a composition needs of a debouncer.
pub(crate) struct Parts {
    pub(crate) rules: Rules,
    pub(crate) driver: Option<Driver>,
    pub(crate) on_drop: OnDrop,
    pub(crate) report: Option<Reporter>,
}

impl DebounceBuilder {
    pub(crate) const fn new(delay: Duration) -> Self {
        let rules = Rules { delay, max_wait: None, leading: false, trailing: true, spaced: false };
        Self { rules, driver: None, on_drop: OnDrop::Cancel, report: None }
    }

    /// Runs at the first trigger of a burst only; the others of the burst are dropped.
    pub const fn leading(mut self) -> Self {
        (self.rules.leading, self.rules.trailing) = (true, false);
        self
    }

    /// Runs at the end of a burst only. This is the default.
    pub const fn trailing(mut self) -> Self {
        (self.rules.leading, self.rules.trailing) = (false, true);
        self
    }

    /// Runs at the first trigger of a burst, and at its end if there were more.
    pub const fn both_edges(mut self) -> Self {
        (self.rules.leading, self.rules.trailing) = (true, true);
        self
    }

    /// Cuts a burst that has lasted for `max_wait`. By default a burst may last for ever.
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.rules.max_wait = Some(max_wait);
        self
    }

    /// Never runs twice within the longest wait.
    pub(crate) const fn spaced(mut self) -> Self {
        self.rules.spaced = true;
        self
    }

    /// Says who runs the action. The default is a thread, and the current tokio runtime for
    /// actions that are futures.
    pub fn driver(mut self, driver: Driver) -> Self {
        self.driver = Some(driver);
        self
    }

    /// Says what becomes of what is pending when the last handle is dropped. The default is to
    /// forget it: an owner that is gone mostly does not want its action to run.
    pub const fn on_drop(mut self, on_drop: OnDrop) -> Self {
        self.on_drop = on_drop;
        self
    }

    /// Is told of every run that panics, by whoever ran it. The panic hook has spoken before.
    pub fn on_panic(mut self, report: impl Fn(&Panicked) + Send + Sync + 'static) -> Self {
        self.report = Some(Arc::new(report));
        self
    }

    /// Starts it with an action that runs to its end on the worker.
    ///
    /// # Errors
    ///
    /// [`DebounceError`] if the delay is zero or the longest wait is below it.
    pub fn start<T: Send + 'static>(
        self,
        action: impl FnMut(Fired<T>) + Send + 'static,
    ) -> Result<Debouncer<T>, DebounceError> {
        self.rules.judge()?;
        let driver = self.driver.clone().unwrap_or_default();
        Ok(self.host(driver, Action::Call(Box::new(action))))
    }

    /// Starts it with an action that is a future. The next run begins when that is ready.
    ///
    /// # Errors
    ///
    /// [`DebounceError`] also if the driver has no runtime, or there is none here by default.
    #[cfg(feature = "tokio")]
    pub fn start_async<T, A, F>(self, mut action: A) -> Result<Debouncer<T>, DebounceError>
    where
        T: Send + 'static,
        A: FnMut(Fired<T>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.rules.judge()?;
        let driver = match self.driver.clone() {
            Some(driver) if driver.is_async() => driver,
            Some(_) => return Err(DebounceError::NotAsync),
            None => Driver::tokio()?,
        };
        Ok(self.host(driver, Action::Async(Box::new(move |fired| Box::pin(action(fired))))))
    }

    /// Judges it, and takes it apart for a composition.
    pub(crate) fn into_parts(self) -> Result<Parts, DebounceError> {
        self.rules.judge()?;
        let Self { rules, driver, on_drop, report } = self;
        Ok(Parts { rules, driver, on_drop, report })
    }

    fn host<T: Send + 'static>(self, driver: Driver, action: Action<Fired<T>>) -> Debouncer<T> {
        let machine = Debounce::new(self.rules);
        Debouncer::of(Engine::start(machine, driver, (action, self.report), self.on_drop))
    }
}

impl fmt::Debug for DebounceBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DebounceBuilder")
            .field("rules", &self.rules)
            .field("driver", &self.driver)
            .field("on_drop", &self.on_drop)
            .finish_non_exhaustive()
    }
}
