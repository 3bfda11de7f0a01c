//! Waiting, pacing, debouncing, throttling and coalescing: which calls act when.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod admission;
mod coalesce;
mod coalesce_action;
mod coalesce_model;
mod coalesce_waiting;
mod compose;
mod debounce;
mod debounce_drivers;
mod hedge;
mod keyed_debounce;
mod keyed_debounce_drivers;
mod keyed_waiting;
mod keyed_waiting_cancel;
mod keyed_waiting_model;
#[cfg(feature = "log")]
mod log_throttle;
#[cfg(feature = "log")]
mod log_throttle_conservation;
#[cfg(feature = "log")]
mod lossy_writer;
mod pacer;
mod pacer_threads;
mod pacer_tokio;
mod panics_and_shutdown;
#[cfg(feature = "tokio")]
mod queued;
mod retry;
#[cfg(feature = "test-servers")]
mod servers {
    mod debounce_lodash;
}
mod sometimes;
mod timing_pictures;
mod tokio_time;
mod waiting;
mod waiting_cancel;
mod waiting_model;
mod waiting_never_over;
mod waiting_storm;
