//! The bodies of refusals.

use super::{
    Headers, Told, Verdict, Wait,
    field::{POLICIES_MAX, retry_seconds},
    text::{push_name, push_number, push_text},
};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use std::{fmt, time::Duration};
use tollgate::Reason;

/// The reason for a refusal, as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refusal {
    /// The client has used up its share: 429, and RESOURCE_EXHAUSTED in gRPC.
    QuotaExceeded,
    /// The server has no capacity for any client: 503, and UNAVAILABLE in gRPC.
    ReducedCapacity,
    /// The client is penalized for its earlier requests: 429, and RESOURCE_EXHAUSTED in gRPC.
    AbnormalUsage,
    /// The client may not pass at all: 403, and PERMISSION_DENIED in gRPC.
    Forbidden,
    /// The request has no key to count it by: 403, and PERMISSION_DENIED in gRPC.
    Unidentified,
}

impl Refusal {
    /// Returns why a limit refuses: a client that is blocked or on the deny list has another reason
    /// than its quota, and a store that cannot answer is not the client's fault.
    #[must_use]
    pub const fn of(reason: Reason) -> Self {
        match reason {
            Reason::Blocked => Self::AbnormalUsage,
            Reason::DenyListed => Self::Forbidden,
            Reason::Saturated | Reason::Degraded => Self::ReducedCapacity,
            _ => Self::QuotaExceeded,
        }
    }

    /// Returns the HTTP status.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::QuotaExceeded | Self::AbnormalUsage => StatusCode::TOO_MANY_REQUESTS,
            Self::ReducedCapacity => StatusCode::SERVICE_UNAVAILABLE,
            Self::Forbidden | Self::Unidentified => StatusCode::FORBIDDEN,
        }
    }

    /// Returns the type of problem (RFC 9457).
    #[must_use]
    pub const fn type_uri(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "https://iana.org/assignments/http-problem-types#quota-exceeded",
            Self::ReducedCapacity => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
            Self::AbnormalUsage => {
                "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
            }
            Self::Forbidden | Self::Unidentified => "about:blank",
        }
    }

    /// Returns the title of the problem.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "Quota Exceeded",
            Self::ReducedCapacity => "Temporary Reduced Capacity",
            Self::AbnormalUsage => "Abnormal Usage Detected",
            Self::Forbidden | Self::Unidentified => "Forbidden",
        }
    }
}

/// The form of a refusal's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Body {
    /// A problem in JSON (RFC 9457), the default.
    #[default]
    Problem,
    /// A sentence in plain text.
    Text,
    /// Nothing.
    Empty,
}

impl Body {
    /// Returns the `Content-Type`, if there is content.
    #[must_use]
    pub const fn content_type(self) -> Option<&'static str> {
        match self {
            Self::Problem => Some("application/problem+json"),
            Self::Text => Some("text/plain; charset=utf-8"),
            Self::Empty => None,
        }
    }

    /// Appends the body of a refusal. A verdict that does not refuse is written as an exceeded
    /// quota.
    pub fn write(self, verdict: &Verdict<'_>, out: &mut Vec<u8>) {
        let refusal = verdict.refusal().unwrap_or(Refusal::QuotaExceeded);
        match self {
            Self::Problem => {
                let detail = Detail(verdict).to_string();
                let names = verdict.refusing().map(|told| told.label().name());
                push_problem(out, refusal, Some(&detail), names);
            }
            Self::Text => {
                out.extend_from_slice(Detail(verdict).to_string().as_bytes());
                out.push(b'\n');
            }
            Self::Empty => {}
        }
    }
}

impl Headers {
    /// Returns the response to a refused request: status, headers and body.
    #[must_use]
    pub fn response(&self, verdict: &Verdict<'_>, body: Body) -> Response<Bytes> {
        let mut content = Vec::new();
        body.write(verdict, &mut content);
        let mut response = Response::new(Bytes::from(content));
        *response.status_mut() = verdict.refusal().unwrap_or(Refusal::QuotaExceeded).status();
        if let Some(kind) = body.content_type() {
            let kind = HeaderValue::from_static(kind);
            response.headers_mut().insert(header::CONTENT_TYPE, kind);
        }
        self.write(verdict, response.headers_mut());
        response
    }
}

/// Appends a problem. It lists each name once, spelled as in the headers, and at most
/// [`POLICIES_MAX`] names.
pub fn push_problem<'n>(
    out: &mut Vec<u8>,
    refusal: Refusal,
    detail: Option<&str>,
    names: impl Iterator<Item = &'n str>,
) {
    out.extend_from_slice(b"{\"type\":");
    push_text(out, refusal.type_uri());
    out.extend_from_slice(b",\"title\":");
    push_text(out, refusal.title());
    out.extend_from_slice(b",\"status\":");
    push_number(out, u64::from(refusal.status().as_u16()));
    if let Some(detail) = detail {
        out.extend_from_slice(b",\"detail\":");
        push_text(out, detail);
    }
    out.extend_from_slice(b",\"violated-policies\":[");
    let mut seen: Vec<&str> = Vec::new();
    for name in names {
        if seen.len() < POLICIES_MAX && !seen.contains(&name) {
            if !seen.is_empty() {
                out.push(b',');
            }
            push_name(out, name);
            seen.push(name);
        }
    }
    out.extend_from_slice(b"]}");
}

/// The refusal as a sentence.
pub(super) struct Detail<'v>(pub(super) &'v Verdict<'v>);

impl fmt::Display for Detail<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(verdict) = self;
        match (verdict.refusal().unwrap_or(Refusal::QuotaExceeded), verdict.cause()) {
            (Refusal::Forbidden, _) => return f.write_str("This client is not allowed."),
            (Refusal::Unidentified, _) => {
                return f.write_str("The request does not identify its sender, or does so twice.");
            }
            (Refusal::AbnormalUsage, _) => {
                f.write_str("This client is throttled because of unusual usage")?;
            }
            (Refusal::ReducedCapacity, None) => f.write_str("The server is too busy")?,
            (Refusal::ReducedCapacity, Some(_)) => {
                f.write_str("The server cannot take more requests now")?
            }
            (Refusal::QuotaExceeded, None) => f.write_str("The quota is used up")?,
            (Refusal::QuotaExceeded, Some(told)) => {
                if verdict.wait() == Some(Wait::Never) {
                    return never(f, told);
                }
                Allows(told).fmt(f)?;
            }
        }
        match verdict.retry_after() {
            Some(wait) => write!(f, "; retry in {} s.", retry_seconds(wait)),
            None if verdict.wait() == Some(Wait::Never) => f.write_str("; waiting does not help."),
            None => f.write_str("; retry later."),
        }
    }
}

fn never(f: &mut fmt::Formatter<'_>, told: &Told<'_>) -> fmt::Result {
    let (label, decision) = (told.label(), told.decision());
    let (name, unit, limit) = (label.name(), label.unit().words(), decision.limit());
    if decision.cost() > limit {
        write!(f, "Policy {name} allows at most {limit} {unit} at once; ask for less.")
    } else {
        write!(f, "Policy {name} allows {limit} {unit} in total; they do not refill.")
    }
}

/// The allowance of a policy, in words.
pub(super) struct Allows<'t>(pub(super) &'t Told<'t>);

impl fmt::Display for Allows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (label, capacity) = (self.0.label(), self.0.decision().limit());
        let (name, unit) = (label.name(), label.unit().words());
        let allowance = label.allowance(capacity);
        match allowance.count {
            0 => write!(f, "Policy {name} allows {capacity} {unit}"),
            count => {
                let per = Period(allowance.per);
                write!(f, "Policy {name} allows {count} {unit} per {per}")?;
                if count == capacity { Ok(()) } else { write!(f, ", {capacity} at once") }
            }
        }
    }
}

/// A time in the largest unit that expresses it exactly, up to seconds.
struct Period(Duration);

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (secs, ns) = (self.0.as_secs(), self.0.subsec_nanos());
        match ns {
            0 => write!(f, "{secs} s"),
            _ if ns % 1_000_000 == 0 => write!(f, "{} ms", self.0.as_millis()),
            _ if ns % 1_000 == 0 => write!(f, "{} us", self.0.as_micros()),
            _ => write!(f, "{} ns", self.0.as_nanos()),
        }
    }
}
