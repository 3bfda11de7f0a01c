//! The store in real Redis and Valkey servers: what it decides.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[cfg(feature = "test-servers")]
mod servers {
    // Tests behind the feature `testing` move the time of the scripts.
    mod adaptive_rate;
    mod arithmetic;
    #[cfg(feature = "testing")]
    mod conformance;
    mod exact;
    mod fair_share;
    mod fleet;
    #[cfg(feature = "testing")]
    mod interleaved_calls;
    #[cfg(feature = "testing")]
    mod parity;
    mod patient;
    mod recorded;
    mod refusals;
    #[cfg(feature = "testing")]
    mod reserving;
    mod server_time;
    mod two_quotas;
}
