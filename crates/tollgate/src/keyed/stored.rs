//! Keys that belong to policies: what a store in memory needs of the core.

use super::{
    KeyedError,
    core::{Core, Key},
    fingerprint::Seed,
};
use crate::{
    Decision, Inherit, Tick,
    algorithm::Entry,
    limiter::backoff::Backoff,
    store::Policy,
    sync::{Ordering::Relaxed, lock},
    table::{
        Who,
        class::{Class, MadeFrom, SHARED},
    },
    watch::Verb,
};

/// Bits of a policy's hint: class, count of changes, and which store it is about.
const CLASS_BITS: u32 = 12;
const STAMP_BITS: u32 = 32;

impl Core {
    pub(crate) const fn seed(&self) -> Seed {
        self.seed
    }

    /// Returns the class of a policy, made if need be.
    pub(crate) fn class_of(&self, policy: &Policy, now: Tick) -> Result<Class, KeyedError> {
        let stamp = self.tables.base.classes.stamp();
        if let Some(class) = self.hinted(policy, stamp) {
            return Ok(class);
        }
        let _plan = lock(&self.plan);
        self.class_made(policy, now)
    }

    /// [`class_of`](Self::class_of) with the plan locked.
    fn class_made(&self, policy: &Policy, now: Tick) -> Result<Class, KeyedError> {
        let made_from = MadeFrom {
            algorithm: policy.algorithm(),
            quota: policy.quota(),
            clock: &self.clock,
            owner: if policy.is_ad_hoc() { SHARED } else { policy.id() },
            is_ad_hoc: policy.is_ad_hoc(),
        };
        let class = self.class_for(made_from, now, false)?;
        let stamp = self.tables.base.classes.stamp();
        // ORDERING: Relaxed. The hint is one word; the class it names was made under a lock by this
        // thread, or by one whose count of changes this thread has seen.
        policy.hint().store(self.hint(class, stamp), Relaxed);
        Ok(class)
    }

    fn hint(&self, class: Class, stamp: u64) -> u64 {
        let class = class.index() as u64 + 1;
        class | (stamp & 0xffff_ffff) << CLASS_BITS | self.id << (CLASS_BITS + STAMP_BITS)
    }

    /// Returns the class that the policy's hint names, if that is about this store and current.
    #[inline]
    fn hinted(&self, policy: &Policy, stamp: u64) -> Option<Class> {
        // ORDERING: Relaxed, see `class_of`.
        let hint = policy.hint().load(Relaxed);
        let class = Class::from_index((hint & ((1 << CLASS_BITS) - 1)).checked_sub(1)? as usize);
        (hint == self.hint(class, stamp)).then_some(class)
    }

    /// Names a key of a policy.
    pub(super) fn who_stored(&self, fingerprint: u64, policy: &Policy, now: Tick) -> Who {
        let mut backoff = Backoff::new();
        loop {
            let mut who = self.who_plain(fingerprint, now);
            // A policy that was decided upon before has a class; one that has none any more, because
            // all numbers are taken, is not limited. The store has refused it before.
            who.class = self.class_of(policy, now).unwrap_or_else(|_| self.default_class());
            if self.tables.base.classes.is_current(who.class, who.stamp) {
                return who;
            }
            backoff.wait();
        }
    }

    /// Takes from a single key on the short way; `None` if there is more to do.
    #[inline]
    pub(crate) fn take_stored(
        &self,
        key: (Key<'_>, &Policy),
        now: Tick,
        cost: u64,
    ) -> Option<Decision> {
        if self.mode() != 0 {
            return None;
        }
        let stamp = self.tables.base.classes.stamp();
        let (Key { fingerprint, call, .. }, policy) = key;
        let class = self.hinted(policy, stamp)?;
        let who = Who { fingerprint, class, now, class_since: now, stamp };
        let Some(call) = call else {
            let short = self.tables.take(&who, cost);
            return short
                .or_else(|| self.tables.update(&who, |entry| entry.decide(now, cost)).ok());
        };
        let decide = |entry: &mut Entry<'_>| entry.by(Some(&call), |entry| entry.decide(now, cost));
        self.tables.update(&who, decide).ok()
    }

    /// Takes as many permits as are free, at most `most`, with the right to give back.
    pub(crate) fn lease(&self, key: Key<'_>, now: Tick, most: u64) -> (Decision, Option<u64>) {
        let (_, access) = self.who(key, now);
        if let Some(decision) = self.exempt(key, (now, access), most) {
            return (decision, None);
        }
        let mut claims = self.claims.lock(key.fingerprint);
        let taken = self.update(key, now, |entry| {
            let decision = entry.up_to(now, most);
            (decision, entry.taken(now, decision.cost()))
        });
        let Some(((decision, taken), who)) = taken else {
            return (self.without_room(key, now, most, Verb::UpTo), None);
        };
        let is_taken = decision.is_allowed() && decision.cost() > 0;
        let id = is_taken.then(|| claims.add(self.marked_by(who.class, key.call.as_ref()), &taken));
        (decision, id)
    }

    /// Carries all keys of a policy over to another quota.
    pub(crate) fn change_policy(
        &self,
        old: &Policy,
        new: &Policy,
        (now, how): (Tick, Inherit),
    ) -> Result<(), KeyedError> {
        let _changing = lock(&self.changing);
        let mut claims = self.claims.lock_all();
        let _plan = lock(&self.plan);
        let (from, to) = (self.class_made(old, now)?, self.class_made(new, now)?);
        if from == to {
            return Ok(());
        }
        let classes = &self.tables.base.classes;
        let rules = (classes.any_rule(from), classes.any_rule(to));
        if rules.0.is_word() != rules.1.is_word() {
            return Err(KeyedError::OtherTable(new.quota()));
        }
        self.tables.retire((from, to), (now, how), || {});
        claims.rescale((from, to), (now, how), rules);
        Ok(())
    }
}
