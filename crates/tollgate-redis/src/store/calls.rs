//! Calls about states: taking, peeking, booking into debt, giving back.

use super::{RedisStore, keys::Names, rule::Rule, scripts::Verb, seen::Seen};
use crate::Reply;
use std::sync::Arc;
use tollgate::{
    Decision, Tick,
    store::{Demand, StoreError},
};

/// The operation on several states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Take,
    Look,
}

/// A demand in the form that Redis needs.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) rule: Arc<Rule>,
    pub(super) name: Vec<u8>,
    pub(super) slot: u16,
    pub(super) cost: u64,
}

impl State {
    /// Returns the TTL of the state after a call, in digits; zero if the call only peeks.
    pub(super) fn ttl(&self, wanted: Wanted) -> &str {
        match wanted {
            Wanted::Take if self.cost > 0 => &self.rule.ttl,
            _ => "0",
        }
    }
}

/// A script's answer about one state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) passed: bool,
    pub(super) seen: Seen,
    /// When the reply arrived.
    pub(super) at: Tick,
}

impl Told {
    pub(super) fn decision(&self, state: &State) -> Decision {
        self.seen.decision(&state.rule, state.cost, self.passed, self.at)
    }
}

/// Returns the bytes of a script's reply; it is always bytes.
pub(super) fn bytes_of(reply: &Reply) -> Result<&[u8], StoreError> {
    reply.bytes().ok_or_else(|| strange(reply))
}

/// The error for a reply that no script of this crate sends: the call may still have been carried
/// out.
pub(super) fn strange(reply: &Reply) -> StoreError {
    let text: String = format!("{reply:?}").chars().take(200).collect();
    StoreError::timeout(format!("the server sent an invalid reply: {text}"))
}

impl RedisStore {
    pub(super) fn state(&self, demand: &Demand<'_>) -> Result<State, StoreError> {
        let rule = self.rule(demand)?;
        let (policy, key) = (demand.policy().name(), demand.key());
        let (name, slot) = self.shared.names.state((rule.kind, rule.length), policy, key);
        Ok(State { rule, name, slot, cost: demand.cost() })
    }

    pub(super) fn now(&self) -> Tick {
        self.shared.clock.now()
    }

    /// Decides demands, wherever their states are.
    pub(super) async fn decide(
        &self,
        demands: &mut [Demand<'_>],
        wanted: Wanted,
    ) -> Result<Decision, StoreError> {
        Self::check(demands)?;
        if let [demand] = demands {
            let (state, policy) = (self.state(demand)?, demand.policy());
            let is_common = state.cost == 1 && wanted == Wanted::Take && !policy.is_ad_hoc();
            let decision = match is_common {
                true => self.take_or_join(&state).await?,
                false => self.decide_one(&state, wanted).await?.decision(&state),
            };
            demand.tell(decision);
            return Ok(decision);
        }
        self.decide_many(demands, wanted).await
    }

    pub(super) async fn decide_one(
        &self,
        state: &State,
        wanted: Wanted,
    ) -> Result<Told, StoreError> {
        let parameters = state.rule.taking(state.cost);
        self.on_one(state, Verb::Take, &parameters, state.ttl(wanted)).await
    }

    /// Runs a script that answers with a flag and the state.
    async fn on_one(
        &self,
        state: &State,
        verb: Verb,
        parameters: &[u8],
        ttl: &str,
    ) -> Result<Told, StoreError> {
        let script = self.shared.scripts.one(state.rule.kind, verb);
        let mut call = self.call(script, 1, 2);
        call.push(&state.name);
        call.push(parameters);
        call.push(ttl.as_bytes());
        let reply = self.send(state.slot, script, call).await?;
        let told = self.told(&[state], bytes_of(&reply)?).ok_or_else(|| strange(&reply))?;
        told.into_iter().next().ok_or_else(|| strange(&reply))
    }

    /// Reads a script's reply about several states: a flag each, the time, and the states.
    pub(super) fn told(&self, states: &[&State], bytes: &[u8]) -> Option<Vec<Told>> {
        let (flags, rest) = bytes.split_at_checked(states.len())?;
        let (time, mut rest) = rest.split_at_checked(8)?;
        let ([now], at) = (super::seen::numbers(time)?, self.now());
        let each = states.iter().zip(flags).map(|(state, flag)| {
            let (own, more) = rest.split_at_checked(state.rule.kind.shown())?;
            rest = more;
            let seen = Seen::parse(state.rule.kind, now, own)?;
            let passed = match flag {
                b'A' => true,
                b'D' => false,
                _ => return None,
            };
            Some(Told { passed, seen, at })
        });
        each.collect()
    }

    pub(super) async fn force_one(&self, demand: &Demand<'_>) -> Result<Decision, StoreError> {
        let state = self.state(demand)?;
        let told = self.charge(&state).await?;
        // Evaluates a cost of 0 for the remaining permits, then reports the booked cost.
        let looked = told.seen.decision(&state.rule, 0, true, told.at);
        Ok(Decision::answered(tollgate::Answer {
            outcome: match told.passed {
                true => tollgate::Outcome::Allowed,
                false => tollgate::Outcome::Never,
            },
            at: told.at,
            cost: state.cost,
            limit: looked.limit(),
            remaining: looked.remaining(),
            retry_at: told.at,
            full_at: looked.full_at(),
        }))
    }

    /// Books a state's cost even if too few permits remain; refuses a debt that does not fit.
    pub(super) async fn charge(&self, state: &State) -> Result<Told, StoreError> {
        let parameters = state.rule.charging(state.cost);
        self.on_one(state, Verb::Force, &parameters, state.ttl(Wanted::Take)).await
    }

    /// Books a state's cost even if too few permits remain, as far as the debt fits.
    pub(super) async fn charge_up_to(&self, state: &State) -> Result<(), StoreError> {
        let parameters = state.rule.charging_up_to(state.cost);
        let ttl = state.ttl(Wanted::Take);
        self.on_one(state, Verb::ForceUpTo, &parameters, ttl).await.map(drop)
    }

    pub(super) async fn refund_one(&self, demand: &Demand<'_>) -> Result<u64, StoreError> {
        let state = self.state(demand)?;
        let script = self.shared.scripts.one(state.rule.kind, Verb::Refund);
        let mut call = self.call(script, 2, 2);
        call.push(&state.name);
        call.push(&Names::ledger(&state.name));
        call.push(&state.rule.giving_back(state.cost));
        call.push(state.rule.ttl.as_bytes());
        let reply = self.send(state.slot, script, call).await?;
        let amount = match bytes_of(&reply)? {
            [b'A', _, _, _, _, _, _, _, _, amount @ ..] => refunded(&state.rule, amount),
            _ => None,
        };
        amount.ok_or_else(|| strange(&reply))
    }
}

/// Returns how many permits were given back, from the amount in a script's reply.
fn refunded(rule: &Rule, amount: &[u8]) -> Option<u64> {
    if rule.kind.is_gcra() {
        let [whole, part] = super::seen::numbers(amount)?;
        // A partly refilled permit is given back for the rest, and counts.
        return Some((u128::from(whole) * rule.c + u128::from(part)).div_ceil(rule.p) as u64);
    }
    let [count] = super::seen::numbers(amount)?;
    Some(count)
}
