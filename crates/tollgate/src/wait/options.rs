//! The options that every builder of an action has.

use super::{Action, Driver, Engine, Machine, OnDrop, Reporter};
#[cfg(feature = "tokio")]
use crate::ConfigError;
use std::fmt;

/// The driver of an action, and what happens at its end and when it panics.
#[derive(Clone)]
pub(crate) struct ActionOptions {
    /// By default a thread; for an async action the runtime in which it starts.
    pub(crate) driver: Option<Driver>,
    pub(crate) on_drop: OnDrop,
    pub(crate) on_panic: Option<Reporter>,
}

impl ActionOptions {
    pub(crate) const fn new(on_drop: OnDrop) -> Self {
        Self { driver: None, on_drop, on_panic: None }
    }

    pub(crate) fn start<M: Machine>(
        self,
        machine: M,
        action: impl FnMut(M::Job) + Send + 'static,
    ) -> Engine<M> {
        let driver = self.driver.unwrap_or_default();
        let action = Action::Call(Box::new(action));
        Engine::start(machine, driver, (action, self.on_panic), self.on_drop)
    }

    /// Fails if the driver cannot run futures.
    #[cfg(feature = "tokio")]
    pub(crate) fn start_async<M, F>(
        self,
        machine: M,
        mut action: impl FnMut(M::Job) -> F + Send + 'static,
    ) -> Result<Engine<M>, ConfigError>
    where
        M: Machine,
        F: Future<Output = ()> + Send + 'static,
    {
        let driver = match self.driver {
            Some(driver) if driver.is_async() => driver,
            Some(_) => {
                return Err(ConfigError::new(
                    "an async action needs a tokio runtime; use `Driver::tokio` or `Driver::on`, \
                     or `start` with an action that is not async",
                ));
            }
            None => Driver::tokio()?,
        };
        let action = Action::Async(Box::new(move |job| Box::pin(action(job))));
        Ok(Engine::start(machine, driver, (action, self.on_panic), self.on_drop))
    }
}

impl fmt::Debug for ActionOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut options = f.debug_struct("ActionOptions");
        options.field("driver", &self.driver).field("on_drop", &self.on_drop);
        options.finish_non_exhaustive()
    }
}
