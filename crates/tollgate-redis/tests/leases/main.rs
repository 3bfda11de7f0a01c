//! Permits that a process takes in advance.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[cfg(feature = "test-servers")]
mod servers {
    mod lease_outage;
    mod tier;
    mod tier_conformance;
    mod tier_cost;
    mod tier_fleet;
    mod tier_leases;
}
