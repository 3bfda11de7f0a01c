//! How a debouncer is set up.

use super::{DebounceError, Debouncer, Fired, machine::Rules, paced::PacedDebounce};
use crate::{Driver, OnDrop, Panicked, compose::Pace, wait::ActionOptions};
use std::{sync::Arc, time::Duration};

/// Sets up a [`Debouncer`]. Nothing is judged before the start.
#[derive(Clone, Debug)]
#[must_use = "it does nothing until it is started"]
pub struct DebounceBuilder {
    pub(crate) rules: Rules,
    pub(crate) options: ActionOptions,
}

impl DebounceBuilder {
    pub(crate) const fn new(delay: Duration) -> Self {
        let rules = Rules { delay, max_wait: None, leading: false, trailing: true, spaced: false };
        Self { rules, options: ActionOptions::new(OnDrop::Cancel) }
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
        self.options.driver = Some(driver);
        self
    }

    /// Says what becomes of what is pending when the last handle is dropped. The default is to
    /// forget it: an owner that is gone mostly does not want its action to run.
    pub const fn on_drop(mut self, on_drop: OnDrop) -> Self {
        self.options.on_drop = on_drop;
        self
    }

    /// Is told of every run that panics, by whoever ran it. The panic hook has spoken before.
    pub fn on_panic(mut self, report: impl Fn(&Panicked) + Send + Sync + 'static) -> Self {
        self.options.on_panic = Some(Arc::new(report));
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
        let machine = self.machine()?;
        Ok(Debouncer { engine: self.options.start(machine, action) })
    }

    /// Starts it with an action that is a future. The next run begins when that is ready.
    ///
    /// # Errors
    ///
    /// [`DebounceError`] also if the driver has no runtime, or there is none here by default.
    #[cfg(feature = "tokio")]
    pub fn start_async<T, A, F>(self, action: A) -> Result<Debouncer<T>, DebounceError>
    where
        T: Send + 'static,
        A: FnMut(Fired<T>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let machine = self.machine()?;
        let engine = self.options.start_async(machine, action, DebounceError::NotAsync)?;
        Ok(Debouncer { engine })
    }

    fn machine<T>(&self) -> Result<PacedDebounce<T>, DebounceError> {
        self.rules.judge()?;
        Ok(PacedDebounce::new(self.rules, Pace::FREE))
    }
}
