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
            if let Some(([kind, words @ .., since], ())) = self.words.read(|| ())
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
    #[allow(clippy::inline_always, reason = "measured: the fewer instructions, the less waiting")]
    pub(crate) fn gcra(&self) -> Option<Gcra> {
        let ([kind, words @ .., _], ()) = self.words.read(|| ())?;
        (kind == Rule::GCRA).then(|| Gcra::from_words(words))
    }

    pub(crate) fn store(&self, quota: Quota, rule: AnyRule, since: Tick) {
        let mut known = lock(&self.quota);
        self.words.write(Self::to_words(rule, since));
        *known = quota;
    }
}
