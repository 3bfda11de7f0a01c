//! Real servers for tests and benchmarks, each on a free port and stopped by its own process id.
//!
//! | I want | use |
//! |---|---|
//! | one Redis or Valkey | [`Redis::start`], [`Redis::builder`] |
//! | a Cluster of six that fails over | [`Cluster::start`] |
//! | a primary, a replica and three Sentinels | [`Sentinel::start`] |
//! | a network that misbehaves | [`Proxy::start`] and [`Mode`] |
//! | a server whose clock steps | [`RedisBuilder::faketime`], then [`Redis::advance`] |
//! | certificates | [`RedisBuilder::tls`], [`Certificates`] |
//! | a Prometheus that scrapes a program, and the queries of a dashboard | [`Prometheus`], [`dashboard_queries`] |
//! | a port for another program | [`free_port`] |
//! | a recorded list of public names | [`golden`] |
//! | when a key passes after a change of quota, by the docs | [`quota_changes`] |
//!
//! Everything here blocks and needs no runtime, so it can be used from plain tests and from tokio
//! tests alike: starting a server takes some ten milliseconds. Whatever does not work panics with
//! the reason, the end of the server's log, and how to install what is missing: this crate is for
//! tests only.
//!
//! Servers end with the value that started them, also when a test panics. When the whole test
//! process is killed, the kernel ends them (see [`program`]).

pub mod program;

mod cluster;
mod faketime;
mod golden;
mod port;
mod prometheus;
mod proxy;
mod quota_changes;
mod redis;
mod resp;
mod sentinel;
mod tls;
mod wait;

pub use cluster::{Cluster, ClusterBuilder, Migration};
pub use golden::golden;
pub use port::{Port, free_port};
pub use program::Flavor;
pub use prometheus::{Prometheus, dashboard_queries};
pub use proxy::{Mode, Proxy};
pub use quota_changes::{QuotaChange, quota_changes};
pub use redis::{Redis, RedisBuilder, Tls};
pub use sentinel::Sentinel;
pub use tls::{Certificates, Identity};
pub use wait::{poll, within};
