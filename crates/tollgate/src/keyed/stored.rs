//! Keys that belong to policies: what a store in memory needs of the core.

use super::{
    KeyedError,
    core::{Core, Key},
    fingerprint::Seed,
    plan::ClassOf,
};
use crate::{
    Charge, Decision, Inherit, Tick,
    algorithm::Entry,
    limiter::backoff::Backoff,
    limits::Target,
    store::Policy,
    sync::{Ordering::Relaxed, lock},
    table::{
        Ask, Who, Words,
        class::{Class, ClassRule, MadeFrom, SHARED},
    },
    watch::Verb,
};
use std::{collections::HashSet, num::NonZeroU64};

/// Bits of a policy's hint: class, count of changes, and which store it is about.
const CLASS_BITS: u32 = 12;
const STAMP_BITS: u32 = 32;

impl Core {
    pub(crate) const fn seed(&self) -> Seed {
        self.seed
    }

    /// Returns the class of a policy, made if need be.
    pub(crate) fn class_of(&self, policy: &Policy) -> Result<Class, KeyedError> {
        let stamp = self.tables.base.classes.stamp();
        if let Some(class) = self.hinted(policy, stamp) {
            return Ok(class);
        }
        let _plan = lock(&self.plan);
        self.class_made(policy)
    }

    /// [`class_of`](Self::class_of) with the plan locked.
    fn class_made(&self, policy: &Policy) -> Result<Class, KeyedError> {
        let latest = policy.latest(self.id);
        let made_from = MadeFrom {
            algorithm: latest.algorithm(),
            quota: latest.quota(),
            clock: &self.clock,
            owner: if policy.is_ad_hoc() { SHARED } else { policy.id() },
            is_ad_hoc: policy.is_ad_hoc(),
        };
        let class = self.class_for(made_from, false)?;
        let stamp = self.tables.base.classes.stamp();
        // ORDERING: Relaxed. The hint is one word; the class it names was made under a lock by this
        // thread, or by one whose count of changes this thread has seen.
        policy.hint().store(self.hint(stamp) | (class.index() as u64 + 1), Relaxed);
        if let Some(started) = self.seed.start(policy.id()) {
            policy.start(self.id, started);
        }
        Ok(class)
    }

    /// Makes the classes of these policies, and keeps them until others are declared.
    pub(crate) fn declare<'a>(
        &self,
        policies: impl IntoIterator<Item = &'a Policy>,
    ) -> Result<(), (&'a Policy, KeyedError)> {
        let _plan = lock(&self.plan);
        let before = lock(&self.class_use).declared.clone();
        let (mut declared, mut shared) = (HashSet::new(), HashSet::new());
        for policy in policies {
            let latest = policy.latest(self.id);
            let quota = (latest.algorithm(), latest.quota(), policy.is_ad_hoc());
            if shared.contains(&quota) {
                continue;
            }
            let class = self.class_made(policy).map_err(|error| {
                lock(&self.class_use).declare(before.clone());
                (policy, error)
            })?;
            if let Some(listed) = self.tables.base.classes.listed(class) {
                if listed.owner == SHARED {
                    shared.insert(quota);
                }
                declared.insert(ClassOf::new(&listed));
                // The next one must not get its number.
                lock(&self.class_use).declared.insert(ClassOf::new(&listed));
            }
        }
        lock(&self.class_use).declare(declared);
        Ok(())
    }

    /// What all hints of this store have in common as long as nothing changes; without a class.
    #[inline]
    const fn hint(&self, stamp: u64) -> u64 {
        (stamp & 0xffff_ffff) << CLASS_BITS | self.id << (CLASS_BITS + STAMP_BITS)
    }

    /// Returns the class that the policy's hint names, if that is about this store and current.
    #[inline]
    fn hinted(&self, policy: &Policy, stamp: u64) -> Option<Class> {
        // ORDERING: Relaxed, see `class_of`.
        let hint = policy.hint().load(Relaxed);
        // If the rest is as it should be, this is the class; else it is larger than any.
        let class = (hint ^ self.hint(stamp)).wrapping_sub(1);
        (class < Class::COUNT as u64).then(|| Class::from_index(class as usize))
    }

    /// Returns the fingerprint of a policy's key.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    pub(crate) fn fingerprint_of(&self, policy: &Policy, key: &[u8]) -> u64 {
        match policy.started(self.id) {
            Some(started) => started.fingerprint(key),
            None => self.fingerprint_anew(policy, key),
        }
    }

    #[cold]
    #[inline(never)]
    fn fingerprint_anew(&self, policy: &Policy, key: &[u8]) -> u64 {
        self.seed.fingerprint(&(policy.id(), key))
    }

    /// Names a key of a policy; `None` if that has no class any more and all numbers are taken.
    pub(super) fn who_stored(&self, fingerprint: u64, policy: &Policy, now: Tick) -> Option<Who> {
        let mut backoff = Backoff::new();
        loop {
            let mut who = self.who_plain(fingerprint, now);
            who.class = self.class_of(policy).ok()?;
            if self.tables.base.classes.is_current(who.class, who.stamp) {
                return Some(who);
            }
            backoff.wait();
        }
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
        if self.mode() != 0 {
            return Err(None);
        }
        let stamp = self.tables.base.classes.stamp();
        let Some(class) = self.hinted(policy, stamp) else { return Err(None) };
        let fingerprint = self.fingerprint_of(policy, key);
        let who = Who { fingerprint, class, now, class_since: now, stamp };
        // INVARIANT: the class of a policy without a quota is never one by `Rule::Gcra`.
        self.tables.take_growing(&who, cost).ok_or(NonZeroU64::new(fingerprint))
    }

    /// Takes from a single key in every table and by every algorithm; `None` if there is more to do.
    pub(crate) fn take_any(
        &self,
        (fingerprint, policy): (NonZeroU64, &Policy),
        now: Tick,
        cost: u64,
    ) -> Option<Decision> {
        let stamp = self.tables.base.classes.stamp();
        let (fingerprint, class) = (fingerprint.get(), self.hinted(policy, stamp)?);
        let who = Who { fingerprint, class, now, class_since: now, stamp };
        // Of a table that grows, the short way was tried already.
        let short = self.tables.take_bounded(&who, cost);
        short.or_else(|| self.tables.update(&who, |entry| entry.decide(now, cost)).ok())
    }

    /// Takes from a single key by the quota that came with the call; `None` if there is more to do.
    pub(crate) fn take_by_call(
        &self,
        (key, policy): (Key<'_>, &Policy),
        now: Tick,
        cost: u64,
    ) -> Option<Decision> {
        if self.mode() != 0 {
            return None;
        }
        let stamp = self.tables.base.classes.stamp();
        let class = self.hinted(policy, stamp)?;
        let who = Who { fingerprint: key.fingerprint, class, now, class_since: now, stamp };
        let decide = |entry: &mut Entry<'_>| entry.decide(now, cost);
        self.tables.update(&who, |entry| entry.by(key.call.as_ref(), decide)).ok()
    }

    /// Takes from several keys on the short way, from all or none; `None` if there is more to do.
    /// Returns what each says, and a mask of those that refused.
    pub(crate) fn take_stored_all<const N: usize>(
        &self,
        charges: &[Charge<'_>; N],
        now: Tick,
    ) -> Option<([Decision; N], u64)> {
        let Words::Growing(table) = &self.tables.words else { return None };
        if self.mode() != 0 {
            return None;
        }
        // With one algorithm for all of them there is less to copy.
        let classes = &self.tables.base.classes;
        let gcra = |class| classes.by_gcra(class).map(|class| class.gcra);
        if let Some(asks) = self.asks(charges, gcra) {
            return table.take_all(&asks, now);
        }
        let any = |class| match classes.any_rule(class) {
            ClassRule::Word(rule) => Some(rule),
            _ => None,
        };
        table.take_all(&self.asks(charges, any)?, now)
    }

    /// Names several keys with their rules; `None` if one has no class, or not such a rule.
    #[inline]
    fn asks<R: Copy, const N: usize>(
        &self,
        charges: &[Charge<'_>; N],
        rule_of: impl Fn(Class) -> Option<R>,
    ) -> Option<[Ask<R>; N]> {
        let stamp = self.tables.base.classes.stamp();
        let ask = |Charge { target, cost }: &Charge<'_>| {
            let Target::Key(_, Key { fingerprint, policy: Some(policy), call: None }) = target
            else {
                return None;
            };
            let class = self.hinted(policy, stamp)?;
            let rule = rule_of(class)?;
            Some(Ask { fingerprint: *fingerprint, class, stamp, rule, cost: *cost })
        };
        let mut asks = [ask(charges.first()?)?; N];
        for (place, charge) in asks.iter_mut().zip(charges).skip(1) {
            *place = ask(charge)?;
        }
        Some(asks)
    }

    /// Looks at a single key on the short way; `None` if there is more to do.
    pub(crate) fn peek_stored(
        &self,
        key: (Key<'_>, &Policy),
        now: Tick,
        cost: u64,
    ) -> Option<Decision> {
        if self.mode() != 0 || !self.tables.takes_all_in() {
            return None;
        }
        let stamp = self.tables.base.classes.stamp();
        let (Key { fingerprint, call, .. }, policy) = key;
        let class = self.hinted(policy, stamp)?;
        let who = Who { fingerprint, class, now, class_since: now, stamp };
        let peek = |entry: &mut Entry<'_>| entry.peek(now, cost);
        self.tables.read(&who, |entry| entry.by(call.as_ref(), peek)).ok()
    }

    /// Takes as many permits as are free, at most `most`, with the right to give back.
    pub(crate) fn lease(&self, key: Key<'_>, now: Tick, most: u64) -> (Decision, Option<u64>) {
        let (_, access) = self.who(key, now);
        let waits = || self.behind(key.fingerprint, now, most);
        if let Some(decision) = self.exempt(key, (now, access), most).or_else(waits) {
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
        let id = is_taken.then(|| claims.add(self.marked_by(who.class, &key), &taken));
        (decision, id)
    }

    /// Carries all keys of a policy over to another quota, which then also those are held to who still
    /// ask by the old one. Its class may be shared: then each key is
    /// carried over when it is next met.
    pub(crate) fn change_policy(
        &self,
        old: &Policy,
        new: &Policy,
        (now, how): (Tick, Inherit),
    ) -> Result<(), KeyedError> {
        let _changing = lock(&self.changing);
        let mut claims = self.claims.lock_all();
        let _plan = lock(&self.plan);
        let (from, to) = (self.class_made(old)?, self.class_made(new)?);
        if from == to {
            return Ok(());
        }
        let classes = &self.tables.base.classes;
        let rules = (classes.any_rule(from), classes.any_rule(to));
        if rules.0.is_word() != rules.1.is_word() {
            return Err(KeyedError::OtherTable(new.quota()));
        }
        if classes.is_shared(from) {
            // Nobody knows which slots are this policy's: each is carried over when it is met.
            if how != Inherit::AsIs {
                return Err(KeyedError::SharedQuota(how));
            }
            claims.forget(old.id());
            return Ok(());
        }
        self.tables.retire((from, to), (now, how), || old.succeeded_by(self.id, new));
        claims.rescale((from, to), (now, how), rules);
        Ok(())
    }
}

#[cfg(all(test, not(tollgate_loom)))]
mod tests {
    use super::*;
    use crate::{
        Algorithm, KeyedLimiter, Quota, Reason,
        keyed::{
            core::{BYPASS, NOTED, WAITED, WATCHED},
            notes::Access,
        },
        sync::Arc,
    };

    fn policy(number: u64) -> Policy {
        let quota = Quota::per_hour(number);
        Policy::with_algorithm(format!("{number}"), quota, Algorithm::Gcra).expect("a sound quota")
    }

    fn key(policy: &Policy) -> Key<'_> {
        Key { fingerprint: policy.id(), policy: Some(policy), call: None }
    }

    /// It was carried over to "no limit" once.
    #[test]
    fn a_key_whose_policy_has_lost_its_class_is_refused() {
        for bounded in [false, true] {
            let builder = KeyedLimiter::<[u8]>::builder(Quota::unlimited());
            let builder = if bounded { builder.bounded(40_000) } else { builder };
            let core = Arc::clone(&builder.build().expect("sound").core);
            let (now, lost) = (core.clock.now(), policy(9_999));
            let take = |policy: &Policy, cost| {
                core.update(key(policy), now, |entry| entry.decide(now, cost).is_allowed())
            };
            for number in 1..Class::COUNT as u64 {
                assert_eq!(take(&policy(number), 1).map(|(passed, _)| passed), Some(true));
            }
            assert!(core.class_of(&lost).is_err());
            assert!(take(&lost, 1).is_none());
            let (_, access) = core.who(key(&lost), now);
            assert_eq!(access, Access::NoClass);
            let refusal = core.exempt(key(&lost), (now, access), 1).expect("it is not asked");
            assert!(refusal.is_denied());
            assert_eq!(refusal.reason(), Reason::Saturated);
            assert!(core.force(key(&lost), now, 1).is_denied());
            assert_eq!(core.refund(key(&lost), now, 1), 0);
            assert!(core.lease(key(&lost), now, 1).1.is_none());
            assert_eq!(core.tables.len(), Class::COUNT - 1, "nothing was taken in");
        }
    }

    /// Whatever is going on (somebody is blocked, listed, waits, or all is bypassed), the short way
    /// leaves it to the long one; and a single demand is answered as a list of one.
    #[test]
    fn the_short_way_ends_when_there_is_more_to_do() {
        let limiter = KeyedLimiter::<[u8]>::builder(Quota::unlimited()).build().expect("sound");
        let (core, policy) = (&limiter.core, policy(5));
        let now = core.clock.now();
        let take = || core.take_one(&policy, b"key", now, 1);
        assert_eq!(take().expect_err("it has no class"), None);
        core.class_of(&policy).expect("there is room");
        let fingerprint = core.fingerprint_of(&policy, b"key");
        assert_eq!(fingerprint, core.seed.fingerprint(&(policy.id(), &b"key"[..])));
        assert_eq!(take().expect("there is room").remaining(), 4);
        let known = NonZeroU64::new(fingerprint).expect("hardly any is zero");
        let decision = core.take_any((known, &policy), now, 1).expect("it is there");
        assert_eq!(decision.remaining(), 3);
        for mode in [BYPASS, NOTED, WATCHED, WAITED] {
            core.set_mode(mode, true);
            assert_eq!(take().expect_err("there is more to do"), None, "{mode}");
            core.set_mode(mode, false);
        }
        assert_eq!(take().expect("nothing is going on").remaining(), 2);
    }

    /// A class that gets a slot while unused ones are looked for is kept, with the slot's state.
    #[test]
    fn a_class_in_use_is_not_collected() {
        let limiter = KeyedLimiter::<[u8]>::new(Quota::unlimited()).expect("sound");
        let (core, kept, gone) = (&limiter.core, policy(5), policy(6));
        let now = core.clock.now();
        core.update(key(&kept), now, |entry| entry.charge(now, 3));
        let classes = [&kept, &gone].map(|policy| core.class_of(policy).expect("there is room"));
        assert_eq!(core.tables.collect_classes(core.default_class()), 1);
        let classes_of = &core.tables.base.classes;
        assert!(classes_of.listed(classes[0]).is_some() && classes_of.listed(classes[1]).is_none());
        // Frozen and thawed again: nothing has happened.
        classes_of.freeze(&classes[..1]);
        classes_of.thaw(classes[0]);
        let left = core.read(key(&kept), now, |entry| entry.available(now));
        assert_eq!(left, 2);
    }
}
