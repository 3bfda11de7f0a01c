//! gRPC: read by tonic, and the details by messages that prost decodes.

use super::*;
use prost::Message;
use tollgate_tower::answer::{Legacy, Refusal, Unit};
use tonic::{Code, Status};

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Delay>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
struct QuotaFailure {
    #[prost(message, repeated, tag = "1")]
    violations: Vec<Violation>,
}

#[derive(Clone, PartialEq, Message)]
struct Violation {
    #[prost(string, tag = "1")]
    subject: String,
    #[prost(string, tag = "2")]
    description: String,
    #[prost(string, tag = "3")]
    api_service: String,
    #[prost(string, tag = "4")]
    quota_metric: String,
    #[prost(string, tag = "5")]
    quota_id: String,
    #[prost(int64, tag = "7")]
    quota_value: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ErrorInfo {
    #[prost(string, tag = "1")]
    reason: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(map = "string, string", tag = "3")]
    metadata: std::collections::HashMap<String, String>,
}

struct Details {
    retry: Option<Duration>,
    violations: Vec<Violation>,
    error: ErrorInfo,
}

/// Reads a response as a client would, with tonic.
fn read(headers: &HeaderMap) -> (Status, Details) {
    let status = Status::from_header_map(headers).unwrap();
    let whole = RpcStatus::decode(status.details()).unwrap();
    assert_eq!(whole.code, i32::from(status.code()));
    assert_eq!(whole.message, status.message());
    let find = |name: &str| {
        let type_url = format!("type.googleapis.com/google.rpc.{name}");
        whole.details.iter().find(|any| any.type_url == type_url).map(|any| &any.value[..])
    };
    let retry = find("RetryInfo").map(|bytes| {
        let delay = RetryInfo::decode(bytes).unwrap().retry_delay.unwrap();
        let (seconds, nanos) = (delay.seconds.try_into().unwrap(), delay.nanos.try_into().unwrap());
        Duration::new(seconds, nanos)
    });
    let violations = find("QuotaFailure").map(|bytes| QuotaFailure::decode(bytes).unwrap());
    let error = ErrorInfo::decode(find("ErrorInfo").unwrap()).unwrap();
    let violations = violations.map(|failure| failure.violations).unwrap_or_default();
    (status, Details { retry, violations, error })
}

#[test]
fn a_refusal_has_status_details_and_metadata() {
    let user = label("size %", Quota::per_minute(5));
    let bytes = Label::builder("bytes", Quota::per_hour(9)).unit(Unit::ContentBytes);
    let bytes = bytes.build().unwrap();
    let parts = [
        Told::new(&bytes, later(9, Duration::from_millis(1))),
        Told::new(&user, later(5, Duration::from_nanos(2_500_000_001))),
    ];
    let response = Headers::new().grpc_response(&verdict(&parts));
    let headers = response.headers();
    assert_eq!(response.status(), 200);
    assert_eq!(text(headers, "content-type"), Some("application/grpc"));
    assert_eq!(text(headers, "grpc-retry-pushback-ms"), Some("2501"));
    assert_eq!(text(headers, "retry-after"), Some("3"));
    assert_eq!(items(headers, "ratelimit")[0].1["t"], "3");
    let (status, details) = read(headers);
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "Policy size % allows 5 requests per 60 s; retry in 3 s.");
    assert_eq!(details.retry, Some(Duration::from_millis(2501)));
    let violation = |name: &str, unit: &str, value, words: &str| Violation {
        subject: format!("policy:{name}"),
        description: format!("Policy {name} allows {words}"),
        api_service: String::new(),
        quota_metric: unit.into(),
        quota_id: name.into(),
        quota_value: value,
    };
    let expected = [
        violation("size %", "requests", 5, "5 requests per 60 s"),
        violation("bytes", "content-bytes", 9, "9 bytes per 3600 s"),
    ];
    assert_eq!(details.violations, expected);
    assert_eq!(details.error.reason, "RATE_LIMIT_EXCEEDED");
    assert_eq!(details.error.metadata["policy"], "size %");
}

#[test]
fn a_retry_is_asked_for_only_if_it_can_help() {
    let label = label("p", Quota::per_minute(5));
    let days = |days: u64| Duration::from_secs(days * 86_400);
    // decision, pushback, delay in seconds
    for (decision, pushback, delay) in [
        (later(5, Duration::from_secs(7)), Some("7000"), Some(7)),
        (later(5, days(24)), Some("2073600000"), Some(24 * 86_400)),
        (later(5, days(25)), Some("-1"), None),
        (never(5), Some("-1"), None),
        (never(5).degraded(), None, None),
    ] {
        let parts = [Told::new(&label, decision)];
        let response = Headers::new().grpc_response(&verdict(&parts));
        assert_eq!(text(response.headers(), "grpc-retry-pushback-ms"), pushback);
        assert_eq!(read(response.headers()).1.retry, delay.map(Duration::from_secs));
    }
}

#[test]
fn each_refusal_has_its_code() {
    for (refusal, code, reason) in [
        (Refusal::QuotaExceeded, Code::ResourceExhausted, "RATE_LIMIT_EXCEEDED"),
        (Refusal::ReducedCapacity, Code::Unavailable, "REDUCED_CAPACITY"),
        (Refusal::AbnormalUsage, Code::ResourceExhausted, "ABNORMAL_USAGE_DETECTED"),
        (Refusal::Forbidden, Code::PermissionDenied, "FORBIDDEN"),
    ] {
        let response = Headers::new().grpc_response(&verdict(&[]).refused(refusal));
        let (status, details) = read(response.headers());
        assert_eq!((status.code(), details.error.reason.as_str()), (code, reason));
        assert!(details.violations.is_empty());
    }
}

#[test]
fn many_long_names_stay_within_what_clients_take() {
    let name = |n: usize| format!("{n:02}{}", "%".repeat(126));
    let unit = Unit::Other("\\".repeat(128).into());
    let of = |n| Label::builder(name(n), Quota::per_minute(5)).unit(unit.clone());
    let labels: Vec<_> = (0..64).map(|n| of(n).build().unwrap()).collect();
    let parts: Vec<_> =
        labels.iter().map(|label| Told::new(label, later(5, Duration::from_secs(1)))).collect();
    let response =
        Headers::new().three_fields().legacy(Legacy::Epoch).grpc_response(&verdict(&parts));
    let size = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        name.as_str().len() + value.len() + 32
    };
    let bytes: usize = response.headers().iter().map(size).sum();
    assert!(bytes <= 8192, "{bytes} bytes of headers");
    assert_eq!(read(response.headers()).1.violations.len(), 4);
}
