//! Decisions while the store is away, and what is booked afterwards.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[cfg(feature = "test-servers")]
mod servers {
    mod bad_days;
    mod guard;
    mod guard_carry;
    mod guard_cost;
    mod guard_fleet;
    mod guard_support;
}
