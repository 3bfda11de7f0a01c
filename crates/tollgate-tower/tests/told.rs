//! Whatever is asked: what clients are told is well formed, true, and nothing of their own.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "told/echo.rs"]
mod echo;
#[path = "told/numbers.rs"]
mod numbers;
