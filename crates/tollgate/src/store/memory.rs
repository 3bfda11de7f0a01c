//! The store of one process.

use super::{
    Demand, Entered, PermitId, Permits, Policy, ReservationId, Reserved, Store, StoreError,
    permits::Flights,
};
use crate::{
    Charge, Clock, Decision, Inherit, KeyedError, KeyedLimiter, Limits, Quota, Reservation, Seed,
    SnapshotError, Tick, WhenFull,
    keyed::core::{Core, Key},
    limits::{Parts, Taking, Target},
    reservation::Owner,
    sync::{Arc, AtomicU64, Mutex, Ordering::Relaxed, lock},
    watch::Verb,
};
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    time::Duration,
};

/// State in the memory of this process, for any number of policies and keys. Clones share it.
///
/// Its calls are ready at once and allocate nothing (with up to eight demands, and but for
/// reservations). Each has a plain twin that needs no `await`: [`acquire_now`](Self::acquire_now).
///
/// Keys are not stored, only fingerprints: see `docs/keys.md`.
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
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    core: Arc<Core>,
    flights: Flights,
    reserved: Mutex<Shelf>,
    next_id: AtomicU64,
    max_reservations: usize,
}

/// Open reservations.
#[derive(Default)]
struct Shelf {
    open: HashMap<u64, (Tick, Vec<Reservation>)>,
    /// By the time at which they expire.
    ends: BTreeMap<(Tick, u64), ()>,
}

impl Shelf {
    /// Makes final what has expired.
    fn expire(&mut self, now: Tick) {
        while let Some(first) = self.ends.first_entry()
            && first.key().0 <= now
        {
            let ((_, id), ()) = first.remove_entry();
            self.open.remove(&id);
        }
    }
}

/// Builds a [`MemoryStore`]. Nothing is judged before [`build`](Self::build).
#[must_use = "a builder does nothing until `build`"]
#[derive(Debug)]
pub struct MemoryStoreBuilder {
    clock: Option<Clock>,
    bounded: Option<u64>,
    max_keys: Option<u64>,
    when_full: WhenFull,
    max_idle: Option<Duration>,
    max_reservations: usize,
    max_permits: u64,
    seed: Option<Seed>,
}

impl MemoryStoreBuilder {
    /// Sets the clock, by default [`Clock::monotonic`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Uses a bounded table with memory for `keys` live keys of all policies together, 24 bytes
    /// each. By default the table grows.
    pub fn bounded(mut self, keys: u64) -> Self {
        self.bounded = Some(keys);
        self
    }

    /// Lets the growing table hold at most so many keys. By default there is no such bound.
    pub fn max_keys(mut self, keys: u64) -> Self {
        self.max_keys = Some(keys);
        self
    }

    /// Says what happens to a new key when all entries are live, by default [`WhenFull::Evict`].
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Forgets keys of sliding logs, and of quotas whose fresh keys are not full, that nobody asked
    /// for during `max_idle`.
    pub fn max_idle(mut self, max_idle: Duration) -> Self {
        self.max_idle = Some(max_idle);
        self
    }

    /// Sets how many reservations and leases can be open, by default 1048576.
    pub fn max_reservations(mut self, most: usize) -> Self {
        self.max_reservations = most;
        self
    }

    /// Sets how many permits can be in flight, by default 1048576.
    pub fn max_permits(mut self, most: u64) -> Self {
        self.max_permits = most;
        self
    }

    /// Sets the secret that fingerprints depend on: one that outlives the process, for
    /// [`save`](MemoryStore::save) and [`restore`](MemoryStore::restore).
    pub fn seed(mut self, seed: Seed) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Builds the store.
    ///
    /// # Errors
    ///
    /// When the sizes make no sense.
    pub fn build(self) -> Result<MemoryStore, KeyedError> {
        let mut builder = KeyedLimiter::<[u8]>::builder(Quota::unlimited());
        builder = builder.when_full(self.when_full);
        if let Some(clock) = self.clock {
            builder = builder.clock(clock);
        }
        if let Some(seed) = self.seed {
            builder = builder.seed(seed);
        }
        if let Some(keys) = self.bounded {
            builder = builder.bounded(keys);
        }
        if let Some(keys) = self.max_keys {
            builder = builder.max_keys(keys);
        }
        if let Some(max_idle) = self.max_idle {
            builder = builder.max_idle(max_idle);
        }
        let shared = Shared {
            core: builder.build()?.core,
            flights: Flights::new(self.max_permits),
            reserved: Mutex::new(Shelf::default()),
            next_id: AtomicU64::new(1),
            max_reservations: self.max_reservations,
        };
        Ok(MemoryStore { shared: Arc::new(shared) })
    }
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
        MemoryStoreBuilder {
            clock: None,
            bounded: None,
            max_keys: None,
            when_full: WhenFull::default(),
            max_idle: None,
            max_reservations: 1 << 20,
            max_permits: 1 << 20,
            seed: None,
        }
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

    /// Returns the memory of the slots, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shared.core.tables.bytes()
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
    /// When the file is missing, foreign, damaged, or of another seed or size of table.
    pub fn restore(&self, path: impl AsRef<std::path::Path>) -> Result<u64, SnapshotError> {
        self.shared.core.restore(path.as_ref())
    }

    fn now(&self) -> Tick {
        self.shared.core.clock.now()
    }

    /// Returns the fingerprint of a demand's key, after its policy has a class.
    fn key(&self, demand: &Demand<'_>) -> Result<u64, StoreError> {
        let core = &self.shared.core;
        core.class_of(demand.policy(), self.now()).map_err(|error| {
            let text = error.to_string();
            let full = matches!(error, KeyedError::TooManyQuotas { .. });
            if full { StoreError::full(text) } else { StoreError::invalid(text) }
        })?;
        Ok(core.seed().fingerprint(&(demand.policy().id(), demand.key())))
    }

    fn key_of<'a>(&self, demand: &Demand<'a>) -> Result<Key<'a>, StoreError> {
        Ok(Key { fingerprint: self.key(demand)?, policy: Some(demand.policy()) })
    }

    /// Decides over all demands at once.
    fn decide(
        &self,
        demands: &mut [Demand<'_>],
        now: Tick,
        taking: Taking,
    ) -> Result<(Decision, Option<Vec<Reservation>>), StoreError> {
        // A list on the stack for as many demands as are usual.
        const USUAL: usize = 8;
        let core = &self.shared.core;
        if let [demand] = demands {
            let (policy, cost) = (demand.policy(), demand.cost());
            let charges =
                [Charge { target: Target::Key(core, self.key(demand)?, Some(policy)), cost }];
            let result = Parts::decide(&charges, now, taking, |_, own| demand.tell(*own));
            return Ok(result);
        }
        Limits::check(demands.len())?;
        let nothing = Charge { target: Target::Key(core, 0, None), cost: 0 };
        let (mut short, mut long) = ([nothing; USUAL], Vec::new());
        let charges = if demands.len() <= USUAL {
            &mut short[..demands.len()]
        } else {
            long.resize(demands.len(), nothing);
            &mut long[..]
        };
        for (slot, demand) in charges.iter_mut().zip(demands.iter()) {
            let target = Target::Key(core, self.key(demand)?, Some(demand.policy()));
            *slot = Charge { target, cost: demand.cost() };
        }
        Ok(Parts::decide(charges, now, taking, |index, own| demands[index].tell(*own)))
    }

    /// [`Store::acquire`] without waiting: it never does.
    ///
    /// # Errors
    ///
    /// When there are no demands, or too many, or more quotas than the store can tell apart.
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
        if let [demand] = demands {
            let (core, key) = (&self.shared.core, self.key(demand)?);
            if let Some(decision) = core.take_stored((key, demand.policy()), now, demand.cost()) {
                demand.tell(decision);
                return Ok(decision);
            }
        }
        Ok(self.decide(demands, now, Taking::Take)?.0)
    }

    fn shelve(
        &self,
        now: Tick,
        life: Duration,
        reservations: Vec<Reservation>,
    ) -> Result<ReservationId, StoreError> {
        let mut shelf = lock(&self.shared.reserved);
        shelf.expire(now);
        if shelf.open.len() >= self.shared.max_reservations {
            drop(shelf);
            for reservation in reservations {
                reservation.cancel_at(now);
            }
            return Err(StoreError::full(format!(
                "{} reservations are open already; settle some, or raise max_reservations",
                self.shared.max_reservations
            )));
        }
        // ORDERING: Relaxed. A number that is given out once.
        let id = self.shared.next_id.fetch_add(1, Relaxed);
        let until = now.saturating_add(life);
        shelf.ends.insert((until, id), ());
        shelf.open.insert(id, (until, reservations));
        Ok(ReservationId(id))
    }

    /// Takes a reservation of `count` demands off the shelf.
    fn take_off(
        &self,
        id: ReservationId,
        count: usize,
    ) -> Result<Option<Vec<Reservation>>, StoreError> {
        let mut shelf = lock(&self.shared.reserved);
        shelf.expire(self.now());
        let Some((until, reservations)) = shelf.open.get(&id.0) else { return Ok(None) };
        if reservations.len() != count {
            return Err(StoreError::invalid(format!(
                "reservation {id} has {} demands and was given {count} costs; give one for each",
                reservations.len()
            )));
        }
        let until = *until;
        shelf.ends.remove(&(until, id.0));
        Ok(shelf.open.remove(&id.0).map(|(_, reservations)| reservations))
    }

    fn flight(&self, permits: &Permits<'_>) -> u64 {
        self.shared.core.seed().fingerprint(&("flight", permits.name, permits.key))
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
        Ok(self.decide(demands, self.now(), Taking::Look)?.0)
    }

    async fn force(&self, demand: &Demand<'_>) -> Result<Decision, StoreError> {
        Ok(self.shared.core.force(self.key_of(demand)?, self.now(), demand.cost()))
    }

    async fn refund(&self, demand: &Demand<'_>) -> Result<u64, StoreError> {
        Ok(self.shared.core.refund(self.key_of(demand)?, self.now(), demand.cost()))
    }

    async fn reset(&self, demand: &Demand<'_>) -> Result<(), StoreError> {
        self.shared.core.reset(self.key(demand)?);
        Ok(())
    }

    async fn reserve(
        &self,
        demands: &mut [Demand<'_>],
        life: Duration,
    ) -> Result<Reserved, StoreError> {
        let now = self.now();
        let (decision, reservations) = self.decide(demands, now, Taking::Reserve)?;
        let id = match reservations {
            Some(reservations) => Some(self.shelve(now, life, reservations)?),
            None => None,
        };
        Ok(Reserved { decision, id })
    }

    async fn settle(&self, id: ReservationId, actual: &[u64]) -> Result<bool, StoreError> {
        let Some(reservations) = self.take_off(id, actual.len())? else { return Ok(false) };
        let now = self.now();
        for (reservation, actual) in reservations.into_iter().zip(actual) {
            let _ = reservation.settle_at(now, *actual);
        }
        Ok(true)
    }

    async fn lease(&self, demand: &mut Demand<'_>, life: Duration) -> Result<Reserved, StoreError> {
        let (key, now, core) = (self.key_of(demand)?, self.now(), &self.shared.core);
        let (decision, id) = core.lease(key, now, demand.cost());
        core.report(Verb::UpTo, &decision);
        demand.tell(decision);
        let owner = Owner::Stored(Arc::clone(core), demand.policy().clone(), key.fingerprint);
        let id = match id {
            Some(id) => {
                let cost = decision.cost();
                let taken = Reservation::new(owner, Some(id), (cost, now), decision);
                Some(self.shelve(now, life, vec![taken])?)
            }
            None => None,
        };
        Ok(Reserved { decision, id })
    }

    async fn enter(&self, permits: &Permits<'_>, life: Duration) -> Result<Entered, StoreError> {
        let wanted = (permits.limit, permits.cost);
        self.shared.flights.enter(self.flight(permits), self.now(), wanted, life)
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

    async fn change_quota(
        &self,
        old: &Policy,
        new: &Policy,
        how: Inherit,
    ) -> Result<(), StoreError> {
        if old.name() != new.name() {
            return Err(StoreError::invalid(format!(
                "policy \"{}\" cannot become \"{}\"; a change of quota keeps the name",
                old.name(),
                new.name()
            )));
        }
        let changed = self.shared.core.change_policy(old, new, (self.now(), how));
        changed.map_err(|error| StoreError::invalid(error.to_string()))
    }
}
