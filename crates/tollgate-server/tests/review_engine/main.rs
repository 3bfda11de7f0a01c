//! Decisions in odd combinations: modes, stores, parents, blocks, reservations.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod bench;
mod huge;
mod modes;
mod parents;
mod reload;
mod reserved;
mod told;
