//! Reservations, and verbs on single keys.

use super::{
    Answer, Engine, MAX_ASKS, Part, Request, RequestError,
    decide::{Op, demand, is_in_force, is_refused, note, pass_by_quota},
    limit_report::since,
};
use crate::plan::{Plan, Rule, RuleIndex};
use siphasher::sip::SipHasher13;
use std::{
    fmt,
    hash::{BuildHasher, Hasher, RandomState},
    str::FromStr,
    time::Duration,
};
use tollgate::{
    Decision, Quota, Tick,
    store::{Demand, ReservationId, Settled, Store, StoreError},
};

/// The right to correct a reservation. Its text form cannot be guessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    store: u8,
    id: u64,
    /// How many asks there were; some may have no limit.
    asks: u8,
    parts: Box<[TicketPart]>,
    proof: u64,
}

/// One limit of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TicketPart {
    ask: u8,
    rule: RuleIndex,
    /// Tells whether the number is still that of the same rule, after a reload or in another process.
    rule_mark: u32,
    cost: u64,
}

impl Ticket {
    /// The most asks in one reservation.
    pub const ASKS: usize = 16;

    /// Returns how many asks were reserved.
    #[must_use]
    pub fn asks(&self) -> usize {
        usize::from(self.asks)
    }
}

/// Returns a number by which a rule is known in every process.
fn rule_mark(rule: &Rule) -> u32 {
    let mut hasher = SipHasher13::new_with_keys(0x7275_6c65, 0x6d61_726b);
    hasher.write(rule.id().as_bytes());
    // OVERFLOW: the low bits of a hash.
    hasher.finish() as u32
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
        write!(f, "{:x}-{:x}-{:x}-", self.store, self.id, self.asks)?;
        for (index, TicketPart { ask, rule, rule_mark, cost }) in self.parts.iter().enumerate() {
            let comma = if index > 0 { "_" } else { "" };
            write!(f, "{comma}{ask:x}.{rule:x}.{rule_mark:x}.{cost:x}")?;
        }
        write!(f, "-{:016x}", self.proof)
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        let ticket = read_ticket(text);
        ticket.ok_or_else(|| TicketError(text.chars().take(40).collect()))
    }
}

fn read_ticket(text: &str) -> Option<Ticket> {
    let number = |field: &str| {
        let is_plain = field.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(field, 16).ok().filter(|_| is_plain)
    };
    let fields: Vec<&str> = text.splitn(6, '-').collect();
    let [store, id, asks, parts, proof] = fields[..] else { return None };
    let mut read = Vec::new();
    for part in parts.split('_').take(MAX_ASKS + 1) {
        let fields: Vec<&str> = part.splitn(5, '.').collect();
        let [ask, rule, mark, cost] = fields[..] else { return None };
        read.push(TicketPart {
            ask: number(ask)?.try_into().ok()?,
            rule: number(rule)?.try_into().ok()?,
            rule_mark: number(mark)?.try_into().ok()?,
            cost: number(cost)?,
        });
    }
    let asks = number(asks)?.try_into().ok()?;
    let is_sound = read.len() <= MAX_ASKS
        && usize::from(asks) <= Ticket::ASKS
        && read.iter().all(|part| part.ask < asks);
    let store = number(store)?.try_into().ok()?;
    let (id, proof) = (number(id)?, number(proof)?);
    is_sound.then(|| Ticket { store, id, asks, parts: read.into(), proof })
}

/// Returns the rule of a reserved limit, if it is still there.
fn reserved_rule<'p>(plan: &'p Plan, part: &TicketPart) -> Option<&'p Rule> {
    let is_it = |rule: &&Rule| rule_mark(rule) == part.rule_mark;
    let usual = plan.all_rules().get(part.rule as usize).filter(is_it);
    usual.or_else(|| plan.all_rules().iter().find(is_it))
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

    fn proof(&self, ticket: &Ticket) -> u64 {
        let mut hasher = self.proof_hasher(usize::from(ticket.store));
        hasher.write_u8(ticket.store);
        hasher.write_u64(ticket.id);
        hasher.write_u8(ticket.asks);
        for TicketPart { ask, rule, rule_mark, cost } in &ticket.parts {
            hasher.write_u8(*ask);
            hasher.write_u32(*rule);
            hasher.write_u32(*rule_mark);
            hasher.write_u64(*cost);
        }
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
                for (at, decision) in in_force.iter().zip(told) {
                    note(&mut parts[*at], decision);
                }
                answer.ticket = reserved.id.map(|ReservationId(id)| {
                    let reserved = in_force.iter().map(|at| {
                        let Part { ask, rule, cost, .. } = parts[*at];
                        let rule_mark = rule_mark(plan.rule(rule));
                        // OVERFLOW: there are at most 16 asks.
                        TicketPart { ask: ask as u8, rule, rule_mark, cost }
                    });
                    // OVERFLOW: a configuration has few stores, and there are at most 16 asks.
                    let (store, asks, parts) = (store as u8, asks as u8, reserved.collect());
                    let ticket = Ticket { store, id, asks, parts, proof: 0 };
                    Ticket { proof: self.proof(&ticket), ..ticket }
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
    pub async fn settle(&self, ticket: &Ticket, actual: &[u64]) -> Result<bool, RequestError> {
        let backend = self.stores.get(usize::from(ticket.store));
        let (true, Some(backend)) = (self.proof(ticket) == ticket.proof, backend) else {
            return Ok(false);
        };
        // One cost is good for all.
        let asks = ticket.asks();
        if actual.len() != asks && actual.len() != 1 {
            return Err(RequestError::Limit(format!(
                "{} costs, but the number of reserved limits is {asks}; give one cost for each \
                 limit, or one for all",
                actual.len()
            )));
        }
        let cost = |part: &TicketPart| *actual.get(usize::from(part.ask)).unwrap_or(&actual[0]);
        let each: Vec<u64> = ticket.parts.iter().map(cost).collect();
        let failed = |error: StoreError| self.unanswered(usize::from(ticket.store), &error);
        let id = ReservationId(ticket.id);
        let settled = match backend.memory() {
            Some(memory) => memory.settle_now(id, &each).map_err(failed)?,
            // A shared store does not say how much time has given back already.
            None => backend.settle(id, &each).await.map_err(failed)?.then(|| {
                let corrected = |(part, actual): (&TicketPart, &u64)| Settled {
                    charged: actual.saturating_sub(part.cost),
                    returned: part.cost.saturating_sub(*actual),
                };
                ticket.parts.iter().zip(&each).map(corrected).collect()
            }),
        };
        let Some(settled) = settled else { return Ok(false) };
        let plan = self.plan();
        for (part, Settled { charged, returned }) in ticket.parts.iter().zip(settled) {
            if let Some(rule) = reserved_rule(&plan, part) {
                rule.live().charged(charged);
                rule.live().returned(returned);
            }
        }
        Ok(true)
    }

    /// Gives back up to the hits of each ask, of the outstanding ones. Returns the number of
    /// permits given back: for each ask, those of the limit that got the most back.
    ///
    /// # Errors
    ///
    /// When the request is invalid, or the store fails.
    pub async fn refund(
        &self,
        plan: &Plan,
        now: Tick,
        request: &Request<'_>,
        answer: &mut Answer,
    ) -> Result<u64, RequestError> {
        self.collect(plan, now, request, answer)?;
        let mut given = vec![0_u64; request.asks.len()];
        for part in &answer.parts {
            let Some(demand) = demand(plan, (&answer.policies, &answer.keys), part) else {
                continue;
            };
            let store = part.store;
            let permits = self.stores[store].refund(&demand).await;
            let permits = permits.map_err(|error| self.unanswered(store, &error))?;
            plan.rule(part.rule).live().returned(permits);
            given[part.ask] = given[part.ask].max(permits);
        }
        Ok(given.into_iter().fold(0, u64::saturating_add))
    }

    /// Forgets the use of a request's keys. Parents keep their counts: other keys use them, too.
    ///
    /// # Errors
    ///
    /// When the request is invalid, or the store fails.
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
            reset.map_err(|error| self.unanswered(store, &error))?;
        }
        Ok(())
    }

    /// Notes that a store has failed at a call for which no failure mode answers.
    fn unanswered(&self, store: usize, error: &StoreError) -> RequestError {
        self.note_failure(store, error);
        RequestError::Store(error.to_string())
    }

    fn note_failure(&self, store: usize, error: &StoreError) {
        if !error.is_invalid() {
            self.health.failed(store, error, self.now());
        }
    }

    /// Decides by a quota that comes with the call, for a key without a rule.
    ///
    /// # Errors
    ///
    /// When the quota is invalid, or the store fails.
    pub async fn throttle(
        &self,
        (plan, now): (&Plan, Tick),
        key: &[u8],
        quota: Quota,
        cost: u64,
    ) -> Result<Decision, StoreError> {
        let decided = self.throttle_uncounted(now, key, quota, cost).await;
        if let Ok(decision) = &decided {
            self.record_throttle(plan, key, cost, decision);
        }
        decided
    }

    async fn throttle_uncounted(
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

    /// Gives back up to `cost` permits of a key of [`throttle`](Self::throttle), of the outstanding
    /// ones, and returns the remaining permits.
    ///
    /// # Errors
    ///
    /// As [`throttle`](Self::throttle).
    pub async fn unthrottle(
        &self,
        (plan, now): (&Plan, Tick),
        key: &[u8],
        quota: Quota,
        cost: u64,
    ) -> Result<Decision, StoreError> {
        let demand = Demand::ad_hoc(&self.ad_hoc, key, cost, quota);
        let demand = demand.map_err(|error| StoreError::invalid(error.to_string()))?;
        let returned = self.stores[0].refund(&demand).await;
        let returned = returned.inspect_err(|error| self.note_failure(0, error))?;
        plan.throttle_rule().live().returned(returned);
        self.throttle_uncounted(now, key, quota, 0).await
    }

    /// Forgets a key of [`throttle`](Self::throttle). Tells whether it was there.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn forget(&self, now: Tick, key: &[u8]) -> Result<bool, StoreError> {
        let was_there = self.lives(now, key).await?.is_some();
        if was_there {
            let reset = self.stores[0].reset(&self.any_demand(key)?).await;
            reset.inspect_err(|error| self.note_failure(0, error))?;
        }
        Ok(was_there)
    }

    /// Returns how long an unused key of [`throttle`](Self::throttle) lives; `None` if it does not
    /// exist.
    ///
    /// # Errors
    ///
    /// When the store fails.
    pub async fn lives(&self, now: Tick, key: &[u8]) -> Result<Option<Duration>, StoreError> {
        let mut demand = self.any_demand(key)?;
        let decided = self.stores[0].peek_at(now, std::slice::from_mut(&mut demand)).await;
        let known = decided.and_then(|decision| match decision.is_degraded() {
            true => Err(StoreError::unavailable(
                "the store cannot be reached, so its state is unknown; try again later",
            )),
            false => Ok(decision),
        });
        let decision = known.inspect_err(|error| self.note_failure(0, error))?;
        Ok(decision.reset_after(since(&decision, now)).filter(|left| *left > Duration::ZERO))
    }

    /// Returns a demand whose quota does not matter: the state is a time.
    fn any_demand<'a>(&'a self, key: &'a [u8]) -> Result<Demand<'a>, StoreError> {
        let demand = Demand::ad_hoc(&self.ad_hoc, key, 0, Quota::per_second(1));
        demand.map_err(|error| StoreError::invalid(error.to_string()))
    }
}
