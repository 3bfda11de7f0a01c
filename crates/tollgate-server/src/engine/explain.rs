//! Why a request was decided as it was, for people.

use super::{Answer, Code, Part, Request, Subject, Verb, key_text::KeyText, special::Mode};
use crate::plan::Plan;
use serde_json::{Value, json};
use std::time::Duration;
use tollgate::Tick;

impl Answer {
    /// Returns the explanation of an answer to `request`: the rules that matched and how, the one that bound, what
    /// each had left before and after, and what would pass now.
    #[must_use]
    pub fn explain(&self, plan: &Plan, now: Tick, request: &Request<'_>) -> Value {
        let is_peek = request.verb == Verb::Peek;
        let bound = self.bound_part().map(|part| plan.rule(part.rule).label());
        let asks = request.asks.iter().enumerate().map(|(index, ask)| {
            let matched = match ask.subject {
                Subject::Entries(entries) => match plan.domain(request.domain) {
                    Some(domain) => domain.explain(entries),
                    None => vec![format!("there is no domain \"{}\"", request.domain)],
                },
                Subject::Named { policy, .. } => vec![format!("the name \"{policy}\"")],
            };
            json!({
                "index": index,
                "matched": matched,
                "would_pass": self.would_pass(plan, now, (index, is_peek)),
            })
        });
        let rules = self.parts.iter().map(|part| {
            let mut explained = self.explain_part(plan, now, part);
            explained["before"] = json!(self.before(part, is_peek));
            explained
        });
        json!({
            "bound": bound,
            "asks": asks.collect::<Vec<_>>(),
            "rules": rules.collect::<Vec<_>>(),
        })
    }

    fn explain_part(&self, plan: &Plan, now: Tick, part: &Part) -> Value {
        let (rule, report) = (plan.rule(part.rule), self.report_of(plan, part, now));
        let is_bound = self.bound_part().is_some_and(|bound| std::ptr::eq(bound, part));
        json!({
            "index": part.ask,
            "policy": rule.label(),
            "id": rule.id(),
            "key": KeyText::of(rule, self.key(part)).to_string(),
            "mode": part.mode.name(),
            "is_parent": part.is_parent,
            "is_override": part.is_override,
            "is_bound": is_bound,
            "allowed": !part.code.is_refused(),
            "reason": part.reason(self.allowed),
            "cost": part.cost,
            "charged": part.charged,
            "limit": report.map(|report| report.limit),
            "after": report.map(|report| report.remaining),
            "retry_after_ms": report.and_then(|report| report.retry_after).and_then(millis),
            "reset_after_ms": report.and_then(|report| millis(report.reset_after)),
        })
    }

    /// Returns the permits before the decision: those that remain after it, plus those that the
    /// request took of them, or would have taken.
    fn before(&self, part: &Part, is_peek: bool) -> Option<u64> {
        let same = |other: &&Part| other.rule == part.rule && self.key(other) == self.key(part);
        let decision = part.decision?;
        let taken = self.parts.iter().filter(same).map(|other| match is_peek {
            true if decision.is_allowed() => other.cost,
            true => 0,
            false => other.charged,
        });
        let left = decision.remaining();
        Some(part.before.unwrap_or_else(|| taken.fold(left, u64::saturating_add)))
    }

    /// Returns the largest cost of one ask that would pass now if it came alone (null if nothing
    /// limits it), and when the requested cost would pass.
    fn would_pass(&self, plan: &Plan, now: Tick, (ask, is_peek): (usize, bool)) -> Value {
        let (mut cost, mut quotas, mut wait) = (None::<u64>, None::<u64>, None);
        for part in self.parts.iter().filter(|part| part.ask == ask && part.mode != Mode::Shadow) {
            let Some(report) = self.report_of(plan, part, now) else { continue };
            let refuses = matches!(part.code, Code::Blocked | Code::FailedClosed | Code::Full);
            let left = match self.before(part, is_peek) {
                _ if refuses => 0,
                // A look has taken nothing.
                Some(before) if is_peek => before,
                _ => report.remaining,
            };
            match part.mode {
                // One of them is enough.
                Mode::Quota => quotas = Some(quotas.map_or(left, |most| most.max(left))),
                _ => cost = Some(cost.map_or(left, |least| least.min(left))),
            }
            if part.code.is_refused() {
                wait = wait.max(report.retry_after);
            }
        }
        let cost = cost.into_iter().chain(quotas).min();
        json!({ "cost": cost, "retry_after_ms": wait.and_then(millis) })
    }
}

/// Returns milliseconds, rounded up; `None` for never.
fn millis(time: Duration) -> Option<u64> {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).ok().filter(|_| time != Duration::MAX)
}
