//! Calls about states: taking, looking, booking into debt, giving back.

use super::{RedisStore, keys::Names, rule::Rule, scripts::Verb, seen::Seen};
use crate::Reply;
use std::sync::Arc;
use tollgate::{
    Decision, Tick,
    store::{Demand, StoreError},
};

/// What is asked of several states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Take,
    Look,
}

/// A demand as Redis knows it.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) rule: Arc<Rule>,
    pub(super) name: Vec<u8>,
    pub(super) slot: u16,
    pub(super) cost: u64,
}

impl State {
    /// Returns how long the state lives after a call, in digits; zero if the call only looks.
    pub(super) fn ttl(&self, wanted: Wanted) -> &str {
        match wanted {
            Wanted::Take if self.cost > 0 => &self.rule.ttl,
            _ => "0",
        }
    }
}

/// What a script answered about one state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) passed: bool,
    pub(super) seen: Seen,
    /// When the reply came.
    pub(super) at: Tick,
}

impl Told {
    pub(super) fn decision(&self, state: &State) -> Decision {
        self.seen.decision(&state.rule, state.cost, self.passed, self.at)
    }
}

/// How often a state that belongs to another quota is carried over before a call gives up. Many, for a
/// hot key of two quotas: a try that fails is one by which another process got on, and no time is lost in
/// between.
pub(super) const TRIES: usize = 128;

/// What a script answers.
pub(super) enum Answered<'a> {
    /// What it was asked for.
    Reply(&'a [u8]),
    /// The state with this number belongs to another quota.
    Stale(usize),
    /// Too many claims are open.
    Full,
}

impl<'a> Answered<'a> {
    pub(super) fn parse(reply: &'a Reply) -> Result<Self, StoreError> {
        match reply.bytes() {
            Some([b'S', index, ..]) if *index > 0 => Ok(Self::Stale(usize::from(index - 1))),
            Some([b'F']) => Ok(Self::Full),
            Some(bytes) => Ok(Self::Reply(bytes)),
            None => Err(strange(reply)),
        }
    }
}

/// A reply that no script of ours gives: the call may have been carried out all the same.
pub(super) fn strange(reply: &Reply) -> StoreError {
    let text: String = format!("{reply:?}").chars().take(200).collect();
    StoreError::timeout(format!("the server sent an invalid reply: {text}"))
}

pub(super) fn restless(state: &State) -> StoreError {
    StoreError::unavailable(format!(
        "the quota of {} changes with every call; give all processes the same quota",
        String::from_utf8_lossy(&state.name)
    ))
}

impl RedisStore {
    pub(super) fn state(&self, demand: &Demand<'_>) -> Result<State, StoreError> {
        let rule = self.rule(demand)?;
        let (name, slot) = self.shared.names.state(rule.kind, demand.policy().name(), demand.key());
        Ok(State { rule, name, slot, cost: demand.cost() })
    }

    pub(super) fn now(&self) -> Tick {
        self.shared.clock.now()
    }

    /// Decides over demands, wherever their states are.
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
                true => self.take_or_join(&state, policy.name()).await?,
                false => self.decide_one(&state, policy.name(), wanted).await?.decision(&state),
            };
            demand.tell(decision);
            return Ok(decision);
        }
        self.decide_many(demands, wanted).await
    }

    pub(super) async fn decide_one(
        &self,
        state: &State,
        policy: &str,
        wanted: Wanted,
    ) -> Result<Told, StoreError> {
        let parameters = state.rule.taking(state.cost);
        self.on_one((state, policy), Verb::Take, &parameters, state.ttl(wanted)).await
    }

    /// Runs a script that answers with a flag and the state, on a state under its quota.
    async fn on_one(
        &self,
        (state, policy): (&State, &str),
        verb: Verb,
        parameters: &[u8],
        ttl: &str,
    ) -> Result<Told, StoreError> {
        let script = self.shared.scripts.one(state.rule.kind, verb);
        for _ in 0..TRIES {
            let mut call = self.call(script, 1, 3);
            call.push(&state.name);
            call.push(parameters);
            call.push(&state.rule.tag);
            call.push(ttl.as_bytes());
            let reply = self.send(state.slot, script, call).await?;
            match Answered::parse(&reply)? {
                Answered::Reply(bytes) => {
                    let told = self.told(&[state], bytes).ok_or_else(|| strange(&reply))?;
                    return told.into_iter().next().ok_or_else(|| strange(&reply));
                }
                _ => self.carry_over(state, policy).await?,
            }
        }
        Err(restless(state))
    }

    /// Reads what a script says of several states: a flag each, the time, and the states.
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
        let told = self.charge(&state, demand.policy().name()).await?;
        // A look at what is left, with the cost that was booked.
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

    /// Books a state's cost whatever is left, or refuses a debt that does not fit.
    pub(super) async fn charge(&self, state: &State, policy: &str) -> Result<Told, StoreError> {
        let parameters = state.rule.charging(state.cost);
        self.on_one((state, policy), Verb::Force, &parameters, state.ttl(Wanted::Take)).await
    }

    /// Books a state's cost whatever is left, as far as the debt fits.
    pub(super) async fn charge_up_to(&self, state: &State, policy: &str) -> Result<(), StoreError> {
        let parameters = state.rule.charging_up_to(state.cost);
        let ttl = state.ttl(Wanted::Take);
        self.on_one((state, policy), Verb::ForceUpTo, &parameters, ttl).await.map(drop)
    }

    pub(super) async fn refund_one(&self, demand: &Demand<'_>) -> Result<u64, StoreError> {
        let state = self.state(demand)?;
        let script = self.shared.scripts.one(state.rule.kind, Verb::Refund);
        // More than the largest cost is all there is.
        let cost = state.cost.min(1 << 40);
        for _ in 0..TRIES {
            let mut call = self.call(script, 2, 3);
            call.push(&state.name);
            call.push(&Names::ledger(&state.name));
            call.push(&state.rule.giving_back(cost));
            call.push(&state.rule.tag);
            call.push(state.rule.ttl.as_bytes());
            let reply = self.send(state.slot, script, call).await?;
            match Answered::parse(&reply)? {
                Answered::Reply([b'A', _, _, _, _, _, _, _, _, amount @ ..]) => {
                    return refunded(&state.rule, amount).ok_or_else(|| strange(&reply));
                }
                Answered::Reply(_) | Answered::Full => return Err(strange(&reply)),
                Answered::Stale(_) => self.carry_over(&state, demand.policy().name()).await?,
            }
        }
        Err(restless(&state))
    }
}

/// Returns how many permits were given back, by the amount that a script says.
fn refunded(rule: &Rule, amount: &[u8]) -> Option<u64> {
    if rule.kind.is_gcra() {
        let [whole, part] = super::seen::numbers(amount)?;
        return Some(((u128::from(whole) * rule.c + u128::from(part)) / rule.p) as u64);
    }
    let [count] = super::seen::numbers(amount)?;
    Some(count)
}
