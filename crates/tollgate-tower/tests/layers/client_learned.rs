//! The limits that a response reports, with the headers of real servers.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::prelude::*;
use std::time::Duration;
use tollgate_tower::client::{Learned, LearnedPolicy, Reader, Refusal, RetryWhen, Unit};

/// 14 November 2023, 22:13:20.
const WALL: Duration = Duration::from_secs(1_700_000_000);

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let line = |(name, value): &(&str, &str)| {
        (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap())
    };
    let mut headers = HeaderMap::new();
    for (name, value) in lines.iter().map(line) {
        headers.append(name, value);
    }
    headers
}

fn read(status: u16, lines: &[(&str, &str)]) -> Learned {
    Reader::new().read(StatusCode::from_u16(status).unwrap(), &headers(lines), WALL)
}

/// Writes policies in a short form: `name:unit remaining/limit reset window`.
fn short(policies: &[LearnedPolicy]) -> String {
    let one = |policy: &LearnedPolicy| {
        let unit = match policy.unit {
            Unit::Requests => "",
            Unit::Concurrent => ":conc",
            _ => ":other",
        };
        let time = |time: Option<Duration>| time.map_or("-".into(), |time| format!("{time:?}"));
        format!(
            "{}{unit} {}/{} {} {}",
            policy.name.as_deref().unwrap_or("-"),
            policy.remaining,
            policy.limit.map_or("-".into(), |limit| limit.to_string()),
            time(policy.reset_after),
            time(policy.window),
        )
    };
    policies.iter().map(one).collect::<Vec<_>>().join(" | ")
}

type Family = (&'static str, &'static [(&'static str, &'static str)], &'static str);

/// Headers as servers send them, and what they mean.
const FAMILIES: &[Family] = &[
    (
        "C",
        &[
            ("RateLimit-Policy", r#""burst";q=100;w=60, "daily";q=1000;w=86400"#),
            ("RateLimit", r#""burst";r=50;t=30"#),
        ],
        "burst 50/100 30s 60s",
    ),
    (
        "C, several, on two lines",
        &[
            ("RateLimit-Policy", r#""a";q=10;w=1"#),
            ("RateLimit-Policy", r#""b";q=99;w=60"#),
            ("RateLimit", r#""a";r=5;t=1"#),
            ("RateLimit", r#""b";r=7;t=9"#),
        ],
        "a 5/10 1s 1s | b 7/99 9s 60s",
    ),
    (
        "C, units",
        &[
            (
                "RateLimit-Policy",
                r#""peruser";q=65535;qu="content-bytes";w=10;pk=:c2hvcnQ=:, "conc";q=8;qu="concurrent-requests""#,
            ),
            ("RateLimit", r#""peruser";r=9;t=4, "conc";r=2"#),
        ],
        "peruser:other 9/65535 4s 10s | conc:conc 2/8 - -",
    ),
    ("C without policy", &[("RateLimit", r#""day";r=100;t=36;pk=:dHJpYWw=:"#)], "day 100/- 36s -"),
    (
        "C, tokens as names",
        &[("RateLimit-Policy", "day;q=5;w=9"), ("RateLimit", "day;r=1;t=3")],
        "day 1/5 3s 9s",
    ),
    (
        "C, beta",
        &[("Beta-RateLimit-Policy", r#""x";q=5;w=9"#), ("Beta-RateLimit", r#""x";r=1;t=3"#)],
        "x 1/5 3s 9s",
    ),
    ("C, vendor parameters", &[("RateLimit", r#""x";r=1;t=3;acme-burst=20"#)], "x 1/- 3s -"),
    (
        "B7",
        &[
            ("RateLimit", "limit=100, remaining=50, reset=30"),
            ("RateLimit-Policy", "100;w=60, 1000;w=3600"),
        ],
        "- 50/100 30s 60s",
    ),
    (
        "A",
        &[("RateLimit-Limit", "100"), ("RateLimit-Remaining", "50"), ("RateLimit-Reset", "30")],
        "- 50/100 30s -",
    ),
    (
        "A from -04",
        &[
            ("RateLimit-Limit", "100"),
            ("RateLimit-Remaining", "50"),
            ("RateLimit-Reset", "30"),
            ("RateLimit-Policy", "100;w=60, 1000;w=3600"),
        ],
        "- 50/100 30s 60s",
    ),
    (
        "GitHub",
        &[
            ("x-ratelimit-limit", "5000"),
            ("x-ratelimit-remaining", "4987"),
            ("x-ratelimit-reset", "1700001800"),
            ("x-ratelimit-used", "13"),
        ],
        "- 4987/5000 1800s -",
    ),
    (
        "GitHub, whose clock is 100 s ahead",
        &[
            ("date", "Tue, 14 Nov 2023 22:15:00 GMT"),
            ("x-ratelimit-remaining", "1"),
            ("x-ratelimit-reset", "1700000130"),
        ],
        "- 1/- 30s -",
    ),
    (
        "Twitter",
        &[
            ("x-rate-limit-limit", "15"),
            ("x-rate-limit-remaining", "0"),
            ("x-rate-limit-reset", "1700000900"),
        ],
        "- 0/15 900s -",
    ),
    (
        "Reddit",
        &[
            ("x-ratelimit-remaining", "595.0"),
            ("x-ratelimit-used", "5"),
            ("x-ratelimit-reset", "480"),
        ],
        "- 595/- 480s -",
    ),
    (
        "Discord",
        &[
            ("X-RateLimit-Limit", "5"),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", "1700000064.658"),
            ("X-RateLimit-Reset-After", "64.57"),
            ("X-RateLimit-Bucket", "abcd1234"),
        ],
        "- 0/5 64.57s -",
    ),
    (
        "Atlassian",
        &[
            ("X-RateLimit-Limit", "350"),
            ("X-RateLimit-Remaining", "0"),
            ("X-RateLimit-Reset", "2023-11-14T22:14:20Z"),
        ],
        "- 0/350 60s -",
    ),
    (
        "Envoy",
        &[
            ("x-ratelimit-limit", r#"10, 10;w=1;name="per-ip", 1000;w=3600"#),
            ("x-ratelimit-remaining", "9"),
            ("x-ratelimit-reset", "1"),
        ],
        "- 9/10 1s 1s",
    ),
    (
        "go-limiter",
        &[
            ("X-RateLimit-Limit", "5"),
            ("X-RateLimit-Remaining", "4"),
            ("X-RateLimit-Reset", "Tue, 14 Nov 2023 22:14:20 UTC"),
        ],
        "- 4/5 60s -",
    ),
    (
        "OpenAI",
        &[
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-limit-tokens", "150000"),
            ("x-ratelimit-remaining-requests", "59"),
            ("x-ratelimit-remaining-tokens", "149984"),
            ("x-ratelimit-reset-requests", "1s"),
            ("x-ratelimit-reset-tokens", "6m0s"),
        ],
        "requests 59/60 1s - | tokens:other 149984/150000 360s -",
    ),
    (
        "Anthropic",
        &[
            ("anthropic-ratelimit-requests-limit", "50"),
            ("anthropic-ratelimit-requests-remaining", "49"),
            ("anthropic-ratelimit-requests-reset", "2023-11-14T22:13:21Z"),
            ("anthropic-ratelimit-tokens-limit", "80000"),
            ("anthropic-ratelimit-tokens-remaining", "0"),
            ("anthropic-ratelimit-tokens-reset", "2023-11-14T22:13:50Z"),
        ],
        "requests 49/50 1s - | tokens:other 0/80000 30s -",
    ),
    ("Shopify", &[("X-Shopify-Shop-Api-Call-Limit", "32/40")], "- 8/40 - -"),
    (
        "Kong",
        &[
            ("X-RateLimit-Limit-Minute", "10"),
            ("X-RateLimit-Remaining-Minute", "9"),
            ("X-RateLimit-Limit-Hour", "100"),
            ("X-RateLimit-Remaining-Hour", "90"),
        ],
        "minute 9/10 60s 60s | hour 90/100 3600s 3600s",
    ),
    (
        "milliseconds",
        &[("x-ratelimit-remaining", "3"), ("x-ratelimit-reset", "1700000001500")],
        "- 3/- 1.5s -",
    ),
    ("below zero", &[("x-ratelimit-remaining", "-1"), ("x-ratelimit-reset", "-3")], "- 0/- 0ns -"),
    (
        "the current one goes first",
        &[("RateLimit", r#""x";r=1;t=3"#), ("x-ratelimit-remaining", "9")],
        "x 1/- 3s -",
    ),
    ("nothing", &[("content-type", "text/plain")], ""),
];

#[test]
fn every_family_is_understood() {
    for (name, lines, expected) in FAMILIES {
        let learned = read(200, lines);
        assert_eq!(short(&learned.policies), *expected, "{name}");
        assert_eq!((learned.malformed, learned.clamped), (0, 0), "{name}");
        assert_eq!((learned.refusal, learned.retry), (None, None), "{name}");
    }
}

#[test]
fn a_malformed_field_is_ignored_whole_and_counted() {
    let rows: &[(&[(&str, &str)], &str)] = &[
        (&[("RateLimit", r#""a";r=1, "b";t=2"#)], ""),
        (&[("RateLimit", r#""a";r=-1;t=2"#)], ""),
        (&[("RateLimit", r#""a";r=1;t=2,"#)], ""),
        (&[("RateLimit", r#""a";r=1.5;t=2"#)], ""),
        (&[("RateLimit", r#""a";r=1;t=-2"#)], ""),
        (&[("RateLimit", "limit=100, reset=30")], ""),
        (&[("RateLimit", "limit=100, remaining=x, reset=30")], ""),
        // The policies are malformed: the remaining calls are understood without them.
        (&[("RateLimit-Policy", "?"), ("RateLimit", r#""a";r=1;t=2"#)], "a 1/- 2s -"),
        // An older family is read instead.
        (
            &[("RateLimit", "?"), ("x-ratelimit-remaining", "9"), ("x-ratelimit-reset", "1")],
            "- 9/- 1s -",
        ),
        (&[("x-ratelimit-remaining", "many")], ""),
        (&[("x-ratelimit-remaining", "9"), ("x-ratelimit-reset", "soon")], "- 9/- - -"),
        (&[("x-ratelimit-remaining", "9"), ("x-ratelimit-limit", "all")], "- 9/- - -"),
        (&[("X-Shopify-Shop-Api-Call-Limit", "32 of 40")], ""),
    ];
    for (lines, expected) in rows {
        let learned = read(200, lines);
        assert_eq!(short(&learned.policies), *expected, "{lines:?}");
        assert_eq!(learned.malformed, 1, "{lines:?}");
    }
}

#[test]
fn a_refusal_says_when_to_come_again() {
    use Refusal::{Client, Server};
    const INFO: &str = "CAgSCXNsb3cgZG93bho2Cih0eXBlLmdvb2dsZWFwaXMuY29tL2dvb2dsZS5ycGMuUmV0cnlJbmZvEgoKCAgBEIDKte4B";
    let after = |ms| Some(RetryWhen::After(Duration::from_millis(ms)));
    type Row<'a> = (u16, &'a [(&'a str, &'a str)], Option<Refusal>, Option<RetryWhen>);
    let rows: &[Row<'_>] = &[
        (429, &[], Some(Client), None),
        (429, &[("Retry-After", "5")], Some(Client), after(5_000)),
        (429, &[("Retry-After", "2.0")], Some(Client), after(2_000)),
        (503, &[("Retry-After", "Tue, 14 Nov 2023 22:13:50 GMT")], Some(Server), after(30_000)),
        // The server's own clock defines the current time.
        (
            503,
            &[
                ("Date", "Tue, 14 Nov 2023 22:13:40 GMT"),
                ("Retry-After", "Tue, 14 Nov 2023 22:13:50 GMT"),
            ],
            Some(Server),
            after(10_000),
        ),
        (503, &[], Some(Server), None),
        (403, &[("Retry-After", "60")], Some(Client), after(60_000)),
        (403, &[], None, None),
        (400, &[("x-amz-retry-after", "250")], None, after(250)),
        (429, &[("retry-after-ms", "300"), ("Retry-After", "1")], Some(Client), after(1_000)),
        (
            200,
            &[("grpc-status", "8"), ("grpc-status-details-bin", INFO)],
            Some(Client),
            after(1_500),
        ),
        (
            200,
            &[
                ("grpc-status", "8"),
                ("grpc-retry-pushback-ms", "2000"),
                ("grpc-status-details-bin", INFO),
            ],
            Some(Client),
            after(2_000),
        ),
        (
            200,
            &[("grpc-status", "14"), ("grpc-retry-pushback-ms", "-1")],
            Some(Server),
            Some(RetryWhen::Never),
        ),
        (200, &[("grpc-status", "0")], None, None),
    ];
    for (status, lines, refusal, retry) in rows {
        let learned = read(*status, lines);
        assert_eq!((learned.refusal, learned.retry), (*refusal, *retry), "{status} {lines:?}");
        assert_eq!(learned.malformed, 0, "{status} {lines:?}");
    }
    assert_eq!(read(429, &[("Retry-After", "soon")]).malformed, 1);
    assert_eq!(read(200, &[("grpc-status-details-bin", "?")]).malformed, 1);
}

#[test]
fn implausible_times_are_cut_to_the_bound_and_counted() {
    let lines = [("RateLimit", r#""a";r=1;t=36000, "b";r=1;t=60"#), ("Retry-After", "7200")];
    let learned = read(429, &lines);
    assert_eq!(short(&learned.policies), "a 1/- 3600s - | b 1/- 60s -");
    assert_eq!(learned.retry, Some(RetryWhen::After(Duration::from_secs(3600))));
    assert_eq!(learned.clamped, 2);
    let strict = Reader::new().longest(Duration::from_secs(10));
    assert_eq!(strict.bound(), Duration::from_secs(10));
    let learned = strict.read(StatusCode::OK, &headers(&lines), WALL);
    assert_eq!(
        (short(&learned.policies).as_str(), learned.clamped),
        ("a 1/- 10s - | b 1/- 10s -", 3)
    );
}

#[test]
fn a_cached_response_tells_nothing() {
    let lines = [("RateLimit", r#""a";r=1;t=3"#), ("Retry-After", "7"), ("Age", "1")];
    let learned = read(429, &lines);
    assert!(learned.is_cached && learned.policies.is_empty());
    assert_eq!((learned.retry, learned.refusal), (None, None));
    assert_eq!(read(200, &[("RateLimit", r#""a";r=1;t=3"#), ("Age", "0")]).policies.len(), 1);
}

const NAMES: [&str; 16] = [
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-reset-after",
    "x-ratelimit-remaining-tokens",
    "anthropic-ratelimit-tokens-remaining",
    "x-shopify-shop-api-call-limit",
    "retry-after",
    "grpc-retry-pushback-ms",
    "grpc-status-details-bin",
    "date",
    "age",
];

proptest! {
    /// Any bytes, and texts that look like real headers.
    #[test]
    fn nothing_panics_and_nothing_is_beyond_its_bound(
        lines in proptest::collection::vec(
            (0..NAMES.len(), prop_oneof![
                proptest::collection::vec(32_u8..=255, 0..40),
                "[\"a-z]{0,4}(;[rtqw]=[0-9.-]{0,17}){0,3}(, [a-z\"]{1,3};r=[0-9]{1,2}){0,2}".prop_map(String::into_bytes),
                "[0-9:T.Z+ -]{0,30}".prop_map(String::into_bytes),
                "[0-9]{1,18}(d|h|m|s|ms)".prop_map(String::into_bytes),
            ]),
            0..8,
        ),
        wall in any::<u64>(),
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let Ok(value) = HeaderValue::from_bytes(&value) else { continue };
            headers.append(HeaderName::from_static(NAMES[name]), value);
        }
        let bound = Duration::from_secs(100);
        let reader = Reader::new().longest(bound);
        let learned = reader.read(StatusCode::OK, &headers, Duration::from_nanos(wall));
        prop_assert!(learned.policies.len() <= 16);
        for policy in &learned.policies {
            prop_assert!(policy.reset_after.is_none_or(|after| after <= bound));
        }
        if let Some(RetryWhen::After(after)) = learned.retry {
            prop_assert!(after <= bound);
        }
    }
}
