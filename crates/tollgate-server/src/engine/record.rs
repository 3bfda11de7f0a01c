//! Records decisions: counts, heavy keys, bans, thresholds.

use super::{Answer, Code, Engine, Part, key_text::KeyText};
use crate::plan::{Counted, Plan, Rule};
use tollgate::{Decision, Outcome, Reason, Tick, store::StoreError};

impl Engine {
    /// Counts the decisions, and remembers the denied keys.
    pub(super) fn record(&self, plan: &Plan, now: Tick, answer: &Answer) {
        if answer.is_degraded() {
            self.health.degraded();
        }
        for part in answer.parts.iter().filter(|part| !part.gives) {
            let (rule, key) = (plan.rule(part.rule), answer.key(part));
            let kind = counted(part, answer.allowed);
            rule.live().charged(part.charged);
            if kind == Counted::Saturated {
                let text = "the table of keys is full, so a new key was denied; raise max_keys";
                self.health.failed(part.store, &StoreError::full(text), now);
            }
            if count(rule, key, (kind, part.cost)) {
                self.denials.note(plan, rule, key, part);
            }
            if !rule.warn().is_empty() {
                self.warn(plan, now, answer, part);
            }
            // A used-up share of this process is no misuse: it does not lead to a ban.
            if kind == Counted::Denied && !part.is_override {
                rule.live().strike(key, now);
            }
        }
    }

    /// Counts a decision by a quota that came with the call, for a key without a rule.
    pub(super) fn record_throttle(&self, plan: &Plan, key: &[u8], cost: u64, decision: &Decision) {
        let kind = match (decision.is_allowed(), decision.is_degraded()) {
            (true, true) => Counted::AllowedHere,
            (true, false) => Counted::Allowed,
            (false, true) => Counted::DeniedHere,
            (false, false) if decision.reason() == Reason::Saturated => Counted::Saturated,
            (false, false) => Counted::Denied,
        };
        let rule = plan.throttle_rule();
        if kind == Counted::Allowed {
            rule.live().charged(cost);
        }
        count(rule, key, (kind, cost));
    }
}

/// Counts a decision about a key. Tells whether the rule refused it.
fn count(rule: &Rule, key: &[u8], (kind, cost): (Counted, u64)) -> bool {
    let is_denied = matches!(
        kind,
        Counted::Denied
            | Counted::DeniedHere
            | Counted::Blocked
            | Counted::Saturated
            | Counted::Full
    );
    rule.live().count(kind, cost);
    if let Some(top) = rule.top_keys() {
        let outcome = if is_denied { Outcome::Later } else { Outcome::Allowed };
        top.record(&KeyText::of(rule, key), top.fingerprint(key), outcome, cost);
    }
    is_denied
}

/// Returns the kind that a part counts as.
fn counted(part: &Part, allowed: bool) -> Counted {
    let is_saturated = part.decision.is_some_and(|decision| decision.reason() == Reason::Saturated);
    match part.code {
        Code::Denied if is_saturated => Counted::Saturated,
        Code::Denied if part.is_degraded() => Counted::DeniedHere,
        Code::Denied => Counted::Denied,
        Code::QuotaSpent if allowed => Counted::QuotaSpent,
        Code::QuotaSpent => Counted::Denied,
        Code::Shadowed => Counted::Shadowed,
        Code::Blocked => Counted::Blocked,
        Code::Bypassed => Counted::Bypassed,
        Code::Unlimited => Counted::Unlimited,
        Code::FailedOpen => Counted::FailedOpen,
        Code::FailedClosed => Counted::FailedClosed,
        Code::Full => Counted::Full,
        Code::Allowed if !allowed => Counted::RefusedElsewhere,
        Code::Allowed if part.is_degraded() => Counted::AllowedHere,
        Code::Allowed => Counted::Allowed,
    }
}

impl Part {
    /// Returns why the limit decided as it did, in the words of the metrics; and, more exactly than
    /// these, `cost-above-burst` and `closed`. `allowed` is the answer to the whole request.
    #[must_use]
    pub fn reason(&self, allowed: bool) -> &'static str {
        match (self.code, &self.decision) {
            (Code::Denied, None) if self.limit.is_some() => "closed",
            (Code::Denied, Some(decision))
                if decision.is_never() && counted(self, allowed) == Counted::Denied =>
            {
                "cost-above-burst"
            }
            _ => counted(self, allowed).labels().1,
        }
    }
}
