//! The response to Envoy: `RateLimitResponse`.
//!
//! [`Told`] is one `DescriptorStatus` in plain values, [`Headers`] holds the headers for the
//! client; the protobuf and the JSON form are both written from them. Counts above the protocol's
//! 32 bits are reported as 4294967295.

use super::wire::{write_bytes, write_message, write_number};
use crate::{
    config::Unit,
    engine::{Answer, Code, LimitReport, Status},
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

    /// Returns the code of the whole answer.
    pub(super) const fn overall(answer: &Answer) -> Self {
        if answer.is_allowed() { Self::Ok } else { Self::OverLimit }
    }

    /// Returns the code of one status. A status that passes only because of shadow mode is `OK`, as
    /// in the reference; a spent quota that others make up for stays `OVER_LIMIT`.
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
    /// `None` if nothing limits, or nothing is known.
    pub(super) limit: Option<CurrentLimit<'p>>,
    pub(super) remaining: u32,
    /// Whole seconds, at least one; set if `limit` is.
    pub(super) reset_secs: u64,
}

/// `RateLimitResponse.RateLimit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CurrentLimit<'p> {
    /// How many permits a key can take at once, as in all other protocols.
    pub(super) requests: u32,
    /// The time in which `requests` permits come; `None` if it is not a unit, for example 30
    /// seconds. Envoy then leaves the window out of its header and keeps the rest. (A
    /// `unit_multiplier`, field 4, has been proposed to Envoy; the number is reserved for it.)
    pub(super) unit: Option<Unit>,
    pub(super) name: Option<&'p str>,
}

impl<'p> Told<'p> {
    pub(super) fn new(answer: &Answer, plan: &'p Plan, status: &Status, now: Tick) -> Self {
        let code = RateLimitCode::of(status.code);
        let nothing = Self { code, limit: None, remaining: 0, reset_secs: 0 };
        let Some(part) = status.part.map(|part| &answer.parts()[part]) else { return nothing };
        if status.code == Code::Unlimited {
            return Self { remaining: u32::MAX, ..nothing };
        }
        let Some(report) = answer.report_of(plan, part, now) else { return nothing };
        let limit = CurrentLimit {
            requests: saturated(report.limit),
            unit: report.unit(),
            name: plan.rule(part.rule).name().filter(|_| !part.is_override),
        };
        // The reference reports no remaining permits over the limit, although a smaller cost might
        // pass.
        let is_over = code == RateLimitCode::OverLimit || status.code == Code::Shadowed;
        let remaining = if is_over { 0 } else { saturated(report.remaining) };
        Self { limit: Some(limit), remaining, reset_secs: reset_secs(&report), ..nothing }
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

/// Returns the time to the next chance: the wait of a denied request, otherwise until all permits
/// are back.
fn reset_secs(report: &LimitReport<'_>) -> u64 {
    seconds(report.retry_after.unwrap_or(report.reset_after))
}

/// Returns whole seconds, rounded up, at least one.
fn seconds(time: Duration) -> u64 {
    let whole = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    whole.clamp(1, MAX_SECONDS)
}

/// The headers for the client, if the settings enable them: the tightest limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Headers {
    limit: u64,
    remaining: u64,
    reset_secs: u64,
    retry_secs: Option<u64>,
}

impl Headers {
    /// Returns the headers of an answer; `None` if nothing limits it.
    pub(super) fn new(answer: &Answer, plan: &Plan, now: Tick) -> Option<Self> {
        let report = answer.report(plan, now)?;
        let is_over = !answer.is_allowed();
        Some(Self {
            limit: u64::from(saturated(report.limit)),
            remaining: if is_over { 0 } else { u64::from(saturated(report.remaining)) },
            reset_secs: reset_secs(&report),
            retry_secs: report.retry_after.map(seconds),
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

/// Appends the message of an answer, without dynamic metadata.
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
