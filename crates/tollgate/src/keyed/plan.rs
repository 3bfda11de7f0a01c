//! Which quota a key has.

use super::{
    KeyedError, KeyedLimiter,
    builder::FOREVER,
    claims::AllClaims,
    core::{Core, Key, NOTED, Plan},
    notes::Own,
};
use crate::{
    Algorithm, Inherit, Initial, Quota, Tick,
    algorithm::Rule,
    sync::{Ordering::Relaxed, lock},
    table::class::{Class, ClassRule, Listed, MadeFrom, SHARED},
};
use std::{borrow::Cow, collections::HashSet, fmt, hash::Hash, time::Duration};

/// Which quota a key gets, as [`KeyedBuilder::quota_by`](super::KeyedBuilder::quota_by) answers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Assigned {
    /// The limiter's quota.
    Default,
    /// A tier that was given to the builder.
    Tier(Cow<'static, str>),
    /// A quota of its own. One limiter tells 2048 quotas apart.
    Quota(Quota),
}

/// How the quota of a key is chosen.
pub(super) struct Assign<K: ?Sized> {
    pub(super) life: Duration,
    pub(super) choose: Box<dyn Fn(&K) -> Assigned + Send + Sync>,
}

impl<K: ?Sized> fmt::Debug for Assign<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Assign").field("life", &self.life).finish_non_exhaustive()
    }
}

/// Checks the rules that hold for the quota of every key.
pub(super) fn check(quota: &Quota, max_idle: Option<Duration>) -> Result<(), KeyedError> {
    quota.check()?;
    match quota.initial_fill() {
        Initial::Full => Ok(()),
        _ if max_idle.is_some() || quota.starts_full() => Ok(()),
        other => Err(KeyedError::InitialNotFull(other)),
    }
}

/// Which classes are kept though no key may have them, and when to look for unused ones again.
#[derive(Debug, Default)]
pub(super) struct ClassUse {
    pub(super) declared: HashSet<ClassOf>,
    /// The last walk over the table found none: there is another one at this time, or when there
    /// are fewer keys than then.
    walk_again_at: Tick,
    keys_at_walk: usize,
}

impl ClassUse {
    /// Keeps these classes from now on, and no others: there may be unused ones.
    pub(super) fn declare(&mut self, declared: HashSet<ClassOf>) {
        (self.declared, self.walk_again_at) = (declared, Tick::ZERO);
    }
}

/// A class, whatever its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ClassOf {
    owner: u64,
    algorithm: Algorithm,
    quota: Quota,
    is_ad_hoc: bool,
}

impl ClassOf {
    pub(super) const fn new(listed: &Listed) -> Self {
        let Listed { owner, algorithm, quota, is_ad_hoc, .. } = *listed;
        Self { owner, algorithm, quota, is_ad_hoc }
    }
}

/// How long after a walk over the table that found no unused class the next one may be made. A walk
/// over ten million keys takes a tenth of this.
const BETWEEN_WALKS: Duration = Duration::from_secs(1);

impl Core {
    /// Returns a class for a quota: one of its own if it has a name, else that of all who have the
    /// same quota.
    pub(super) fn class_for(
        &self,
        made_from: MadeFrom<'_>,
        is_named: bool,
    ) -> Result<Class, KeyedError> {
        check(&made_from.quota, self.tables.wide.max_idle())?;
        let classes = &self.tables.base.classes;
        if made_from.owner == 0 && !made_from.quota.is_unlimited() {
            let default = classes.any_rule(self.default_class());
            let rule = made_from.rule()?;
            if rule.is_word() != default.is_word() && default != ClassRule::Word(Rule::Unlimited) {
                return Err(KeyedError::OtherTable(made_from.quota));
            }
        }
        let make = || match made_from.owner {
            _ if is_named => classes.create(made_from),
            0 | SHARED => classes.intern(made_from),
            _ => classes.intern_policy(made_from),
        };
        if let Some(class) = make()? {
            return Ok(class);
        }
        // All numbers are taken: those of quotas that no key has any more can be used again. That is a
        // walk over the table, which must not be made for every call that is refused.
        let (now, keys) = (self.clock.now(), self.tables.len());
        let mut class_use = lock(&self.class_use);
        let full = KeyedError::TooManyQuotas { most: Class::COUNT };
        if now < class_use.walk_again_at && keys >= class_use.keys_at_walk {
            return Err(full);
        }
        // The notes name theirs, and declared policies keep theirs.
        let mut kept = Vec::new();
        self.notes.each(|_, note| kept.extend(note.own.map(|own| own.class)));
        let is_declared = |listed: &Listed| class_use.declared.contains(&ClassOf::new(listed));
        kept.extend(classes.all().iter().filter(|it| is_declared(&it.1)).map(|(class, _)| *class));
        kept.iter().for_each(|class| classes.pin(*class));
        self.tables.collect_classes(self.default_class());
        kept.iter().for_each(|class| classes.unpin(*class));
        let made = make()?;
        if made.is_none() {
            class_use.walk_again_at = now.saturating_add(BETWEEN_WALKS);
            class_use.keys_at_walk = keys;
        }
        made.ok_or(full)
    }

    fn made_from(&self, quota: Quota) -> MadeFrom<'_> {
        let (algorithm, clock) = (self.algorithm, &self.clock);
        MadeFrom { algorithm, quota, clock, owner: 0, is_ad_hoc: false }
    }

    /// Gives the keys of a named class another quota. Claims and plan are locked.
    fn change_class(
        &self,
        claims: &mut AllClaims<'_>,
        old: Class,
        quota: Quota,
        (now, how): (Tick, Inherit),
    ) -> Result<Class, KeyedError> {
        let classes = &self.tables.base.classes;
        let new = self.class_for(self.made_from(quota), true)?;
        let rules = (classes.any_rule(old), classes.any_rule(new));
        self.tables.retire((old, new), (now, how), || {
            if self.default_class() == old {
                self.set_default_class(new);
            }
            self.notes.each(|_, note| match &mut note.own {
                Some(own) if own.class == old => own.class = new,
                _ => {}
            });
        });
        claims.rescale((old, new), (now, how), rules);
        Ok(new)
    }

    fn own_quota(&self, fingerprint: u64, own: Option<Own>) -> Result<(), KeyedError> {
        let now = self.clock.now();
        self.set_mode(NOTED, true);
        let changed = self.notes.change(fingerprint, now, |note| note.own = own);
        changed.ok_or(KeyedError::TooManyNotes { most: self.notes.most() })?;
        // Carries the state over as of now, and not when the key is next met.
        self.update(Key::plain(fingerprint), now, |_| ());
        Ok(())
    }
}

impl<K: Hash + ?Sized> KeyedLimiter<K> {
    /// Changes the quota of every key that has none of its own, and keeps what each has used as
    /// `how` says. Keys at rest start full, as keys never seen do. Locks a few keys at a time.
    ///
    /// # Errors
    ///
    /// When the new quota makes no sense for keys; the old one then stays in force.
    pub fn set_quota(&self, quota: Quota, how: Inherit) -> Result<(), KeyedError> {
        self.set_quota_at(self.now(), quota, how)
    }

    /// [`set_quota`](Self::set_quota) as of `now`.
    ///
    /// # Errors
    ///
    /// As [`set_quota`](Self::set_quota).
    pub fn set_quota_at(&self, now: Tick, quota: Quota, how: Inherit) -> Result<(), KeyedError> {
        let core = &*self.core;
        let _changing = lock(&core.changing);
        let mut claims = core.claims.lock_all();
        let mut plan = lock(&core.plan);
        claims.unbook(core, Some(core.default_class()));
        let changed = core.change_class(&mut claims, core.default_class(), quota, (now, how));
        if changed.is_ok() {
            plan.quota = quota;
        }
        drop(plan);
        claims.release(core);
        changed.map(drop)
    }

    /// Changes the quota of a tier, and keeps what its keys have used as `how` says.
    ///
    /// # Errors
    ///
    /// When there is no such tier, or the quota makes no sense for keys.
    pub fn set_tier(&self, tier: &str, quota: Quota, how: Inherit) -> Result<(), KeyedError> {
        let core = &*self.core;
        let _changing = lock(&core.changing);
        let mut claims = core.claims.lock_all();
        let mut plan = lock(&core.plan);
        let unknown = || KeyedError::UnknownTier(tier.to_owned());
        let (_, old) = *plan.tiers.get(tier).ok_or_else(unknown)?;
        claims.unbook(core, Some(old));
        let changed = core.change_class(&mut claims, old, quota, (core.clock.now(), how));
        if let Ok(new) = &changed {
            plan.tiers.insert(tier.into(), (quota, *new));
        }
        drop(plan);
        claims.release(core);
        changed.map(drop)
    }

    /// Returns the quota of a tier.
    #[must_use]
    pub fn tier(&self, tier: &str) -> Option<Quota> {
        lock(&self.core.plan).tiers.get(tier).map(|(quota, _)| *quota)
    }

    /// Gives a key a quota of its own, for `life` or for good: a contract, or a temporary raise.
    /// What is left of its permits stays left, up to the new burst. Its open reservations become
    /// final.
    ///
    /// # Errors
    ///
    /// When the quota makes no sense for keys, or there is no room for another note or quota.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, KeyedLimiter, Quota};
    ///
    /// let (clock, hand) = Clock::manual();
    /// let api = KeyedLimiter::<str>::builder(Quota::per_minute(10)).clock(clock).build()?;
    /// api.override_quota("vip", Quota::per_minute(1000), Some(Duration::from_secs(3600)))?;
    /// assert_eq!((api.quota_of("vip").count(), api.quota_of("you").count()), (1000, 10));
    /// hand.advance(Duration::from_secs(3600));
    /// assert_eq!(api.quota_of("vip").count(), 10);
    /// # Ok::<(), tollgate::KeyedError>(())
    /// ```
    pub fn override_quota(
        &self,
        key: &K,
        quota: Quota,
        life: Option<Duration>,
    ) -> Result<(), KeyedError> {
        self.own(key, life, |core, _| core.class_for(core.made_from(quota), false))
    }

    /// Puts a key into a tier, for `life` or for good.
    ///
    /// # Errors
    ///
    /// When there is no such tier, or no room for another note.
    pub fn assign(&self, key: &K, tier: &str, life: Option<Duration>) -> Result<(), KeyedError> {
        let unknown = || KeyedError::UnknownTier(tier.to_owned());
        self.own(key, life, |_, plan| {
            plan.tiers.get(tier).map(|(_, class)| *class).ok_or_else(unknown)
        })
    }

    fn own(
        &self,
        key: &K,
        life: Option<Duration>,
        choose: impl FnOnce(&Core, &Plan) -> Result<Class, KeyedError>,
    ) -> Result<(), KeyedError> {
        let (core, fingerprint) = (&*self.core, self.fingerprint(key));
        let mut claims = core.claims.lock(fingerprint);
        let plan = lock(&core.plan);
        let changed = choose(core, &plan).and_then(|class| {
            let until = life.map_or(FOREVER, |life| self.now().saturating_add(life));
            // What is booked for those who wait is not spent, so it is not carried over.
            claims.unbook(core);
            core.own_quota(fingerprint, Some(Own { class, until, is_override: true }))
        });
        drop(plan);
        claims.release(core);
        changed
    }

    /// Ends an override or assignment of a key. Tells whether there was one.
    #[allow(clippy::must_use_candidate, reason = "ending it is the point")]
    pub fn clear_override(&self, key: &K) -> bool {
        let (core, now, fingerprint) = (&*self.core, self.now(), self.fingerprint(key));
        let mut claims = core.claims.lock(fingerprint);
        claims.unbook(core);
        let taken = core.notes.change(fingerprint, now, |note| note.own.take());
        drop(claims);
        core.update(self.key(key, now), now, |_| ());
        // Whoever waits is booked anew.
        core.settle_key(fingerprint);
        taken.flatten().is_some_and(|own| own.is_override && own.until > now)
    }

    /// Returns the quota that a key has now.
    #[must_use]
    pub fn quota_of(&self, key: &K) -> Quota {
        let now = self.now();
        let (who, _) = self.core.who(self.key(key, now), now);
        let listed = self.core.tables.base.classes.listed(who.class);
        listed.map_or_else(|| self.quota(), |listed| listed.quota)
    }

    /// Asks the function of the key for its quota, and keeps the answer.
    pub(super) fn assign_by_function(&self, key: &K, fingerprint: u64, now: Tick) {
        let Some(assign) = &self.typed.assign else { return };
        let answer = (assign.choose)(key);
        let core = &*self.core;
        let plan = lock(&core.plan);
        let class = match answer {
            Assigned::Default => Some(core.default_class()),
            Assigned::Tier(name) => plan.tiers.get(&*name).map(|(_, class)| *class),
            Assigned::Quota(quota) => core.class_for(core.made_from(quota), false).ok(),
        };
        if class.is_none() {
            // ORDERING: Relaxed. A count for people to look at.
            core.unusable.fetch_add(1, Relaxed);
        }
        let class = class.unwrap_or_else(|| core.default_class());
        // Not kept at all means kept for this tick.
        let life = assign.life.max(Duration::from_nanos(1));
        let own = Own { class, until: now.saturating_add(life), is_override: false };
        core.set_mode(NOTED, true);
        let noted = core.notes.change(fingerprint, now, |note| match note.own {
            // Somebody has overridden it while the function ran.
            Some(known) if known.is_override && known.until > now => {}
            _ => note.own = Some(own),
        });
        if noted.is_none() {
            // Without room for a note the key has the default quota.
            core.unusable.fetch_add(1, Relaxed);
        }
    }
}
