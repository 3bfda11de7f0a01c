//! What clients are told of a decision: headers and JSON.
//!
//! Every decision has `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`, which many
//! clients read, and `RateLimit` with `RateLimit-Policy` as in revision 08 to 11 of the IETF draft
//! draft-ietf-httpapi-ratelimit-headers. All tell of the limit that binds; `RateLimit-Policy` lists
//! the others, too. Times are rounded up.

use super::{
    json::{push_number, push_text},
    reply::{JSON, PROBLEM, Reply},
};
use crate::{
    engine::{Answer, Code, Part, Summary},
    plan::Plan,
};
use std::time::Duration;
use tollgate::{Reason, Tick};

/// The most policies in a header.
const MOST_POLICIES: usize = 16;
/// The largest number of a structured field.
const MOST_IN_FIELD: u64 = 999_999_999_999_999;

/// A decision, and what it was made by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told<'a> {
    pub(super) plan: &'a Plan,
    pub(super) now: Tick,
    pub(super) answer: &'a Answer,
}

impl<'a> Told<'a> {
    fn summary(&self) -> Option<Summary<'a>> {
        self.answer.summary(self.plan, self.now)
    }

    /// Writes the headers.
    pub(super) fn headers(&self, reply: &mut Reply) {
        reply.header_text("Cache-Control", "no-store");
        if self.answer.is_degraded() {
            reply.header_text("Tollgate-Degraded", "true");
        }
        let Some(summary) = self.summary() else { return };
        let reset = seconds(summary.reset_after);
        let wait = if self.answer.is_allowed() { None } else { summary.retry_after };
        // A refusal asks for a second at least, or a client would come back at once.
        let wait = wait.map(|wait| seconds(wait).unwrap_or(MOST_IN_FIELD).max(1));
        reply.header("RateLimit-Limit", |out| push_number(out, summary.capacity));
        reply.header("RateLimit-Remaining", |out| push_number(out, summary.remaining));
        if let Some(reset) = reset {
            reply.header("RateLimit-Reset", |out| push_number(out, reset));
        }
        reply.header("RateLimit-Policy", |out| self.policies(out, &summary));
        reply.header("RateLimit", |out| {
            push_name(out, summary.policy);
            out.extend_from_slice(b";r=");
            push_number(out, summary.remaining.min(MOST_IN_FIELD));
            if let Some(time) = wait.or(reset) {
                out.extend_from_slice(b";t=");
                push_number(out, time);
            }
        });
        if let Some(wait) = wait {
            reply.header("Retry-After", |out| push_number(out, wait));
        }
    }

    /// Appends the policies, that which binds first, each once.
    fn policies(&self, out: &mut Vec<u8>, first: &Summary<'_>) {
        push_policy(out, first);
        let parts = self.answer.parts();
        if parts.len() == 1 {
            return;
        }
        let mut seen = vec![first.policy];
        for part in parts {
            let summary = self.answer.summary_of(self.plan, part, self.now);
            let Some(summary) = summary.filter(|summary| !seen.contains(&summary.policy)) else {
                continue;
            };
            if seen.len() == MOST_POLICIES {
                break;
            }
            seen.push(summary.policy);
            out.extend_from_slice(b", ");
            push_policy(out, &summary);
        }
    }

    /// Writes the body of `check`, `peek` and `reserve`, without its end: fields can follow.
    pub(super) fn open_body(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"allowed\":");
        push_bool(out, self.answer.is_allowed());
        if self.answer.is_degraded() {
            out.extend_from_slice(b",\"degraded\":true");
        }
        push_summary(out, self.summary());
        out.extend_from_slice(b",\"limits\":[");
        for (index, part) in self.answer.parts().iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(b"{\"index\":");
            push_number(out, part.ask as u64);
            out.extend_from_slice(b",\"allowed\":");
            push_bool(out, !part.code.is_refused());
            let summary = self.answer.summary_of(self.plan, part, self.now);
            match (summary, part.rule) {
                (Some(summary), _) => push_summary(out, Some(summary)),
                // Not limited: there is only a name to tell.
                (None, Some(rule)) => {
                    out.extend_from_slice(b",\"policy\":");
                    push_text(out, self.plan.rule(rule).label());
                    out.extend_from_slice(NO_FIGURES);
                }
                (None, None) => push_summary(out, None),
            }
            out.extend_from_slice(b",\"reason\":\"");
            out.extend_from_slice(reason(part).as_bytes());
            out.extend_from_slice(b"\"}");
        }
        out.push(b']');
    }

    /// Writes the body of a refusal that the client of a proxy sees.
    pub(super) fn refusal(&self, reply: &mut Reply) {
        reply.content_type = PROBLEM;
        let out = &mut reply.body;
        out.extend_from_slice(
            b"{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
              \"title\":\"Quota Exceeded\",\"status\":429,\"violated-policies\":[",
        );
        let mut seen: Vec<&str> = Vec::new();
        for part in self.answer.parts().iter().filter(|part| part.code.is_refused()) {
            let Some(rule) = part.rule else { continue };
            let name = self.plan.rule(rule).label();
            if seen.len() < MOST_POLICIES && !seen.contains(&name) {
                if !seen.is_empty() {
                    out.push(b',');
                }
                push_text(out, name);
                seen.push(name);
            }
        }
        out.extend_from_slice(b"]}");
    }
}

const NO_FIGURES: &[u8] =
    b",\"limit\":null,\"remaining\":null,\"retry_after_ms\":null,\"reset_after_ms\":null";

fn push_bool(out: &mut Vec<u8>, value: bool) {
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

fn push_summary(out: &mut Vec<u8>, summary: Option<Summary<'_>>) {
    out.extend_from_slice(b",\"policy\":");
    let Some(summary) = summary else {
        out.extend_from_slice(b"null");
        out.extend_from_slice(NO_FIGURES);
        return;
    };
    push_text(out, summary.policy);
    out.extend_from_slice(b",\"limit\":");
    push_number(out, summary.capacity);
    out.extend_from_slice(b",\"remaining\":");
    push_number(out, summary.remaining);
    out.extend_from_slice(b",\"retry_after_ms\":");
    push_millis(out, summary.retry_after);
    out.extend_from_slice(b",\"reset_after_ms\":");
    push_millis(out, Some(summary.reset_after));
}

/// Appends milliseconds, rounded up; `null` for never.
fn push_millis(out: &mut Vec<u8>, time: Option<Duration>) {
    let millis = time.and_then(|time| u64::try_from(time.as_nanos().div_ceil(1_000_000)).ok());
    match millis {
        Some(millis) => push_number(out, millis),
        None => out.extend_from_slice(b"null"),
    }
}

/// Returns seconds, rounded up; `None` for times that no client will see.
fn seconds(time: Duration) -> Option<u64> {
    let whole = time.as_secs();
    let up = whole.checked_add(u64::from(time.subsec_nanos() > 0))?;
    (up <= MOST_IN_FIELD).then_some(up)
}

/// Returns the time in which the whole capacity comes back: 20 in 2 s, for 10/s with a burst of 20.
fn window(summary: &Summary<'_>) -> Option<Duration> {
    if summary.capacity == summary.limit {
        return Some(summary.per);
    }
    let ns = summary.per.as_nanos().checked_mul(u128::from(summary.capacity))?;
    let ns = ns.checked_div(u128::from(summary.limit))?;
    Some(Duration::from_nanos(u64::try_from(ns).ok()?))
}

fn push_policy(out: &mut Vec<u8>, summary: &Summary<'_>) {
    push_name(out, summary.policy);
    out.extend_from_slice(b";q=");
    push_number(out, summary.capacity.min(MOST_IN_FIELD));
    // The draft has whole seconds only: a window of 100 ms is left out rather than told wrong.
    if let Some(window) = window(summary)
        && window.subsec_nanos() == 0
        && let Some(per @ 1..) = seconds(window)
    {
        out.extend_from_slice(b";w=");
        push_number(out, per);
    }
}

/// Appends a name as a structured field's string. What cannot be in one stands as its number.
fn push_name(out: &mut Vec<u8>, name: &str) {
    out.push(b'"');
    for byte in name.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0x20..=0x7e => out.push(byte),
            _ => {
                let digit = |value: u8| b"0123456789ABCDEF"[usize::from(value)];
                out.extend_from_slice(&[b'%', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
    out.push(b'"');
}

/// Returns why a limit answers as it does, by the words of the metrics.
fn reason(part: &Part) -> &'static str {
    match part.code {
        Code::Allowed | Code::Denied if part.is_degraded() => "local",
        Code::Allowed | Code::QuotaSpent => "quota",
        Code::Denied => match part.decision {
            Some(decision) if decision.reason() == Reason::Saturated => "saturated",
            Some(decision) if decision.is_never() => "cost-above-burst",
            Some(_) => "quota",
            None => "closed",
        },
        Code::Shadowed => "shadow",
        Code::Blocked => "blocked",
        Code::Bypassed => "bypassed",
        Code::Unlimited => "unlimited",
        Code::FailedOpen | Code::FailedClosed => "store-failed",
    }
}

/// Appends the list of policies.
pub(super) fn list(plan: &Plan, reply: &mut Reply) {
    reply.content_type = JSON;
    let out = &mut reply.body;
    out.extend_from_slice(b"{\"policies\":[");
    for (index, rule) in plan.rules().iter().enumerate() {
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
        match rule.kind().count() {
            Some(count) => push_number(out, count),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"per_ms\":");
        push_millis(out, rule.kind().per());
        out.extend_from_slice(b",\"algorithm\":");
        match rule.kind().policy() {
            Some(policy) => push_text(out, policy.algorithm().name()),
            None => out.extend_from_slice(b"null"),
        }
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
    fn times_are_rounded_up() {
        for (nanos, secs, millis) in [
            (0, Some(0), "0"),
            (1, Some(1), "1"),
            (1_000_000, Some(1), "1"),
            (1_000_001, Some(1), "2"),
            (1_000_000_000, Some(1), "1000"),
            (1_000_000_001, Some(2), "1001"),
        ] {
            let time = Duration::from_nanos(nanos);
            let mut out = Vec::new();
            push_millis(&mut out, Some(time));
            assert_eq!((seconds(time), out), (secs, millis.into()), "{nanos} ns");
        }
        assert_eq!(seconds(Duration::MAX), None);
    }

    #[test]
    fn names_are_structured_strings() {
        for (name, expected) in
            [("api", "\"api\""), ("a\"b\\", "\"a\\\"b\\\\\""), ("é\n", "\"%C3%A9%0A\"")]
        {
            let mut out = Vec::new();
            push_name(&mut out, name);
            assert_eq!(out, expected.as_bytes());
        }
    }

    #[test]
    fn a_policy_with_a_burst_is_told_as_what_comes_back_in_its_window() {
        let second = Duration::from_secs(1);
        // limit, per, capacity, expected
        for (limit, per, capacity, expected) in [
            (5, 60 * second, 5, "\"p\";q=5;w=60"),
            (10, second, 20, "\"p\";q=20;w=2"),
            (100, second, 10, "\"p\";q=10"),
            (0, second, 1, "\"p\";q=1"),
            (10, second, u64::MAX, "\"p\";q=999999999999999"),
        ] {
            let (remaining, reset_after, retry_after, unit) = (0, second, None, None);
            let policy = "p";
            let summary =
                Summary { policy, limit, per, unit, capacity, remaining, reset_after, retry_after };
            let mut out = Vec::new();
            push_policy(&mut out, &summary);
            assert_eq!(String::from_utf8_lossy(&out), expected);
        }
    }
}
