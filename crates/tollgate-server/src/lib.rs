//! Rate limiting as a service: Envoy's rate limit protocol, HTTP/JSON, forward-auth and the Redis
//! protocol over one engine.
//!
//! The program `tollgate serve` is a thin shell around this library.
//!
//! ```text
//! config  what the files say        -> plan    compiled: which rules a descriptor meets
//! resp · rls · http · admin         -> engine  decides, through a store
//! ```
//!
//! The protocols do not call each other; all call the engine.

pub mod admin;
pub mod config;
pub mod engine;
pub mod http;
pub mod metrics;
pub mod net;
pub mod plan;
pub mod resp;
pub mod rls;
pub mod server;
pub mod trace;

/// The crate's page, compiled: its example is a test.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
}
