//! Where shared state lives: the one interface to it.
//!
//! A [`Store`] decides over *demands*: a policy (name, quota, algorithm), a key and a
//! cost. Its fundamental call takes several demands and decides over all of them at once:
//!
//! ```
//! use tollgate::{Quota, store::{Demand, MemoryStore, Policy, Store}};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::new();
//! let global = Policy::new("global", Quota::per_second(1000))?;
//! let users = Policy::new("users", Quota::per_minute(60))?;
//! let mut demands = [Demand::new(&global, b"", 1), Demand::new(&users, b"alice", 1)];
//! let decision = store.acquire(&mut demands).await?;
//! assert!(decision.is_allowed());
//! assert_eq!(demands[1].decision().map(|own| own.remaining()), Some(59));
//! # Ok(())
//! # }
//! # let mut future = Box::pin(example());
//! # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
//! # assert!(matches!(future.as_mut().poll(&mut context), std::task::Poll::Ready(Ok(()))));
//! ```
//!
//! | I have | use |
//! |---|---|
//! | one process | [`MemoryStore`] |
//! | a fleet | the Redis store, in a crate of its own |
//! | a choice at run time | [`DynStore`], behind a `Box` or an `Arc` |
//! | a store of my own | implement [`Store`], and let `testing::conformance` judge it |
//! | a store around another one | [`forward_store!`](forward_store) |
//!
//! # What every store promises
//!
//! - Several demands are charged all or none, whatever their policies and keys.
//! - A denial changes no state, and is a value. A failure is an error, and never a denial.
//! - A call whose outcome is unknown was charged at most once.
//! - Two policies of different names never share a key's state; neither do two keys.

mod boxed;
mod demand;
mod error;
mod memory;
mod operation;
mod permits;

pub use boxed::{BoxFuture, DynStore};
pub(crate) use demand::InForce;
pub use demand::{Demand, Policy};
pub use error::StoreError;
pub use memory::{MemoryStore, MemoryStoreBuilder};
pub use operation::Operation;
pub use permits::Permits;

#[doc(inline)]
pub use crate::__forward_store as forward_store;

use crate::{Clock, Decision};
use std::{
    fmt,
    future::{Future, Ready, ready},
    time::Duration,
};

/// Where shared state lives, and who decides by it.
///
/// [`clock`](Self::clock), [`acquire`](Self::acquire) and [`peek`](Self::peek) make a store. Every
/// other operation is optional: unless a store implements it, it returns
/// [`StoreError::unsupported`].
///
/// Every call is asynchronous; those of the [`MemoryStore`] are ready at once and allocate nothing
/// (`cargo run --release -p tollgate-bench -- allocations`).
///
/// # Cancel safety
///
/// A call that is dropped may have been carried out or not. It was charged at most once.
///
/// # Examples
///
/// A complete store: a table for each policy, and one decision over several tables.
///
/// ```
/// use std::{collections::{HashMap, hash_map::Entry}, sync::Mutex};
/// use tollgate::{Algorithm, Clock, Decision, KeyedLimiter, Limits, Tick};
/// use tollgate::store::{Demand, Store, StoreError};
///
/// struct Tables {
///     clock: Clock,
///     of_policy: Mutex<HashMap<(String, Algorithm), KeyedLimiter<[u8]>>>,
/// }
///
/// type Decide = fn(&Limits<'_>, Tick, &mut dyn FnMut(usize, &Decision)) -> Decision;
///
/// impl Tables {
///     fn decide(&self, demands: &mut [Demand<'_>], how: Decide) -> Result<Decision, StoreError> {
///         let (mut known, mut tables) = (self.of_policy.lock().unwrap(), Vec::new());
///         for demand in &*demands {
///             let (policy, quota) = (demand.policy(), demand.quota());
///             if policy.is_ad_hoc() && !demand.has_own_quota() {
///                 return Err(StoreError::invalid("no quota; give one with Demand::ad_hoc"));
///             }
///             let new = KeyedLimiter::builder(quota).algorithm(policy.algorithm());
///             let table = match known.entry((policy.name().to_owned(), policy.algorithm())) {
///                 Entry::Occupied(table) => table.into_mut(),
///                 Entry::Vacant(place) => place.insert(new.clock(self.clock.clone()).build()?),
///             };
///             if table.quota() != quota {
///                 table.set_quota(quota)?; // keeps the state
///             }
///             tables.push(table.clone());
///         }
///         let parts = tables.iter().zip(&*demands);
///         let charges: Vec<_> = parts.map(|(it, of)| it.charge(of.key(), of.cost())).collect();
///         let mut tell = |index: usize, own: &Decision| demands[index].tell(*own);
///         Ok(how(&Limits::new(&charges)?, self.clock.now(), &mut tell))
///     }
/// }
///
/// impl Store for Tables {
///     fn clock(&self) -> &Clock {
///         &self.clock
///     }
///
///     async fn acquire(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
///         self.decide(demands, |limits, now, tell| limits.try_acquire_each_at(now, tell))
///     }
///
///     async fn peek(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
///         self.decide(demands, |limits, now, tell| limits.peek_each_at(now, tell))
///     }
/// }
/// ```
#[allow(unused_variables, reason = "operations that a store does not have ignore their arguments")]
pub trait Store: Send + Sync {
    /// Returns the clock of the ticks in this store's decisions.
    fn clock(&self) -> &Clock;

    /// Takes all demands if every one of them allows it now, and else none. [Tells](Demand::tell) each
    /// demand its own decision.
    fn acquire(
        &self,
        demands: &mut [Demand<'_>],
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Answers what [`acquire`](Self::acquire) would, and changes nothing.
    fn peek(
        &self,
        demands: &mut [Demand<'_>],
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send;

    /// Books a demand even into debt. Denied as never, without a trace, only if the debt is more than
    /// a state can hold.
    fn force(
        &self,
        demand: &Demand<'_>,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        unsupported(Operation::Force)
    }

    /// Gives back up to the demand's cost of what its key has outstanding. Returns how many permits
    /// that were; one that has refilled in part is given back for the rest, and counts.
    fn refund(&self, demand: &Demand<'_>) -> impl Future<Output = Result<u64, StoreError>> + Send {
        unsupported(Operation::Refund)
    }

    /// Forgets what the demand's key has used.
    fn reset(&self, demand: &Demand<'_>) -> impl Future<Output = Result<(), StoreError>> + Send {
        unsupported(Operation::Reset)
    }

    /// [`acquire`](Self::acquire), with the right to [`settle`](Self::settle) within `life`. After
    /// that the permits stay spent.
    fn reserve(
        &self,
        demands: &mut [Demand<'_>],
        life: Duration,
    ) -> impl Future<Output = Result<Reserved, StoreError>> + Send {
        unsupported(Operation::Reserve)
    }

    /// Corrects a reservation or a lease to what each of its demands actually cost: gives back the
    /// difference as far as time has not, or books it into debt. Costs of zero cancel it.
    ///
    /// The caller has used the permits already: of a debt that is more than a state can hold, as much is booked as
    /// fits, and nothing is left.
    ///
    /// Returns false if there is no such reservation (any more): it is settled, or has expired.
    fn settle(
        &self,
        id: ReservationId,
        actual: &[u64],
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        unsupported(Operation::Settle)
    }

    /// Takes as many permits as are free, at most the demand's cost, to be used within `life`. What
    /// is not used is given back by [`settle`](Self::settle) with what was.
    fn lease(
        &self,
        demand: &mut Demand<'_>,
        life: Duration,
    ) -> impl Future<Output = Result<Reserved, StoreError>> + Send {
        unsupported(Operation::Lease)
    }

    /// Takes as many permits as are free, at most the demand's cost, for good. [`Decision::cost`] says
    /// how many; if none is free, the decision is a denial.
    fn up_to(
        &self,
        demand: &mut Demand<'_>,
    ) -> impl Future<Output = Result<Decision, StoreError>> + Send {
        unsupported(Operation::UpTo)
    }

    /// Takes `permits` of those that may be in flight at once, for at most `life`: permits of a caller that dies
    /// without leaving end then.
    fn enter(
        &self,
        permits: &Permits<'_>,
        life: Duration,
    ) -> impl Future<Output = Result<Entered, StoreError>> + Send {
        unsupported(Operation::Enter)
    }

    /// Lets a permit live for another `life` from now. Returns false if it has expired already.
    fn renew(
        &self,
        permits: &Permits<'_>,
        id: PermitId,
        life: Duration,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        unsupported(Operation::Renew)
    }

    /// Gives a permit back. Returns false if it had expired already.
    fn leave(
        &self,
        permits: &Permits<'_>,
        id: PermitId,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send {
        unsupported(Operation::Leave)
    }
}

/// The answer of a store that does not have an operation.
fn unsupported<T>(operation: Operation) -> Ready<Result<T, StoreError>> {
    ready(Err(StoreError::unsupported(operation)))
}

/// Names a reservation or a lease of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReservationId(pub u64);

/// Names a permit of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PermitId(pub u64);

/// What [`Store::reserve`] and [`Store::lease`] answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reserved {
    /// The decision. Of a lease, its [cost](Decision::cost) is what was taken.
    pub decision: Decision,
    /// What to settle; none if nothing was taken.
    pub id: Option<ReservationId>,
}

/// How a settlement has corrected the charge of one demand: what [`MemoryStore::settle_now`] answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Permits that were charged beyond those reserved.
    pub charged: u64,
    /// Whole permits that were given back: less than the difference if time has given back some already.
    pub returned: u64,
}

/// What [`Store::enter`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// The permit; none if there was no room.
    pub id: Option<PermitId>,
    /// How many are in flight afterwards.
    pub in_flight: u64,
    /// When the next permit expires if there was no room and nobody leaves: a wait that helps for
    /// sure.
    pub retry_after: Option<Duration>,
    /// Whether the store could not be reached, so that a failure policy has decided.
    pub is_degraded: bool,
}

impl fmt::Display for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
