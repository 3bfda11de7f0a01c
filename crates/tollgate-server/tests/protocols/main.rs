//! Every protocol over real sockets, with real clients and proxies.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code, reason = "an allocator that counts has no safe form in std")]

mod admin;
mod admin_harness;
mod dashboard;
mod edges;
mod forward_auth;
mod http_api;
mod http_openapi;
mod http_support;
mod http_wire;
mod metrics;
mod one_report;
mod ports;
mod random_calls;
mod recorded;
mod resp;
mod resp_memory;
mod resp_support;
mod resp_throttle;
mod rls;
mod rls_grpc;
mod rls_json;
mod rls_messages;
mod rls_proto;
#[cfg(feature = "test-servers")]
mod servers {
    mod envoy;
    mod proxies;
    mod resp_clients;
}
mod support;
mod tls;
mod tls_support;
mod trace;
