//! Rate limits that several processes share through Redis 6.2 or later, or Valkey: standalone, behind
//! Sentinel, or in a Cluster.
//!
//! [`RedisStore`] implements [`Store`](tollgate::store::Store): Lua scripts decide in the server, exactly
//! as the library does in memory.
//!
//! ```no_run
//! use tollgate::{Quota, store::{Demand, Policy, Store}};
//! use tollgate_redis::{Link, RedisStore};
//!
//! async fn may_pass() -> Result<bool, Box<dyn std::error::Error>> {
//!     let store = RedisStore::new(Link::open("redis://localhost:6379".parse()?)?)?;
//!     let users = Policy::new("users", Quota::per_minute(60))?;
//!     let decision = store.acquire(&mut [Demand::new(&users, b"alice", 1)]).await?;
//!     Ok(decision.is_allowed())
//! }
//! ```
//!
//! # Which type for what
//!
//! | I want | use |
//! |---|---|
//! | every decision made by Redis | [`RedisStore`] |
//! | decisions while Redis cannot be reached: open, closed or local | [`Guarded`] around a store |
//! | most decisions without a round trip, by leasing permits in batches | [`TwoTier`] around a store |
//! | one capacity divided fairly among processes | [`FairShare`] |
//! | the number of processes, counted by heartbeats | [`FleetSize`] |
//! | the connections themselves: deadlines, breakers, Sentinel, Cluster | [`Link`] |
//!
//! `RedisStore`, `Guarded` and `TwoTier` are all stores, so they nest: a service usually puts `TwoTier`
//! around `Guarded` around `RedisStore`. [docs/redis.md] shows how; [docs/redis-failure.md] describes each
//! failure and its bound.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `tls` (default) | `rediss://`: TLS by rustls |
//! | `testing` | a store whose scripts take the time from the test's clock |
//!
//! [docs/redis.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/redis.md
//! [docs/redis-failure.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/redis-failure.md

mod failover;
mod fair_share;
mod file;
mod fleet;
mod lease;
mod link;
mod script;
mod store;
mod wire;

pub use failover::{
    Bound, FailurePolicy, Failures, GuardError, GuardStatus, Guarded, GuardedBuilder,
    UnknownFailurePolicy,
};
pub use fair_share::{Claim, FairShare, FairShareStatus, Member, Mode, Rate, Resource, Sharing};
pub use file::read_regular;
pub use fleet::{FleetSize, Heartbeat, HeartbeatSettings, JoinError};
pub use lease::{Bounds, LeasePlan, LeaseSettings, TierError, TierStatus, TwoTier, TwoTierBuilder};
pub use link::{Link, LinkError, NodeStatus, Route, Secret, Settings, SettingsError, Tls, slot_of};
pub use script::Script;
pub use store::{Placement, RedisStore, RedisStoreBuilder};
pub use wire::{Command, Reply, ReplyBounds, ReplyError, ReplyParser};

/// The pages, compiled.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/redis.md")]
    struct Redis;
    #[doc = include_str!("../../../docs/redis-failure.md")]
    struct Failure;
    #[doc = include_str!("../../../docs/redis-shares.md")]
    struct Shares;
    #[doc = include_str!("../../../docs/redis-tiers.md")]
    struct Tiers;
}
