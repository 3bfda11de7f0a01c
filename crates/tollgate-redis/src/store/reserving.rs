//! Reservations, leases and permits.
//!
//! A reservation is a record in Redis under its id, so any process of the fleet can settle it. How
//! much of a GCRA take can be given back depends on the refunds of older takes since then: the
//! ledger beside the state records them (`lua/ledger.lua`).

use super::{
    RedisStore,
    calls::{State, Wanted, bytes_of, strange},
    keys::{ID_BITS, Names},
    many::Group,
    rule::{Kind, Rule},
    scripts::Verb,
    seen::{Seen, numbers},
};
use crate::{Command, Reply, Route};
use std::{sync::Arc, time::Duration};
use tollgate::{
    Algorithm, Decision, Quota,
    store::{Demand, Entered, PermitId, Permits, ReservationId, Reserved, StoreError},
};

/// A record of demands in one slot.
const ONE_SLOT: u8 = 1;
/// A record of other records.
const MANY_SLOTS: u8 = 2;
/// A record of a lease: what was granted comes from the script.
const LEASE: u8 = 3;

/// A script's reply if too many claims are open.
const FULL: &[u8] = b"F";

/// Bits of a permit's id for its cost.
const COST_BITS: u32 = 14;

fn push_u64(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_le_bytes());
}

/// Reads what was written.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (own, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(own)
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.bytes(1)?[0])
    }
}

/// Returns milliseconds for the server, at least one.
fn millis(life: Duration) -> u64 {
    u64::try_from(life.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 42)
}

/// Returns the record of one state: all that settling it takes.
fn describe(bytes: &mut Vec<u8>, demand: &Demand<'_>, state: &State) {
    let quota = demand.quota();
    bytes.push(state.rule.kind.letter());
    push_u64(bytes, u64::try_from(quota.period().as_nanos()).unwrap_or(u64::MAX));
    push_u64(bytes, quota.count());
    push_u64(bytes, quota.capacity());
    push_u64(bytes, state.cost);
    push_u64(bytes, state.name.len() as u64);
    bytes.extend_from_slice(&state.name);
}

/// Reads how much was granted, and the state afterwards.
fn parse_grant(state: &State, bytes: &[u8]) -> Option<(u64, Seen)> {
    let (head, shown) = bytes.split_at_checked(17)?;
    let [now, granted] = numbers(&head[1..])?;
    Some((granted, Seen::parse(state.rule.kind, now, shown)?))
}

/// The rest of a lease, to be settled.
pub(super) struct Lease {
    id: ReservationId,
    life: Duration,
    record: Vec<u8>,
}

/// One state of a reservation.
struct Claim {
    state: State,
    /// Which demand of the reservation it is, from one.
    number: u8,
}

impl RedisStore {
    fn described(&self, reader: &mut Reader<'_>) -> Option<State> {
        let letter = reader.u8()?;
        let (period, count, burst) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let quota = Quota::per(count, Duration::from_nanos(period));
        let (quota, algorithm) = match Kind::ALL.into_iter().find(|it| it.letter() == letter)? {
            Kind::Gcra => (quota.burst(burst), Algorithm::Gcra),
            Kind::Fixed => (quota, Algorithm::FixedWindow),
            Kind::Anchored => (quota, Algorithm::AnchoredWindow),
            Kind::Counter => (quota, Algorithm::SlidingCounter),
            Kind::Log => (quota, Algorithm::SlidingLog),
        };
        quota.check().ok()?;
        let rule: Rule = self.fresh_rule(&quota, algorithm, 0).ok()?;
        let cost = reader.u64()?;
        let length = usize::try_from(reader.u64()?).ok()?;
        let name = reader.bytes(length)?.to_vec();
        let slot = crate::slot_of(&name);
        Some(State { rule: Arc::new(rule), name, slot, cost })
    }

    fn new_id(&self, slot: u16) -> ReservationId {
        // Without a cluster all slots are one.
        let slot = if self.shared.link.is_cluster() { u64::from(slot) } else { 0 };
        ReservationId(slot << ID_BITS | self.random())
    }

    fn too_many_claims(&self, state: &State) -> StoreError {
        StoreError::full(format!(
            "{} (or a key that is reserved with it) has {} open reservations, the maximum for one \
             key; settle or cancel some, give them a shorter life, or raise max_claims",
            String::from_utf8_lossy(&state.name),
            self.shared.max_claims
        ))
    }

    pub(super) async fn reserve_all(
        &self,
        demands: &mut [Demand<'_>],
        life: Duration,
    ) -> Result<Reserved, StoreError> {
        Self::check(demands)?;
        let states = self.states(demands)?;
        let groups = self.groups(&states);
        if let [group] = &groups[..] {
            return self.reserve_group(demands, &states, group, life).await;
        }
        self.reserve_groups(demands, &states, &groups, life).await
    }

    /// Reserves all demands, whose states are in one slot.
    async fn reserve_group(
        &self,
        demands: &mut [Demand<'_>],
        states: &[State],
        group: &Group,
        life: Duration,
    ) -> Result<Reserved, StoreError> {
        let kinds = states.iter().map(|state| state.rule.kind);
        let (script, count) = (self.shared.scripts.reserve(kinds), states.len());
        let id = self.new_id(group.slot);
        let mut record = vec![ONE_SLOT, count as u8];
        for (demand, state) in demands.iter().zip(states) {
            describe(&mut record, demand, state);
        }
        let letters: Vec<_> = states.iter().map(|state| state.rule.kind.letter()).collect();
        let mut call = self.call(script, 2 * count + 1, 1 + 2 * count + 4);
        states.iter().for_each(|state| call.push(&state.name));
        states.iter().for_each(|state| call.push(&Names::ledger(&state.name)));
        call.push(&self.shared.names.reservation(id.0).0);
        call.push(&letters);
        for state in states {
            call.push(&state.rule.taking(state.cost));
            call.push(state.ttl(Wanted::Take).as_bytes());
        }
        call.push(&record);
        call.push_number(millis(life));
        call.push(&id.0.to_le_bytes());
        call.push_number(u64::from(self.shared.max_claims));
        let reply = self.send(group.slot, script, call).await?;
        let bytes = bytes_of(&reply)?;
        if bytes == FULL {
            return Err(self.too_many_claims(&states[0]));
        }
        let all: Vec<_> = states.iter().collect();
        let told = self.told(&all, bytes).ok_or_else(|| strange(&reply))?;
        let decision = Self::tell(demands, states, &told).ok_or_else(|| strange(&reply))?;
        Ok(Reserved { decision, id: decision.is_allowed().then_some(id) })
    }

    /// Reserves slot by slot, and gives all back if one refuses.
    async fn reserve_groups(
        &self,
        demands: &mut [Demand<'_>],
        states: &[State],
        groups: &[Group],
        life: Duration,
    ) -> Result<Reserved, StoreError> {
        let mut taken = Vec::with_capacity(groups.len());
        let mut failed = None;
        for group in groups {
            let mut own: Vec<_> = group.members.iter().map(|index| demands[*index]).collect();
            let own_states: Vec<_> =
                group.members.iter().map(|index| states[*index].clone()).collect();
            match self.reserve_group(&mut own, &own_states, group, life).await {
                Ok(reserved) => taken.extend(reserved.id.map(|id| (id, group.members.len()))),
                Err(error) => failed = Some(error),
            }
            for (index, own) in group.members.iter().zip(own) {
                demands[*index] = own;
            }
        }
        let each: Vec<_> = demands.iter().filter_map(Demand::decision).collect();
        let recorded = match failed {
            Some(error) => Err(error),
            None if taken.len() < groups.len() => Ok(None),
            None => self.record_groups(groups, &taken, life, demands.len()).await.map(Some),
        };
        if !matches!(recorded, Ok(Some(_))) {
            for (id, count) in taken {
                // Permits that cannot be given back stay spent.
                let _spent = Box::pin(self.settle_all(id, &vec![0; count])).await;
            }
        }
        let id = recorded?;
        let decision = Decision::join(&each).ok_or_else(|| StoreError::invalid("no demands"))?;
        Ok(Reserved { decision, id })
    }

    /// Leaves a record that names the records of the slots.
    async fn record_groups(
        &self,
        groups: &[Group],
        taken: &[(ReservationId, usize)],
        life: Duration,
        count: usize,
    ) -> Result<ReservationId, StoreError> {
        let id = self.new_id(groups[0].slot);
        // It ends with those it names; the time is only there for the form.
        let mut record = 9e15_f64.to_le_bytes().to_vec();
        record.extend_from_slice(&[MANY_SLOTS, count as u8, groups.len() as u8]);
        for (group, (own, _)) in groups.iter().zip(taken) {
            push_u64(&mut record, own.0);
            record.push(group.members.len() as u8);
            record.extend(group.members.iter().map(|index| *index as u8));
        }
        let (name, slot) = self.shared.names.reservation(id.0);
        let mut set = Command::new("SET", 4);
        set.push(&name);
        set.push(&record);
        set.push(b"PX");
        let grace = if self.shared.is_time_given { super::GRACE_MS } else { 0 };
        set.push_number(millis(life) + grace);
        self.shared.link.call(Route::Slot(slot), set).await?;
        Ok(id)
    }

    pub(super) async fn settle_all(
        &self,
        id: ReservationId,
        actual: &[u64],
    ) -> Result<bool, StoreError> {
        let (name, slot) = self.shared.names.reservation(id.0);
        let script = &self.shared.scripts.claim;
        let mut call = self.call(script, 1, 1);
        call.push(&name);
        call.push_number(actual.len() as u64);
        let reply = self.send(slot, script, call).await?;
        let record = match &reply {
            Reply::Nil => return Ok(false),
            Reply::Int(count) => {
                return Err(StoreError::invalid(format!(
                    "{} costs for a reservation of {count} demands; give one for each",
                    actual.len()
                )));
            }
            Reply::Bytes(record) => record.as_slice(),
            _ => return Err(strange(&reply)),
        };
        let mut reader = Reader(record.get(8..).unwrap_or_default());
        match reader.u8() {
            Some(MANY_SLOTS) => self.settle_groups(&mut reader, actual).await,
            Some(kind @ (ONE_SLOT | LEASE)) => {
                let claims = self.claims(&mut reader, kind).ok_or_else(|| strange(&reply))?;
                let calls = claims.iter().zip(actual).map(|(it, cost)| self.correct(id, it, *cost));
                super::together::all(calls.collect())
                    .await
                    .into_iter()
                    .collect::<Result<(), _>>()?;
                Ok(true)
            }
            _ => Err(strange(&reply)),
        }
    }

    fn claims(&self, reader: &mut Reader<'_>, kind: u8) -> Option<Vec<Claim>> {
        let count = usize::from(reader.u8()?);
        let mut described = Vec::with_capacity(count);
        for _ in 0..count {
            described.push(self.described(reader)?);
        }
        let mut claims = Vec::with_capacity(count);
        for (mut state, number) in described.into_iter().zip(1..) {
            if kind == LEASE {
                [state.cost] = numbers(reader.bytes(8)?)?;
            }
            claims.push(Claim { state, number });
        }
        Some(claims)
    }

    async fn settle_groups(
        &self,
        reader: &mut Reader<'_>,
        actual: &[u64],
    ) -> Result<bool, StoreError> {
        let damaged = || StoreError::unavailable("the record of the reservation is damaged");
        reader.u8().ok_or_else(damaged)?;
        let groups = reader.u8().ok_or_else(damaged)?;
        let mut settled = Ok(true);
        for _ in 0..groups {
            let own = reader.u64().ok_or_else(damaged)?;
            let count = reader.u8().ok_or_else(damaged)?;
            let members = reader.bytes(usize::from(count)).ok_or_else(damaged)?;
            let costs: Option<Vec<_>> =
                members.iter().map(|index| actual.get(usize::from(*index)).copied()).collect();
            let costs = costs.ok_or_else(damaged)?;
            let own = Box::pin(self.settle_all(ReservationId(own), &costs)).await;
            // A failure is no reason to leave the others unsettled, which no other caller can
            // settle any more.
            settled = settled.and_then(|all| Ok(own? && all));
        }
        settled
    }

    /// Gives back what a claim has too much, or books what it has too little.
    async fn correct(
        &self,
        id: ReservationId,
        claim: &Claim,
        actual: u64,
    ) -> Result<(), StoreError> {
        let Claim { state, number } = claim;
        let rule = &state.rule;
        if actual > state.cost {
            let more = State { cost: actual - state.cost, ..state.clone() };
            self.charge_up_to(&more).await?;
        }
        // The claim must be removed even if there is nothing to give back.
        let unused = state.cost.saturating_sub(actual);
        let script = self.shared.scripts.one(rule.kind, Verb::Settle);
        let mut call = self.call(script, 2, if rule.kind.is_gcra() { 2 } else { 4 });
        call.push(&state.name);
        call.push(&Names::ledger(&state.name));
        call.push(&rule.giving_back(unused));
        call.push(&[&id.0.to_le_bytes()[..], &[*number]].concat());
        if !rule.kind.is_gcra() {
            call.push(rule.ttl.as_bytes());
            call.push_number(state.cost.max(1));
        }
        self.send(state.slot, script, call).await.map(drop)
    }

    pub(super) async fn lease_one(
        &self,
        demand: &mut Demand<'_>,
        life: Duration,
    ) -> Result<Reserved, StoreError> {
        let state = self.state(demand)?;
        let id = self.new_id(state.slot);
        let mut record = vec![LEASE, 1];
        describe(&mut record, demand, &state);
        let decision = self.grant(state, Some(&Lease { id, life, record })).await?;
        demand.tell(decision);
        let taken = decision.is_allowed() && decision.cost() > 0;
        Ok(Reserved { decision, id: taken.then_some(id) })
    }

    pub(super) async fn up_to_one(&self, demand: &mut Demand<'_>) -> Result<Decision, StoreError> {
        let decision = self.grant(self.state(demand)?, None).await?;
        demand.tell(decision);
        Ok(decision)
    }

    async fn grant(&self, state: State, lease: Option<&Lease>) -> Result<Decision, StoreError> {
        if state.cost == 0 {
            let told = self.decide_one(&state, Wanted::Look).await?;
            return Ok(told.decision(&state));
        }
        let (granted, seen) = self.granted(&state, lease).await?;
        Ok(seen.decision(&state.rule, granted.max(1), granted > 0, self.now()))
    }

    /// Takes as much as is free, with a claim or for good. Returns how much that was, and the state
    /// afterwards.
    pub(super) async fn granted(
        &self,
        state: &State,
        lease: Option<&Lease>,
    ) -> Result<(u64, Seen), StoreError> {
        let (verb, keys, arguments) = match lease {
            Some(_) => (Verb::Lease, 3, 6),
            None => (Verb::UpTo, 1, 2),
        };
        let script = self.shared.scripts.one(state.rule.kind, verb);
        let mut call = self.call(script, keys, arguments);
        call.push(&state.name);
        if let Some(lease) = lease {
            call.push(&Names::ledger(&state.name));
            call.push(&self.shared.names.reservation(lease.id.0).0);
        }
        call.push(&state.rule.granting(state.cost));
        call.push(state.rule.ttl.as_bytes());
        if let Some(lease) = lease {
            call.push(&lease.record);
            call.push_number(millis(lease.life));
            call.push(&lease.id.0.to_le_bytes());
            call.push_number(u64::from(self.shared.max_claims));
        }
        let reply = self.send(state.slot, script, call).await?;
        let bytes = bytes_of(&reply)?;
        if bytes == FULL {
            return Err(self.too_many_claims(state));
        }
        parse_grant(state, bytes).ok_or_else(|| strange(&reply))
    }

    pub(super) async fn enter_one(
        &self,
        permits: &Permits<'_>,
        life: Duration,
    ) -> Result<Entered, StoreError> {
        if permits.cost >> COST_BITS > 0 {
            return Err(StoreError::invalid(format!(
                "{} permits in flight are too many for one call; ask for fewer than {}",
                permits.cost,
                1 << COST_BITS
            )));
        }
        let id = PermitId(self.random() << COST_BITS | permits.cost);
        let (entered, in_flight, wait) = self.on_permits(permits, "enter", id, life).await?;
        let id = entered.then_some(id);
        Ok(Entered { id, in_flight, retry_after: wait, is_degraded: false })
    }

    /// Enters, renews or leaves. Returns whether that was so, what is in flight, and how long to wait.
    pub(super) async fn on_permits(
        &self,
        permits: &Permits<'_>,
        verb: &str,
        PermitId(id): PermitId,
        life: Duration,
    ) -> Result<(bool, u64, Option<Duration>), StoreError> {
        let (name, slot) = self.shared.names.permits(permits.name, permits.key);
        let script = &self.shared.scripts.permits;
        let mut call = self.call(script, 1, 5);
        call.push(&name);
        call.push(verb.as_bytes());
        call.push(format!("{:x}", id >> COST_BITS).as_bytes());
        call.push_number(id & ((1 << COST_BITS) - 1));
        call.push_number(u64::try_from(life.as_micros()).unwrap_or(u64::MAX).min(1 << 50));
        call.push_number(permits.limit.min(1 << 50));
        let reply = self.send(slot, script, call).await?;
        let parts: Option<Vec<_>> =
            reply.parts().map(|parts| parts.iter().filter_map(Reply::int).collect());
        let Some([done, in_flight, wait]) = parts.as_deref() else {
            return Err(strange(&reply));
        };
        let wait = u64::try_from(*wait).ok().filter(|wait| *done == 0 && *wait > 0);
        let in_flight = u64::try_from(*in_flight).unwrap_or(0);
        Ok((*done == 1, in_flight, wait.map(Duration::from_micros)))
    }
}
