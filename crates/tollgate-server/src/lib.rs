//! Tollgate's rate limit service as a library: Envoy's rate limit protocol, HTTP/JSON, forward-auth and
//! the Redis protocol over one engine.
//!
//! Most users want the program `tollgate serve` from the crate `tollgate-cli`, which is a thin wrapper
//! around this library. Use the library to check a configuration, to test which limits it applies, or to
//! run the service inside your own program.
//!
//! ```
//! use tollgate_server::{config::Config, plan::Plan};
//!
//! let text = "domain: shop\ndescriptors: [{key: user, rate_limit: {quota: 100/min}}]\n";
//! let plan = Plan::compile(Config::from_text("shop.yaml", text)?, None)?;
//! assert_eq!(plan.rules().len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which module for what
//!
//! | I want | use |
//! |---|---|
//! | to read and check configuration files | [`config`] |
//! | to find the rules that apply to a descriptor | [`plan`] |
//! | to decide about requests, without a socket | [`engine`] |
//! | to run the whole service | [`server`] |
//! | one protocol | [`http`], [`rls`] (Envoy), [`resp`] (Redis), [`admin`] |
//! | metrics for Prometheus, traces | [`metrics`], [`trace`] |
//!
//! The protocols do not call each other; each calls the engine. The engine decides through a store, in
//! memory or in Redis.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `tls` (default) | TLS and mutual TLS on every listener, by rustls |
//! | `otel` | traces to an OpenTelemetry collector |

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
