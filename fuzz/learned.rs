//! Feeds any headers to the reader of what servers tell: it must not panic, must stay within its
//! bounds, and must say the same twice.
#![no_main]

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use libfuzzer_sys::fuzz_target;
use std::time::Duration;
use tollgate_tower::client::{Reader, RetryWhen};

/// Names that are looked at; a line that begins with their letter has their name.
const NAMES: [&str; 26] = [
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-reset-after",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "anthropic-ratelimit-requests-remaining",
    "anthropic-ratelimit-requests-reset",
    "x-ratelimit-limit-minute",
    "x-ratelimit-remaining-minute",
    "x-shopify-shop-api-call-limit",
    "retry-after",
    "x-amz-retry-after",
    "grpc-status",
    "grpc-retry-pushback-ms",
    "grpc-status-details-bin",
    "date",
    "age",
];

fuzz_target!(|bytes: &[u8]| {
    let Some((head, lines)) = bytes.split_first_chunk::<9>() else { return };
    let status = [200, 403, 429, 503][usize::from(head[8] % 4)];
    let status = StatusCode::from_u16(status).expect("it is a status");
    let wall = Duration::from_nanos(u64::from_le_bytes(*head.first_chunk().expect("nine bytes")));
    let mut headers = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n').take(64) {
        let Some((letter, value)) = line.split_first() else { continue };
        let name = NAMES[usize::from(letter.wrapping_sub(b'a')) % NAMES.len()];
        let Ok(value) = HeaderValue::from_bytes(value) else { continue };
        headers.append(HeaderName::from_static(name), value);
    }
    let bound = Duration::from_secs(600);
    let reader = Reader::new().longest(bound);
    let learned = reader.read(status, &headers, wall);
    assert!(learned.policies.len() <= 16);
    assert!(learned.policies.iter().all(|it| it.reset_after.is_none_or(|after| after <= bound)));
    assert!(!matches!(learned.retry, Some(RetryWhen::After(after)) if after > bound));
    assert_eq!(learned, reader.read(status, &headers, wall));
});
