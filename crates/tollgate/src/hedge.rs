//! Hedging: send a slow call a second time, and take the answer that comes first.
//!
//! Of many equal calls a few are slow for reasons of their own: a queue, a pause, a lost packet. The
//! same call, sent again, is most likely fast. Sent at the 95th percentile of latency, one call of
//! twenty is sent twice, and the slowest of a hundred take a quarter of their time (Dean and
//! Barroso, "The Tail at Scale").
//!
//! `policy.rs` decides when a call is hedged, without a timer; `latency.rs` follows the percentile;
//! `call.rs` runs the attempts of one call.
//!
//! Under overload everything is slow, and hedging would double the load. So a hedge is sent only
//! within a [`RetryBudget`](crate::RetryBudget), and not while a breaker is open or a limit is full.

#[cfg(feature = "tokio")]
mod call;
mod latency;
mod policy;

#[cfg(feature = "tokio")]
pub use call::{HedgedCall, hedge};
pub use policy::{HedgeCounts, HedgePolicy, HedgePolicyBuilder, HedgedAttempts};
