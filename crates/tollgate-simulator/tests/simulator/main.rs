//! The simulator, and Tollgate's laws in it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod docs;
mod laws;
mod model;
mod playbooks;
mod priorities;
mod resilience;
mod workload;
