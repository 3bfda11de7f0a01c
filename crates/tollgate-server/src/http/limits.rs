//! Reports decisions to clients: headers and JSON.
//!
//! Every decision has `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`, which many
//! clients read, and `RateLimit` with `RateLimit-Policy` as in revision 08 to 11 of the IETF draft
//! draft-ietf-httpapi-ratelimit-headers. All of them report the limit that binds;
//! `RateLimit-Policy` lists the others, too. Times are rounded up.

use super::reply::{JSON, PROBLEM, Reply};
use crate::{
    engine::{Answer, LimitReport},
    plan::Plan,
    server::Shared,
};
use std::time::Duration;
use tollgate::Tick;
use tollgate_tower::answer::{
    Legacy, Refusal,
    raw::{
        self, Allowance, POLICIES_MAX, push_left, push_number, push_problem, push_text,
        retry_seconds, seconds,
    },
};

/// A decision, and the plan and time that it was made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told<'a> {
    pub(super) plan: &'a Plan,
    pub(super) now: Tick,
    pub(super) answer: &'a Answer,
}

impl<'a> Told<'a> {
    fn report(&self) -> Option<LimitReport<'a>> {
        self.answer.report(self.plan, self.now)
    }

    /// Writes the headers.
    pub(super) fn headers(&self, shared: &Shared, reply: &mut Reply) {
        reply.header_text("Cache-Control", "no-store");
        if self.answer.is_degraded() {
            reply.header_text("Tollgate-Degraded", "true");
        }
        let Some(report) = self.report() else { return };
        let (reset, wait) = (seconds(report.reset_after), report.retry_after.map(retry_seconds));
        reply.header("RateLimit-Limit", |out| push_number(out, report.limit));
        reply.header("RateLimit-Remaining", |out| push_number(out, report.remaining));
        if let Some(reset) = reset {
            reply.header("RateLimit-Reset", |out| push_number(out, reset));
        }
        self.legacy(&report, shared, reply);
        reply.header("RateLimit-Policy", |out| self.policies(out, &report));
        reply.header("RateLimit", |out| {
            push_left(out, report.policy, report.remaining, wait.or(reset));
        });
        if let Some(wait) = wait {
            reply.header("Retry-After", |out| push_number(out, wait));
        }
    }

    /// Writes the `X-RateLimit-*` headers, if the settings enable them.
    fn legacy(&self, report: &LimitReport<'_>, shared: &Shared, reply: &mut Reply) {
        let reset = match shared.settings.x_ratelimit_headers {
            Legacy::Off => return,
            Legacy::Epoch => {
                let wall = shared.engine.clock().to_wall(self.now);
                wall.checked_add(report.reset_after).and_then(seconds)
            }
            _ => seconds(report.reset_after),
        };
        reply.header("X-RateLimit-Limit", |out| push_number(out, report.limit));
        reply.header("X-RateLimit-Remaining", |out| push_number(out, report.remaining));
        if let Some(reset) = reset {
            reply.header("X-RateLimit-Reset", |out| push_number(out, reset));
        }
    }

    /// Appends the policies, the binding one first, each once.
    fn policies(&self, out: &mut Vec<u8>, first: &LimitReport<'_>) {
        push_policy(out, first);
        let parts = self.answer.parts();
        if parts.len() == 1 {
            return;
        }
        let mut seen = vec![first.policy];
        for part in parts {
            let report = self.answer.report_of(self.plan, part, self.now);
            let Some(report) = report.filter(|report| !seen.contains(&report.policy)) else {
                continue;
            };
            if seen.len() == POLICIES_MAX {
                break;
            }
            seen.push(report.policy);
            out.extend_from_slice(b", ");
            push_policy(out, &report);
        }
    }

    /// Writes the body of `check`, `peek` and `reserve`, without its end: more fields can follow.
    pub(super) fn open_body(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"allowed\":");
        push_bool(out, self.answer.is_allowed());
        if self.answer.is_degraded() {
            out.extend_from_slice(b",\"degraded\":true");
        }
        if let Some(bound) = self.answer.bound() {
            out.extend_from_slice(b",\"detail\":");
            push_text(out, bound);
        }
        push_report(out, self.report());
        out.extend_from_slice(b",\"limits\":[");
        for (index, part) in self.answer.parts().iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(b"{\"index\":");
            push_number(out, part.ask as u64);
            out.extend_from_slice(b",\"allowed\":");
            push_bool(out, !part.code.is_refused());
            match self.answer.report_of(self.plan, part, self.now) {
                Some(report) => push_report(out, Some(report)),
                // Not limited: there is only a name to report.
                None => {
                    out.extend_from_slice(b",\"policy\":");
                    push_text(out, self.plan.rule(part.rule).label());
                    out.extend_from_slice(NO_FIGURES);
                }
            }
            out.extend_from_slice(b",\"reason\":\"");
            out.extend_from_slice(part.reason(self.answer.is_allowed()).as_bytes());
            out.extend_from_slice(b"\"}");
        }
        out.push(b']');
    }

    /// Writes the body of a refusal that a proxy passes on to its client.
    pub(super) fn refusal(&self, reply: &mut Reply) {
        reply.content_type = PROBLEM;
        let refused = self.answer.parts().iter().filter(|part| part.code.is_refused());
        let names = refused.map(|part| self.plan.rule(part.rule).label());
        push_problem(&mut reply.body, Refusal::QuotaExceeded, None, names);
    }
}

const NO_FIGURES: &[u8] =
    b",\"limit\":null,\"remaining\":null,\"retry_after_ms\":null,\"reset_after_ms\":null";

pub(super) fn push_bool(out: &mut Vec<u8>, value: bool) {
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

fn push_report(out: &mut Vec<u8>, report: Option<LimitReport<'_>>) {
    out.extend_from_slice(b",\"policy\":");
    let Some(report) = report else {
        out.extend_from_slice(b"null");
        out.extend_from_slice(NO_FIGURES);
        return;
    };
    push_text(out, report.policy);
    out.extend_from_slice(b",\"limit\":");
    push_number(out, report.limit);
    out.extend_from_slice(b",\"remaining\":");
    push_number(out, report.remaining);
    out.extend_from_slice(b",\"retry_after_ms\":");
    push_millis(out, report.retry_after);
    out.extend_from_slice(b",\"reset_after_ms\":");
    push_millis(out, Some(report.reset_after));
}

fn push_optional(out: &mut Vec<u8>, number: Option<u64>) {
    match number {
        Some(number) => push_number(out, number),
        None => out.extend_from_slice(b"null"),
    }
}

/// Appends milliseconds, rounded up; `null` for never.
pub(super) fn push_millis(out: &mut Vec<u8>, time: Option<Duration>) {
    push_optional(out, time.and_then(raw::millis));
}

fn push_policy(out: &mut Vec<u8>, report: &LimitReport<'_>) {
    let LimitReport { policy, count, per, limit: capacity, .. } = *report;
    raw::push_policy(out, policy, &Allowance { count, per, capacity });
}

/// Appends the list of policies.
pub(super) fn list(plan: &Plan, reply: &mut Reply) {
    reply.content_type = JSON;
    let out = &mut reply.body;
    out.extend_from_slice(b"{\"policies\":[");
    for (index, rule) in plan.rules_in_use().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        for (field, text) in [
            ("{\"policy\":", rule.label()),
            (",\"id\":", rule.id()),
            (",\"domain\":", rule.domain()),
        ] {
            out.extend_from_slice(field.as_bytes());
            push_text(out, text);
        }
        out.extend_from_slice(b",\"keys\":[");
        for (index, key) in rule.free_keys().iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            push_text(out, key);
        }
        out.extend_from_slice(b"],\"limit\":");
        push_optional(out, rule.limit_now());
        out.extend_from_slice(b",\"count\":");
        push_optional(out, rule.kind().count());
        out.extend_from_slice(b",\"per_ms\":");
        push_millis(out, rule.kind().per());
        out.extend_from_slice(b",\"algorithm\":");
        match rule.kind().policy() {
            Some(policy) => push_text(out, policy.algorithm().name()),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"lease_ms\":");
        push_millis(out, rule.kind().slots().map(|slots| slots.lease));
        out.extend_from_slice(b",\"shadow\":");
        push_bool(out, rule.is_shadow());
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_are_rounded_up() {
        for (time, expected) in [
            (Some(Duration::ZERO), "0"),
            (Some(Duration::from_nanos(1_000_001)), "2"),
            (Some(Duration::MAX), "null"),
            (None, "null"),
        ] {
            let mut out = Vec::new();
            push_millis(&mut out, time);
            assert_eq!(out, expected.as_bytes(), "{time:?}");
        }
    }
}
