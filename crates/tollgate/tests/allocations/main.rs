//! How much memory calls allocate, counted for each thread.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code, reason = "an allocator that counts has no safe form in std")]

mod counting;
mod debounce_allocations;
mod keyed_debounce_memory;
#[cfg(feature = "log")]
mod log_throttle_allocations;
mod waiting_allocations;
