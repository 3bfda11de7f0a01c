//! What happens when the store cannot answer.
//!
//! [`Guarded`] is a store over another one. As long as that answers, it passes every call on. When
//! the store fails, the [`FailurePolicy`] of each demand's policy decides instead, in microseconds and
//! without waiting, and the decision says so ([`Decision::is_degraded`](tollgate::Decision)).
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
//! Calls that make no sense, bounds that are reached and operations that the store does not have are
//! errors as ever: no failure policy answers for those. A call whose outcome is unknown is not repeated: its decision is made here, and
//! it may have been charged in the store once.
//!
//! Deadlines and the breaker are below, in the [`Link`](crate::Link): a store that is known to be away
//! fails in microseconds. Nothing here has a timer that a caller waits for.
//!
//! Files: `failure.rs` the choice, `local_share.rs` the arithmetic of shares, `plan.rs` both per policy,
//! `decide.rs` decisions without the store, `store.rs` the calls, `spend.rs` and `replay_spend.rs` the
//! spend that is booked after recovery, `bound.rs` what can be promised.

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

/// A store that has an answer also while the one below has none. Clones are the same store.
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
    /// What a refusal tells to wait if nothing better is known.
    retry_after: Duration,
    is_warm: bool,
    /// Tells the ids of the local store from those of the inner one.
    tag: u64,
    /// Somebody carries back.
    carrying: AtomicBool,
    /// There is a task that does.
    has_task: AtomicBool,
    wake: Arc<Notify>,
}

impl<S: Store + 'static> Guarded<S> {
    /// Starts a store over another one.
    pub fn builder(inner: S) -> GuardedBuilder<S> {
        GuardedBuilder::new(inner)
    }

    /// Books what was admitted here while the store was away into the store, as far as it answers.
    /// Returns how many permits were booked.
    ///
    /// A task does this by itself where there is a tokio runtime. This is for those who have none, or
    /// who are about to end: what is not booked when the process ends is lost. If somebody is at it
    /// already, returns zero at once.
    ///
    /// # Cancel safety
    ///
    /// What was under way counts as dropped. The rest waits on.
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

    /// Returns which failure policy holds for which policy.
    #[must_use]
    pub fn failures(&self) -> Failures {
        self.shared.plans.failures()
    }

    /// Changes which failure policy holds for which policy, from the next call on.
    ///
    /// # Errors
    ///
    /// When more than [`Failures::NAMES_MAX`] policies have one of their own.
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

    /// Returns how it goes.
    #[must_use]
    pub fn status(&self) -> GuardStatus {
        let Shared { counts, spends, .. } = &*self.shared;
        let (pending_spend, dropped_spend) = (spends.pending(), spends.dropped());
        GuardStatus { pending_spend, dropped_spend, ..counts.status() }
    }

    /// Returns what can pass at most while the store is away, in numbers and in words.
    ///
    /// # Errors
    ///
    /// When the policy's share makes no sense.
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

    /// Notes that the store has answered.
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
