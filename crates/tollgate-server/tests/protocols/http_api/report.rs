//! `/v1/report`.

use crate::http_support::{CONFIG, Client, start};
use serde_json::json;
use std::time::Duration;
use tollgate_server::server::Settings;

#[tokio::test]
async fn reports_move_the_rate_and_tell_it() {
    let (address, shared, hand) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    let bad = r#"{"policy":"upstream","outcome":"overload","latency_ms":900,"count":20}"#;
    let got = client.post("/v1/report", bad).await;
    let expected = json!({
        "reported": 20, "per_second": 100.0, "min_per_second": 10.0, "max_per_second": 100.0,
        "reason": "starting",
    });
    assert_eq!((got.status, got.json()), (200, expected));
    hand.advance(Duration::from_secs(2));
    shared.engine.adapt();
    let good = r#"{"policy":"upstream","outcome":"success"}"#;
    let got = client.post("/v1/report", good).await.json();
    assert_eq!((&got["per_second"], &got["reason"]), (&json!(90.0), &json!("overload")));
    assert_eq!(got["reported"], 1);
    let check = r#"{"policy":"upstream","key":"ann"}"#;
    let got = client.post("/v1/check", check).await;
    assert_eq!(got.header("ratelimit-limit").or(got.header("x-ratelimit-limit")), Some("90"));
}

#[tokio::test]
async fn mistakes_are_named() {
    let (address, ..) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    for (body, status, words) in [
        ("{}", 400, "\"policy\" is missing; name the policy"),
        (r#"{"policy":"upstream"}"#, 400, "\"outcome\" is missing; use success, failure, overload"),
        (
            r#"{"policy":"upstream","outcome":"sucess"}"#,
            400,
            "\"outcome\" is \"sucess\"; did you mean \"success\"?",
        ),
        (r#"{"policy":"upstream","outcome":"x"}"#, 400, "use success, failure, overload"),
        (r#"{"policy":"upstream","outcome":"success","count":0}"#, 400, "count 0 is out of range"),
        (
            r#"{"policy":"upstream","outcome":"success","latencyms":5}"#,
            400,
            "there is no field \"latencyms\"; did you mean \"latency_ms\"?",
        ),
        (
            r#"{"policy":"upstream","outcome":"success","latency_ms":3600001}"#,
            400,
            "a latency of 3600001 ms is out of range",
        ),
        (r#"{"policy":"nobody","outcome":"success"}"#, 404, "there is no policy \"nobody\""),
        (r#"{"policy":"api","outcome":"success"}"#, 400, "the rate of policy \"api\" is fixed"),
    ] {
        let got = client.post("/v1/report", body).await;
        let detail = got.json()["detail"].as_str().unwrap().to_owned();
        assert_eq!(got.status, status, "{body}: {detail}");
        assert!(detail.contains(words), "{body}: {detail}");
    }
    assert_eq!(client.ask("GET", "/v1/report", "").await.header("allow"), Some("POST"));
}
