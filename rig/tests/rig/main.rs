//! The servers and the proxy that other tests start.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[cfg(feature = "test-servers")]
mod servers {
    mod cluster;
    mod proxy;
    mod redis;
}
