//! Envoy's protocol over JSON.

use crate::support::server;
use serde_json::{Value, json};
use tollgate_server::{
    engine::Answer,
    net::{Access, Permission, Permissions},
    rls::json::json as decide,
    server::Settings,
};

const SHOP: &str = r"
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2, name: per-user}
  - key: free
    rate_limit: {unlimited: true}
";

#[tokio::test]
async fn answers_are_those_of_the_reference() {
    let settings = Settings { response_headers: false, ..Settings::default() };
    let (shared, _hand) = server(SHOP, settings);
    let mut answer = Answer::new();
    let limit = json!({"name": "per-user", "requestsPerUnit": 2, "unit": "MINUTE"});
    let rows = [
        (
            r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "\u0061"}]}]}"#,
            200,
            json!({"overallCode": "OK", "statuses": [
                {"code": "OK", "currentLimit": limit, "limitRemaining": 1, "durationUntilReset": "41s"}]}),
        ),
        (
            r#"{"domain": "shop", "hits_addend": "2", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}"#,
            429,
            json!({"overallCode": "OVER_LIMIT", "statuses": [
                {"code": "OVER_LIMIT", "currentLimit": limit, "durationUntilReset": "41s"}]}),
        ),
        (
            r#"{"domain": "shop", "hitsAddend": null, "descriptors": [{"entries": [{"key": "free", "value": "a"}], "limit": null},
                {"entries": [{"key": "x"}], "limit": {"requestsPerUnit": 7, "unit": "HOUR"}, "hitsAddend": "3", "isNegativeHits": false}]}"#,
            200,
            json!({"overallCode": "OK", "statuses": [
                {"code": "OK", "limitRemaining": u32::MAX},
                {"code": "OK", "currentLimit": {"requestsPerUnit": 7, "unit": "HOUR"}, "limitRemaining": 4, "durationUntilReset": "1181s"}]}),
        ),
        (
            r#"{"domain": "shop", "descriptors": [
                {"entries": [{"key": "y"}], "limit": {"requests_per_unit": 0, "unit": 4}, "hits_addend": 0.0}]}"#,
            429,
            json!({"overallCode": "OVER_LIMIT", "statuses": [
                {"code": "OVER_LIMIT", "currentLimit": {"unit": "DAY"}, "durationUntilReset": "80381s"}]}),
        ),
    ];
    for (row, (body, status, expected)) in rows.into_iter().enumerate() {
        let reply = decide(&shared, Permissions::CLIENT, body.as_bytes(), &mut answer).await;
        let text = String::from_utf8(reply.body).unwrap();
        let told: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        assert_eq!((reply.status, told), (status, expected), "row {row}");
        assert_eq!(reply.headers, [("content-type", "application/json".to_owned())]);
    }
}

#[tokio::test]
async fn nonsense_is_told_why() {
    let (shared, _hand) = server(SHOP, Settings::default());
    let mut answer = Answer::new();
    for (body, text) in [
        ("", "EOF"),
        ("[]", "not a RateLimitRequest"),
        (r#"{"domain": "shop", "descriptors": [[]]}"#, "not a RateLimitRequest"),
        (r#"{"domian": "shop"}"#, "unknown field `domian`"),
        (r#"{"descriptors": [{}]}"#, "rate limit domain must not be empty"),
        (r#"{"domain": "shop"}"#, "rate limit descriptor list must not be empty"),
        (r#"{"domain": "shop", "hitsAddend": -1}"#, "-1 is not a whole number"),
        (r#"{"domain": "shop", "hitsAddend": 1.5}"#, "1.5 is not a whole number"),
        (r#"{"domain": "shop", "hitsAddend": 4294967296}"#, "above 4294967295"),
        (r#"{"domain": "shop", "descriptors": [{"limit": {"unit": "hour"}}]}"#, "not a unit"),
        (r#"{"domain": "shop", "descriptors": [{"limit": {"unit": "UNKNOWN"}}]}"#, "unit 0"),
    ] {
        let reply = decide(&shared, Permissions::CLIENT, body.as_bytes(), &mut answer).await;
        let told = String::from_utf8(reply.body).unwrap();
        assert!(told.contains(text), "{body}: {text} is not in {told}");
        assert_eq!(reply.status, 400, "{body}");
    }
}

/// 200 of 200 passed a limit of 5 when what was taken could be given back.
#[tokio::test]
async fn negative_hits_are_refused_and_change_nothing() {
    let give = br#"{"domain": "shop", "descriptors": [
        {"entries": [{"key": "user", "value": "a"}], "isNegativeHits": true}]}"#;
    let take =
        br#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}"#;
    let checks = Permissions::NONE.with(Permission::Check);
    for (negative_hits, granted, status) in [
        (false, Permissions::CLIENT, 403),
        (true, checks, 403),
        (true, checks.with(Permission::Settle), 200),
    ] {
        let access = Access { negative_hits, ..Access::default() };
        let (shared, _hand) = server(SHOP, Settings { access, ..Settings::default() });
        let mut answer = Answer::new();
        let mut passed = 0;
        for _ in 0..200 {
            let told = decide(&shared, granted, give, &mut answer).await;
            assert_eq!(told.status, status, "{negative_hits} {granted:?}");
            let told = decide(&shared, granted, take, &mut answer).await;
            passed += usize::from(told.status == 200);
        }
        assert_eq!(passed, if status == 200 { 200 } else { 2 }, "{negative_hits} {granted:?}");
    }
}
