//! A decision: held permits, remembered refusals, the store.

use super::{
    Shared,
    held_permits::{Asking, Fetch, HeldPermits, Landing, Step},
    single_flight::SingleFlight,
    status::Counters,
    terms::Terms,
};
use std::sync::{Arc, PoisonError};
use tollgate::{
    Answer, Decision, Limits, Outcome, Tick,
    store::{Demand, Policy, Store, StoreError},
};

/// How often a request waits for other requests' calls before it makes its own.
const ROUNDS: usize = 4;

/// The result of a demand's leases.
pub(super) enum Leased {
    Taken(Decision),
    Refused(Decision),
    /// The demand does not lease: the store must decide.
    Not,
}

impl<S: Store + 'static> Shared<S> {
    pub(super) fn id(&self, demand: &Demand<'_>) -> u128 {
        self.ids.of(demand.policy().name(), demand.key())
    }

    /// Allows the next store call for a key at once, although the store had too little: permits
    /// were given back.
    pub(super) fn ask_again(&self, id: u128) {
        if let Some((holding, _)) = self.holdings.bucket(id).get(id) {
            holding.ask_again();
        }
    }

    /// Drops the held permits of a key.
    pub(super) fn drop_held(&self, id: u128) {
        let mut bucket = self.holdings.bucket(id);
        let wasted = bucket.remove(id).map_or(0, |holding| holding.tokens());
        bucket.tally.wasted += wasted;
    }

    /// Decides one demand.
    pub(super) async fn acquire_one(
        self: &Arc<Self>,
        demand: &mut Demand<'_>,
    ) -> Result<Decision, StoreError> {
        let id = self.id(demand);
        let decision = match self.lease(demand, id).await? {
            Leased::Taken(decision) | Leased::Refused(decision) => decision,
            Leased::Not => match self.denials.refuse(id, self.clock.now(), demand) {
                Ok(refusal) => refusal,
                Err(epoch) => {
                    let decision = self.ask_store(std::slice::from_mut(demand)).await?;
                    self.denials.note(demand, (id, epoch), &decision);
                    decision
                }
            },
        };
        demand.tell(decision);
        Ok(decision)
    }

    /// Decides several demands: those with leases take held permits, then the store decides all
    /// others in one call. If it refuses, the held permits go back.
    pub(super) async fn acquire_all(
        self: &Arc<Self>,
        demands: &mut [Demand<'_>],
    ) -> Result<Decision, StoreError> {
        let mut ids: Vec<u128> = demands.iter().map(|demand| self.id(demand)).collect();
        let is_twice = |index: usize| ids[..index].contains(&ids[index]);
        if !(1..=Limits::MOST).contains(&ids.len()) || (1..ids.len()).any(is_twice) {
            // An invalid call, or one that charges a key several times: only the store can decide
            // it.
            let decision = self.ask_store(demands).await;
            ids.drain(..).for_each(|id| self.denials.forget(id));
            return decision;
        }
        let now = self.clock.now();
        let mut epochs = Vec::with_capacity(ids.len());
        let mut is_refused = false;
        for (demand, id) in demands.iter_mut().zip(&ids) {
            let known = self.denials.refuse(*id, now, demand);
            is_refused |= known.is_ok();
            demand.tell(known.unwrap_or_else(|_| unasked(now, demand)));
            epochs.push(known.err().unwrap_or(0));
        }
        if is_refused {
            return joined(demands);
        }
        let mut taken = Taken { shared: self, permits: Vec::new() };
        let mut rest = Vec::with_capacity(ids.len());
        for index in 0..ids.len() {
            match self.lease(&demands[index], ids[index]).await? {
                Leased::Taken(decision) => {
                    taken.permits.push((ids[index], demands[index].cost()));
                    demands[index].tell(decision);
                }
                Leased::Refused(decision) => {
                    demands[index].tell(decision);
                    return joined(demands);
                }
                Leased::Not => rest.push(index),
            }
        }
        let mut asked: Vec<_> = rest.iter().map(|index| demands[*index]).collect();
        let answer = match asked.is_empty() {
            true => None,
            false => Some(self.ask_store(&mut asked).await?),
        };
        let is_all = rest.len() == demands.len();
        for (demand, index) in asked.into_iter().zip(rest) {
            if let Some(own) = demand.decision() {
                self.denials.note(&demand, (ids[index], epochs[index]), &own);
                demands[index].tell(own);
            }
        }
        if answer.is_none_or(|answer| answer.is_allowed()) {
            taken.permits.clear();
        }
        match answer {
            Some(answer) if is_all => Ok(answer),
            _ => joined(demands),
        }
    }

    async fn ask_store(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        Counters::add(&self.counters.store_calls, 1);
        let sent = self.clock.now();
        let decision = self.inner.acquire(demands).await?;
        self.counters.note_round_trip(self.clock.now().since(sent));
        Ok(decision)
    }

    /// Takes a demand from the held permits, and fetches more if necessary.
    async fn lease(self: &Arc<Self>, demand: &Demand<'_>, id: u128) -> Result<Leased, StoreError> {
        for round in 0..ROUNDS {
            let Some(step) = self.step(demand, id, round == 0) else { return Ok(Leased::Not) };
            match step {
                Step::Taken(decision, ahead) => {
                    if let Some(fetch) = ahead {
                        self.fetch_ahead(demand, id, fetch);
                    }
                    return Ok(Leased::Taken(decision));
                }
                Step::Refused(decision) => return Ok(Leased::Refused(decision)),
                Step::Fetch(fetch) => {
                    let (policy, key) = (demand.policy(), demand.key());
                    let decision = self.fetch((policy, key), id, fetch, demand.cost()).await?;
                    return Ok(match decision.is_allowed() {
                        true => Leased::Taken(decision),
                        false => Leased::Refused(decision),
                    });
                }
                Step::Wait(flight) => {
                    Counters::add(&self.counters.shared_calls, 1);
                    if !flight.is_over().await {
                        // The store could not answer that call; each waiter asks by itself and gets
                        // its own error.
                        return Ok(Leased::Not);
                    }
                }
            }
        }
        Ok(Leased::Not)
    }

    /// Returns the next step of a demand with leases; `None` if it does not lease.
    fn step(&self, demand: &Demand<'_>, id: u128, is_first: bool) -> Option<Step> {
        let cost = demand.cost();
        if !self.is_leasing() || cost == 0 || demand.policy().is_ad_hoc() {
            return None;
        }
        let (stamp, now) = (self.stamp(), self.clock.now());
        let round_trip_ns = self.counters.round_trip_ns();
        let mut bucket = self.holdings.bucket(id);
        let current = bucket.get(id).map(|(holding, _)| holding.is_current(stamp, demand));
        if current != Some(true) {
            let Some(terms) = self.terms(demand) else {
                let wasted = current.and_then(|_| bucket.remove(id)).map_or(0, |it| it.tokens());
                bucket.tally.wasted += wasted;
                return None;
            };
            if let Some((holding, tally)) = bucket.get(id) {
                holding.retune(demand, (stamp, terms), tally);
            } else {
                let holding = HeldPermits::new(demand, now, (stamp, terms));
                let displaced = bucket.insert(id, holding).map_or(0, |holding| holding.tokens());
                bucket.tally.wasted += displaced;
            }
        }
        let (holding, tally) = bucket.get(id)?;
        let asking = Asking { cost, is_first, round_trip_ns };
        (cost <= holding.lease_max()).then(|| holding.ask(now, asking, tally))
    }

    fn terms(&self, demand: &Demand<'_>) -> Option<Terms> {
        let plan = self.plan.read().unwrap_or_else(PoisonError::into_inner);
        let settings = plan.settings(demand.policy().name())?;
        Terms::of(&demand.quota(), &settings, self.fleet.get())
    }

    /// Fetches permits, and takes `cost` of them first.
    async fn fetch(
        &self,
        (policy, key): (&Policy, &[u8]),
        id: u128,
        Fetch { want, flight }: Fetch,
        cost: u64,
    ) -> Result<Decision, StoreError> {
        let lead = Lead { shared: self, id, flight };
        Counters::add(&self.counters.store_calls, 1);
        let (sent, mut demand) = (self.clock.now(), Demand::new(policy, key, want));
        let decision = self.inner.up_to(&mut demand).await.inspect_err(|_| lead.flight.fail())?;
        let now = self.clock.now();
        self.counters.note_round_trip(now.since(sent));
        Ok(lead.land(now, &Landing { want, cost, decision, believed: self.denials.cap() }))
    }

    /// Fetches permits in the background. Without a tokio runtime, gives up the fetch.
    fn fetch_ahead(self: &Arc<Self>, demand: &Demand<'_>, id: u128, fetch: Fetch) {
        let (shared, policy) = (Arc::clone(self), demand.policy().clone());
        let key: Box<[u8]> = demand.key().into();
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                Counters::add(&self.counters.refills_ahead, 1);
                runtime.spawn(async move {
                    let fetched = shared.fetch((&policy, &key), id, fetch, 0).await;
                    if let Err(error) = fetched {
                        tracing::debug!(policy = policy.name(), %error, "no leased permits");
                    }
                });
            }
            Err(_) => drop(Lead { shared: &**self, id, flight: fetch.flight }),
        }
    }
}

/// Ends a flight on drop.
struct Lead<'a, S: Store + 'static> {
    shared: &'a Shared<S>,
    id: u128,
    flight: Arc<SingleFlight>,
}

impl<S: Store + 'static> Lead<'_, S> {
    /// Adds the fetched permits to the held ones.
    fn land(&self, now: Tick, landing: &Landing) -> Decision {
        let mut bucket = self.shared.holdings.bucket(self.id);
        if let Some((holding, tally)) = bucket.get(self.id)
            && holding.is_flight(&self.flight)
        {
            return holding.land(now, landing, tally);
        }
        // The key was reset meanwhile: only the caller of the fetch gets permits.
        let granted = if landing.decision.is_allowed() { landing.decision.cost() } else { 0 };
        let is_allowed = granted >= landing.cost;
        bucket.tally.wasted += if is_allowed { granted - landing.cost } else { granted };
        orphan(now, landing, is_allowed)
    }
}

impl<S: Store + 'static> Drop for Lead<'_, S> {
    fn drop(&mut self) {
        let now = self.shared.clock.now();
        if let Some((holding, _)) = self.shared.holdings.bucket(self.id).get(self.id) {
            holding.give_up(now, &self.flight);
        }
        self.flight.end();
    }
}

/// Taken permits, which go back to the held ones on drop unless they are cleared.
struct Taken<'a, S: Store + 'static> {
    shared: &'a Shared<S>,
    permits: Vec<(u128, u64)>,
}

impl<S: Store + 'static> Drop for Taken<'_, S> {
    fn drop(&mut self) {
        let now = self.shared.clock.now();
        for (id, permits) in self.permits.drain(..) {
            let mut bucket = self.shared.holdings.bucket(id);
            match bucket.get(id) {
                Some((holding, tally)) => holding.put_back(now, permits, tally),
                None => bucket.tally.wasted += permits,
            }
        }
    }
}

/// Returns the answer to the caller of a fetch whose key was forgotten meanwhile.
fn orphan(now: Tick, landing: &Landing, is_allowed: bool) -> Decision {
    let decision = landing.decision;
    if decision.is_never() {
        return decision;
    }
    let answer = Decision::answered(Answer {
        outcome: if is_allowed { Outcome::Allowed } else { Outcome::Later },
        at: now,
        cost: landing.cost,
        limit: decision.limit(),
        remaining: decision.remaining(),
        retry_at: decision.retry_at().unwrap_or(now),
        full_at: decision.full_at(),
    });
    if decision.is_degraded() { answer.degraded() } else { answer }
}

/// Returns the decision of a demand that was not evaluated because another one was refused: it is
/// allowed, with 0 remaining.
fn unasked(now: Tick, demand: &Demand<'_>) -> Decision {
    Decision::answered(Answer {
        outcome: Outcome::Allowed,
        at: now,
        cost: demand.cost(),
        limit: demand.quota().capacity(),
        remaining: 0,
        retry_at: now,
        full_at: Some(now),
    })
}

fn joined(demands: &[Demand<'_>]) -> Result<Decision, StoreError> {
    let each: Vec<_> = demands.iter().filter_map(Demand::decision).collect();
    Decision::join(&each).ok_or_else(|| StoreError::invalid("the store returned no decision"))
}
