//! Keys that belong to policies: how a store in memory uses the core.

use super::{
    KeyedError,
    core::{Core, Key},
    rule_cell,
};
use crate::{
    Decision, Tick,
    algorithm::{AnyRule, PerCall, Rule},
    clock::Reading,
    limiter::backoff::Backoff,
    store::{Demand, InForce, Policy},
    sync::lock,
    table::{ReadKey, WordTable},
};
use std::num::NonZeroU64;

/// How often the fast path of several keys meets a lock bit or a changed word before the general path waits in line. With a
/// single try, three keys that two threads ask for take a sixth longer.
const TRIES: u32 = 4;

/// How many names of policies are remembered. A policy of another name is in force since its first call.
const POLICIES_MAX: usize = 10_000;

impl Core {
    /// Checks a policy for this store, and puts it in force as of now if it was not before.
    pub(crate) fn admit(&self, policy: &Policy) -> Result<(), KeyedError> {
        if policy.in_force(self.id).is_none() {
            let rule = self.rule_of(policy)?;
            policy.put_in_force(|| InForce {
                store: self.id,
                rule,
                since: self.since(policy, rule),
                started: self.seed.start(policy.id()),
            });
        }
        Ok(())
    }

    /// Returns since when a policy is in force that is new to this store.
    fn since(&self, policy: &Policy, rule: AnyRule) -> Tick {
        let (now, mut policies) = (self.clock.now(), lock(&self.policies));
        if policies.len() >= POLICIES_MAX && !policies.contains_key(&policy.id()) {
            return now;
        }
        let known = policies.entry(policy.id()).or_insert((rule, now));
        *known = (rule, rule_cell::since(&rule, now, *known));
        known.1
    }

    fn rule_of(&self, policy: &Policy) -> Result<AnyRule, KeyedError> {
        match self.rule(policy.algorithm(), &policy.quota())? {
            AnyRule::Word(Rule::Gcra(nominal)) if policy.is_ad_hoc() => {
                Ok(AnyRule::Word(Rule::PerCall(nominal)))
            }
            rule => Ok(rule),
        }
    }

    /// Returns the rule of a policy's key, and since when it is in force.
    pub(super) fn rule_in_store(&self, policy: &Policy, call: Option<PerCall>) -> (AnyRule, Tick) {
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
    pub(crate) fn fingerprint_of(&self, policy: &Policy, key: &[u8]) -> u64 {
        self.fingerprint_in(policy.in_force(self.id), policy, key)
    }

    #[inline(always)]
    fn fingerprint_in(&self, known: Option<&InForce>, policy: &Policy, key: &[u8]) -> u64 {
        match known.and_then(|known| known.started.as_ref()) {
            Some(started) => started.fingerprint(key),
            None => self.fingerprint_anew(policy, key),
        }
    }

    #[cold]
    #[inline(never)]
    fn fingerprint_anew(&self, policy: &Policy, key: &[u8]) -> u64 {
        self.seed.fingerprint(&(policy.id(), key))
    }

    /// Takes from a single key on the fast path, by the quota of its policy. If there is more to do,
    /// returns the key's fingerprint as far as it is known, for [`take_any`](Self::take_any).
    #[inline(always)]
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
        let fingerprint = self.fingerprint_in(Some(known), policy, key);
        let (AnyRule::Word(Rule::Gcra(gcra)), words) = (&known.rule, &self.tables.words) else {
            return Err(NonZeroU64::new(fingerprint));
        };
        let reading = Reading::exact(now);
        let taken =
            gcra.whole().and_then(|gcra| words.take((fingerprint, reading), || now, &gcra, cost));
        // The state of a budget has another fingerprint.
        let rate = Some(gcra).filter(|gcra| !gcra.is_budget());
        let take_at = || words.take_at((fingerprint, now), rate?, cost);
        taken.or_else(take_at).ok_or(NonZeroU64::new(fingerprint))
    }

    /// Takes from a single key whatever its rule; `None` if there is more to do.
    pub(crate) fn take_any(&self, key: Key<'_>, now: Tick, cost: u64) -> Option<Decision> {
        if self.mode() != 0 {
            return None;
        }
        self.state(key, now).update(|entry| entry.decide(now, cost))
    }

    /// Takes from several keys on the fast path, from all or none; `None` if the general path has to decide. `keys` is
    /// room for as many. Tells each demand its decision, and returns a mask of those that refused.
    pub(crate) fn take_demands<'t, 'd: 't>(
        &'t self,
        demands: &mut [Demand<'d>],
        now: Tick,
        keys: &mut [Option<ReadKey<'t>>],
    ) -> Option<u64> {
        let keys = keys.get_mut(..demands.len()).filter(|_| self.mode() == 0)?;
        let mut backoff = Backoff::new();
        for _ in 0..TRIES {
            let mut refused = 0;
            for (index, (demand, key)) in demands.iter_mut().zip(&mut *keys).enumerate() {
                let (fingerprint, rule) = self.word_of(demand)?;
                let (words, cost) = (&self.tables.words, demand.cost());
                let tell = |decision: Decision| {
                    refused |= u64::from(decision.is_denied()) << index;
                    demand.tell(decision);
                };
                *key = Some(words.read_and_decide((fingerprint, now), rule, cost, tell)?);
            }
            if refused != 0 {
                if ReadKey::is_any_twice(keys) {
                    return None;
                }
                for (index, (demand, key)) in demands.iter_mut().zip(&*keys).enumerate() {
                    if refused >> index & 1 == 0 {
                        demand.tell(key.as_ref()?.level(now, demand.cost()));
                    }
                }
                return Some(refused);
            }
            if WordTable::store_all(keys)? {
                return Some(0);
            }
            backoff.wait();
        }
        None
    }

    /// Returns the fingerprint of a demand's key, with the salt of its rule, and the rule; `None` if its state is no
    /// word, its quota comes with the call, or its policy is not in force.
    #[inline(always)]
    fn word_of<'d>(&self, demand: &Demand<'d>) -> Option<(u64, &'d Rule)> {
        let known = demand.policy().in_force(self.id)?;
        // A quota that comes with the call is not that of the rule, and may be missing.
        let (AnyRule::Word(rule), false) = (&known.rule, demand.policy().is_ad_hoc()) else {
            return None;
        };
        let fingerprint = self.fingerprint_in(Some(known), demand.policy(), demand.key());
        Some(((fingerprint ^ known.rule.salt()).max(1), rule))
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests;
