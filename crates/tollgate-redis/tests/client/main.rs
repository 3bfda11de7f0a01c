//! The Redis client: connections, deadlines, breakers, topology.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[cfg(feature = "test-servers")]
mod servers {
    mod link;
    mod link_broken;
    mod link_fleet;
    mod link_speed;
    mod link_support;
}
