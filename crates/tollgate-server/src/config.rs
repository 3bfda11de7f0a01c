//! A configuration, read and checked but not compiled yet.
//!
//! A configuration is one or more YAML files. Each has at most one domain; its `descriptors` are a
//! superset of envoyproxy/ratelimit's, whose files load unchanged.

mod adaptive;
mod duration;
mod endpoint;
mod error;
mod fields;
mod judge;
mod keys;
mod limit;
mod lint;
mod read;
mod schema;
mod store;
pub(crate) mod suggest;
mod tree;
mod yaml;

pub use adaptive::{Adaptive, Follow};
pub use duration::{NoDuration, parse_duration};
pub use endpoint::NoEndpoint;
pub use error::{ConfigError, ConfigErrors};
pub use limit::{Ban, Concurrency, Failure, Limit, Override, Rate, Unit};
pub use lint::{LINTS, Lint, lint};
pub(crate) use read::{FILE_MAX, is_config_name};
pub use schema::schema;
pub(crate) use store::without_secret;
pub use store::{Fleet, Lease, NoFleet, NoStore, RedisOptions, StoreKind};

use crate::net::{Listener, Permissions};
use std::{fmt, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tollgate::Algorithm;
use tollgate_tower::answer::Legacy;

/// A small policy with comments, to start from.
pub const EXAMPLE: &str = include_str!("config/example.yaml");

/// A place in a file, for error messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The file, as it was named.
    pub file: Arc<str>,
    /// Its line, from one; zero if the whole file is meant.
    pub line: u32,
    /// The column in characters, from one.
    pub column: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.file),
            line => write!(f, "{}:{line}:{}", self.file, self.column),
        }
    }
}

/// All files of a configuration together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// The domains, in the order of the files.
    pub domains: Vec<Domain>,
    /// How requests of proxies become descriptors, by path.
    pub forward_auth: Vec<ForwardAuth>,
    /// Settings of the process; flags override them.
    pub server: ServerSettings,
    /// Stores beside the default one, by name.
    pub stores: Vec<StoreSettings>,
}

/// One domain: a tree of descriptors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Domain {
    /// Where it is declared.
    pub at: Place,
    /// Its name.
    pub name: String,
    /// The defaults of its rules.
    pub defaults: Defaults,
    /// The first level of the tree.
    pub descriptors: Vec<Descriptor>,
}

/// The defaults of a file's rules: the `defaults` section.
#[derive(Clone, Debug, PartialEq)]
pub struct Defaults {
    /// The algorithm of rules that name none. The reference knows only fixed windows.
    pub algorithm: Algorithm,
    /// Charge refused hits too, as the reference does.
    pub count_refused: bool,
    /// The decision when the store cannot answer.
    pub failure: Failure,
    /// Let everything pass and only report, for all rules: the reference's `SHADOW_MODE`.
    pub shadow_mode: bool,
    /// The store of rules that name none; the default one if not said.
    pub store: Option<String>,
    /// Whether a process may take permits of a shared store in advance.
    pub lease: Lease,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::FixedWindow,
            count_refused: false,
            failure: Failure::Local,
            shadow_mode: false,
            store: None,
            lease: Lease::Off,
        }
    }
}

/// One node of a domain's tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Descriptor {
    /// Its place in the file.
    pub at: Place,
    /// The key that an entry must have.
    pub key: String,
    /// The values that it must have.
    pub value: ValueMatch,
    /// The limits of requests that end here; several are one decision.
    pub limits: Vec<Limit>,
    /// How many requests that end here may be in flight at once.
    pub concurrency: Option<Concurrency>,
    /// How the rate of its only limit moves.
    pub adaptive: Option<Adaptive>,
    /// Limits of single values of this node's entry.
    pub overrides: Vec<Override>,
    /// Report denials, and admit.
    pub shadow_mode: bool,
    /// Refuse only if all limits in this mode of a request refuse.
    pub quota_mode: bool,
    /// Charge refused hits, too; the file's default if not said.
    pub count_refused: Option<bool>,
    /// All values that match a pattern share one count.
    pub share_threshold: bool,
    /// Let the value into the names of metrics. Accepted, but a value never becomes a label: see
    /// [docs/config.md].
    ///
    /// [docs/config.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/config.md
    pub value_to_metric: bool,
    /// As [`value_to_metric`](Self::value_to_metric), for the whole path.
    pub detailed_metric: bool,
    /// Told to the proxy when the rule passes.
    pub metadata: Option<serde_json::Value>,
    /// The share of keys, in percent, for which a refusal counts; the others are in shadow mode.
    pub enforce: u8,
    /// The decision when the store cannot answer.
    pub failure: Option<Failure>,
    /// Blocks keys that are refused again and again.
    pub ban: Option<Ban>,
    /// Names of limits that are charged too, with the values that they have in common.
    pub parents: Vec<String>,
    /// The store that holds the state, by name; the file's default if not said.
    pub store: Option<String>,
    /// Whether a process may take permits of a shared store in advance; the file's default if not
    /// said.
    pub lease: Option<Lease>,
    /// The next level.
    pub descriptors: Vec<Descriptor>,
}

/// Which values a node matches.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueMatch {
    /// Any value; each has its own count.
    Any,
    /// This value.
    Exact(String),
    /// A pattern in which `*` stands for any characters.
    Wildcard(String),
    /// A regular expression that matches anywhere in the value.
    Regex(regex_text::RegexText),
    /// Addresses in one of these networks.
    Cidr(Vec<ipnet::IpNet>),
}

/// A regular expression, with the text that it was made from.
pub mod regex_text {
    /// Compares by its text.
    #[derive(Clone, Debug)]
    pub struct RegexText(pub regex::Regex);

    impl PartialEq for RegexText {
        fn eq(&self, other: &Self) -> bool {
            self.0.as_str() == other.0.as_str()
        }
    }
}

/// How a request that a proxy asks about becomes descriptors.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardAuth {
    /// Its place in the file.
    pub at: Place,
    /// The path that the proxy asks, for example `/auth`.
    pub path: String,
    /// The domain to ask.
    pub domain: String,
    /// The descriptors. A descriptor is omitted if the request lacks one of its entries.
    pub descriptors: Vec<Vec<AuthEntry>>,
    /// The headers that the keys of its sources read, in lower case.
    pub headers: Vec<String>,
}

/// A key of the layers (`tollgate-tower`), which finds a client in a request. Compares by what it prints.
#[derive(Clone, Debug)]
pub struct AuthKey {
    /// The key.
    pub key: tollgate_tower::Key,
    /// The header that it reads, in lower case.
    pub header: String,
}

impl PartialEq for AuthKey {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

/// One entry of a descriptor, and where its value comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct AuthEntry {
    /// The entry's key.
    pub key: String,
    /// Where the value comes from.
    pub from: AuthSource,
    /// The value if the request has none.
    pub default: Option<String>,
}

/// Where a value of an entry comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum AuthSource {
    /// A header of the request, in lower case.
    Header(String),
    /// Always this.
    Value(String),
    /// The client's address: by `X-Forwarded-For` (the first key), without that header by `X-Real-IP` (the second), and
    /// else the connection's.
    Client([AuthKey; 2]),
    /// A bearer token, a cookie or a header that is a secret: its hash.
    Key(AuthKey),
    /// The path of the original request: `X-Forwarded-Uri` or `X-Original-URI`, without its query.
    Path,
    /// The method of the original request: `X-Forwarded-Method` or `X-Original-Method`.
    Method,
    /// The host of the original request: `X-Forwarded-Host` or `Host`.
    Host,
}

impl AuthSource {
    /// Returns the keys of the layers that it goes by.
    #[must_use]
    pub const fn keys(&self) -> &[AuthKey] {
        match self {
            Self::Client(keys) => keys,
            Self::Key(key) => std::slice::from_ref(key),
            _ => &[],
        }
    }
}

/// Where a listener listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
    /// Nowhere.
    Off,
}

/// Settings of the process: the `server` section. `None` is the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerSettings {
    /// Where to answer HTTP.
    pub http: Option<Endpoint>,
    /// Where to answer gRPC.
    pub grpc: Option<Endpoint>,
    /// Where to answer the Redis protocol.
    pub resp: Option<Endpoint>,
    /// Where to answer administrators.
    pub admin: Option<Endpoint>,
    /// TLS for all listeners but those that have their own.
    pub tls: Option<TlsSettings>,
    /// TLS of single listeners, by the names `http`, `grpc`, `resp`, `admin`.
    pub tls_of: Vec<(String, TlsSettings)>,
    /// The file that has the administrators' token.
    pub admin_token_file: Option<PathBuf>,
    /// The file that has the password of the Redis protocol.
    pub resp_password_file: Option<PathBuf>,
    /// The file that has the token of HTTP's `/v1`.
    pub http_token_file: Option<PathBuf>,
    /// More tokens and passwords, with what each grants.
    pub tokens: Vec<TokenSettings>,
    /// Whether gRPC and `/json` take negative hits.
    pub negative_hits: Option<bool>,
    /// Names by which clients call this server.
    pub hosts: Vec<String>,
    /// Origins of web pages that may call this server.
    pub origins: Vec<String>,
    /// Worker threads.
    pub workers: Option<usize>,
    /// Connections per listener.
    pub max_connections: Option<usize>,
    /// Bytes that all connections together may hold.
    pub connection_memory_bytes: Option<usize>,
    /// How long a connection may be silent.
    pub idle_timeout: Option<Duration>,
    /// How long the server goes on serving after a signal to stop, and says that it is not ready.
    pub drain_delay: Option<Duration>,
    /// How long connections have to finish at shutdown, all together.
    pub drain_timeout: Option<Duration>,
    /// How long a request may take to arrive, and a reply to be read.
    pub request_timeout: Option<Duration>,
    /// How often to look whether the files have changed; zero for never.
    pub watch_interval: Option<Duration>,
    /// Where the default store keeps its state.
    pub store: Option<StoreKind>,
    /// How the default store is used, if it is in Redis.
    pub redis: RedisOptions,
    /// Where the default store keeps its snapshots.
    pub snapshot: Option<SnapshotSettings>,
    /// The default store's bounds.
    pub memory: MemorySettings,
    /// Send `RateLimit-*` headers with answers to Envoy.
    pub response_headers: Option<bool>,
    /// Send `X-RateLimit-*` headers with answers over HTTP.
    pub x_ratelimit_headers: Option<Legacy>,
    /// Send dynamic metadata with answers to Envoy.
    pub dynamic_metadata: Option<bool>,
    /// Logs one of this many denials; zero for none.
    pub denial_log: Option<u64>,
    /// Show keys in logs.
    pub log_keys: Option<bool>,
    /// Keys of each policy whose names are remembered for the list of top keys.
    pub top_keys: Option<usize>,
}

impl ServerSettings {
    /// Returns these settings, and where they say nothing, the others.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        let tls_of = if self.tls_of.is_empty() { other.tls_of } else { self.tls_of };
        // The two bounds of keys exclude each other. No flag sets those of reservations and permits.
        let has_bound = self.memory.bounded.or(self.memory.max_keys).is_some();
        let (reservations, max_permits) = (other.memory.reservations, other.memory.max_permits);
        let memory = if has_bound { self.memory } else { other.memory };
        let first = |ours: Vec<String>, other| if ours.is_empty() { other } else { ours };
        let memory = MemorySettings { reservations, max_permits, ..memory };
        Self {
            http: self.http.or(other.http),
            grpc: self.grpc.or(other.grpc),
            resp: self.resp.or(other.resp),
            admin: self.admin.or(other.admin),
            tls: self.tls.or(other.tls),
            tls_of,
            admin_token_file: self.admin_token_file.or(other.admin_token_file),
            resp_password_file: self.resp_password_file.or(other.resp_password_file),
            http_token_file: self.http_token_file.or(other.http_token_file),
            tokens: if self.tokens.is_empty() { other.tokens } else { self.tokens },
            negative_hits: self.negative_hits.or(other.negative_hits),
            hosts: first(self.hosts, other.hosts),
            origins: first(self.origins, other.origins),
            workers: self.workers.or(other.workers),
            max_connections: self.max_connections.or(other.max_connections),
            connection_memory_bytes: self.connection_memory_bytes.or(other.connection_memory_bytes),
            idle_timeout: self.idle_timeout.or(other.idle_timeout),
            drain_delay: self.drain_delay.or(other.drain_delay),
            drain_timeout: self.drain_timeout.or(other.drain_timeout),
            request_timeout: self.request_timeout.or(other.request_timeout),
            watch_interval: self.watch_interval.or(other.watch_interval),
            store: self.store.or(other.store),
            redis: self.redis.or(other.redis),
            snapshot: self.snapshot.or(other.snapshot),
            memory,
            response_headers: self.response_headers.or(other.response_headers),
            x_ratelimit_headers: self.x_ratelimit_headers.or(other.x_ratelimit_headers),
            dynamic_metadata: self.dynamic_metadata.or(other.dynamic_metadata),
            denial_log: self.denial_log.or(other.denial_log),
            log_keys: self.log_keys.or(other.log_keys),
            top_keys: self.top_keys.or(other.top_keys),
        }
    }
}

/// Certificate and key of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// PEM file of the certificate chain.
    pub certificate: PathBuf,
    /// PEM file of the private key.
    pub key: PathBuf,
    /// PEM file of the authorities that clients' certificates must come from: mutual TLS.
    pub client_ca: Option<PathBuf>,
}

/// A token or password, with what it grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSettings {
    /// The file that has it.
    pub file: PathBuf,
    /// The listeners on which it is valid.
    pub listeners: Vec<Listener>,
    /// The permissions that it grants there.
    pub permissions: Permissions,
}

impl ServerSettings {
    /// Returns the files whose secrets clients must know.
    pub fn secret_files(&self) -> impl Iterator<Item = &PathBuf> {
        let own = [&self.http_token_file, &self.resp_password_file, &self.admin_token_file];
        own.into_iter().flatten().chain(self.tokens.iter().map(|token| &token.file))
    }
}

/// Snapshots of a memory store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotSettings {
    /// The file.
    pub path: PathBuf,
    /// How often it is written.
    pub every: Duration,
}

/// The bounds of a memory store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemorySettings {
    /// Fixed memory for this many live keys.
    pub bounded: Option<u64>,
    /// The most keys of a table that grows.
    pub max_keys: Option<u64>,
    /// The most open reservations: in all, of one policy, of one key.
    pub reservations: ReservationSettings,
    /// The most leases of `concurrency` rules.
    pub max_permits: Option<u64>,
}

/// How many reservations may be open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReservationSettings {
    /// In all.
    pub total: Option<usize>,
    /// Of one policy.
    pub per_policy: Option<usize>,
    /// Of one key.
    pub per_key: Option<usize>,
}

/// A store beside the default one.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreSettings {
    /// Its place in the file.
    pub at: Place,
    /// Its name.
    pub name: String,
    /// Where it keeps its state.
    pub kind: StoreKind,
    /// How it is used, if it is in Redis.
    pub redis: RedisOptions,
    /// Its bounds, if it is in memory.
    pub memory: MemorySettings,
    /// Its snapshots.
    pub snapshot: Option<SnapshotSettings>,
}
