//! How a store in memory decides over several demands.

use super::MemoryStore;
use crate::{
    Charge, Decision, Limits, Reservation, Tick,
    keyed::core::Key,
    multi::{MultiDecision, Taking},
    observe::Verb,
    store::{Demand, StoreError},
    verbs::StateRef,
};
use std::num::NonZeroU64;

impl MemoryStore {
    /// Names a demand's key, after its policy was put in force.
    pub(super) fn key<'a>(&self, demand: &Demand<'a>) -> Result<Key<'a>, StoreError> {
        let (policy, call) = (demand.policy(), demand.call());
        if policy.is_ad_hoc() && call.is_none() {
            return Err(StoreError::invalid(format!(
                "policy \"{}\" has no quota of its own; give one with Demand::ad_hoc",
                policy.name()
            )));
        }
        self.shared.core.admit(policy)?;
        let fingerprint = self.shared.core.fingerprint_of(policy, demand.key());
        Ok(Key { fingerprint, policy: Some(policy), call })
    }

    /// Returns the name of the state of a demand.
    pub(super) fn state_ref<'a>(&'a self, demand: &Demand<'a>) -> Result<StateRef<'a>, StoreError> {
        Ok(StateRef::Key(&self.shared.core, self.key(demand)?))
    }

    /// Decides about a single demand that the fast path left open. Not inlined: it is large.
    #[cold]
    #[inline(never)]
    pub(super) fn acquire_any(
        &self,
        demand: &mut Demand<'_>,
        now: Tick,
        fingerprint: Option<NonZeroU64>,
    ) -> Result<Decision, StoreError> {
        let policy = demand.policy();
        let key = match fingerprint.filter(|_| !policy.is_ad_hoc()) {
            Some(known) => Key { fingerprint: known.get(), policy: Some(policy), call: None },
            None => self.key(demand)?,
        };
        if let Some(decision) = self.shared.core.take_any(key, now, demand.cost()) {
            demand.tell(decision);
            return Ok(decision);
        }
        Ok(self.decide(std::slice::from_mut(demand), now, Taking::Take)?.0)
    }

    /// Takes as much of a demand as is free, with the right to give it back.
    pub(super) fn lease_at(
        &self,
        now: Tick,
        demand: &mut Demand<'_>,
    ) -> Result<(Decision, Option<Vec<Reservation>>), StoreError> {
        let (core, key) = (&self.shared.core, self.key(demand)?);
        let fingerprint = key.fingerprint;
        let (decision, taken) = StateRef::Key(core, key).lease(now, demand.cost());
        core.report(fingerprint, Verb::UpTo, &decision);
        demand.tell(decision);
        Ok((decision, taken.map(|taken| vec![taken])))
    }

    /// Takes what several demands ask for, all or nothing.
    pub(super) fn acquire_all(
        &self,
        now: Tick,
        demands: &mut [Demand<'_>],
    ) -> Result<Decision, StoreError> {
        let core = &self.shared.core;
        // To clear room for 64 keys takes as long as another key.
        let refused = match demands.len() {
            0..=8 => core.take_demands(demands, now, &mut [None; 8]),
            _ => core.take_demands(demands, now, &mut [None; Limits::MOST]),
        };
        let each = demands.iter().filter_map(Demand::decided);
        match refused.and_then(|refused| Decision::joined(each, refused)) {
            Some(decision) => Ok(decision),
            None => Ok(self.decide(demands, now, Taking::Take)?.0),
        }
    }

    /// Decides over all demands at once, on the general path. Not inlined: it takes a large stack.
    #[inline(never)]
    pub(super) fn decide(
        &self,
        demands: &mut [Demand<'_>],
        now: Tick,
        taking: Taking,
    ) -> Result<(Decision, Option<Vec<Reservation>>), StoreError> {
        Limits::check(demands.len())?;
        let core = &self.shared.core;
        let nothing = Charge { of: StateRef::Key(core, Key::plain(0)), cost: 0 };
        // A list on the stack for as many demands as are usual.
        match demands.len() {
            0..=4 => self.decide_in(&mut [nothing; 4], demands, (now, taking)),
            5..=8 => self.decide_in(&mut [nothing; 8], demands, (now, taking)),
            count => self.decide_in(&mut vec![nothing; count], demands, (now, taking)),
        }
    }

    /// [`decide`](Self::decide) with a list that has room for what each demand would be charged.
    fn decide_in<'a, 'd: 'a>(
        &'a self,
        charges: &mut [Charge<'a>],
        demands: &mut [Demand<'d>],
        (now, taking): (Tick, Taking),
    ) -> Result<(Decision, Option<Vec<Reservation>>), StoreError> {
        let charges = &mut charges[..demands.len()];
        for (index, demand) in demands.iter().enumerate() {
            let key = self.key(demand)?;
            let (known, place) = charges.split_at_mut(index);
            let Some(charge) = place.first_mut() else { break };
            *charge = Charge { of: StateRef::Key(&self.shared.core, key), cost: demand.cost() };
            let differs = |known: &Charge<'_>| match known.of {
                StateRef::Key(_, other) => {
                    other.fingerprint == key.fingerprint && other.call != key.call
                }
                StateRef::Limiter(_) => false,
            };
            if key.call.is_some() && known.iter().any(differs) {
                return Err(StoreError::invalid(format!(
                    "a key of policy \"{}\" appears twice with two quotas; give both the same \
                     quota, or use two policies",
                    demand.policy().name()
                )));
            }
        }
        let decided =
            MultiDecision::decide(charges, now, taking, |index, own| demands[index].tell(*own));
        Ok(decided)
    }
}
