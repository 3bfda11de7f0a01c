//! The periodic work of a server.

use super::{Manager, Shared};
use crate::engine::{ADAPT_EVERY, AGREE_EVERY};
use std::{sync::Arc, time::Duration};
use tokio::time::{MissedTickBehavior, interval};

/// Loads the configuration again when a file has changed.
pub(super) async fn watch_files(manager: Arc<Manager>) {
    let Some(every) = manager.watch_interval() else { return };
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let manager = Arc::clone(&manager);
        manager.reload_if_changed().await;
    }
}

/// Takes a sample of all counts every second, for the rates that administrators see.
pub(super) async fn sample(shared: Arc<Shared>) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        crate::admin::sample(&shared);
    }
}

/// Agrees with other processes on the rates of rules with `adaptive`.
pub(super) async fn agree(shared: Arc<Shared>) {
    let mut ticks = interval(AGREE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.engine.agree_rates().await;
    }
}

/// Moves the rates of rules with `adaptive`.
pub(super) async fn adapt(shared: Arc<Shared>) {
    let mut ticks = interval(ADAPT_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.engine.adapt();
    }
}
