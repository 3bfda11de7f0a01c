//! One limit over many processes, on an engine people already run: Redis or Valkey, standalone,
//! behind Sentinel, or a Cluster.
//!
//! ```text
//!  TwoTier      leases and refusals kept in this process: most calls need no store         (tier.rs)
//!    |
//!  Guarded      what happens when the store cannot answer: open, closed or local           (guard.rs)
//!    |
//!  RedisStore   demands -> one script per slot -> decisions                                (store.rs, lua/)
//!    |
//!  Link         connections, deadlines, breakers, Sentinel, Cluster                        (link.rs)
//! ```
//!
//! Each is a [`Store`](tollgate::store::Store) over the one below, except the last. Beside them:
//!
//! ```text
//!  FleetSize    how many processes there are, by heartbeats                                (fleet.rs)
//!  Allotment    fair shares of one capacity, held to in the process by a limiter           (allot.rs)
//! ```

mod allot;
mod file;
mod fleet;
mod guard;
mod link;
mod script;
mod store;
mod tier;
mod wire;

pub use allot::{Allotment, AllotmentStatus, Claim, Member, Mode, Rate, Resource, Sharing};
pub use file::read_regular;
pub use fleet::{FleetSize, Heartbeat, HeartbeatSettings, JoinError};
pub use guard::{
    Bound, FailurePolicy, Failures, GuardError, GuardStatus, Guarded, GuardedBuilder,
    UnknownFailurePolicy,
};
pub use link::{Link, LinkError, NodeStatus, Route, Secret, Settings, SettingsError, Tls, slot_of};
pub use script::Script;
pub use store::{Placement, RedisStore, RedisStoreBuilder};
pub use tier::{Bounds, LeasePlan, LeaseSettings, TierError, TierStatus, TwoTier, TwoTierBuilder};
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
