//! The builder of a pacer.

use super::{
    Late, Pacer,
    job::{self, Work},
    machine::PacerMachine,
    schedule::Schedule,
};
use crate::{
    ConfigError, Driver, Initial, OnDrop, Panicked, Quota, Tick,
    wait::{ActionOptions, Engine},
};
use std::sync::Arc;

/// Collects what a [`Pacer`] needs; made by [`Pacer::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is started before `start`"]
pub struct PacerBuilder {
    quota: Quota,
    capacity: u64,
    late: Late,
    options: ActionOptions,
}

impl PacerBuilder {
    /// 1000: a queue that a service notices, and that takes little memory.
    const CAPACITY: u64 = 1000;

    pub(super) fn new(quota: Quota) -> Self {
        let options = ActionOptions::new(OnDrop::Cancel);
        Self { quota, capacity: Self::CAPACITY, late: Late::default(), options }
    }

    /// Sets how many may wait, by default 1000.
    ///
    /// The call that may run at once does not wait, so an idle pacer takes capacity + 1 calls at one instant: one
    /// runs, `capacity` wait. (nginx counts its `burst` in the same way.) Counted so, the capacity is a delay: no call waits
    /// longer than capacity / rate. With 0 no call waits: one that comes less than an interval after the last is
    /// refused.
    pub fn capacity(mut self, capacity: u64) -> Self {
        self.capacity = capacity;
        self
    }

    /// Sets the driver that runs jobs, and its clock, by default [`Driver::thread`].
    pub fn driver(mut self, driver: Driver) -> Self {
        self.options.driver = Some(driver);
        self
    }

    /// Sets when jobs run that could not start at their slots, by default
    /// [`Late::KeepPace`].
    pub fn late(mut self, late: Late) -> Self {
        self.late = late;
        self
    }

    /// Sets what becomes of queued jobs when the last handle is dropped, by default
    /// [`OnDrop::Cancel`]. With [`OnDrop::Flush`] they run at their slots.
    pub fn on_drop(mut self, on_drop: OnDrop) -> Self {
        self.options.on_drop = on_drop;
        self
    }

    /// Sets a function that receives the panics of jobs, by default none.
    ///
    /// It is called where the job ran. A panic of its own is caught and not reported.
    pub fn on_panic(mut self, report: impl Fn(&Panicked) + Send + Sync + 'static) -> Self {
        self.options.on_panic = Some(Arc::new(report));
        self
    }

    /// Checks everything and starts the pacer. No thread and no task is started before the first
    /// job.
    ///
    /// # Errors
    ///
    /// If the quota is invalid or unlimited, has no rate, a burst other than 1 or an initial fill, or if a full
    /// queue would take longer than 11.4 years.
    pub fn start(self) -> Result<Pacer, ConfigError> {
        let Self { quota, capacity, late, options } = self;
        check(&quota, capacity)?;
        let machine = PacerMachine::<Work>::new(quota, capacity, late);
        let driver = options.driver.unwrap_or_default();
        let action = job::action(&driver);
        let engine = Engine::start(machine, driver, (action, options.on_panic), options.on_drop);
        Ok(Pacer { engine })
    }
}

/// Checks what every pacer needs.
pub(super) fn check(quota: &Quota, capacity: u64) -> Result<(), ConfigError> {
    quota.check_countable()?;
    if quota.count() == 0 {
        return Err(ConfigError::new(
            "a rate of zero grants no slot; give a count of at least 1, for example one_every",
        ));
    }
    if let Some(burst) = quota.explicit_burst()
        && burst != 1
    {
        return Err(ConfigError::new(format!(
            "a pacer cannot have the burst {burst}, because it admits one at a time; remove the \
             burst, or use a limiter to allow bursts"
        )));
    }
    if quota.initial_fill() != Initial::Full {
        return Err(ConfigError::new(
            "a pacer saves nothing up, so there is no initial fill; remove it, or use a limiter",
        ));
    }
    if Schedule::new(*quota).nanos(capacity) > u128::from(Tick::HORIZON.as_nanos()) {
        return Err(ConfigError::new(format!(
            "a queue of {capacity} at {quota} takes longer than 11.4 years, the range of the \
             clock; lower the capacity, or raise the rate"
        )));
    }
    Ok(())
}
