#![doc = include_str!("docs/front.md")]

pub mod algorithm;
mod clock;
mod concurrency;
#[allow(dead_code, reason = "being built")]
mod debounce;
mod decision;
mod error;
pub mod hierarchy;
mod keyed;
mod lease;
mod limiter;
mod limits;
mod quota;
mod reservation;
mod snapshot;
pub mod store;
mod striped;
mod sync;
mod table;
#[cfg(feature = "testing")]
pub mod testing;
#[allow(dead_code, unused_imports, reason = "being built")]
mod wait;
pub mod watch;

pub use algorithm::{Algorithm, Inherit, UnknownAlgorithm};
pub use clock::{Clock, ManualClock, Tick, TimerId};
pub use concurrency::{
    Acquire, Concurrency, ConcurrencyBuilder, ConcurrencyCounts, ConcurrencyError, Full,
    KeyedConcurrency, KeyedConcurrencyBuilder, Permit,
};
pub use debounce::{Edge, Fired};
pub use decision::{Answer, Decision, Denied, Outcome, Reason};
pub use error::QuotaError;
pub use hierarchy::Hierarchy;
pub use keyed::{
    Assigned, Bans, Escalation, KeyLease, KeyedBuilder, KeyedError, KeyedLimiter, Seed,
    TableCounts, TopKey, TopKeys, WhenFull,
};
pub use lease::Lease;
pub use limiter::{Bypass, Limiter, LimiterBuilder};
pub use limits::{Charge, Limits, LimitsError, Ticket};
pub use quota::{Initial, ParseQuotaError, Quota};
pub use reservation::{Refused, Reservation};
pub use snapshot::SnapshotError;
#[doc(hidden)]
pub use snapshot::count_snapshot_records;
pub use striped::{Reach, StripedBuilder, StripedError, StripedLimiter};
pub use wait::{Driver, NoRuntime, OnDrop, Panicked, Passed, StillRunning, StopAndWait, Wait};

/// The user's pages, compiled: their examples are tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/choosing.md")]
    struct Choosing;
    #[doc = include_str!("../../../docs/testing.md")]
    struct Testing;
    #[doc = include_str!("../../../docs/keys.md")]
    struct Keys;
    #[cfg(feature = "testing")]
    #[doc = include_str!("../../../docs/stores.md")]
    struct Stores;
    #[doc = include_str!("../../../docs/watching.md")]
    struct Watching;
    #[doc = include_str!("../../../docs/concurrency.md")]
    struct Concurrency;
    #[doc = include_str!("../../../docs/striping.md")]
    struct Striping;
    #[doc = include_str!("../../../docs/hierarchy.md")]
    struct Hierarchies;
}
