//! Any algorithm with its parameters, whatever the size of its state.

use super::{
    Algorithm, FixedWindow, Gcra, PARAMETERS, Packed, Rule, SlidingCounter, SlidingLog,
    window::Window,
};
use crate::{Quota, QuotaError};
use std::time::Duration;

/// What a state is judged by. It travels with each call: a state itself does not know its quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnyRule {
    /// One word, in the tables of words.
    Word(Rule),
    /// One word, but kept for a declared time, because a fresh key is not full.
    Kept(Rule),
    /// Counts too large for a word.
    Counter(SlidingCounter),
    Log(SlidingLog),
}

/// Marks the rule of a kept word among the kinds. Those of plain words are below.
const KEPT: u64 = 8;
const COUNTER: u64 = 16;
const LOG: u64 = 17;

impl AnyRule {
    /// Returns the rule for a quota, for a clock whose origin is `epoch` after the Unix epoch.
    pub(crate) fn new(
        algorithm: Algorithm,
        quota: &Quota,
        epoch: Duration,
    ) -> Result<Self, QuotaError> {
        let rule = match algorithm {
            _ if quota.is_unlimited() => {
                quota.check()?;
                Rule::Unlimited
            }
            Algorithm::Gcra => Rule::Gcra(Gcra::new(quota)?),
            Algorithm::FixedWindow | Algorithm::AnchoredWindow => {
                Rule::FixedWindow(FixedWindow::new(algorithm, quota, epoch)?)
            }
            Algorithm::SlidingCounter => match SlidingCounter::new(quota, epoch)? {
                counter if counter.packs() => Rule::SlidingCounter(counter),
                counter => return Ok(Self::Counter(counter)),
            },
            Algorithm::SlidingLog => return Ok(Self::Log(SlidingLog::new(quota)?)),
        };
        Ok(if quota.starts_full() { Self::Word(rule) } else { Self::Kept(rule) })
    }

    pub(crate) const fn as_gcra(&self) -> Option<&Gcra> {
        match self {
            Self::Word(rule) | Self::Kept(rule) => rule.as_gcra(),
            _ => None,
        }
    }

    /// Returns GCRA whose places are times, also if its quota comes with the call.
    pub(crate) fn time_rule(&self) -> Option<&Gcra> {
        match self {
            Self::Word(Rule::PerCall(gcra)) => Some(gcra),
            rule => rule.as_gcra().filter(|gcra| !gcra.is_budget()),
        }
    }

    /// Returns the window of a rule that has one.
    #[inline]
    const fn window(&self) -> Option<(Algorithm, &Window)> {
        match self {
            Self::Word(rule) | Self::Kept(rule) => match rule {
                Rule::FixedWindow(step) => Some((step.algorithm(), &step.window)),
                Rule::SlidingCounter(step) => Some((Algorithm::SlidingCounter, &step.window)),
                Rule::Gcra(_) | Rule::PerCall(_) | Rule::Unlimited => None,
            },
            Self::Counter(step) => Some((Algorithm::SlidingCounter, &step.window)),
            Self::Log(step) => Some((Algorithm::SlidingLog, &step.window)),
        }
    }

    /// Tells whether a key at rest differs from a fresh one, which is not full.
    pub(crate) const fn is_kept(&self) -> bool {
        match self {
            Self::Word(_) => false,
            Self::Kept(_) => true,
            Self::Counter(SlidingCounter { window, .. }) | Self::Log(SlidingLog { window }) => {
                !window.starts_empty()
            }
        }
    }

    /// Returns a number that differs between rules that read a state in different ways: it becomes part of
    /// the fingerprint. Rates of GCRA share their states, and so do budgets, and limits of windows of one length.
    #[inline]
    pub(crate) const fn salt(&self) -> u64 {
        // Snapshots hold fingerprints, so an algorithm keeps its number.
        const { assert!(Algorithm::FixedWindow as u64 == 1 && Algorithm::SlidingLog as u64 == 4) };
        const BUDGET: u64 = 5;
        let (kind, length_ns) = match (self.window(), self) {
            (Some((algorithm, window)), _) => (algorithm as u64, window.length_ns),
            (
                None,
                Self::Word(Rule::Gcra(gcra) | Rule::PerCall(gcra)) | Self::Kept(Rule::Gcra(gcra)),
            ) if gcra.is_budget() => (BUDGET, 0),
            _ => return 0,
        };
        (length_ns << 3 | kind).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Returns algorithm and quota, from which [`new`](Self::new) makes the same rule; `None` if that comes with
    /// the calls, or there is no limit.
    pub(crate) fn quota(&self) -> Option<(Algorithm, Quota)> {
        match self.window() {
            Some((algorithm, window)) => Some((algorithm, window.quota())),
            None => self.as_gcra().map(|gcra| (Algorithm::Gcra, gcra.quota())),
        }
    }

    /// Returns a number for the kind, and the parameters.
    pub(crate) fn to_words(self) -> (u64, [u64; PARAMETERS]) {
        match self {
            Self::Word(rule) => rule.to_words(),
            Self::Kept(rule) => {
                let (kind, words) = rule.to_words();
                (kind | KEPT, words)
            }
            Self::Counter(counter) => (COUNTER, counter.to_words()),
            Self::Log(log) => (LOG, log.to_words()),
        }
    }

    /// The inverse of [`to_words`](Self::to_words); `None` for any other kind.
    #[inline]
    pub(crate) fn from_words(kind: u64, words: [u64; PARAMETERS]) -> Option<Self> {
        Some(match kind {
            COUNTER => Self::Counter(SlidingCounter::from_words(words)),
            LOG => Self::Log(SlidingLog::from_words(words)),
            kind if kind & KEPT == 0 => Self::Word(Rule::from_words(kind, words)?),
            kind => Self::Kept(Rule::from_words(kind & !KEPT, words)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Initial;

    #[test]
    fn a_rule_tells_a_quota_that_makes_the_same_rule() {
        let texts = "1/s 10/s 7/min 3/s 27/min 997/s 1/month 1000000000/s 1/year 5/year";
        for text in texts.split(' ') {
            let quota: Quota = text.parse().expect("a quota");
            let some = quota.initial(Initial::Permits(quota.count() / 2));
            for (algorithm, quota) in
                Algorithm::ALL.into_iter().flat_map(|it| [(it, quota), (it, some)])
            {
                let epoch = Duration::from_secs(1_234_567);
                let Ok(rule) = AnyRule::new(algorithm, &quota, epoch) else { continue };
                let (found, again) = rule.quota().expect("it has one");
                assert_eq!(found, algorithm);
                assert_eq!(AnyRule::new(algorithm, &again, epoch), Ok(rule), "{text}: {again}");
            }
        }
        let once = AnyRule::new(Algorithm::Gcra, &Quota::once(7), Duration::ZERO).expect("sound");
        let (_, again) = once.quota().expect("it has one");
        assert_eq!(AnyRule::new(Algorithm::Gcra, &again, Duration::ZERO), Ok(once));
    }
}
