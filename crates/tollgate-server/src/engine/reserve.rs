//! Reservations, and verbs on single keys.

use super::{
    Answer, Engine, Request, RequestError,
    answer::since,
    decide::{Op, demand, is_in_force, is_refused, note, pass_by_quota},
};
use crate::plan::Plan;
use siphasher::sip::SipHasher13;
use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    str::FromStr,
    time::Duration,
};
use tollgate::{
    Decision, Quota, Tick,
    store::{Demand, ReservationId, Store, StoreError},
};

/// The right to correct a reservation. Its text form cannot be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    store: u8,
    id: u64,
    /// How many limits each ask has, for at most 16 asks: four bits each are not enough, eight are.
    parts: [u8; Ticket::ASKS],
    /// How many asks there were; some may have no limit.
    asks: u8,
    proof: u64,
}

impl Ticket {
    /// The most asks in one reservation.
    pub const ASKS: usize = 16;

    /// Returns how many asks were reserved.
    #[must_use]
    pub fn asks(&self) -> usize {
        usize::from(self.asks).min(Self::ASKS)
    }
}

/// A text that is no ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TicketError(String);

impl fmt::Display for TicketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is not a reservation; use the id that `reserve` returned", self.0)
    }
}

impl std::error::Error for TicketError {}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}-", self.store, self.id)?;
        for count in &self.parts[..self.asks()] {
            write!(f, "{count:02x}")?;
        }
        write!(f, "-{:016x}", self.proof)
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        let wrong = || TicketError(text.chars().take(40).collect());
        let mut fields = text.split('-');
        let mut next = || fields.next().ok_or_else(wrong);
        let (store, id, counts, proof) = (next()?, next()?, next()?, next()?);
        let plain = |field: &str| field.bytes().all(|byte| byte.is_ascii_hexdigit());
        if fields.next().is_some() || !plain(text.replace('-', "").as_str()) {
            return Err(wrong());
        }
        let number = |field: &str| u64::from_str_radix(field, 16).map_err(|_| wrong());
        let mut parts = [0; Self::ASKS];
        if !counts.len().is_multiple_of(2) || counts.len() / 2 > Self::ASKS {
            return Err(wrong());
        }
        for (slot, pair) in parts.iter_mut().zip(counts.as_bytes().chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *slot = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        let store = u8::from_str_radix(store, 16).map_err(|_| wrong())?;
        // OVERFLOW: at most 16.
        let asks = (counts.len() / 2) as u8;
        Ok(Self { store, id: number(id)?, parts, asks, proof: number(proof)? })
    }
}

pub(super) fn random_secret() -> (u64, u64) {
    // The standard library's hasher is seeded by the system.
    (RandomState::new().hash_one(0_u64), RandomState::new().hash_one(1_u64))
}

impl Engine {
    /// Returns the hasher of proofs that an id of a store was given out here.
    pub(super) fn proof_hasher(&self, store: usize) -> SipHasher13 {
        // The ids of a shared store cannot be guessed, and any process of the fleet may use them.
        let is_shared = self.stores.get(store).is_some_and(|store| store.remote().is_some());
        let (first, second) = if is_shared { (0, 0) } else { self.secret };
        SipHasher13::new_with_keys(first, second)
    }

    fn proof(&self, store: u8, id: u64, parts: &[u8]) -> u64 {
        let mut hasher = self.proof_hasher(usize::from(store));
        hasher.write_u8(store);
        hasher.write_u64(id);
        hasher.write(parts);
        hasher.finish()
    }

    /// Takes from all limits in force, with the right to correct it.
    pub(super) async fn reserve(
        &self,
        plan: &Plan,
        now: Tick,
        (life, asks): (Duration, usize),
        answer: &mut Answer,
    ) -> Result<(), RequestError> {
        if asks > Ticket::ASKS {
            return Err(RequestError::Limit(format!(
                "a reservation of {asks} limits is above the maximum of {}; split it into several",
                Ticket::ASKS
            )));
        }
        loop {
            self.reserve_once(plan, (life, asks), answer).await?;
            if !is_refused(answer) || !pass_by_quota(answer) {
                break;
            }
        }
        answer.allowed = !is_refused(answer);
        let op = if answer.allowed { Op::Take } else { Op::Look };
        self.shadows(plan, (now, op), answer).await;
        Ok(())
    }

    /// Takes from all limits in force. A refusal has taken nothing.
    async fn reserve_once(
        &self,
        plan: &Plan,
        (life, asks): (Duration, usize),
        answer: &mut Answer,
    ) -> Result<(), RequestError> {
        let Answer { parts, keys, policies, .. } = answer;
        let in_force: Vec<usize> = (0..parts.len()).filter(|at| is_in_force(&parts[*at])).collect();
        let store_of = |at: &usize| parts[*at].store;
        let store = in_force.first().map_or(0, store_of);
        if in_force.iter().any(|at| store_of(at) != store) {
            return Err(RequestError::SeveralStores);
        }
        let mut counts = [0_u8; Ticket::ASKS];
        for at in &in_force {
            counts[parts[*at].ask] += 1;
        }
        let mut demands: Vec<_> =
            in_force.iter().filter_map(|at| demand(plan, (policies, keys), &parts[*at])).collect();
        if demands.is_empty() {
            return Ok(());
        }
        let reserved = self.stores[store].reserve(&mut demands, life).await;
        let told: Vec<_> = demands.iter().map(Demand::decision).collect();
        drop(demands);
        match reserved {
            Ok(reserved) => {
                for (at, decision) in in_force.into_iter().zip(told) {
                    note(&mut parts[at], decision);
                }
                answer.ticket = reserved.id.map(|ReservationId(id)| {
                    // OVERFLOW: a configuration has few stores, and there are at most 16 asks.
                    let (store, count) = (store as u8, asks as u8);
                    let proof = self.proof(store, id, &counts[..asks]);
                    Ticket { store, id, parts: counts, asks: count, proof }
                });
            }
            Err(error) => self.failed(store, &error, answer),
        }
        Ok(())
    }

    /// Corrects a reservation to what each of its asks actually cost; zero cancels.
    ///
    /// Returns false if there is no such reservation any more.
    ///
    /// # Errors
    ///
    /// When the number of costs is wrong, or the store fails.
    pub async fn settle(&self, ticket: Ticket, actual: &[u64]) -> Result<bool, RequestError> {
        let Ticket { store, id, parts, proof, .. } = ticket;
        let backend = self.stores.get(usize::from(store));
        let asks = ticket.asks();
        let is_ours = self.proof(store, id, &parts[..asks]) == proof;
        let (true, Some(backend)) = (is_ours, backend) else {
            return Ok(false);
        };
        // One cost is good for all.
        if actual.len() != asks && actual.len() != 1 {
            return Err(RequestError::Limit(format!(
                "{} costs, but the number of reserved limits is {asks}; give one cost for each \
                 limit, or one for all",
                actual.len()
            )));
        }
        let mut each = Vec::new();
        for (at, count) in parts[..asks].iter().enumerate() {
            let cost = *actual.get(at).unwrap_or(&actual[0]);
            each.extend(std::iter::repeat_n(cost, usize::from(*count)));
        }
        let settled = backend.settle(ReservationId(id), &each).await;
        settled.map_err(|error| RequestError::Store(error.to_string()))
    }

    /// Gives back up to the hits of each ask, of what is outstanding. Returns how many permits that
    /// were, over all limits.
    ///
    /// # Errors
    ///
    /// When the request makes no sense, or the store fails.
    pub async fn refund(
        &self,
        plan: &Plan,
        now: Tick,
        request: &Request<'_>,
        answer: &mut Answer,
    ) -> Result<u64, RequestError> {
        self.collect(plan, now, request, answer)?;
        let mut given = 0_u64;
        for part in &answer.parts {
            let Some(demand) = demand(plan, (&answer.policies, &answer.keys), part) else {
                continue;
            };
            let store = part.store;
            let permits = self.stores[store].refund(&demand).await;
            given = given
                .saturating_add(permits.map_err(|error| RequestError::Store(error.to_string()))?);
        }
        Ok(given)
    }

    /// Forgets what the keys of a request have used. Parents keep their counts: others use them, too.
    ///
    /// # Errors
    ///
    /// When the request makes no sense, or the store fails.
    pub async fn reset(
        &self,
        plan: &Plan,
        now: Tick,
        request: &Request<'_>,
        answer: &mut Answer,
    ) -> Result<(), RequestError> {
        self.collect(plan, now, request, answer)?;
        for part in answer.parts.iter().filter(|part| !part.is_parent) {
            let Some(demand) = demand(plan, (&answer.policies, &answer.keys), part) else {
                continue;
            };
            let store = part.store;
            let reset = self.stores[store].reset(&demand).await;
            reset.map_err(|error| RequestError::Store(error.to_string()))?;
        }
        Ok(())
    }

    /// Decides by a quota that comes with the call, for a key that belongs to no rule.
    ///
    /// # Errors
    ///
    /// When the quota makes no sense, or the store fails.
    pub async fn throttle(
        &self,
        now: Tick,
        key: &[u8],
        quota: Quota,
        cost: u64,
    ) -> Result<Decision, StoreError> {
        let demand = Demand::ad_hoc(&self.ad_hoc, key, cost, quota);
        let mut demand = demand.map_err(|error| StoreError::invalid(error.to_string()))?;
        let demands = std::slice::from_mut(&mut demand);
        let decided = match cost {
            0 => self.stores[0].peek_at(now, demands).await,
            _ => self.stores[0].acquire_at(now, demands).await,
        };
        match &decided {
            Ok(decision) if decision.is_degraded() => self.health.degraded(),
            Ok(_) => {}
            Err(error) if error.is_invalid() => {}
            Err(error) => self.health.failed(0, error, now),
        }
        decided
    }

    /// Gives back up to `cost` permits of a key of [`throttle`](Self::throttle), of what is
    /// outstanding, and says what is left.
    ///
    /// # Errors
    ///
    /// As [`throttle`](Self::throttle).
    pub async fn unthrottle(
        &self,
        now: Tick,
        key: &[u8],
        quota: Quota,
        cost: u64,
    ) -> Result<Decision, StoreError> {
        let demand = Demand::ad_hoc(&self.ad_hoc, key, cost, quota);
        let demand = demand.map_err(|error| StoreError::invalid(error.to_string()))?;
        self.stores[0].refund(&demand).await?;
        self.throttle(now, key, quota, 0).await
    }

    /// Forgets a key of [`throttle`](Self::throttle). Tells whether it was there.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn forget(&self, now: Tick, key: &[u8]) -> Result<bool, StoreError> {
        let was_there = self.lives(now, key).await?.is_some();
        if was_there {
            self.stores[0].reset(&self.any_demand(key)?).await?;
        }
        Ok(was_there)
    }

    /// Returns how long a key of [`throttle`](Self::throttle) lives if nobody uses it; `None` if it
    /// is not there.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn lives(&self, now: Tick, key: &[u8]) -> Result<Option<Duration>, StoreError> {
        let mut demand = self.any_demand(key)?;
        let decision = self.stores[0].peek_at(now, std::slice::from_mut(&mut demand)).await?;
        if decision.is_degraded() {
            let text = "the store cannot be reached, so its state is unknown; try again later";
            return Err(StoreError::unavailable(text));
        }
        Ok(decision.reset_after(since(&decision, now)).filter(|left| *left > Duration::ZERO))
    }

    /// Returns a demand whose quota does not matter: the state is a time.
    fn any_demand<'a>(&'a self, key: &'a [u8]) -> Result<Demand<'a>, StoreError> {
        let demand = Demand::ad_hoc(&self.ad_hoc, key, 0, Quota::per_second(1));
        demand.map_err(|error| StoreError::invalid(error.to_string()))
    }
}
