//! The quota of many keys: a limiter's, a tier's, or one that a key has for itself.

use crate::{
    Quota, Tick,
    algorithm::{AnyRule, Gcra, PARAMETERS, Packed, Rule, word_time},
    limiter::backoff::Backoff,
    sync::{Mutex, lock, versioned::Versioned},
};
use std::time::Duration;

/// A quota with its rule, read without a lock. When it changes, no key is touched.
#[derive(Debug)]
pub(crate) struct RuleCell {
    /// Kind and parameters of the rule, and since when it is in force.
    words: Versioned<{ PARAMETERS + 2 }>,
    /// Locked while it changes.
    quota: Mutex<Quota>,
}

impl RuleCell {
    pub(crate) fn new(quota: Quota, rule: AnyRule, since: Tick) -> Self {
        Self { words: Versioned::new(Self::to_words(rule, since)), quota: Mutex::new(quota) }
    }

    fn to_words(rule: AnyRule, since: Tick) -> [u64; PARAMETERS + 2] {
        let (kind, [a, b, c, d, e, f, g, h]) = rule.to_words();
        [kind, a, b, c, d, e, f, g, h, since.as_nanos()]
    }

    pub(crate) fn quota(&self) -> Quota {
        *lock(&self.quota)
    }

    /// Returns the rule, and since when it is in force.
    pub(crate) fn load(&self) -> (AnyRule, Tick) {
        let mut backoff = Backoff::new();
        loop {
            if let Some(([kind, words @ .., since], ())) =
                self.words.read::<_, { PARAMETERS + 2 }>(|| ())
                && let Some(rule) = AnyRule::from_words(kind, words)
            {
                return (rule, Tick::from_nanos(since));
            }
            backoff.wait();
        }
    }

    /// Returns how long a state may outlast the quota.
    pub(crate) fn refill(&self) -> Duration {
        let time = self.load().0.time_rule().and_then(Gcra::refill).unwrap_or(0);
        Duration::from_nanos(time.div_ceil(word_time::PER_NANO))
    }

    /// Returns the rule if it is GCRA, and does not change right now.
    #[inline(always)]
    pub(crate) fn gcra(&self) -> Option<Gcra> {
        let ([kind, words @ ..], ()) = self.words.read::<_, { PARAMETERS + 1 }>(|| ())?;
        (kind == Rule::GCRA).then(|| Gcra::from_words(words))
    }

    /// [`gcra`](Self::gcra) if a permit lasts a whole time, without the parts that only bursts at the start need.
    #[inline(always)]
    pub(crate) fn whole_gcra(&self) -> Option<Gcra> {
        let ([kind, a, b, c, d], ()) = self.words.read(|| ())?;
        if kind == Rule::GCRA { Gcra::whole_from_words([a, b, c, d]) } else { None }
    }

    /// Puts a quota in force as of `now`.
    pub(crate) fn store(&self, quota: Quota, rule: AnyRule, now: Tick) {
        let mut known = lock(&self.quota);
        let since = since(&rule, now, self.load());
        self.words.write(Self::to_words(rule, since));
        *known = quota;
    }
}

/// Returns since when a rule counts as in force that replaces another one at `now`: since the one before does, if
/// that takes as long to refill. What a longer quota has left counts from then on, and not anew with each change of
/// the rate.
pub(super) fn since(rule: &AnyRule, now: Tick, (before, since_before): (AnyRule, Tick)) -> Tick {
    let hint = |rule: &AnyRule| rule.time_rule().map(Gcra::hint);
    let is_as_long = hint(rule).is_some() && hint(rule) == hint(&before);
    if is_as_long { since_before } else { now }
}
