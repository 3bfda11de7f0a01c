//! What Envoy is told: `RateLimitResponse`.
//!
//! [`Told`] is one `DescriptorStatus` in plain values, [`Headers`] what goes to the client; the
//! protobuf and the JSON form are written from both. Counts above what the protocol's 32 bits hold
//! are told as 4294967295.

use super::wire::{write_bytes, write_message, write_number};
use crate::{
    config::Unit,
    engine::{Answer, Code, Status, since},
    plan::Plan,
};
use std::time::Duration;
use tollgate::Tick;

/// The longest `Duration` that protobuf has, in seconds: about ten thousand years.
const MAX_SECONDS: u64 = 315_576_000_000;

/// `OK` or `OVER_LIMIT`. `UNKNOWN` is never sent: Envoy takes it for a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RateLimitCode {
    Ok = 1,
    OverLimit = 2,
}

impl RateLimitCode {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::OverLimit => "OVER_LIMIT",
        }
    }

    /// Returns the code of a whole answer.
    pub(super) const fn overall(answer: &Answer) -> Self {
        if answer.is_allowed() { Self::Ok } else { Self::OverLimit }
    }

    /// Returns the code of one status. What only shadow mode lets pass is `OK`, as in the reference;
    /// a spent quota that others make up for stays `OVER_LIMIT`.
    const fn of(code: Code) -> Self {
        match code {
            Code::Denied | Code::Blocked | Code::FailedClosed | Code::Full | Code::QuotaSpent => {
                Self::OverLimit
            }
            Code::Allowed
            | Code::Shadowed
            | Code::Bypassed
            | Code::Unlimited
            | Code::FailedOpen => Self::Ok,
        }
    }
}

/// One `DescriptorStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told<'p> {
    pub(super) code: RateLimitCode,
    /// `None` where nothing limits, or nothing is known.
    pub(super) limit: Option<CurrentLimit<'p>>,
    pub(super) remaining: u32,
    /// Whole seconds, at least one; there is one if there is a limit.
    pub(super) reset_secs: u64,
    /// When to try again, if refused and a wait helps.
    retry_secs: Option<u64>,
}

/// `RateLimitResponse.RateLimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CurrentLimit<'p> {
    pub(super) requests: u32,
    /// `None` for times that are no unit, for example 30 seconds. Envoy then leaves the window out of
    /// its header and keeps the rest. (A `unit_multiplier`, field 4, has been proposed to Envoy; the
    /// number is kept free for it.)
    pub(super) unit: Option<Unit>,
    pub(super) name: Option<&'p str>,
}

impl<'p> Told<'p> {
    pub(super) fn new(answer: &Answer, plan: &'p Plan, status: &Status, now: Tick) -> Self {
        let code = RateLimitCode::of(status.code);
        let nothing = Self { code, limit: None, remaining: 0, reset_secs: 0, retry_secs: None };
        let Some(part) = status.part.map(|part| &answer.parts()[part]) else { return nothing };
        if status.code == Code::Unlimited {
            return Self { remaining: u32::MAX, ..nothing };
        }
        if matches!(status.code, Code::Bypassed | Code::FailedOpen) {
            // Nobody has asked how much is left.
            return nothing;
        }
        let Some(summary) = answer.summary_of(plan, part, now) else { return nothing };
        let refused = code == RateLimitCode::OverLimit || status.code == Code::Shadowed;
        // The summary knows waits of what is refused; a shadow and a spent quota have one, too.
        let retry_after = summary.retry_after.or_else(|| {
            part.decision.and_then(|decision| decision.retry_after(since(&decision, now)))
        });
        let retry_secs = retry_after.filter(|_| refused).map(seconds);
        let limit = CurrentLimit {
            requests: saturated(summary.limit),
            unit: summary.unit,
            name: part.rule.and_then(|rule| plan.rule(rule).name()),
        };
        Self {
            code,
            limit: Some(limit),
            // Never more than the limit that is told beside it, even if a burst leaves more.
            remaining: if refused { 0 } else { saturated(summary.remaining.min(summary.limit)) },
            reset_secs: retry_secs.unwrap_or_else(|| seconds(summary.reset_after)),
            retry_secs,
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_number(out, 1, self.code as u64);
        if let Some(limit) = &self.limit {
            write_message(out, 2, |out| {
                write_number(out, 1, u64::from(limit.requests));
                write_number(out, 2, limit.unit.map_or(0, |unit| unit as u64));
                if let Some(name) = limit.name {
                    write_bytes(out, 3, name.as_bytes());
                }
            });
        }
        write_number(out, 3, u64::from(self.remaining));
        if self.limit.is_some() {
            write_message(out, 4, |out| write_number(out, 1, self.reset_secs));
        }
    }
}

fn saturated(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Returns whole seconds, rounded up, at least one.
fn seconds(time: Duration) -> u64 {
    let whole = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    whole.clamp(1, MAX_SECONDS)
}

/// What the client is told, if the settings say so: the tightest limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Headers {
    limit: u64,
    remaining: u64,
    reset_secs: u64,
    retry_secs: Option<u64>,
}

impl Headers {
    /// Returns the headers of an answer; `None` if nothing limits it. A limit that refuses is before
    /// others, and of those the one with the longest wait; else the one with the least remaining.
    /// Limits in shadow mode come last.
    pub(super) fn new(answer: &Answer, plan: &Plan, now: Tick) -> Option<Self> {
        let mut best: Option<((u8, u64), Told<'_>)> = None;
        for status in answer.statuses() {
            let told = Told::new(answer, plan, status, now);
            if told.limit.is_none() {
                continue;
            }
            let rank = match status.code {
                Code::Shadowed => (2, 0),
                // No wait helps: that is the longest.
                _ if told.code == RateLimitCode::OverLimit => {
                    (0, told.retry_secs.map_or(0, |secs| u64::MAX - secs))
                }
                _ => (1, u64::from(told.remaining)),
            };
            if best.as_ref().is_none_or(|(least, _)| rank < *least) {
                best = Some((rank, told));
            }
        }
        let (_, told) = best?;
        Some(Self {
            limit: u64::from(told.limit?.requests),
            remaining: u64::from(told.remaining),
            reset_secs: told.reset_secs,
            retry_secs: told.retry_secs.filter(|_| !answer.is_allowed()),
        })
    }

    /// Returns names and values.
    pub(super) fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let always = [
            ("RateLimit-Limit", self.limit),
            ("RateLimit-Remaining", self.remaining),
            ("RateLimit-Reset", self.reset_secs),
        ];
        always.into_iter().chain(self.retry_secs.map(|secs| ("Retry-After", secs)))
    }
}

/// Appends the message of an answer, less dynamic metadata.
pub(super) fn write(
    out: &mut Vec<u8>,
    (answer, plan, now): (&Answer, &Plan, Tick),
    headers: Option<Headers>,
) {
    write_number(out, 1, RateLimitCode::overall(answer) as u64);
    for status in answer.statuses() {
        let told = Told::new(answer, plan, status, now);
        write_message(out, 2, |out| told.write(out));
    }
    for (name, value) in headers.iter().flat_map(Headers::each) {
        let mut digits = [0; 20];
        write_message(out, 3, |out| {
            write_bytes(out, 1, name.as_bytes());
            write_bytes(out, 2, decimal(value, &mut digits));
        });
    }
}

/// Writes a number in digits.
fn decimal(mut value: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut start = digits.len();
    loop {
        start -= 1;
        // OVERFLOW: one digit.
        digits[start] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return &digits[start..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_whole_seconds_rounded_up() {
        for (time, secs) in [
            (Duration::ZERO, 1),
            (Duration::from_nanos(1), 1),
            (Duration::from_secs(1), 1),
            (Duration::from_millis(1001), 2),
            (Duration::from_secs(60), 60),
            (Duration::MAX, MAX_SECONDS),
        ] {
            assert_eq!(seconds(time), secs, "{time:?}");
        }
    }

    #[test]
    fn numbers_are_written_in_digits() {
        for value in [0, 7, 10, 99, 4_294_967_295, u64::MAX] {
            assert_eq!(decimal(value, &mut [0; 20]), value.to_string().as_bytes());
        }
    }
}
