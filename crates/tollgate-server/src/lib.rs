//! Rate limiting as a service: Envoy's rate limit protocol, HTTP/JSON, forward-auth and the Redis
//! protocol over one engine.
//!
//! The program `tollgate serve` is a thin shell around this library.

pub mod config;
