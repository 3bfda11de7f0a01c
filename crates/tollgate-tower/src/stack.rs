//! Stacks: all layers that protect a client or a server, in the order that works.
//!
//! The layers of this crate can be stacked by hand. Their order decides what they do: a breaker
//! outside of the retries sees one call where the server got three, a concurrency limit outside of
//! the breaker is full of calls that are refused anyway. [`ClientStack`] and [`ServerStack`] take the
//! layers in any order and put them into the right one, and
//! [`explain`](StackHandle::explain) says why each stands where it stands.
//!
//! `client.rs` and `server.rs` hold the orders, `parts.rs` the settings of the parts, `handle.rs`
//! shows their state, `collect.rs` their metrics, and `observe.rs` counts the results that callers
//! get.

mod client;
mod collect;
mod error;
mod handle;
mod observe;
mod parts;
mod server;

pub use client::{ClientLayers, ClientStack, ClientStackBuilder};
pub use error::StackError;
pub use handle::{LimitReport, StackCounts, StackHandle, StackReport};
pub use observe::{Observed, ObservedFuture, ObserverLayer};
pub use server::{ServerLayers, ServerStack, ServerStackBuilder};
