//! `/v1/enter`, `/v1/renew` and `/v1/leave`.

use crate::http_support::{CONFIG, Client, start};
use serde_json::{Value, json};
use std::time::Duration;
use tollgate_server::server::Settings;

const ENTER: &str = r#"{"policy":"exports","key":"ann"}"#;

fn lease(id: &Value) -> String {
    json!({"policy": "exports", "key": "ann", "id": id}).to_string()
}

#[tokio::test]
async fn a_caller_enters_renews_and_leaves() {
    let (address, _, hand) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    let got = client.post("/v1/enter", ENTER).await;
    assert_eq!((got.status, got.header("cache-control")), (200, Some("no-store")));
    assert_eq!((got.header("retry-after"), got.header("ratelimit-limit")), (None, None));
    let id = got.json()["id"].clone();
    let expected = json!({
        "allowed": true, "policy": "exports", "id": id, "reason": "quota", "limit": 2,
        "in_flight": 1, "lease_ms": 10_000, "retry_after_ms": null,
    });
    assert_eq!(got.json(), expected);
    hand.advance(Duration::from_secs(4));
    // By descriptor it is the same key.
    let entries =
        r#"{"domain":"shop","descriptors":[{"entries":[{"key":"export","value":"ann"}]}]}"#;
    assert_eq!(client.post("/v1/enter", entries).await.json()["in_flight"], 2);
    let got = client.post("/v1/enter", ENTER).await;
    assert_eq!((got.status, got.header("retry-after")), (429, Some("6")));
    let expected = json!({
        "allowed": false, "policy": "exports", "id": null, "reason": "quota", "limit": 2,
        "in_flight": 2, "lease_ms": 10_000, "retry_after_ms": 6_000,
    });
    assert_eq!(got.json(), expected);
    assert_eq!(client.post("/v1/enter?denied_status=503", ENTER).await.status, 503);
    let got = client.post("/v1/renew", &lease(&id)).await;
    assert_eq!((got.status, got.json()), (200, json!({"renewed": true, "lease_ms": 10_000})));
    hand.advance(Duration::from_secs(9));
    assert_eq!(client.post("/v1/enter", ENTER).await.json()["in_flight"], 2, "one has ended");
    let got = client.post("/v1/leave", &lease(&id)).await;
    assert_eq!((got.status, got.json()), (200, json!({"left": true})));
    let cost = r#"{"policy":"exports","key":"ann","cost":3}"#;
    let got = client.post("/v1/enter", cost).await;
    assert_eq!((got.status, got.header("retry-after")), (429, None));
    assert_eq!(got.json()["reason"], "cost-above-limit");
}

#[tokio::test]
async fn a_lease_that_is_not_there_is_not_found() {
    let (address, _, hand) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    let id = client.post("/v1/enter", ENTER).await.json()["id"].clone();
    hand.advance(Duration::from_secs(10));
    for (row, id) in [id, json!("1-0000000000000001"), json!("nonsense")].iter().enumerate() {
        for path in ["/v1/renew", "/v1/leave"] {
            let got = client.post(path, &lease(id)).await;
            assert_eq!(got.status, 404, "row {row} {path}");
            assert_eq!(got.json()["type"], "urn:tollgate:problem:no-lease", "row {row} {path}");
            let detail = format!(
                "{id} is not a lease of this policy and key: it is unknown, left or expired; enter \
                 again"
            );
            assert_eq!(got.json()["detail"], detail, "row {row} {path}");
        }
    }
}

#[tokio::test]
async fn mistakes_are_named() {
    let (address, ..) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    for (path, body, status, words) in [
        ("/v1/check", ENTER, 400, "limits how many are in flight at once; use enter, renew and"),
        ("/v1/peek", ENTER, 400, "limits how many are in flight at once"),
        ("/v1/enter", r#"{"policy":"api","key":"a"}"#, 400, "limits a rate"),
        ("/v1/enter", r#"{"policy":"exporst","key":"a"}"#, 404, "there is no policy \"exporst\""),
        ("/v1/enter", r#"{"policy":"exports"}"#, 400, "needs 1 key (export), but no key"),
        ("/v1/enter", r#"{"policy":"exports","key":"a","cost":0}"#, 400, "from 1 to 16383 slots"),
        ("/v1/enter", r#"{"policy":"exports","key":"a","life_ms":9}"#, 400, "\"life_ms\" belongs"),
        (
            "/v1/enter",
            r#"{"limits":[{"policy":"exports","key":"a"},{"policy":"exports","key":"b"}]}"#,
            400,
            "but 2 were given; enter them one by one",
        ),
        ("/v1/enter", r#"{"policy":"exports","key":"a","id":"1-1"}"#, 400, "\"id\" belongs to"),
        ("/v1/leave", ENTER, 400, "\"id\" is missing; use the one that /v1/enter returned"),
        (
            "/v1/leave",
            r#"{"policy":"exports","key":"a","id":"1-1","cost":2}"#,
            400,
            "belong to /v1/enter; a lease keeps its slots",
        ),
        ("/v1/renew", r#"{"policy":"api","key":"a","id":"1-1"}"#, 400, "limits a rate"),
    ] {
        let got = client.post(path, body).await;
        let detail = got.json()["detail"].to_string().replace("\\\"", "\"");
        assert_eq!(got.status, status, "{path} {body}: {detail}");
        assert!(detail.contains(words), "{path} {body}: {detail}");
    }
    assert_eq!(client.ask("GET", "/v1/enter", "").await.header("allow"), Some("POST"));
}

#[tokio::test]
async fn a_descriptor_without_a_concurrency_limit_may_enter() {
    let (address, ..) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ann"}]}]}"#;
    let expected = json!({
        "allowed": true, "policy": null, "id": null, "reason": "unlimited", "limit": null,
        "in_flight": null, "lease_ms": null, "retry_after_ms": null,
    });
    assert_eq!(client.post("/v1/enter", body).await.json(), expected);
}
