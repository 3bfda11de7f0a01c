//! The store of one process.

mod builder;
mod decide;
mod reservations;

pub use builder::MemoryStoreBuilder;

use super::{
    Demand, Entered, PermitId, Permits, Policy, ReservationId, Reserved, Settled, Store,
    StoreError,
    permits::{FlightKey, Flights},
};
use crate::{
    Clock, Decision, Reservation, SnapshotError, Tick,
    keyed::core::Core,
    multi::Taking,
    observe::Verb,
    sync::{Arc, Mutex, lock},
};
use reservations::{OpenReservations, Slot};
use std::{fmt, time::Duration};

/// State in the memory of this process, for any number of policies and keys. Clones share it.
///
/// Its calls are ready at once and allocate nothing (with up to eight demands, and but for
/// reservations). Each has a plain twin that needs no `await`: [`acquire_now`](Self::acquire_now).
/// For a single demand there is [`acquire_one_now`](Self::acquire_one_now), which is faster.
///
/// Keys are not stored, only fingerprints: see [docs/keys.md].
///
/// # Examples
///
/// ```
/// use tollgate::{Quota, store::{Demand, MemoryStore, Policy}};
///
/// let store = MemoryStore::builder().bounded(100_000).build()?;
/// let logins = Policy::new("logins", Quota::per_minute(3))?;
/// let mut demands = [Demand::new(&logins, b"alice", 1)];
/// assert_eq!(store.acquire_now(&mut demands)?.remaining(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [docs/keys.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/keys.md
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    core: Arc<Core>,
    flights: Flights,
    reserved: Mutex<OpenReservations>,
}

impl MemoryStore {
    /// Returns a store with a growing table on the monotonic clock.
    #[must_use]
    pub fn new() -> Self {
        let built = Self::builder().build();
        built.unwrap_or_else(|_| unreachable!("the defaults make sense"))
    }

    /// Starts a store with another table or clock.
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder::new()
    }

    /// Returns how many keys have a slot.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.core.tables.len()
    }

    /// Tells whether no key has a slot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many keys can have a slot; `None` if the table grows without a bound. Keys of sliding logs, which have a
    /// table of their own, are bounded by the same number.
    #[must_use]
    pub fn max_keys(&self) -> Option<u64> {
        self.shared.core.tables.cap
    }

    /// Returns the memory of the slots, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shared.core.tables.bytes()
    }

    /// Returns what happened to the table so far: keys that were forgotten, and live ones that lost
    /// their state to others.
    #[must_use]
    pub fn table_counts(&self) -> crate::TableCounts {
        self.shared.core.table_counts()
    }

    /// Returns how many permits of each of these [names](Permits::name) are in flight, over all keys.
    /// One call visits every key that holds a permit: it is for metrics, not for decisions.
    #[must_use]
    pub fn in_flight(&self, names: &[&str]) -> Vec<u64> {
        let names: Vec<u64> = names.iter().map(|name| self.flight_name(name)).collect();
        self.shared.flights.in_flight(self.now(), &names)
    }

    /// Writes the states of all keys to a file, as
    /// [`KeyedLimiter::save`](crate::KeyedLimiter::save) does. Permits in flight are not written.
    ///
    /// # Errors
    ///
    /// When the file cannot be written: the old one is untouched.
    pub fn save(&self, path: impl AsRef<std::path::Path>) -> Result<u64, SnapshotError> {
        self.shared.core.save(path.as_ref())
    }

    /// Takes over the states of a file that [`save`](Self::save) wrote, as
    /// [`KeyedLimiter::restore`](crate::KeyedLimiter::restore) does.
    ///
    /// # Errors
    ///
    /// When the file is missing, foreign, damaged, or of another seed.
    pub fn restore(&self, path: impl AsRef<std::path::Path>) -> Result<u64, SnapshotError> {
        self.shared.core.restore(path.as_ref())
    }

    /// Returns what keeps the keys.
    #[cfg(all(test, not(tollgate_loom)))]
    pub(crate) fn core(&self) -> &Core {
        &self.shared.core
    }

    fn now(&self) -> Tick {
        self.shared.core.clock.now()
    }

    /// [`Store::acquire`] without waiting: it never does.
    ///
    /// # Errors
    ///
    /// When there are no demands, or too many.
    pub fn acquire_now(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        self.acquire_at(self.now(), demands)
    }

    /// [`acquire_now`](Self::acquire_now) as of `now`.
    ///
    /// # Errors
    ///
    /// As [`acquire_now`](Self::acquire_now).
    pub fn acquire_at(
        &self,
        now: Tick,
        demands: &mut [Demand<'_>],
    ) -> Result<Decision, StoreError> {
        let [demand] = demands else { return self.acquire_all(now, demands) };
        if demand.has_own_quota() {
            return self.acquire_any(demand, now, None);
        }
        let (policy, key, cost) = (demand.policy(), demand.key(), demand.cost());
        match self.shared.core.take_one(policy, key, now, cost) {
            Ok(decision) => {
                demand.tell(decision);
                Ok(decision)
            }
            Err(known) => self.acquire_any(demand, now, known),
        }
    }

    /// [`acquire_now`](Self::acquire_now) for a single demand: takes `cost` permits of a key if they
    /// are free now.
    ///
    /// There is no list to make and no [`Demand`] to be told, so it is the fastest way to ask.
    ///
    /// # Errors
    ///
    /// As [`acquire_now`](Self::acquire_now); and when the policy has no quota of its own
    /// ([`Policy::ad_hoc`]): that comes with a [`Demand::ad_hoc`].
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Quota, store::{MemoryStore, Policy}};
    ///
    /// let store = MemoryStore::new();
    /// let logins = Policy::new("logins", Quota::per_minute(3))?;
    /// assert_eq!(store.acquire_one_now(&logins, b"alice", 1)?.remaining(), 2);
    /// assert!(store.acquire_one_now(&logins, b"alice", 3)?.is_denied());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn acquire_one_now(
        &self,
        policy: &Policy,
        key: &[u8],
        cost: u64,
    ) -> Result<Decision, StoreError> {
        self.acquire_one_at(self.now(), policy, key, cost)
    }

    /// [`acquire_one_now`](Self::acquire_one_now) as of `now`.
    ///
    /// # Errors
    ///
    /// As [`acquire_one_now`](Self::acquire_one_now).
    #[inline(always)]
    pub fn acquire_one_at(
        &self,
        now: Tick,
        policy: &Policy,
        key: &[u8],
        cost: u64,
    ) -> Result<Decision, StoreError> {
        match self.shared.core.take_one(policy, key, now, cost) {
            Ok(decision) => Ok(decision),
            Err(known) => self.acquire_any(&mut Demand::new(policy, key, cost), now, known),
        }
    }

    /// [`Store::peek`] as of `now`, without waiting.
    ///
    /// # Errors
    ///
    /// As [`acquire_now`](Self::acquire_now).
    pub fn peek_at(&self, now: Tick, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        let core = &self.shared.core;
        // A full table that evicts no live entry refuses new keys, which only the general path reports.
        if let [demand] = demands
            && core.tables.eviction.evicts_live
            && core.mode() == 0
        {
            let (key, cost) = (self.key(demand)?, demand.cost());
            let decision = core.state(key, now).look(|entry| entry.peek(now, cost));
            demand.tell(decision);
            return Ok(decision);
        }
        Ok(self.decide(demands, now, Taking::Look)?.0)
    }

    /// [`Store::force`] as of `now`, without waiting.
    ///
    /// # Errors
    ///
    /// As [`acquire_now`](Self::acquire_now).
    pub fn force_at(&self, now: Tick, demand: &Demand<'_>) -> Result<Decision, StoreError> {
        Ok(self.state_ref(demand)?.ask(Verb::Force, now, demand.cost()))
    }

    /// [`Store::refund`] as of `now`, without waiting.
    ///
    /// # Errors
    ///
    /// As [`acquire_now`](Self::acquire_now).
    pub fn refund_at(&self, now: Tick, demand: &Demand<'_>) -> Result<u64, StoreError> {
        Ok(self.state_ref(demand)?.refund(now, demand.cost(), None))
    }

    /// Takes back an allowed decision about a demand, as of `now`, because what it allowed never
    /// happened. Unlike [`refund_at`](Self::refund_at), it knows what time has given back meanwhile: by
    /// GCRA it gives back the rest, to the fraction of a permit; in a window all of it, or nothing if
    /// another window has begun.
    ///
    /// # Errors
    ///
    /// As [`acquire_now`](Self::acquire_now).
    pub fn undo_at(
        &self,
        now: Tick,
        demand: &Demand<'_>,
        decision: &Decision,
    ) -> Result<(), StoreError> {
        self.state_ref(demand)?.refund(now, demand.cost(), Some(decision));
        Ok(())
    }

    /// Checks these policies, and puts them in force as of now. A policy that is not declared is put in
    /// force when it is first used.
    ///
    /// # Errors
    ///
    /// When a quota makes no sense for keys: which policy it is, and why.
    pub fn declare<'a>(
        &self,
        policies: impl IntoIterator<Item = &'a Policy>,
    ) -> Result<(), (&'a Policy, StoreError)> {
        for policy in policies {
            self.shared.core.admit(policy).map_err(|error| (policy, error.into()))?;
        }
        Ok(())
    }

    /// [`Store::reset`] without waiting.
    ///
    /// # Errors
    ///
    /// As [`acquire_now`](Self::acquire_now).
    pub fn reset_now(&self, demand: &Demand<'_>) -> Result<(), StoreError> {
        self.shared.core.reset(self.key(demand)?, self.now());
        Ok(())
    }

    /// [`Store::settle`] without waiting. Returns how the charge of each demand was corrected; `None` if there is
    /// no such reservation (any more).
    ///
    /// # Errors
    ///
    /// When there are not as many costs as demands.
    pub fn settle_now(
        &self,
        id: ReservationId,
        actual: &[u64],
    ) -> Result<Option<Vec<Settled>>, StoreError> {
        let Some(reservations) = self.take_out(id, actual.len())? else { return Ok(None) };
        let now = self.now();
        let each = reservations.into_iter().zip(actual);
        Ok(Some(each.map(|(reserved, actual)| reserved.settled_at(now, *actual).1).collect()))
    }

    /// Tells whether the demand's key has used something that has not come back yet: its
    /// [`peek`](Store::peek) says until when ([`Decision::full_at`]). A key that has refilled is as
    /// good as one that was never seen.
    ///
    /// # Errors
    ///
    /// As [`acquire_now`](Self::acquire_now).
    pub fn contains(&self, demand: &Demand<'_>) -> Result<bool, StoreError> {
        self.contains_at(self.now(), demand)
    }

    /// [`contains`](Self::contains) as of `now`.
    ///
    /// # Errors
    ///
    /// As [`acquire_now`](Self::acquire_now).
    pub fn contains_at(&self, now: Tick, demand: &Demand<'_>) -> Result<bool, StoreError> {
        Ok(self.state_ref(demand)?.state(now).read(|entry| !entry.is_idle(now)))
    }

    /// Takes a slot for each demand of a reservation to come. Returns its id.
    fn hold(&self, now: Tick, demands: &[Demand<'_>], life: Duration) -> Result<u64, StoreError> {
        let core = &self.shared.core;
        let slot = |demand: &Demand<'_>| -> Slot {
            (demand.policy().id(), core.fingerprint_of(demand.policy(), demand.key()))
        };
        let slots = demands.iter().map(slot).collect();
        let name_of = |index: usize| demands[index].policy().name();
        lock(&self.shared.reserved).hold((now, life), slots, name_of)
    }

    /// Opens the reservation whose slots are held, or frees them if nothing was taken.
    fn open(
        &self,
        id: u64,
        decided: Result<(Decision, Option<Vec<Reservation>>), StoreError>,
    ) -> Result<Reserved, StoreError> {
        let mut reserved = lock(&self.shared.reserved);
        match decided {
            Ok((decision, Some(reservations))) => {
                reserved.fill(id, reservations);
                Ok(Reserved { decision, id: Some(ReservationId(id)) })
            }
            nothing => {
                reserved.remove(id);
                nothing.map(|(decision, _)| Reserved { decision, id: None })
            }
        }
    }

    /// Takes a reservation of `count` demands out of those that are open.
    fn take_out(
        &self,
        id: ReservationId,
        count: usize,
    ) -> Result<Option<Vec<Reservation>>, StoreError> {
        let mut reserved = lock(&self.shared.reserved);
        let Some(limits) = reserved.limits(id.0, self.now()) else { return Ok(None) };
        if limits != count {
            return Err(StoreError::invalid(format!(
                "reservation {id} has {limits} demands and was given {count} costs; give one for \
                 each"
            )));
        }
        Ok(reserved.remove(id.0))
    }

    fn flight(&self, permits: &Permits<'_>) -> u64 {
        self.shared.core.seed.fingerprint(&("flight", permits.name, permits.key))
    }

    fn flight_name(&self, name: &str) -> u64 {
        self.shared.core.seed.fingerprint(&("flight", name))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Store for MemoryStore {
    fn clock(&self) -> &Clock {
        &self.shared.core.clock
    }

    async fn acquire(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        self.acquire_now(demands)
    }

    async fn peek(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        self.peek_at(self.now(), demands)
    }

    async fn force(&self, demand: &Demand<'_>) -> Result<Decision, StoreError> {
        self.force_at(self.now(), demand)
    }

    async fn refund(&self, demand: &Demand<'_>) -> Result<u64, StoreError> {
        self.refund_at(self.now(), demand)
    }

    async fn reset(&self, demand: &Demand<'_>) -> Result<(), StoreError> {
        self.reset_now(demand)
    }

    async fn reserve(
        &self,
        demands: &mut [Demand<'_>],
        life: Duration,
    ) -> Result<Reserved, StoreError> {
        let now = self.now();
        let id = self.hold(now, demands, life)?;
        self.open(id, self.decide(demands, now, Taking::Reserve))
    }

    async fn settle(&self, id: ReservationId, actual: &[u64]) -> Result<bool, StoreError> {
        Ok(self.settle_now(id, actual)?.is_some())
    }

    async fn lease(&self, demand: &mut Demand<'_>, life: Duration) -> Result<Reserved, StoreError> {
        let now = self.now();
        let id = self.hold(now, std::slice::from_ref(demand), life)?;
        self.open(id, self.lease_at(now, demand))
    }

    async fn up_to(&self, demand: &mut Demand<'_>) -> Result<Decision, StoreError> {
        Ok(self.lease_at(self.now(), demand)?.0)
    }

    async fn enter(&self, permits: &Permits<'_>, life: Duration) -> Result<Entered, StoreError> {
        let wanted = (permits.limit, permits.cost);
        let key = FlightKey { name: self.flight_name(permits.name), key: self.flight(permits) };
        self.shared.flights.enter(key, self.now(), wanted, life)
    }

    async fn renew(
        &self,
        permits: &Permits<'_>,
        id: PermitId,
        life: Duration,
    ) -> Result<bool, StoreError> {
        Ok(self.shared.flights.renew(self.flight(permits), self.now(), id, life))
    }

    async fn leave(&self, permits: &Permits<'_>, id: PermitId) -> Result<bool, StoreError> {
        Ok(self.shared.flights.leave(self.flight(permits), self.now(), id))
    }
}
