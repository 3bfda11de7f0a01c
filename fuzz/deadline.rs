//! Feeds any headers to the reader of deadlines: it must not panic, must say the same twice, and what
//! it has read must not grow when it is written and read again.
#![no_main]

use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
use libfuzzer_sys::fuzz_target;
use std::time::Duration;
use tollgate::Clock;
use tollgate_tower::Deadline;

fuzz_target!(|bytes: &[u8]| {
    let (clock, _hand) = Clock::manual();
    let mut headers = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n').take(64) {
        let (name, value) = match line.split_first() {
            Some((b'e', value)) => ("x-envoy-expected-rq-timeout-ms", value),
            _ => ("grpc-timeout", line),
        };
        let Ok(value) = HeaderValue::from_bytes(value) else { continue };
        headers.append(name, value);
    }
    let read = |headers: &HeaderMap| Deadline::read(&clock, headers).map(|it| it.left());
    let left = read(&headers);
    assert_eq!(left, read(&headers));
    let Some(left) = left else { return };
    for kind in ["application/grpc", "text/plain"] {
        let mut sent = HeaderMap::new();
        sent.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        Deadline::after(&clock, left).write(&mut sent);
        let received = read(&sent).expect("what is written is read");
        assert!(received <= left.max(Duration::from_millis(1)), "{received:?} of {left:?}");
    }
});
