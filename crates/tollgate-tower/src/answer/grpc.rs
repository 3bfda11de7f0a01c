//! Refusals of gRPC: a status with details, in a response that has no body.
//!
//! gRPC answers with HTTP status 200, and puts the status of the call into trailers; a response
//! without a body has them in its headers. The details are a `google.rpc.Status` with
//!
//! - `RetryInfo`, only if a wait helps: clients take its absence for "do not try again";
//! - `QuotaFailure`, with the policies that refused, unless the server is at fault;
//! - `ErrorInfo`, with a reason for programs.

use super::{
    Headers, Refusal, Told, Verdict, Wait,
    body::{Allows, Detail},
    field::millis,
    header::value,
    proto::{write_bytes, write_message, write_number},
    text::{Padding, push_base64, push_message, push_number},
};
use http::{HeaderName, HeaderValue, Response, header};

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The most policies in the details: clients need not accept more than 8 KiB of headers.
const VIOLATIONS_MAX: usize = 4;
/// The longest wait that is sent: clients read it into 32 bits. It is 24 days.
const PUSHBACK_MAX_MS: u64 = i32::MAX as u64;

impl Refusal {
    /// Returns the gRPC status.
    #[must_use]
    pub const fn grpc_code(self) -> u8 {
        match self {
            Self::QuotaExceeded | Self::AbnormalUsage => 8,
            Self::ReducedCapacity => 14,
            Self::Forbidden | Self::Unidentified => 7,
        }
    }

    /// Returns the reason of `ErrorInfo`.
    const fn grpc_reason(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "RATE_LIMIT_EXCEEDED",
            Self::ReducedCapacity => "REDUCED_CAPACITY",
            Self::AbnormalUsage => "ABNORMAL_USAGE_DETECTED",
            Self::Forbidden => "FORBIDDEN",
            Self::Unidentified => "UNIDENTIFIED",
        }
    }

    const fn code_value(self) -> &'static str {
        match self {
            Self::QuotaExceeded | Self::AbnormalUsage => "8",
            Self::ReducedCapacity => "14",
            Self::Forbidden | Self::Unidentified => "7",
        }
    }
}

impl Headers {
    /// Returns the response to a refused call of gRPC. Its body must be empty, so that the headers
    /// are the trailers.
    ///
    /// The other headers are included as metadata, for gateways that turn calls into HTTP. A
    /// verdict that does not refuse is written as an exceeded quota.
    #[must_use]
    pub fn grpc_response(&self, verdict: &Verdict<'_>) -> Response<()> {
        let refusal = verdict.refusal().unwrap_or(Refusal::QuotaExceeded);
        let mut response = Response::new(());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(STATUS, HeaderValue::from_static(refusal.code_value()));
        let message = Detail(verdict).to_string();
        let (mut status, mut out) = (Vec::new(), Vec::new());
        push_message(&mut out, &message);
        headers.insert(MESSAGE, value(&out));
        write_status(&mut status, verdict, refusal, &message);
        out.clear();
        push_base64(&mut out, &status, Padding::Bare);
        headers.insert(DETAILS, value(&out));
        if let Some(pushback) = pushback(verdict, &mut out) {
            headers.insert(PUSHBACK, pushback);
        }
        self.write(verdict, headers);
        response
    }
}

/// Returns the milliseconds to wait, if clients can read that many.
fn wait_ms(verdict: &Verdict<'_>) -> Option<u64> {
    let ms = verdict.retry_after().and_then(millis)?;
    (ms <= PUSHBACK_MAX_MS).then_some(ms)
}

/// Returns when to try again: negative if no wait helps, `None` if the time is unknown.
fn pushback(verdict: &Verdict<'_>, out: &mut Vec<u8>) -> Option<HeaderValue> {
    match (wait_ms(verdict), verdict.wait()) {
        (Some(ms), _) => {
            out.clear();
            push_number(out, ms);
            Some(value(out))
        }
        (None, Some(Wait::Never | Wait::After(_))) => Some(HeaderValue::from_static("-1")),
        (None, _) => None,
    }
}

/// Writes a `google.rpc.Status`.
fn write_status(out: &mut Vec<u8>, verdict: &Verdict<'_>, refusal: Refusal, message: &str) {
    write_number(out, 1, u64::from(refusal.grpc_code()));
    write_bytes(out, 2, message.as_bytes());
    if let Some(ms) = wait_ms(verdict) {
        write_any(out, b"type.googleapis.com/google.rpc.RetryInfo", |out| {
            write_message(out, 1, |out| {
                write_number(out, 1, ms / 1000);
                write_number(out, 2, ms % 1000 * 1_000_000);
            });
        });
    }
    if refusal.grpc_code() == 8 && verdict.cause().is_some() {
        write_any(out, b"type.googleapis.com/google.rpc.QuotaFailure", |out| {
            for told in verdict.refusing().take(VIOLATIONS_MAX) {
                write_message(out, 1, |out| write_violation(out, told));
            }
        });
    }
    write_any(out, b"type.googleapis.com/google.rpc.ErrorInfo", |out| {
        write_bytes(out, 1, refusal.grpc_reason().as_bytes());
        write_bytes(out, 2, b"tollgate");
        if let Some(told) = verdict.cause() {
            write_message(out, 3, |out| {
                write_bytes(out, 1, b"policy");
                write_bytes(out, 2, told.label().name().as_bytes());
            });
        }
    });
}

/// Writes a `google.rpc.QuotaFailure.Violation`. Its subject is meant to be the client; ours names
/// the policy instead.
fn write_violation(out: &mut Vec<u8>, told: &Told<'_>) {
    let name = told.label().name();
    write_message(out, 1, |out| {
        out.extend_from_slice(b"policy:");
        out.extend_from_slice(name.as_bytes());
    });
    write_bytes(out, 2, Allows(told).to_string().as_bytes());
    write_bytes(out, 4, told.label().unit().name().as_bytes());
    write_bytes(out, 5, name.as_bytes());
    // A signed number on the wire: no real limit exceeds it.
    write_number(out, 7, told.decision().limit().min(i64::MAX as u64));
}

/// Writes a detail, as a `google.protobuf.Any`.
fn write_any(out: &mut Vec<u8>, type_url: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
    write_message(out, 3, |out| {
        write_bytes(out, 1, type_url);
        write_message(out, 2, write);
    });
}
