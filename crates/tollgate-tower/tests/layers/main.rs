//! Layers for servers and clients: what they decide, charge and report.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod adaptive;
mod away;
mod bandwidth;
#[cfg(feature = "testing")]
mod chaos;
mod client_defaults;
mod client_follows;
mod client_hedge;
mod client_learned;
mod client_no_timers;
mod client_pace;
mod client_replay;
mod client_replay_wire;
mod client_retry;
mod client_self_throttle;
mod client_wire;
mod concurrency;
mod diagnostics;
mod endings_and_figures;
mod fast_path;
mod first_use;
mod grpc_details;
mod heard;
mod heavy_keys;
mod keys;
mod keys_address;
mod keys_proxies;
mod layer_defaults;
mod limit;
mod limit_watch;
#[path = "../../../../examples/llm_budget.rs"]
#[allow(dead_code, reason = "its main is not called")]
mod llm_budget;
mod modes;
#[cfg(feature = "axum")]
mod page_examples;
#[cfg(feature = "json")]
mod registry;
mod reported_values;
mod resilience;
mod response;
mod roundtrip;
mod same_body;
#[cfg(feature = "test-servers")]
mod servers {
    mod fleet;
    mod limit_under_load;
}
mod observe;
mod sockets;
mod stack;
mod stacks;
mod strict;
mod stub;
mod usage;
mod wire;

/// The address of the pages that errors name.
const DOCS: &str = "https://github.com/tollgate-rs/tollgate/blob/main/docs";
