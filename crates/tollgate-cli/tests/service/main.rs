//! `tollgate serve` as a process: started, loaded, killed, reloaded, attacked.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod access;
mod bounds;
mod exact;
mod files;
mod first_steps;
mod hostile;
mod life;
mod log;
mod memory;
mod process;
mod reload;
mod rules;
#[cfg(feature = "test-servers")]
mod servers {
    mod adaptive;
    mod dashboard;
    mod fleet;
    mod grafana;
    mod in_flight;
}
mod snapshot;
mod tools;
