//! Configuration files, the plan made of them, and the engine that decides by it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod config_bounds;
mod config_errors;
mod config_lints;
mod config_loads;
mod engine;
mod engine_modes;
mod matching;
mod reload_race;
mod remote;
