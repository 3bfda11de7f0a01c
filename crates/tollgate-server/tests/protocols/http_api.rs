//! `/v1`: bodies, answers, headers and errors.

mod access;
mod in_flight;
mod report;

use crate::http_support::{CONFIG, Client, start};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::time::Duration;
use tollgate_server::{
    net::{Access, Listener, Secret, Token},
    server::Settings,
};

#[tokio::test]
async fn each_decision_has_its_headers_and_body() {
    let (address, _, hand) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    hand.advance(Duration::from_secs(15));
    // The window of a minute has begun at a multiple of it, and 07:49:37 is 37 seconds after; 52 now.
    for (remaining, allowed) in [(4, true), (3, true), (2, true), (1, true), (0, true), (0, false)]
    {
        let got = client.post("/v1/check", r#"{"policy":"api","key":"alice","cost":1}"#).await;
        let row = format!("{remaining} {got:?}");
        assert_eq!(got.status, if allowed { 200 } else { 429 }, "{row}");
        assert_eq!(got.header("ratelimit-limit"), Some("5"), "{row}");
        assert_eq!(got.header("ratelimit-remaining"), Some(&*remaining.to_string()), "{row}");
        assert_eq!(got.header("ratelimit-reset"), Some("8"), "{row}");
        assert_eq!(got.header("ratelimit-policy"), Some("\"api\";q=5;w=60"), "{row}");
        let field = format!("\"api\";r={remaining};t=8");
        assert_eq!(got.header("ratelimit"), Some(&*field), "{row}");
        assert_eq!(got.header("retry-after"), (!allowed).then_some("8"), "{row}");
        assert_eq!(got.header("cache-control"), Some("no-store"), "{row}");
        assert_eq!(got.header("date"), Some("Sun, 06 Nov 1994 08:49:52 GMT"), "{row}");
        assert_eq!(got.header("content-type"), Some("application/json"), "{row}");
        let retry = if allowed { Value::Null } else { json!(8000) };
        let limit = json!({
            "index": 0, "policy": "api", "allowed": allowed, "limit": 5, "remaining": remaining,
            "retry_after_ms": retry, "reset_after_ms": 8000, "reason": "quota",
        });
        let expected = json!({
            "allowed": allowed, "policy": "api", "limit": 5, "remaining": remaining,
            "retry_after_ms": retry, "reset_after_ms": 8000, "limits": [limit],
        });
        assert_eq!(got.json(), expected, "{row}");
    }
    hand.advance(Duration::from_millis(7_999));
    let got = client.post("/v1/check", r#"{"policy":"api","key":"alice"}"#).await;
    // A millisecond is a second: rounded up, and never nothing.
    assert_eq!((got.status, got.header("retry-after")), (429, Some("1")));
    assert_eq!(got.json()["retry_after_ms"], 1);
    hand.advance(Duration::from_millis(1));
    assert_eq!(client.post("/v1/check", r#"{"policy":"api","key":"alice"}"#).await.status, 200);
}

#[tokio::test]
async fn bodies_of_every_shape_are_decided_as_one() {
    let (address, shared, _) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    // body, status, which policy binds, what remains of it, how many limits
    for (row, (body, status, policy, remaining, limits)) in [
        (r#"{"policy":"api","key":"a"}"#, 200, "api", 4, 1),
        (r#"{"key":"a","cost":3,"policy":"shop/api"}"#, 200, "api", 1, 1),
        (r#" { "policy" : "api" , "keys" : [ "a" ] , "cost" : 0 } "#, 200, "api", 1, 1),
        (r#"{"policy":"shop:user","key":"a","cost":2}"#, 429, "api", 1, 1),
        (r#"{"policy":"everyone"}"#, 200, "everyone", 6, 1),
        (r#"{"policy":"everyone","key":""}"#, 200, "everyone", 5, 1),
        (r#"{"policy":"everyone","keys":[]}"#, 200, "everyone", 4, 1),
        (r#"{"policy":"pair","keys":["t","a"]}"#, 200, "pair", 1, 1),
        (r#"{"policy":"pair","keys":["t","\u0061"]}"#, 200, "pair", 0, 1),
        // All or nothing: "api" refuses, so "everyone" is not charged.
        (r#"{"limits":[{"policy":"everyone"},{"policy":"api","key":"a","cost":2}]}"#, 429, "api", 1, 2),
        (r#"{"limits":[{"policy":"everyone"},{"policy":"api","key":"a"}]}"#, 200, "api", 0, 2),
        (r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"b"}]}]}"#, 200, "api", 4, 1),
        (r#"{"domain":"shop","hits":2,"descriptors":[{"entries":[{"key":"user","value":"b"}]}]}"#, 200, "api", 2, 1),
        (r#"{"domain":"shop","hits":9,"descriptors":[{"hits":1,"entries":[{"key":"user","value":"b"}]},
             {"hits":2,"entries":[{"key":"tenant","value":"t"}]}]}"#, 200, "api", 1, 2),
    ]
    .into_iter()
    .enumerate()
    {
        let got = client.post("/v1/check", body).await;
        assert_eq!(got.status, status, "row {row}: {got:?}");
        let told = got.json();
        assert_eq!((&told["policy"], &told["remaining"]), (&json!(policy), &json!(remaining)), "row {row}: {told}");
        assert_eq!(told["limits"].as_array().unwrap().len(), limits, "row {row}: {told}");
        assert_eq!(told["allowed"], status == 200);
    }
    let got = client.post("/v1/peek", r#"{"policy":"everyone","cost":0}"#).await;
    assert_eq!(got.json()["remaining"], 3, "charged by the one that passed: {got:?}");
    let counts = shared.traffic(tollgate_server::net::Listener::Http).counts();
    assert_eq!((counts.requests, counts.bad_requests, counts.open), (15, 0, 1));
}

#[tokio::test]
async fn what_has_no_limit_passes_without_figures() {
    let (address, ..) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    for (body, limits) in [
        (r#"{"domain":"shop","descriptors":[{"entries":[{"key":"unheard","value":"of"}]}]}"#, 0),
        (r#"{"domain":"nowhere","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}"#, 0),
        (r#"{"policy":"free","key":"a"}"#, 1),
    ] {
        let got = client.post("/v1/check", body).await;
        let told = got.json();
        assert_eq!(
            (got.status, &told["limit"], &told["policy"]),
            (200, &Value::Null, &Value::Null),
            "{body}"
        );
        assert_eq!(got.header("ratelimit-limit"), None);
        assert_eq!(told["limits"].as_array().unwrap().len(), limits);
    }
    let told = client.post("/v1/check", r#"{"policy":"free","key":"a"}"#).await.json();
    assert_eq!(
        (&told["limits"][0]["policy"], &told["limits"][0]["reason"]),
        (&json!("free"), &json!("unlimited"))
    );
    // No wait helps: there is no Retry-After.
    for (body, reason) in [
        (r#"{"policy":"shut","key":"a"}"#, "closed"),
        (r#"{"policy":"api","key":"a","cost":6}"#, "cost-above-burst"),
    ] {
        let got = client.post("/v1/check", body).await;
        let told = got.json();
        assert_eq!((got.status, got.header("retry-after")), (429, None), "{told}");
        assert_eq!(
            (&told["limits"][0]["reason"], &told["retry_after_ms"]),
            (&json!(reason), &Value::Null)
        );
    }
}

#[tokio::test]
async fn curl_users_can_ask_by_query() {
    let (address, ..) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    // target, status, remaining
    for (method, target, status, remaining) in [
        ("GET", "/v1/check?policy=api&key=al%20ice", 200, Some(4)),
        ("GET", "/v1/check?key=al+ice&policy=api&cost=2", 200, Some(2)),
        ("POST", "/v1/peek", 200, Some(1)),
        ("GET", "/v1/peek?policy=api&key=al+ice", 200, Some(1)),
        ("GET", "/v1/check?policy=pair&key=t&key=u", 200, Some(1)),
        ("GET", "/v1/check?policy=everyone", 200, Some(6)),
        ("HEAD", "/v1/check?policy=everyone", 200, None),
        ("GET", "/v1/check?policy=everyone&cost=8", 429, Some(5)),
        ("GET", "/v1/check?policy=everyone&cost=8&denied_status=200", 200, Some(5)),
        ("GET", "/v1/check?policy=everyone&cost=8&denied_status=503", 503, Some(5)),
        ("GET", "/v1/check?policy=everyone&denied_status=503", 200, Some(4)),
    ] {
        let body = if method == "POST" { r#"{"policy":"api","key":"al ice"}"# } else { "" };
        let got = client.ask(method, target, body).await;
        assert_eq!(got.status, status, "{target}: {got:?}");
        if let Some(remaining) = remaining {
            assert_eq!(got.json()["remaining"], remaining, "{target}: {got:?}");
        }
    }
    let got = client.post("/v1/check?denied_status=200", r#"{"policy":"shut","key":"a"}"#).await;
    assert_eq!((got.status, &got.json()["allowed"]), (200, &json!(false)));
}

#[tokio::test]
async fn reservations_are_settled_cancelled_or_gone() {
    let (address, ..) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    let reserve = r#"{"policy":"big","key":"a","cost":100,"life_ms":5000}"#;
    let peek = r#"{"policy":"big","key":"a","cost":0}"#;
    let got = client.post("/v1/reserve", reserve).await;
    let told = got.json();
    assert_eq!((got.status, &told["remaining"]), (200, &json!(900)), "{told}");
    let id = told["id"].as_str().unwrap().to_owned();
    let settle = format!(r#"{{"id":"{id}","actual":30}}"#);
    assert_eq!(client.post("/v1/settle", &settle).await.json(), json!({"settled": true}));
    assert_eq!(client.post("/v1/peek", peek).await.json()["remaining"], 970);
    let again = client.post("/v1/settle", &settle).await;
    assert_eq!(
        (again.status, again.json()["type"].as_str()),
        (404, Some("urn:tollgate:problem:no-reservation"))
    );
    let id = client.post("/v1/reserve", reserve).await.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(client.post("/v1/peek", peek).await.json()["remaining"], 870);
    let cancel = format!(r#"{{"id":"{id}"}}"#);
    assert_eq!(client.post("/v1/cancel", &cancel).await.json(), json!({"cancelled": true}));
    assert_eq!(client.post("/v1/peek", peek).await.json()["remaining"], 970);
    for id in ["nonsense", "", "0-1-1-0.0.0.1-0000000000000000", &id] {
        let got = client.post("/v1/cancel", &format!(r#"{{"id":"{id}"}}"#)).await;
        assert_eq!(got.status, 404, "{id}: {got:?}");
    }
    let refused = client.post("/v1/reserve", r#"{"policy":"big","key":"a","cost":2000}"#).await;
    assert_eq!((refused.status, &refused.json()["id"]), (429, &Value::Null));
    // Several, each to its own cost.
    let both =
        r#"{"limits":[{"policy":"big","key":"b","cost":10},{"policy":"everyone","cost":5}]}"#;
    let id = client.post("/v1/reserve", both).await.json()["id"].as_str().unwrap().to_owned();
    let settle = format!(r#"{{"id":"{id}","actual":[1,2]}}"#);
    assert_eq!(client.post("/v1/settle", &settle).await.status, 200);
    let got = client.post("/v1/peek", r#"{"policy":"everyone","cost":0}"#).await;
    assert_eq!(got.json()["remaining"], 5);
}

#[tokio::test]
async fn refunds_give_back_and_resets_forget() {
    let (address, ..) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    let a = r#"{"policy":"api","key":"a","cost":4}"#;
    assert_eq!(client.post("/v1/check", a).await.json()["remaining"], 1);
    let got = client.post("/v1/refund", r#"{"policy":"api","key":"a","cost":3}"#).await;
    assert_eq!(got.json(), json!({"refunded": 3}));
    let peek = r#"{"policy":"api","key":"a","cost":0}"#;
    assert_eq!(client.post("/v1/peek", peek).await.json()["remaining"], 4);
    // No more than was taken.
    let got = client.post("/v1/refund", r#"{"policy":"api","key":"a","cost":9}"#).await;
    assert_eq!(got.json(), json!({"refunded": 1}));
    assert_eq!(client.post("/v1/check", a).await.json()["remaining"], 1);
    assert_eq!(
        client.post("/v1/reset", r#"{"policy":"api","key":"a"}"#).await.json(),
        json!({"reset": true})
    );
    assert_eq!(client.post("/v1/check", a).await.json()["remaining"], 1);
}

#[tokio::test]
async fn policies_are_listed() {
    let (address, ..) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    let got = client.ask("GET", "/v1/policies", "").await;
    let told = got.json();
    let policies = told["policies"].as_array().unwrap();
    assert_eq!(policies.len(), 9);
    assert_eq!(
        policies[2],
        json!({"policy": "pair", "id": "shop:tenant|user", "domain": "shop", "keys": ["tenant", "user"],
               "limit": 2, "count": 2, "per_ms": 1000, "algorithm": "fixed-window", "lease_ms": null,
               "shadow": false})
    );
    assert_eq!((&policies[4]["limit"], &policies[4]["algorithm"]), (&Value::Null, &Value::Null));
    let exports = &policies[6];
    assert_eq!((&exports["limit"], &exports["lease_ms"]), (&json!(2), &json!(10_000)));
    assert_eq!(
        (&exports["id"], &exports["per_ms"]),
        (&json!("shop:export#concurrency"), &Value::Null)
    );
}

/// Method, target, body, status, words of the detail.
const MISTAKES: [(&str, &str, &str, u16, &str); 44] = [
    ("POST", "/v1/check", "", 400, "expected an object at byte 0"),
    ("POST", "/v1/check", "[]", 400, "\"the body\" is a list; it must be an object"),
    ("POST", "/v1/check", "{", 400, "not JSON"),
    ("POST", "/v1/check", "{}", 400, "the request names no limit; send {\"policy\""),
    (
        "POST",
        "/v1/check",
        r#"{"polcy":"api"}"#,
        400,
        "there is no field \"polcy\"; did you mean \"policy\"?",
    ),
    ("POST", "/v1/check", r#"{"policy":"api","xyzzy":1}"#, 400, "use policy, key, keys"),
    ("POST", "/v1/check", r#"{"policy":"api","policy":"api"}"#, 400, "\"policy\" is given twice"),
    (
        "POST",
        "/v1/check",
        r#"{"policy":"api","key":"a","cost":-1}"#,
        400,
        "\"cost\" is -1; it must be a whole number from 0 to 18446744073709551615",
    ),
    (
        "POST",
        "/v1/check",
        r#"{"policy":"api","key":"a","cost":18446744073709551616}"#,
        400,
        "\"cost\" is 18446744073709551616",
    ),
    ("POST", "/v1/check", r#"{"policy":"api","key":"a","cost":1.5}"#, 400, "\"cost\" is 1.5"),
    ("POST", "/v1/check", r#"{"policy":"api","key":"a","cost":null}"#, 400, "\"cost\" is null"),
    ("POST", "/v1/check", r#"{"policy":"api","key":"a","cost":"1"}"#, 400, "\"cost\" is a string"),
    ("POST", "/v1/check", r#"{"policy":"api","key":7}"#, 400, "\"key\" is 7; it must be a string"),
    ("POST", "/v1/check", r#"{"policy":"api","key":"a"} x"#, 400, "expected nothing more"),
    ("POST", "/v1/check", r#"{"policy":"api","key":"a",}"#, 400, "\"the body\" is"),
    ("POST", "/v1/check", r#"{"policy":"api","key":"a","keys":["a"]}"#, 400, "both given"),
    ("POST", "/v1/check", r#"{"key":"a"}"#, 400, "\"policy\" is missing"),
    (
        "POST",
        "/v1/check",
        r#"{"policy":"api"}"#,
        400,
        "policy \"api\" needs 1 key (user), but no key was given",
    ),
    (
        "POST",
        "/v1/check",
        r#"{"policy":"pair","key":"a"}"#,
        400,
        "(tenant, user), but 1 key was given",
    ),
    ("POST", "/v1/check", r#"{"policy":"ap","key":"a"}"#, 404, "did you mean \"api\"?"),
    ("POST", "/v1/check", r#"{"limits":[]}"#, 400, "\"limits\" is empty"),
    ("POST", "/v1/check", r#"{"limits":[{"key":"a"}]}"#, 400, "\"policy\" is missing"),
    (
        "POST",
        "/v1/check",
        r#"{"limits":[{"policy":"api","hits":1}]}"#,
        400,
        "there is no field \"hits\"",
    ),
    (
        "POST",
        "/v1/check",
        r#"{"limits":[{"policy":"api"}],"policy":"api"}"#,
        400,
        "mixes two forms",
    ),
    (
        "POST",
        "/v1/check",
        r#"{"limits":[{"policy":"api"}],"cost":2}"#,
        400,
        "\"cost\" belongs to \"policy\"",
    ),
    (
        "POST",
        "/v1/check",
        r#"{"policy":"api","key":"a","hits":2}"#,
        400,
        "\"hits\" belongs to descriptors",
    ),
    (
        "POST",
        "/v1/check",
        r#"{"descriptors":[{"entries":[{"key":"a"}]}]}"#,
        400,
        "\"domain\" is missing",
    ),
    ("POST", "/v1/check", r#"{"domain":"shop"}"#, 400, "\"descriptors\" is missing"),
    ("POST", "/v1/check", r#"{"domain":"shop","descriptors":[{}]}"#, 400, "no \"entries\""),
    (
        "POST",
        "/v1/check",
        r#"{"domain":"shop","descriptors":[{"entries":[{"value":"a"}]}]}"#,
        400,
        "no \"key\"",
    ),
    (
        "POST",
        "/v1/check",
        r#"{"policy":"api","key":"a","life_ms":2}"#,
        400,
        "belongs to /v1/reserve",
    ),
    (
        "POST",
        "/v1/reserve",
        r#"{"policy":"api","key":"a","life_ms":0}"#,
        400,
        "\"life_ms\" is 0; it must be between 1 and 86400000",
    ),
    ("POST", "/v1/settle", r#"{"id":"x"}"#, 400, "\"actual\" is missing"),
    ("POST", "/v1/cancel", r#"{"actual":1}"#, 400, "there is no field \"actual\""),
    ("POST", "/v1/check?x=1", r#"{"policy":"api","key":"a"}"#, 400, "takes only denied_status"),
    (
        "POST",
        "/v1/check?denied_status=404",
        r#"{"policy":"api","key":"a"}"#,
        400,
        "must be 200, 403, 429 or 503",
    ),
    ("GET", "/v1/check", "", 400, "the request names no limit"),
    ("GET", "/v1/check?policy=api&key=%zz", "", 400, "'%' without two hexadecimal digits"),
    ("GET", "/v1/check?policy=api&kee=a", "", 400, "did you mean \"key\"?"),
    ("GET", "/v1/check?policy=api&key=a&cost=x", "", 400, "\"cost\" is x"),
    ("PUT", "/v1/check", "", 405, "use GET, HEAD, POST"),
    ("GET", "/v1/reserve", "", 405, "use POST"),
    ("DELETE", "/healthz", "", 405, "use GET, HEAD"),
    ("GET", "/nowhere", "", 404, "there is no path \"/nowhere\""),
];

#[tokio::test]
async fn mistakes_are_named_with_a_way_out() {
    let (address, shared, _) =
        start(CONFIG, Settings { max_request: 2000, ..Settings::default() }).await;
    let mut client = Client::connect(address).await;
    let many = format!(r#"{{"limits":[{}]}}"#, vec![r#"{"policy":"api"}"#; 65].join(","));
    for (row, (method, target, body, status, words)) in MISTAKES.into_iter().enumerate() {
        let got = client.ask(method, target, body).await;
        let told = got.json();
        assert_eq!(got.status, status, "row {row}: {told}");
        assert_eq!(got.header("content-type"), Some("application/problem+json"));
        assert_eq!(told["status"], status, "row {row}");
        assert!(told["type"].as_str().unwrap().starts_with("urn:tollgate:problem:"), "row {row}");
        assert!(told["detail"].as_str().unwrap().contains(words), "row {row}: {told}");
        assert_eq!(got.header("allow").is_some(), status == 405, "row {row}");
    }
    let counts = shared.traffic(tollgate_server::net::Listener::Http).counts();
    assert_eq!((counts.requests, counts.bad_requests), (44, 44));
    let got = client.post("/v1/check", &many).await.json();
    assert!(
        got["detail"].as_str().unwrap().contains("\"limits\" has more than 64 elements"),
        "{got}"
    );
    let long = format!(r#"{{"policy":"{}"}}"#, "x".repeat(2000));
    let got = client.post("/v1/check", &long).await;
    assert_eq!((got.status, got.header("connection")), (413, Some("close")));
    assert_eq!(client.read_to("GET").await, None, "the connection is over");
}

#[tokio::test]
async fn only_who_knows_the_token_may_use_v1() {
    let access = Access::new(vec![Token::of(Listener::Http, Secret::new("s3cret"))]);
    let settings = Settings { access, ..Settings::default() };
    let (address, ..) = start(CONFIG, settings).await;
    let mut client = Client::connect(address).await;
    for (path, header, status) in [
        ("/v1/policies", "", 401),
        ("/v1/policies", "Authorization: Bearer s3cret\r\n", 200),
        ("/v1/policies", "authorization: bearer  s3cret \r\n", 200),
        ("/v1/policies", "Authorization: Bearer s3cre\r\n", 401),
        ("/v1/policies", "Authorization: Bearer s3crets\r\n", 401),
        ("/v1/policies", "Authorization: s3cret\r\n", 401),
        ("/v1/policies", "Authorization: Basic s3cret\r\n", 401),
        ("/v1/check?policy=api&key=a", "", 401),
        ("/v1/check?policy=api&key=a", "Authorization: Bearer s3cret\r\n", 200),
        ("/healthcheck", "", 200),
        ("/healthz", "", 200),
        ("/openapi.json", "", 200),
        ("/nowhere", "", 404),
    ] {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n")).await;
        let got = client.read().await;
        assert_eq!(got.status, status, "{path} {header}");
        assert_eq!(got.header("www-authenticate"), (status == 401).then_some("Bearer"));
    }
    for path in ["check", "peek", "reserve", "settle", "cancel", "refund", "reset"] {
        assert_eq!(client.post(&format!("/v1/{path}"), "{").await.status, 401, "{path}");
    }
}

#[tokio::test]
async fn a_body_must_be_said_to_be_json() {
    let (address, ..) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    let body = r#"{"policy":"big","key":"a"}"#;
    for (kind, status) in [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/vnd.shop+json", 200),
        ("application/x-www-form-urlencoded", 415),
        ("text/plain", 415),
        ("", 415),
        ("application/json, text/plain", 415),
    ] {
        let length = body.len();
        let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\n";
        client
            .send(format!("{head}Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"))
            .await;
        assert_eq!(client.read().await.status, status, "{kind}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn random_bodies_are_read_or_refused(text in "\\PC{0,60}") {
        let _ = tollgate_server::http::read_body(&text);
    }

    #[test]
    fn broken_json_is_refused_and_never_panics(
        text in "[{}\\[\\]:,\" \\\\a-z0-9\\-u.]{0,40}|\\{(\"(policy|key|keys|cost|limits|domain|descriptors|hits|id|actual)\":(\"[a-z\\\\]{0,3}\"|[0-9]{1,22}|\\[\\]|\\{\\}),?){0,4}\\}",
    ) {
        let ours = tollgate_server::http::read_body(&text);
        // Every body that the reader accepts is JSON.
        if ours.is_ok() {
            prop_assert!(serde_json::from_str::<Value>(&text).is_ok(), "{}", text);
        }
    }
}
