//! Leases and refusals kept in this process, so that most calls need no store.
//!
//! [`TwoTier`] is a store over any other store. It saves calls in two ways:
//!
//! - **Leases** (off by default, enabled per policy): the process fetches a batch of permits for a
//!   key and spends them by itself. The store has charged a permit before it is spent, so nothing
//!   has to be given back: a process may stop or die at any time, and needs no orderly shutdown.
//! - **Remembered refusals** (on by default): a refusal holds until its wait is over, so the same
//!   call is refused again without a store call.
//!
//! | file | holds |
//! |---|---|
//! | `held_permits.rs` | the permits that the process holds of a key: the algorithm |
//! | `terms.rs` | how large a lease may be |
//! | `denial_cache.rs` | remembered refusals, and when they are exact |
//! | `acquire.rs` | a decision: held permits, remembered refusals, the store |
//! | `single_flight.rs` | one store call for many requests that wait |
//! | `table.rs` | the bounded tables of both, and fingerprints of keys |
//! | `bounds.rs` | the guaranteed bounds of a configuration, in numbers |

mod acquire;
mod bounds;
mod builder;
mod denial_cache;
mod held_permits;
mod settings;
mod single_flight;
mod status;
mod table;
mod terms;

pub use bounds::Bounds;
pub use builder::{TierError, TwoTierBuilder};
pub use settings::{LeasePlan, LeaseSettings};
pub use status::TierStatus;

use crate::FleetSize;
use denial_cache::DenialCache;
use held_permits::HeldPermits;
use status::Counters;
use std::{
    fmt,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};
use table::{Ids, Slot, Table};
use tollgate::{
    Clock, Decision,
    store::{Demand, Policy, ReservationId, Reserved, Store, StoreError, forward_store},
};

/// How many open reservations are remembered by their keys.
const RESERVATIONS: usize = 16_384;

/// A store that makes most decisions in this process, over a shared one. Clones are the same store.
///
/// With leases, over a store with rate R and burst B, for N processes that hold at most L permits of
/// a key each:
///
/// - admitted in any interval w: at most B + R w + N L, and over a long run never more than the
///   store's limit. L = min(B / (2 N), R S) with the sync period S, so N L is at most half the burst;
/// - lost when traffic stops: at most the held permits, N L once in 2 S; when a process dies: L;
/// - clocks that differ do not matter: a lease ends after a duration, not at a time of day;
/// - [`bounds`](Self::bounds) prints the numbers of a policy.
///
/// # Figures of a local decision
///
/// [`Decision::remaining`] of a leased key is the number of permits held here, plus the permits
/// that remained in the store at its last answer, at most two sync periods ago: permits that others
/// have taken since are still included. After a refusal it is the number of permits held here.
/// [`Decision::retry_at`] is the earliest useful retry; whether it passes then depends on the other
/// processes.
///
/// # Calls that always reach the store
///
/// - every policy without leases, and those whose quota is too small for leases (R S / N < 2);
/// - costs of zero, and above L; quotas that come with the call; a key that appears twice in one
///   decision;
/// - all other verbs. [`peek`](Store::peek) shows the state of the store, without the permits held
///   here: a call may pass although its peek denies, by at most L permits. [`reset`](Store::reset)
///   drops the permits that this process holds; other processes spend theirs.
///
/// # Several demands
///
/// Demands with leases take held permits, which are fetched first if there are too few; then the
/// store decides the others in one call. If it refuses, the permits go back to the held ones: all
/// demands are charged or none. If this process refuses one demand, it does not ask the store about
/// the others: they report that they are allowed, with 0 remaining.
///
/// # When the store cannot answer
///
/// Errors pass through. Degraded decisions of a failure policy below are used, and marked as
/// degraded: degraded permits are spent like others, within two sync periods; a degraded refusal is
/// not remembered, and with leases holds for one pace (about one sync period).
///
/// # Cancel safety
///
/// A dropped call may have been charged or not. Requests that waited for it make another one.
///
/// # Examples
///
/// ```
/// use tollgate::{Quota, store::{Demand, MemoryStore, Policy, Store}, testing::block_on};
/// use tollgate_redis::{FleetSize, LeaseSettings, TwoTier};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Eight processes; in production the store is the shared one.
/// let store = TwoTier::builder(MemoryStore::new(), FleetSize::fixed(8))
///     .leases_of("api", Some(LeaseSettings::new()))
///     .build()?;
/// let api = Policy::new("api", Quota::per_second(1000))?;
/// let decision = block_on(store.acquire(&mut [Demand::new(&api, b"alice", 1)]))?;
/// assert!(decision.is_allowed());
/// assert_eq!(store.bounds(&api).over_admission(), 8 * 62);
/// # Ok(())
/// # }
/// ```
pub struct TwoTier<S> {
    shared: Arc<Shared<S>>,
}

struct Shared<S> {
    inner: S,
    clock: Clock,
    fleet: FleetSize,
    plan: RwLock<LeasePlan>,
    /// Twice the number of changes of the plan, plus one if any policy may lease.
    version: AtomicU64,
    ids: Ids,
    holdings: Table<HeldPermits>,
    denials: DenialCache,
    /// The keys of reservations that this process has made.
    reserved: Table<Keys>,
    counters: Counters,
}

/// The keys of a reservation, and when it is over.
struct Keys(u64, Box<[u128]>);

impl Slot for Keys {
    fn rank(&self) -> Option<u64> {
        Some(self.0)
    }
}

impl<S> Shared<S> {
    fn is_leasing(&self) -> bool {
        // ORDERING: Relaxed. A call may see a concurrent change of the plan one call late.
        self.version.load(Relaxed) & 1 == 1
    }

    /// Returns a number that changes with the plan and with the number of processes.
    fn stamp(&self) -> u64 {
        // ORDERING: Acquire, so that a thread that sees a version reads a plan at least as new.
        self.version.load(Acquire) << 32 | u64::from(self.fleet.get())
    }
}

impl<S: Store + 'static> TwoTier<S> {
    /// Starts to build a store over another one. `fleet` is the number of processes that share the
    /// limits; it determines the size of leases.
    pub fn builder(inner: S, fleet: FleetSize) -> TwoTierBuilder<S> {
        TwoTierBuilder::new(inner, fleet)
    }

    fn made(builder: TwoTierBuilder<S>) -> Self {
        let TwoTierBuilder { inner, fleet, plan, deny_cap, deny_entries, lease_entries } = builder;
        let shared = Shared {
            clock: inner.clock().clone(),
            inner,
            fleet,
            version: AtomicU64::new(u64::from(plan.is_any())),
            plan: RwLock::new(plan),
            ids: Ids::new(),
            holdings: Table::new(lease_entries),
            denials: DenialCache::new(deny_entries, deny_cap),
            reserved: Table::new(RESERVATIONS),
            counters: Counters::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the store below.
    #[must_use]
    pub fn inner(&self) -> &S {
        &self.shared.inner
    }

    /// Changes which policies lease, from the next decision on: for a reload of the configuration.
    /// Held permits of a policy that no longer leases are dropped.
    ///
    /// # Errors
    ///
    /// When a setting is invalid; the old plan then stays in force.
    pub fn change_leases(&self, plan: LeasePlan) -> Result<(), TierError> {
        plan.check()?;
        let is_any = u64::from(plan.is_any());
        let mut current = self.shared.plan.write().unwrap_or_else(PoisonError::into_inner);
        *current = plan;
        // ORDERING: Release, after the plan; writers are one at a time, by the lock.
        let version = self.shared.version.load(Relaxed);
        self.shared.version.store(((version >> 1) + 1) << 1 | is_any, Release);
        Ok(())
    }

    /// Returns the effects of the two tiers on a policy, in numbers that print as a sentence.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Quota, store::{MemoryStore, Policy}};
    /// use tollgate_redis::{FleetSize, LeaseSettings, TwoTier};
    ///
    /// let store = TwoTier::builder(MemoryStore::new(), FleetSize::fixed(8))
    ///     .leases(LeaseSettings::new())
    ///     .build()?;
    /// let bounds = store.bounds(&Policy::new("api", Quota::per_second(1000))?);
    /// assert_eq!(
    ///     bounds.to_string(),
    ///     "policy \"api\", 1000/s, 8 processes: each holds at most 62 permits of a key for 200ms; at \
    ///      most 496 above the limit in any window and 0 in the long run; at most 496 are lost when \
    ///      traffic stops, 62 when a process dies, and about 6% of the rate while traffic keeps moving \
    ///      between processes; about 0.080 store calls per request near the limit; a refund in another \
    ///      process is noticed within 1s",
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn bounds(&self, policy: &Policy) -> Bounds {
        let plan = self.shared.plan.read().unwrap_or_else(PoisonError::into_inner);
        let (processes, cap) = (self.shared.fleet.get(), self.shared.denials.cap());
        Bounds::new(policy, plan.settings(policy.name()), processes, cap)
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn status(&self) -> TierStatus {
        let Shared { holdings, denials, counters, .. } = &*self.shared;
        let ((lease_entries, leased), (deny_entries, denied)) = (holdings.count(), denials.count());
        TierStatus {
            allowed_by_leases: leased.allowed,
            refused_by_leases: leased.refused,
            refused_by_memory: denied.refused,
            store_calls: Counters::get(&counters.store_calls),
            refills_ahead: Counters::get(&counters.refills_ahead),
            shared_calls: Counters::get(&counters.shared_calls),
            wasted: leased.wasted,
            lease_entries,
            deny_entries,
            round_trip: Duration::from_nanos(counters.round_trip_ns()),
        }
    }

    /// Forgets the refusals of some demands: another verb has taken or given back permits.
    fn forget(&self, demands: &[Demand<'_>]) {
        demands.iter().for_each(|it| self.shared.denials.forget(self.shared.id(it)));
    }

    /// Remembers the keys of a reservation.
    fn note_reserved(&self, reserved: &Reserved, demands: &[Demand<'_>], life: Duration) {
        self.forget(demands);
        let Some(id) = reserved.id else { return };
        let place = self.place(id);
        let keys = demands.iter().map(|it| self.shared.id(it)).collect();
        let ends = self.shared.clock.now().saturating_add(life);
        let mut bucket = self.shared.reserved.bucket(place);
        bucket.remove(place);
        bucket.insert(place, Keys(ends.as_nanos(), keys));
    }

    fn place(&self, id: ReservationId) -> u128 {
        self.shared.ids.of("", &id.0.to_le_bytes())
    }
}

impl<S: Store + 'static> Store for TwoTier<S> {
    forward_store!(self => &self.shared.inner,
        except acquire force refund reset reserve settle lease up_to);

    async fn acquire(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        match demands {
            [demand] => self.shared.acquire_one(demand).await,
            demands => self.shared.acquire_all(demands).await,
        }
    }

    async fn force(&self, demand: &Demand<'_>) -> Result<Decision, StoreError> {
        let decision = self.shared.inner.force(demand).await;
        self.forget(std::slice::from_ref(demand));
        decision
    }

    async fn refund(&self, demand: &Demand<'_>) -> Result<u64, StoreError> {
        let given = self.shared.inner.refund(demand).await;
        self.forget(std::slice::from_ref(demand));
        self.shared.ask_again(self.shared.id(demand));
        given
    }

    async fn reset(&self, demand: &Demand<'_>) -> Result<(), StoreError> {
        let reset = self.shared.inner.reset(demand).await;
        self.forget(std::slice::from_ref(demand));
        self.shared.drop_held(self.shared.id(demand));
        reset
    }

    async fn reserve(
        &self,
        demands: &mut [Demand<'_>],
        life: Duration,
    ) -> Result<Reserved, StoreError> {
        let reserved = self.shared.inner.reserve(demands, life).await?;
        self.note_reserved(&reserved, demands, life);
        Ok(reserved)
    }

    async fn settle(&self, id: ReservationId, actual: &[u64]) -> Result<bool, StoreError> {
        let settled = self.shared.inner.settle(id, actual).await;
        let place = self.place(id);
        let keys = self.shared.reserved.bucket(place).remove(place);
        for key in keys.iter().flat_map(|keys| &keys.1) {
            self.shared.denials.forget(*key);
            self.shared.ask_again(*key);
        }
        settled
    }

    async fn lease(&self, demand: &mut Demand<'_>, life: Duration) -> Result<Reserved, StoreError> {
        let reserved = self.shared.inner.lease(demand, life).await?;
        self.note_reserved(&reserved, std::slice::from_ref(demand), life);
        Ok(reserved)
    }

    async fn up_to(&self, demand: &mut Demand<'_>) -> Result<Decision, StoreError> {
        let decision = self.shared.inner.up_to(demand).await;
        self.forget(std::slice::from_ref(demand));
        decision
    }
}

impl<S> Clone for TwoTier<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S: fmt::Debug> fmt::Debug for TwoTier<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TwoTier")
            .field("inner", &self.shared.inner)
            .field("fleet", &self.shared.fleet)
            .finish_non_exhaustive()
    }
}
