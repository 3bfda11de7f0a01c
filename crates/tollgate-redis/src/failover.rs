//! What happens when the store cannot answer.
//!
//! [`Guarded`] is a store over another one. As long as the inner store answers, `Guarded` passes
//! every call to it. When it fails, the [`FailurePolicy`] of each demand's policy decides instead,
//! in microseconds and without waiting, and the decision is marked as
//! [degraded](tollgate::Decision::is_degraded).
//!
//! | failure policy | while the store is away | passes at most, over all N processes |
//! |---|---|---|
//! | [`Open`](FailurePolicy::Open) | all passes | no bound |
//! | [`Closed`](FailurePolicy::Closed) | nothing passes | 0 |
//! | [`Local`](FailurePolicy::Local), the default | a limiter in this process, with its share | see [`Guarded::bound`] |
//!
//! ```text
//!  call -> inner store -> answer ------------------------> the local limiter follows
//!                \                                         (so that a failure starts with no burst)
//!                 error -> failure policy of each policy -> degraded answer
//!                                   \
//!                                    spends -> one task -> force, when the store is back
//! ```
//!
//! Invalid calls, reached bounds and unsupported operations remain errors: no failure policy
//! decides those. A call whose outcome is unknown is not repeated: this process makes its decision,
//! and the store may have charged it once.
//!
//! Deadlines and the breaker belong to the layer below, the [`Link`](crate::Link): a call to a
//! store that is known to be away fails in microseconds. Callers never wait for a timer here.
//!
//! Files: `failure.rs` the choice, `local_share.rs` the arithmetic of shares, `plan.rs` both per
//! policy, `decide.rs` decisions without the store, `store.rs` the calls, `spend.rs` and
//! `replay_spend.rs` the spend that is booked after recovery, `bound.rs` the guaranteed bounds.

mod bound;
mod builder;
mod decide;
mod failure;
mod local_share;
mod plan;
mod replay_spend;
mod spend;
mod status;
mod store;

pub use bound::Bound;
pub use builder::{GuardError, GuardedBuilder};
pub use failure::{FailurePolicy, Failures, UnknownFailurePolicy};
pub use status::GuardStatus;

use plan::Plans;
use spend::Spends;
use status::Counts;
use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};
use tokio::sync::Notify;
use tollgate::store::{MemoryStore, Policy, Store, StoreError};

/// A store that still decides while the one below fails. Clones are the same store.
///
/// # Examples
///
/// ```
/// use tollgate::{Quota, store::{Demand, MemoryStore, Policy, Store}};
/// use tollgate_redis::{FailurePolicy, FleetSize, Guarded};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let inner = MemoryStore::new(); // as a rule, a RedisStore
/// let store = Guarded::builder(inner)
///     .failure_of("logins", FailurePolicy::Closed)
///     .fleet(FleetSize::fixed(8))
///     .build()?;
/// let pages = Policy::new("pages", Quota::per_second(100))?;
/// let decision = store.acquire(&mut [Demand::new(&pages, b"alice", 1)]).await?;
/// assert!(decision.is_allowed() && !decision.is_degraded());
/// assert!(!store.status().is_degraded_now);
/// # Ok(())
/// # }
/// # let mut future = Box::pin(example());
/// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// # assert!(matches!(future.as_mut().poll(&mut context), std::task::Poll::Ready(Ok(()))));
/// ```
pub struct Guarded<S> {
    shared: Arc<Shared<S>>,
}

struct Shared<S> {
    inner: S,
    /// Decides while the store is away.
    local: MemoryStore,
    plans: Plans,
    spends: Spends,
    counts: Counts,
    /// The wait that a refusal reports if no better one is known.
    retry_after: Duration,
    is_warm: bool,
    /// Distinguishes the ids of the local store from those of the inner one.
    tag: u64,
    /// Set while a caller or the task books spends.
    carrying: AtomicBool,
    /// Set while a background task for that exists.
    has_task: AtomicBool,
    wake: Arc<Notify>,
}

impl<S: Store + 'static> Guarded<S> {
    /// Starts to build a store over another one.
    pub fn builder(inner: S) -> GuardedBuilder<S> {
        GuardedBuilder::new(inner)
    }

    /// Books the permits that this process admitted while the store was away, as far as the store
    /// answers. Returns how many permits were booked.
    ///
    /// In a tokio runtime, a background task does this by itself. This method is for programs
    /// without a runtime, and for programs that are about to end: spends that are not booked when
    /// the process ends are lost. If another caller or the task is booking already, returns zero at
    /// once.
    ///
    /// # Cancel safety
    ///
    /// Spends whose calls were under way count as dropped. The others stay pending.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tollgate::store::MemoryStore;
    /// # use tollgate_redis::Guarded;
    /// async fn before_the_end(store: &Guarded<MemoryStore>) {
    ///     let booked = store.carry_back().await;
    ///     println!("{booked} permits booked, {} keys not", store.status().pending_spend);
    /// }
    /// ```
    pub async fn carry_back(&self) -> u64 {
        self.shared.carry_back().await.0
    }
}

impl<S: Store> Guarded<S> {
    /// Returns the store below.
    #[must_use]
    pub fn inner(&self) -> &S {
        &self.shared.inner
    }

    /// Returns the failure policy of each policy.
    #[must_use]
    pub fn failures(&self) -> Failures {
        self.shared.plans.failures()
    }

    /// Changes the failure policy of each policy, from the next call on.
    ///
    /// # Errors
    ///
    /// When more than [`Failures::NAMES_MAX`] policies have their own.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::store::MemoryStore;
    /// use tollgate_redis::{FailurePolicy, Failures, Guarded};
    ///
    /// let store = Guarded::builder(MemoryStore::new()).build()?;
    /// store.set_failures(Failures::default().but("logins", FailurePolicy::Closed))?;
    /// assert_eq!(store.failures().of("logins"), FailurePolicy::Closed);
    /// # Ok::<(), tollgate_redis::GuardError>(())
    /// ```
    pub fn set_failures(&self, failures: Failures) -> Result<(), GuardError> {
        failures.check()?;
        self.shared.plans.set_failures(failures);
        Ok(())
    }

    /// Returns the state and the counts of the store.
    #[must_use]
    pub fn status(&self) -> GuardStatus {
        let Shared { counts, spends, .. } = &*self.shared;
        let (pending_spend, dropped_spend) = (spends.pending(), spends.dropped());
        GuardStatus { pending_spend, dropped_spend, ..counts.status() }
    }

    /// Returns the most that can pass while the store is away, as numbers and as text.
    ///
    /// # Errors
    ///
    /// When the policy's share is invalid.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Quota, store::{MemoryStore, Policy}};
    /// use tollgate_redis::{FleetSize, Guarded};
    ///
    /// let store = Guarded::builder(MemoryStore::new()).fleet(FleetSize::fixed(8)).build()?;
    /// let bound = store.bound(&Policy::new("pages", Quota::per_minute(100).burst(20))?)?;
    /// assert_eq!(bound.while_down_per_window, Some(100));
    /// assert_eq!(bound.while_down_once, Some(16)); // eight bursts of two
    /// assert_eq!(bound.extra_at_recovery, Some(20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bound(&self, policy: &Policy) -> Result<Bound, StoreError> {
        let plans = &self.shared.plans;
        Ok(Bound::new(policy, &*plans.of(policy)?, plans.share.processes()))
    }
}

impl<S: Store> Shared<S> {
    /// Counts a failure of the store.
    fn failed(&self, error: &StoreError) {
        if self.counts.failed(error, self.inner.clock().now()) {
            tracing::warn!(%error, "the store cannot be reached; failure policies decide");
        }
    }

    /// Records that the store has answered.
    fn answered(&self) {
        if self.counts.answered() {
            tracing::info!("the store responds again");
        }
    }
}

impl<S> Clone for Guarded<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S: Store> fmt::Debug for Guarded<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").field("status", &self.status()).finish_non_exhaustive()
    }
}
