//! Several limits in one decision.
//!
//! Without a cluster, and for states of one slot, this is one script: it decides over all, then
//! takes from all. No server can do that across slots. There each slot decides for its own states, at
//! the same time; if one refuses, what the others have taken is given back before the answer.

use super::{
    RedisStore,
    calls::{State, Told, Wanted, bytes_of, strange},
    keys::Names,
    scripts::Verb,
};
use tollgate::{
    Decision,
    store::{Demand, StoreError},
};

/// The demands of one slot, by their numbers.
pub(super) struct Group {
    pub(super) slot: u16,
    pub(super) members: Vec<usize>,
}

impl RedisStore {
    pub(super) fn states(&self, demands: &[Demand<'_>]) -> Result<Vec<State>, StoreError> {
        let states: Vec<_> =
            demands.iter().map(|demand| self.state(demand)).collect::<Result<_, _>>()?;
        for (index, state) in states.iter().enumerate() {
            let twin = states[..index].iter().find(|known| known.name == state.name);
            if twin.is_some_and(|twin| twin.rule != state.rule) {
                return Err(StoreError::invalid(format!(
                    "a key of policy \"{}\" appears twice with two quotas; give both the same \
                     quota, or use two policies",
                    demands[index].policy().name()
                )));
            }
        }
        Ok(states)
    }

    /// Puts those together that one call can decide about.
    pub(super) fn groups(&self, states: &[State]) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for (index, state) in states.iter().enumerate() {
            let together =
                |group: &&mut Group| !self.shared.link.is_cluster() || group.slot == state.slot;
            match groups.iter_mut().find(together) {
                Some(group) => group.members.push(index),
                None => groups.push(Group { slot: state.slot, members: vec![index] }),
            }
        }
        groups
    }

    pub(super) async fn decide_many(
        &self,
        demands: &mut [Demand<'_>],
        wanted: Wanted,
    ) -> Result<Decision, StoreError> {
        let states = self.states(demands)?;
        let groups = self.groups(&states);
        let told = match &groups[..] {
            [group] => self.decide_group(group, &states, wanted).await?,
            _ => self.decide_groups(&groups, &states, wanted).await?,
        };
        Self::tell(demands, &states, &told).ok_or_else(|| StoreError::invalid("no demands"))
    }

    /// Tells each demand its decision. Returns the joint one.
    pub(super) fn tell(
        demands: &mut [Demand<'_>],
        states: &[State],
        told: &[Told],
    ) -> Option<Decision> {
        let mut decisions = Vec::with_capacity(told.len());
        for ((demand, state), told) in demands.iter_mut().zip(states).zip(told) {
            let decision = told.decision(state);
            demand.tell(decision);
            decisions.push(decision);
        }
        Decision::join(&decisions)
    }

    /// Decides about states of one slot.
    async fn decide_group(
        &self,
        group: &Group,
        states: &[State],
        wanted: Wanted,
    ) -> Result<Vec<Told>, StoreError> {
        let members: Vec<_> = group.members.iter().map(|index| &states[*index]).collect();
        let script = self.shared.scripts.many(members.iter().map(|state| state.rule.kind));
        let letters: Vec<_> = members.iter().map(|state| state.rule.kind.letter()).collect();
        let mut call = self.call(script, members.len(), 1 + 2 * members.len());
        for state in &members {
            call.push(&state.name);
        }
        call.push(&letters);
        for state in &members {
            call.push(&state.rule.taking(state.cost));
            call.push(state.ttl(wanted).as_bytes());
        }
        let reply = self.send(group.slot, script, call).await?;
        self.told(&members, bytes_of(&reply)?).ok_or_else(|| strange(&reply))
    }

    /// Decides about states of several slots.
    async fn decide_groups(
        &self,
        groups: &[Group],
        states: &[State],
        wanted: Wanted,
    ) -> Result<Vec<Told>, StoreError> {
        let calls = groups.iter().map(|group| self.decide_group(group, states, wanted));
        let answers = super::together::all(calls.collect()).await;
        let mut told: Vec<Option<Told>> = vec![None; states.len()];
        let mut failed: Option<StoreError> = None;
        for (group, answer) in groups.iter().zip(answers) {
            match answer {
                Ok(each) => {
                    for (index, own) in group.members.iter().zip(each) {
                        told[*index] = Some(own);
                    }
                }
                // If one slot may have taken its part, the whole may have been.
                Err(error) if failed.as_ref().is_some_and(StoreError::is_timeout) => drop(error),
                Err(error) => failed = Some(error),
            }
        }
        let passed = failed.is_none() && told.iter().flatten().all(|own| own.passed);
        let mut undone = Ok(());
        if !passed && wanted == Wanted::Take {
            undone = self.undo(groups, states, &told).await;
        }
        match failed {
            Some(error) if undone.is_ok() || error.is_timeout() => Err(error),
            Some(error) => Err(StoreError::timeout(format!(
                "{error}; and the permits taken in another slot could not be given back"
            ))),
            None => told
                .into_iter()
                .collect::<Option<_>>()
                .ok_or_else(|| StoreError::unavailable("a slot sent neither a reply nor an error")),
        }
    }

    /// Gives back the permits that the admitting slots have taken. Permits that cannot be given
    /// back stay spent.
    async fn undo(
        &self,
        groups: &[Group],
        states: &[State],
        told: &[Option<Told>],
    ) -> Result<(), StoreError> {
        let taken = groups.iter().filter(|group| {
            group.members.iter().all(|index| told[*index].is_some_and(|own| own.passed))
        });
        let members = taken.flat_map(|group| &group.members);
        let calls = members.filter_map(|index| {
            let (state, own) = (&states[*index], told[*index]?);
            (state.cost > 0).then(|| self.undo_one(state, own))
        });
        super::together::all(calls.collect()).await.into_iter().collect()
    }

    async fn undo_one(&self, state: &State, told: Told) -> Result<(), StoreError> {
        let rule = &state.rule;
        let script = self.shared.scripts.one(rule.kind, Verb::Undo);
        let (keys, arguments) = if rule.kind.is_gcra() { (2, 2) } else { (1, 3) };
        let mut call = self.call(script, keys, arguments);
        call.push(&state.name);
        if rule.kind.is_gcra() {
            call.push(&Names::ledger(&state.name));
        }
        call.push(&rule.giving_back(state.cost));
        let [first, second, _, fourth] = told.seen.numbers.map(|it| (it as f64).to_le_bytes());
        match rule.kind {
            kind if kind.is_gcra() => call.push(&[first, second].concat()),
            kind => {
                call.push(if kind == super::rule::Kind::Log { &fourth } else { &first });
                call.push(rule.ttl.as_bytes());
            }
        }
        self.send(state.slot, script, call).await.map(drop)
    }
}

#[cfg(test)]
mod tests;
