#![doc = include_str!("docs/front.md")]

pub mod adaptive;
mod admission;
pub mod algorithm;
mod breaker;
mod clock;
mod coalesce;
mod concurrency;
mod debounce;
mod decision;
mod error;
pub mod hedge;
pub mod hierarchy;
mod keyed;
mod keyed_debounce;
mod lease;
mod limiter;
#[cfg(feature = "log")]
pub mod log;
mod multi;
mod outcome;
mod pace;
mod pacer;
mod priority;
mod quota;
mod reservation;
mod retry;
pub mod self_throttle;
mod snapshot;
mod sometimes;
pub mod store;
mod striped;
mod sync;
mod table;
#[cfg(tollgate_loom)]
#[doc(hidden)]
pub use table::loom_model;
pub mod observe;
#[cfg(feature = "testing")]
pub mod testing;
mod throttle;
mod verbs;
mod wait;

pub use admission::{Admission, AdmissionError, AdmissionPermit, Admit};
pub use algorithm::{Algorithm, Inherit, UnknownAlgorithm};
pub use breaker::{
    Breaker, BreakerBuilder, BreakerCounts, BreakerState, BreakerWindow, KeyedBreaker, Open,
    OpenReason, Pass, Trip,
};
pub use clock::{Clock, ManualClock, Tick, TimerId};
pub use coalesce::{
    Add, AddError, Batch, Coalescer, CoalescerBuilder, FlushCause, FlushPanicked, WeakCoalescer,
};
pub use concurrency::{
    Acquire, Concurrency, ConcurrencyBuilder, ConcurrencyCounts, ConcurrencyError, Full,
    KeyedConcurrency, KeyedConcurrencyBuilder, Permit,
};
pub use debounce::{Debouncer, DebouncerBuilder, Edge, Fired, WeakDebouncer};
pub use decision::{Answer, Decision, Denied, Outcome, Reason};
pub use error::{ConfigError, QuotaError};
#[cfg(feature = "tokio")]
pub use hedge::hedge;
pub use hierarchy::Hierarchy;
pub use keyed::{
    Assigned, Bans, Escalation, KeyedBuilder, KeyedError, KeyedLimiter, Seed, TableCounts, TopKey,
    TopKeys, WhenFull,
};
pub use keyed_debounce::{
    KeyedDebouncer, KeyedDebouncerBuilder, NotTriggered, WeakKeyedDebouncer, WhenKeysFull,
};
pub use lease::Lease;
pub use limiter::{Bypass, Limiter, LimiterBuilder};
pub use multi::{Charge, Limits, LimitsError, Ticket};
pub use outcome::CallOutcome;
pub use pacer::{Late, Overflow, Paced, Pacer, PacerBuilder, PacerWait, Queued, Rejected, Slot};
pub use priority::Priority;
pub use quota::{Initial, ParseQuotaError, Quota};
pub use reservation::{Refused, Reservation};
pub use retry::{
    Attempts, Backoff, Pauses, RetryBudget, RetryBudgetBuilder, RetryCounts, RetryPolicy,
    RetryPolicyBuilder, ShouldRetry, retry_sync, retry_sync_if,
};
#[cfg(feature = "tokio")]
pub use retry::{retry, retry_if};
pub use snapshot::SnapshotError;
#[doc(hidden)]
pub use snapshot::count_snapshot_records;
pub use sometimes::Sometimes;
pub use striped::{Reach, StripedBuilder, StripedLimiter};
pub use throttle::{Throttle, ThrottleBuilder};
pub use wait::{Driver, NoRuntime, OnDrop, Panicked, Passed, StillRunning, StopAndWait, Wait};

/// The user's pages, compiled: their examples are tests.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../../../docs/library.md")]
    struct Library;
    #[doc = include_str!("../../../docs/choosing.md")]
    struct Choosing;
    #[doc = include_str!("../../../docs/testing.md")]
    struct Testing;
    #[doc = include_str!("../../../docs/keys.md")]
    struct Keys;
    #[cfg(feature = "testing")]
    #[doc = include_str!("../../../docs/stores.md")]
    struct Stores;
    #[doc = include_str!("../../../docs/observability.md")]
    struct Observability;
    #[cfg(feature = "log")]
    #[doc = include_str!("../../../docs/logging.md")]
    struct Logging;
    #[doc = include_str!("../../../docs/concurrency.md")]
    struct Concurrency;
    #[doc = include_str!("../../../docs/adaptive.md")]
    struct Adaptive;
    #[doc = include_str!("../../../docs/adaptive-rate.md")]
    struct AdaptiveRates;
    #[doc = include_str!("../../../docs/striping.md")]
    struct Striping;
    #[doc = include_str!("../../../docs/hierarchy.md")]
    struct Hierarchies;
    #[doc = include_str!("../../../docs/waiting.md")]
    struct Waiting;
    #[doc = include_str!("../../../docs/debounce.md")]
    struct Debounce;
    #[doc = include_str!("../../../docs/questions.md")]
    struct Questions;
}
