//! Interleavings of the lock-free paths, by loom:
//!
//! `RUSTFLAGS="--cfg tollgate_loom" cargo test --profile loom -p tollgate --test loom`
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![cfg(tollgate_loom)]

mod concurrency;
mod engine;
mod keyed;
mod limiter;
