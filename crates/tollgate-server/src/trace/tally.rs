//! The decisions of a span.

use crate::{engine::Answer, plan::Plan};
use tollgate::Tick;

/// Counts decisions, while it is on.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    is_on: bool,
    pub(super) decisions: u64,
    pub(super) denied: u64,
    /// The first policy that refused; if none did, the tightest of the first decision.
    pub(super) policy: Option<String>,
    is_refused: bool,
}

impl Tally {
    /// Returns one that counts.
    pub(crate) fn on() -> Self {
        Self { is_on: true, ..Self::default() }
    }

    /// Returns one that counts if this one does.
    pub(crate) fn fork(&self) -> Self {
        Self { is_on: self.is_on, ..Self::default() }
    }

    /// Adds what another has counted.
    pub(crate) fn join(&mut self, other: Self) {
        self.decisions += other.decisions;
        self.denied += other.denied;
        if self.policy.is_none() || (other.is_refused && !self.is_refused) {
            (self.policy, self.is_refused) = (other.policy, other.is_refused);
        }
    }

    /// Returns one that has counted one answer.
    pub(crate) fn of(answer: &Answer, plan: &Plan, now: Tick) -> Self {
        let mut tally = Self::on();
        if !answer.statuses().is_empty() {
            tally.note(answer, plan, now);
        }
        tally
    }

    /// Counts a decision without a policy.
    #[inline]
    pub(crate) fn count(&mut self, is_allowed: bool) {
        if cfg!(feature = "otel") && self.is_on {
            self.decisions += 1;
            self.denied += u64::from(!is_allowed);
        }
    }

    /// Counts an answer.
    #[inline]
    pub(crate) fn note(&mut self, answer: &Answer, plan: &Plan, now: Tick) {
        if cfg!(feature = "otel") && self.is_on {
            self.count(answer.is_allowed());
            self.name(answer, plan, now);
        }
    }

    #[cold]
    fn name(&mut self, answer: &Answer, plan: &Plan, now: Tick) {
        let refuses = !answer.is_allowed();
        if self.policy.is_some() && (self.is_refused || !refuses) {
            return;
        }
        let bound = answer.report(plan, now).map(|report| report.policy);
        if let Some(policy) = bound {
            self.policy = Some(policy.to_owned());
            self.is_refused = refuses;
        }
    }
}
