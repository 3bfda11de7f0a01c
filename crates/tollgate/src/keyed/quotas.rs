//! Which quota a key has.

use super::{
    KeyedError, KeyedLimiter,
    core::{Core, OVERRIDDEN},
    overrides::OwnQuota,
    rule_cell::RuleCell,
};
use crate::{
    Algorithm, Quota, Tick,
    algorithm::AnyRule,
    sync::{Arc, Ordering::Relaxed},
};
use std::{borrow::Cow, hash::Hash, time::Duration};

/// Which quota a key gets, as [`KeyedBuilder::quota_by`](super::KeyedBuilder::quota_by) answers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Assigned {
    /// The limiter's quota.
    Default,
    /// A tier that was given to the builder.
    Tier(Cow<'static, str>),
    /// A quota of its own.
    Quota(Quota),
}

/// How the quota of a key is chosen.
pub(super) struct Assign<K: ?Sized> {
    pub(super) life: Duration,
    pub(super) choose: Box<dyn Fn(&K) -> Assigned + Send + Sync>,
}

/// Checks what holds for the quota of every key.
pub(super) fn check(quota: &Quota, max_idle: Option<Duration>) -> Result<(), KeyedError> {
    quota.check()?;
    if max_idle.is_some() || quota.starts_full() {
        return Ok(());
    }
    Err(KeyedError::InitialNotFull(quota.initial_fill()))
}

impl Core {
    /// Returns the rule of a quota for keys by this algorithm.
    pub(super) fn rule(&self, algorithm: Algorithm, quota: &Quota) -> Result<AnyRule, KeyedError> {
        check(quota, self.tables.boxed.max_idle())?;
        Ok(AnyRule::new(algorithm, quota, self.epoch)?)
    }

    /// Returns a quota that a key has for itself.
    fn own_rule(&self, quota: Quota) -> Result<Arc<RuleCell>, KeyedError> {
        let rule = self.rule(self.algorithm, &quota)?;
        Ok(Arc::new(RuleCell::new(quota, rule, Tick::ZERO)))
    }

    /// Puts another quota in force as of `now`. Waiting callers are booked again.
    fn change_quota(
        &self,
        cell: &Arc<RuleCell>,
        quota: Quota,
        now: Tick,
    ) -> Result<(), KeyedError> {
        let rule = self.rule(self.algorithm, &quota)?;
        let mut claims = self.claims.lock_all();
        claims.unbook(self, Some(cell));
        cell.store(quota, rule, now);
        self.count_change();
        claims.release(self);
        Ok(())
    }

    /// Returns the quota of keys that have none of their own, and the algorithm of all.
    pub(crate) fn default_quota(&self) -> (Quota, Algorithm) {
        (self.default.quota(), self.algorithm)
    }

    /// Puts another quota in force for the keys that have none of their own.
    pub(crate) fn set_default_quota(&self, quota: Quota) -> Result<(), KeyedError> {
        self.change_quota(&self.default, quota, self.clock.now())
    }

    /// Returns where the quota is kept that a key has now.
    pub(crate) fn cell_of(&self, fingerprint: u64, now: Tick) -> Arc<RuleCell> {
        let own = self.overrides.look(fingerprint, now).0.filter(|own| own.is_in_force(now));
        own.map_or_else(|| Arc::clone(&self.default), |own| own.rule)
    }

    pub(crate) fn changes(&self) -> u64 {
        // ORDERING: Relaxed, as in `count_change`.
        self.changes.load(Relaxed)
    }

    fn count_change(&self) {
        // ORDERING: Relaxed. Seen late, a lease ends a moment later.
        self.changes.fetch_add(1, Relaxed);
    }

    fn tier(&self, tier: &str) -> Result<&Arc<RuleCell>, KeyedError> {
        self.tiers.get(tier).ok_or_else(|| KeyedError::UnknownTier(tier.to_owned()))
    }
}

impl<K: Hash + ?Sized> KeyedLimiter<K> {
    /// Changes the quota of every key that has none of its own. No key is touched: what each has used stays
    /// as it is, by the rule of its algorithm ([docs/keys.md] has a picture).
    ///
    /// | algorithm | what stays |
    /// |---|---|
    /// | GCRA | when the bucket is full again, cut to what the new quota takes to refill if that is at least a quarter less |
    /// | windows of the same length | what was counted |
    /// | windows of another length | nothing: every key starts anew |
    /// | states that do not fit a word, or fit one again | nothing |
    ///
    /// # Errors
    ///
    /// When the new quota makes no sense for keys; the old one then stays in force.
    ///
    /// [docs/keys.md]: https://github.com/tollgate-rs/tollgate/blob/main/docs/keys.md
    pub fn set_quota(&self, quota: Quota) -> Result<(), KeyedError> {
        self.set_quota_at(self.now(), quota)
    }

    /// [`set_quota`](Self::set_quota) as of `now`.
    ///
    /// # Errors
    ///
    /// As [`set_quota`](Self::set_quota).
    pub fn set_quota_at(&self, now: Tick, quota: Quota) -> Result<(), KeyedError> {
        self.core.change_quota(&self.core.default, quota, now)
    }

    /// Changes the quota of a tier, as [`set_quota`](Self::set_quota) does.
    ///
    /// # Errors
    ///
    /// When there is no such tier, or the quota makes no sense for keys.
    pub fn set_tier(&self, tier: &str, quota: Quota) -> Result<(), KeyedError> {
        self.core.change_quota(self.core.tier(tier)?, quota, self.now())
    }

    /// Returns the quota of a tier.
    #[must_use]
    pub fn tier(&self, tier: &str) -> Option<Quota> {
        self.core.tiers.get(tier).map(|tier| tier.quota())
    }

    /// Gives a key a quota of its own, for `life` or for good: a contract, or a temporary raise.
    /// What it has used stays as it is, as for [`set_quota`](Self::set_quota).
    ///
    /// # Errors
    ///
    /// When the quota makes no sense for keys, or as many keys have overrides as may.
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
        self.own(key, life, self.core.own_rule(quota)?)
    }

    /// Puts a key into a tier, for `life` or for good.
    ///
    /// # Errors
    ///
    /// When there is no such tier, or as many keys have overrides as may.
    pub fn assign(&self, key: &K, tier: &str, life: Option<Duration>) -> Result<(), KeyedError> {
        self.own(key, life, Arc::clone(self.core.tier(tier)?))
    }

    fn own(&self, key: &K, life: Option<Duration>, rule: Arc<RuleCell>) -> Result<(), KeyedError> {
        let (core, fingerprint, now) = (&*self.core, self.fingerprint(key), self.now());
        let mut claims = core.claims.lock(fingerprint);
        let until = life.map_or(Tick::MAX, |life| now.saturating_add(life));
        // The bookings of waiting callers are made again.
        claims.unbook(core);
        core.mode.set(OVERRIDDEN, true);
        core.count_change();
        // The note outlasts it, to say since when the key has the limiter's quota again.
        let record_until = until.saturating_add(rule.refill());
        let own = OwnQuota { rule, since: now, until, is_override: true };
        let changed = core.overrides.change(fingerprint, now, |note| {
            note.give(own, now);
            note.record_until = note.record_until.max(record_until);
        });
        claims.release(core);
        changed
    }

    /// Ends an override or assignment of a key. Tells whether there was one.
    #[allow(clippy::must_use_candidate, reason = "ending it is the point")]
    pub fn clear_override(&self, key: &K) -> bool {
        let (core, now, fingerprint) = (&*self.core, self.now(), self.fingerprint(key));
        let mut claims = core.claims.lock(fingerprint);
        claims.unbook(core);
        let ended = core.overrides.change(fingerprint, now, |note| {
            let own = note.own.as_mut().filter(|own| own.is_override && own.until > now);
            own.map(|own| own.until = now).is_some()
        });
        core.count_change();
        drop(claims);
        self.choose(key, fingerprint, now);
        // Waiting callers are booked again.
        core.settle_key(fingerprint);
        ended.is_ok_and(|ended| ended)
    }

    /// Returns the quota that a key has now.
    #[must_use]
    pub fn quota_of(&self, key: &K) -> Quota {
        let now = self.now();
        self.core.cell_of(self.key(key, now).fingerprint, now).quota()
    }

    /// Asks the function of the key for its quota, and keeps the answer.
    pub(super) fn assign_by_function(&self, key: &K, fingerprint: u64, now: Tick) {
        let Some(assign) = &self.typed.assign else { return };
        let answer = (assign.choose)(key);
        let core = &*self.core;
        let rule = match answer {
            Assigned::Default => None,
            Assigned::Tier(name) => Some(core.tier(&name).cloned()),
            Assigned::Quota(quota) => Some(core.own_rule(quota)),
        };
        if rule.as_ref().is_some_and(Result::is_err) {
            // ORDERING: Relaxed. A count for people to look at.
            core.unusable.fetch_add(1, Relaxed);
        }
        let rule = rule.and_then(Result::ok).unwrap_or_else(|| Arc::clone(&core.default));
        // Not kept at all means kept for this tick.
        let until = now.saturating_add(assign.life.max(Duration::from_nanos(1)));
        let own = OwnQuota { rule, since: now, until, is_override: false };
        core.mode.set(OVERRIDDEN, true);
        let noted = core.overrides.change(fingerprint, now, |note| match &note.own {
            // Somebody has overridden it while the function ran.
            Some(known) if known.is_override && known.until > now => {}
            _ => note.give(own, now),
        });
        if noted.is_err() {
            // Without room for a note the key has the default quota.
            core.unusable.fetch_add(1, Relaxed);
        }
    }
}
