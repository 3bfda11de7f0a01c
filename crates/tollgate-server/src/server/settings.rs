//! The settings of a process, with every default filled in.

use crate::{
    config::{Endpoint, ServerSettings},
    net::Access,
};
use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use tollgate_tower::answer::Legacy;

/// The settings of a process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to answer HTTP.
    pub http: Endpoint,
    /// Where to answer gRPC.
    pub grpc: Endpoint,
    /// Where to answer the Redis protocol.
    pub resp: Endpoint,
    /// Where to answer administrators.
    pub admin: Endpoint,
    /// The permissions at the start; after a reload, [`Shared::access`](super::Shared::access) has
    /// those in force.
    pub access: Access,
    /// Worker threads.
    pub workers: usize,
    /// Connections of each listener at once.
    pub max_connections: usize,
    /// Connections of all listeners together: as many as the descriptor limit allows.
    pub max_descriptors: usize,
    /// Bytes that all connections together may hold.
    pub connection_memory_bytes: usize,
    /// How long a connection may be silent.
    pub idle_timeout: Duration,
    /// How long a request that has begun may take to arrive, and a reply to be read.
    pub request_timeout: Duration,
    /// How long the server goes on serving after a signal to stop, and says that it is not ready.
    pub drain_delay: Duration,
    /// How long connections have to finish at shutdown, all together.
    pub drain_timeout: Duration,
    /// The longest body or frame of a request, in bytes.
    pub max_request: usize,
    /// Send `RateLimit-*` headers with answers to Envoy.
    pub response_headers: bool,
    /// Send `X-RateLimit-*` headers with answers over HTTP.
    pub x_ratelimit_headers: Legacy,
    /// Send dynamic metadata with answers to Envoy.
    pub dynamic_metadata: bool,
}

const fn local(port: u16) -> Endpoint {
    Endpoint::Tcp(SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port))
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            http: local(8080),
            grpc: local(8081),
            resp: local(6380),
            admin: local(6070),
            access: Access::default(),
            workers: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            max_connections: 16_384,
            max_descriptors: usize::MAX,
            connection_memory_bytes: 128 << 20,
            idle_timeout: Duration::from_secs(300),
            request_timeout: Duration::from_secs(10),
            drain_delay: Duration::ZERO,
            drain_timeout: Duration::from_secs(10),
            max_request: 1 << 20,
            response_headers: true,
            x_ratelimit_headers: Legacy::Off,
            dynamic_metadata: false,
        }
    }
}

impl Settings {
    /// Returns the defaults with what a configuration says instead. Secrets are read by the caller.
    #[must_use]
    pub fn with(config: &ServerSettings) -> Self {
        let default = Self::default();
        let endpoint = |said: &Option<Endpoint>, default| said.clone().unwrap_or(default);
        Self {
            http: endpoint(&config.http, default.http),
            grpc: endpoint(&config.grpc, default.grpc),
            resp: endpoint(&config.resp, default.resp),
            admin: endpoint(&config.admin, default.admin),
            workers: config.workers.unwrap_or(default.workers),
            max_connections: config.max_connections.unwrap_or(default.max_connections),
            connection_memory_bytes: config
                .connection_memory_bytes
                .unwrap_or(default.connection_memory_bytes),
            idle_timeout: config.idle_timeout.unwrap_or(default.idle_timeout),
            drain_delay: config.drain_delay.unwrap_or(default.drain_delay),
            drain_timeout: config.drain_timeout.unwrap_or(default.drain_timeout),
            request_timeout: config.request_timeout.unwrap_or(default.request_timeout),
            response_headers: config.response_headers.unwrap_or(default.response_headers),
            x_ratelimit_headers: config.x_ratelimit_headers.unwrap_or(default.x_ratelimit_headers),
            dynamic_metadata: config.dynamic_metadata.unwrap_or(default.dynamic_metadata),
            ..Self::default()
        }
    }
}
