//! Keys that belong to policies: what a store in memory needs of the core.

use super::{
    KeyedError,
    core::{Core, Key},
    plan::check,
};
use crate::{
    Algorithm, Decision, Tick,
    algorithm::{AnyRule, PerCall, Rule, gcra_per_call},
    store::{Demand, InForce, Policy},
    table::Ask,
};
use std::num::NonZeroU64;

impl Core {
    /// Checks a policy for this store, and puts it in force as of now if it was not before.
    pub(crate) fn admit(&self, policy: &Policy) -> Result<(), KeyedError> {
        if policy.in_force(self.id).is_none() {
            let rule = self.rule_of(policy)?;
            policy.put_in_force(InForce {
                store: self.id,
                rule,
                since: self.clock.now(),
                started: self.seed.start(policy.id()),
            });
        }
        Ok(())
    }

    fn rule_of(&self, policy: &Policy) -> Result<AnyRule, KeyedError> {
        check(&policy.quota(), self.tables.boxed.max_idle())?;
        if policy.is_ad_hoc() && policy.algorithm() == Algorithm::Gcra {
            return Ok(AnyRule::Word(Rule::PerCall(gcra_per_call(&policy.quota())?)));
        }
        Ok(AnyRule::new(policy.algorithm(), &policy.quota(), self.epoch)?)
    }

    /// Returns the rule of a policy's key, and since when it is in force.
    pub(super) fn stored_rule(&self, policy: &Policy, call: Option<PerCall>) -> (AnyRule, Tick) {
        let (rule, since) = match policy.in_force(self.id) {
            Some(known) => (known.rule, known.since),
            // Another store has the policy's memory. The policy was checked when the call began.
            None => {
                let unlimited = AnyRule::Word(Rule::Unlimited);
                (self.rule_of(policy).unwrap_or(unlimited), self.since)
            }
        };
        match (call, rule) {
            // A quota that comes with a call is in force for that call only.
            (Some(call), AnyRule::Word(rule)) => (AnyRule::Word(call.rule(&rule)), Tick::MAX),
            _ => (rule, since),
        }
    }

    /// Returns the fingerprint of a policy's key.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    pub(crate) fn fingerprint_of(&self, policy: &Policy, key: &[u8]) -> u64 {
        match policy.in_force(self.id).and_then(|known| known.started.as_ref()) {
            Some(started) => started.fingerprint(key),
            None => self.fingerprint_anew(policy, key),
        }
    }

    #[cold]
    #[inline(never)]
    fn fingerprint_anew(&self, policy: &Policy, key: &[u8]) -> u64 {
        self.seed.fingerprint(&(policy.id(), key))
    }

    /// Takes from a single key on the short way, by the quota of its policy. If there is more to do,
    /// returns the key's fingerprint as far as it is known, for [`take_any`](Self::take_any).
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    pub(crate) fn take_one(
        &self,
        policy: &Policy,
        key: &[u8],
        now: Tick,
        cost: u64,
    ) -> Result<Decision, Option<NonZeroU64>> {
        let Some(known) = policy.in_force(self.id).filter(|_| self.mode() == 0) else {
            return Err(None);
        };
        let fingerprint = match &known.started {
            Some(started) => started.fingerprint(key),
            None => self.fingerprint_anew(policy, key),
        };
        let taken = match &known.rule {
            AnyRule::Word(Rule::Gcra(gcra)) => {
                self.tables.words.take((fingerprint, now), gcra, cost)
            }
            _ => None,
        };
        taken.ok_or(NonZeroU64::new(fingerprint))
    }

    /// Takes from a single key whatever its rule; `None` if there is more to do.
    pub(crate) fn take_any(&self, key: Key<'_>, now: Tick, cost: u64) -> Option<Decision> {
        if self.mode() != 0 {
            return None;
        }
        self.state(key, now).update(|entry| entry.decide(now, cost))
    }

    /// Takes from at most `N` keys on the fast path, from all or none; `None` if the general path has to decide.
    /// Tells each demand its decision, and returns a mask of those that refused.
    pub(crate) fn take_demands<const N: usize>(
        &self,
        demands: &mut [Demand<'_>],
        now: Tick,
    ) -> Option<u64> {
        if self.mode() != 0 {
            return None;
        }
        let mut asks = [Ask { fingerprint: 0, rule: &Rule::Unlimited, cost: 0 }; N];
        let asks = asks.get_mut(..demands.len())?;
        for (ask, demand) in asks.iter_mut().zip(&*demands) {
            let known = demand.policy().in_force(self.id)?;
            let (AnyRule::Word(rule), false) = (&known.rule, demand.has_own_quota()) else {
                return None;
            };
            let fingerprint = self.fingerprint_of(demand.policy(), demand.key());
            let fingerprint = (fingerprint ^ known.rule.salt()).max(1);
            *ask = Ask { fingerprint, rule, cost: demand.cost() };
        }
        let tell = |index: usize, decision| demands[index].tell(decision);
        self.tables.words.take_all::<N>(asks, now, tell)
    }

    /// Looks at a single key on the short way; `None` if there is more to do.
    pub(crate) fn peek_stored(&self, key: Key<'_>, now: Tick, cost: u64) -> Option<Decision> {
        if self.mode() != 0 || !self.tables.takes_all_in() {
            return None;
        }
        Some(self.state(key, now).look(|entry| entry.peek(now, cost)))
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests;
