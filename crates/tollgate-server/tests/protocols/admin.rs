//! The administrators' interface, over real sockets and with a manual clock.

mod access;

use crate::admin_harness::{CONFIG, Harness, ask, ask_with, exchange, request};
use serde_json::json;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tollgate_server::{
    admin::{Control, ControlFuture, ControlStatus, LoadStatus, ReloadReport, SnapshotStatus},
    server::Settings,
};

#[tokio::test]
async fn the_open_endpoints_need_no_token_and_the_others_do() {
    let harness = Harness::with_token();
    let address = harness.listen().await;
    // method, path, headers, status
    for (row, (method, path, headers, status)) in [
        ("GET", "/", "", 200),
        ("GET", "/health", "", 200),
        ("HEAD", "/health", "", 200),
        ("GET", "/ready", "", 200),
        ("GET", "/version", "", 200),
        ("GET", "/metrics", "", 200),
        ("GET", "/policies", "", 401),
        ("GET", "/policies", "Authorization: Bearer wrong\r\n", 401),
        ("GET", "/policies", "Authorization: Bearer open sesame2\r\n", 401),
        ("GET", "/policies", "Authorization: Basic open sesame\r\n", 401),
        ("GET", "/policies", "Authorization: B\r\n", 401),
        ("GET", "/policies", "authorization: bearer open sesame\r\n", 200),
        ("POST", "/reload", "", 401),
        ("POST", "/reload", "Authorization: Bearer open sesame\r\n", 501),
        ("GET", "/reset", "Authorization: Bearer open sesame\r\n", 405),
        ("POST", "/policies", "Authorization: Bearer open sesame\r\n", 405),
        ("GET", "/nothing", "", 404),
        ("GET", "/policies/", "", 404),
    ]
    .into_iter()
    .enumerate()
    {
        let told = ask_with(address, &request(method, path, headers, "")).await;
        assert_eq!(told.status, status, "row {row}: {method} {path} {told:?}");
        let is_problem = told.head.contains("content-type: application/problem+json");
        assert_eq!(is_problem, status >= 400, "row {row}: {told:?}");
        assert_eq!(told.head.contains("www-authenticate: bearer"), status == 401, "row {row}");
        assert_eq!(told.head.contains("\nallow: "), status == 405, "row {row}");
    }
    let nothing = ask(address, "GET", "/nothing", "").await.json();
    assert!(nothing["endpoints"].as_array().unwrap().contains(&json!("POST /reset")));
    let index = ask(address, "GET", "/", "").await.body;
    assert!(index.contains("GET  /policies/{name}"), "{index}");
}

#[tokio::test]
async fn without_a_token_only_a_unix_socket_may_change_something() {
    let harness = Harness::new(CONFIG, Settings::default());
    let address = harness.listen().await;
    let body = r#"{"policy": "per-user", "key": "ann"}"#;
    assert_eq!(ask(address, "GET", "/policies", "").await.status, 200);
    let refused = ask(address, "POST", "/reset", body).await;
    assert_eq!(refused.status, 403);
    assert!(refused.json()["detail"].as_str().unwrap().contains("admin_token_file"));
    assert_eq!(harness.ask_unix("POST", "/reset", body).await.status, 200);
    let audit = ask(address, "GET", "/audit", "").await.json();
    assert_eq!(audit["changes"].as_array().unwrap().len(), 1, "a refused caller changes nothing");
    assert_eq!(audit["changes"][0]["who"], "unix");
}

#[tokio::test]
async fn a_policy_tells_what_it_is_and_how_it_does() {
    let harness = Harness::with_token();
    let address = harness.listen().await;
    harness.tick();
    for second in 1..=20 {
        harness.decide("whole-site", &[], second).await;
        harness.tick();
    }
    assert_eq!(harness.decide("per-user", &[b"ann"], 5).await, 3);
    let all = ask(address, "GET", "/policies", "").await.json();
    assert_eq!((&all["total"], &all["version"]), (&json!(6), &json!(1)));
    let labels: Vec<_> =
        all["policies"].as_array().unwrap().iter().map(|one| one["label"].clone()).collect();
    assert_eq!(
        labels,
        ["per-user", "tenant-path", "whole-site", "shop:free=all", "upstream", "exports"]
    );
    let site = ask(address, "GET", "/policies/whole-site", "").await.json();
    assert_eq!(
        site["limit"],
        json!({
            "text": "100/s", "count": 100, "seconds": 1.0, "unit": "second", "burst": null,
        })
    );
    assert_eq!(site["algorithm"], "fixed-window");
    assert_eq!((&site["allowed"], &site["denied"]), (&json!(210), &json!(0)));
    // 11 + ... + 20 in ten seconds
    assert_eq!(site["rates"]["10s"]["allowed_per_second"], json!(15.5));
    assert_eq!(site["rates"]["60s"]["allowed"], json!(210));
    assert_eq!(site["level"], json!(100));
    assert_eq!(site["history"][19], json!([20, 0]));
    let user = ask(address, "GET", "/policies/shop%2Fper-user", "").await.json();
    assert_eq!((&user["key"], &user["level"]), (&json!(["user"]), &json!(null)));
    assert_eq!(user["decisions"]["denied.quota"], json!(2));
    let of_calls = ask(address, "GET", "/policies/cl.throttle", "").await.json();
    assert_eq!(of_calls["limit"], json!({ "text": "comes with each call" }));
    // page, order, filter
    let list = async |query: &str| {
        let told = ask(address, "GET", &format!("/policies?{query}"), "").await.json();
        let labels = told["policies"].as_array().unwrap().iter();
        labels.map(|one| one["label"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(list("sort=allowed&limit=1").await, ["whole-site"]);
    assert_eq!(list("sort=name&offset=1&limit=2").await, ["per-user", "shop:free=all"]);
    assert_eq!(list("filter=USER").await, ["per-user"]);
    assert_eq!(list("domain=other").await, [""; 0]);
    for wrong in ["sort=size", "limit=x", "limit=999999", "what=1", "filter=%f"] {
        assert_eq!(ask(address, "GET", &format!("/policies?{wrong}"), "").await.status, 400);
    }
    let unknown = ask(address, "GET", "/policies/per-us", "").await;
    assert_eq!(unknown.status, 404);
    assert!(unknown.body.contains("did you mean"), "{unknown:?}");
}

#[tokio::test]
async fn a_policy_whose_rate_moves_tells_the_rate_and_why() {
    let harness = Harness::new(CONFIG, Settings::default());
    let address = harness.listen().await;
    harness.report("upstream", 20);
    let upstream = ask(address, "GET", "/policies/upstream", "").await.json();
    let expected = json!({
        "follow": "reports", "per_second": 90.0, "own_per_second": 90.0, "min_per_second": 10.0, "max_per_second": 100.0,
        "reason": "overload", "limit": "90/s burst 90",
    });
    assert_eq!(upstream["adaptive"], expected);
    assert_eq!(upstream["limit"]["text"], "100/s");
    let site = ask(address, "GET", "/policies/whole-site", "").await.json();
    assert_eq!(site["adaptive"], json!(null));
}

#[tokio::test]
async fn a_concurrency_policy_tells_how_many_are_in_flight() {
    let harness = Harness::new(CONFIG, Settings::default());
    let address = harness.listen().await;
    assert_eq!(harness.enter("exports", &[b"ann"], 3).await, 2);
    assert_eq!(harness.enter("exports", &[b"bob"], 1).await, 1);
    let exports = ask(address, "GET", "/policies/exports", "").await.json();
    let limit = json!({ "text": "2 in flight", "count": 2, "lease_seconds": 10.0 });
    assert_eq!((&exports["limit"], &exports["in_flight"]), (&limit, &json!(3)));
    assert_eq!((&exports["allowed"], &exports["denied"]), (&json!(3), &json!(1)));
    assert_eq!((&exports["level"], &exports["algorithm"]), (&json!(null), &json!(null)));
    let top = ask(address, "GET", "/top?policy=exports", "").await.json();
    assert_eq!(top["denied"][0]["key"], "ann");
    harness.hand.advance(std::time::Duration::from_secs(10));
    let all = ask(address, "GET", "/policies?filter=exports", "").await.json();
    assert_eq!(all["policies"][0]["in_flight"], json!(0), "the leases have ended");
    let block = r#"{"policy": "exports", "key": "ann", "for_ms": 1000}"#;
    let told = harness.ask_unix("POST", "/block", block).await;
    assert_eq!(told.status, 400);
    assert!(told.body.contains("limits how many are in flight"), "{told:?}");
}

#[tokio::test]
async fn top_keys_are_listed_by_what_they_cost() {
    let harness = Harness::with_token();
    let address = harness.listen().await;
    harness.decide("per-user", &[b"ann"], 9).await;
    harness.decide("per-user", &[b"bob"], 4).await;
    harness.decide("tenant-path", &[b"acme", b"/buy"], 1).await;
    let top = ask(address, "GET", "/top?policy=per-user&n=1", "").await.json();
    assert_eq!(top["denied"], json!([{ "key": "ann", "keys": ["ann"], "cost": 6, "error": 0 }]));
    assert_eq!(top["allowed"].as_array().unwrap().len(), 1);
    let top = ask(address, "GET", "/top?policy=tenant-path", "").await.json();
    assert_eq!(top["allowed"][0]["key"], "acme, /buy");
    let top = ask(address, "GET", "/top?policy=whole-site", "").await.json();
    assert_eq!(top["watched"], json!(false));
    assert_eq!(ask(address, "GET", "/top", "").await.status, 400);
    assert_eq!(ask(address, "GET", "/top?policy=x", "").await.status, 404);
}

#[tokio::test]
async fn a_key_is_looked_at_blocked_overridden_and_reset() {
    let harness = Harness::with_token();
    let address = harness.listen().await;
    let look = async || ask(address, "GET", "/key?policy=per-user&key=ann", "").await.json();
    let post = async |path: &str, more: &str| {
        let body = format!(r#"{{"policy": "per-user", "key": "ann"{more}}}"#);
        let told = ask(address, "POST", path, &body).await;
        assert_eq!(told.status, 200, "{path} {told:?}");
        told.json()
    };
    assert_eq!(harness.decide("per-user", &[b"ann"], 4).await, 3);
    let denied = look().await;
    assert_eq!(denied["would_pass"], json!(false));
    assert_eq!(denied["decision"]["result"], "denied");
    assert_eq!(denied["decision"]["retry_after_ms"], json!(60_000));

    post("/reset", "").await;
    let fresh = look().await;
    assert_eq!(fresh["would_pass"], json!(true), "{fresh}");
    assert_eq!(fresh["decision"]["limit"], json!(3));

    post("/block", r#", "for_ms": 2000"#).await;
    assert_eq!(look().await["decision"]["result"], "blocked");
    assert_eq!(
        look().await["blocked_until"],
        json!({ "at": "2026-01-01T00:00:02.000Z", "left_ms": 2000 })
    );
    assert_eq!(harness.decide("per-user", &[b"ann"], 1).await, 0);
    assert_eq!(post("/unblock", "").await["was_blocked"], json!(true));
    assert_eq!(post("/unblock", "").await["was_blocked"], json!(false));
    post("/block", r#", "for_ms": 2000"#).await;
    harness.hand.advance(Duration::from_secs(2));
    assert_eq!(look().await["blocked_until"], json!(null), "a block ends by itself");

    let told = post("/override", r#", "limit": "10/min", "for_ms": 60000"#).await;
    assert_eq!(told["limit"]["count"], json!(10));
    assert_eq!(harness.decide("per-user", &[b"ann"], 12).await, 10);
    let specials = ask(address, "GET", "/specials", "").await.json();
    assert_eq!(specials["overridden"][0]["key"], "ann");
    assert_eq!(specials["blocked"], json!([]));
    assert_eq!(post("/override/clear", "").await["was_overridden"], json!(true));
    post("/override", r#", "limit": "unlimited", "for_ms": 60000"#).await;
    assert_eq!(harness.decide("per-user", &[b"ann"], 50).await, 50);
    let cleared = r#"{"policy": "per-user", "key": "ann"}"#;
    assert_eq!(ask(address, "DELETE", "/override", cleared).await.status, 200);
    assert_eq!(look().await["override"], json!(null));
}

#[tokio::test]
async fn a_key_of_several_values_is_named_by_all_of_them() {
    let harness = Harness::with_token();
    let address = harness.listen().await;
    let body = r#"{"policy": "tenant-path", "keys": ["acme", "/buy"], "for_ms": 1000}"#;
    assert_eq!(ask(address, "POST", "/block", body).await.status, 200);
    assert_eq!(harness.decide("tenant-path", &[b"acme", b"/buy"], 1).await, 0);
    assert_eq!(harness.decide("tenant-path", &[b"acme", b"/sell"], 1).await, 1);
    let path = "/key?policy=tenant-path&key=acme&key=%2Fbuy";
    assert_eq!(ask(address, "GET", path, "").await.json()["key"], "acme, /buy");
    let one = ask(address, "GET", "/key?policy=tenant-path&key=acme", "").await;
    assert_eq!(one.status, 400);
    assert!(one.body.contains("tenant, path"), "{one:?}");
}

#[tokio::test]
async fn a_bypass_lets_all_pass_and_ends() {
    let harness = Harness::with_token();
    let address = harness.listen().await;
    let bypass = async |for_ms: u64| {
        let body = format!(r#"{{"policy": "per-user", "for_ms": {for_ms}}}"#);
        ask(address, "POST", "/bypass", &body).await
    };
    assert_eq!(bypass(60_000).await.status, 200);
    assert_eq!(harness.decide("per-user", &[b"ann"], 50).await, 50);
    let specials = ask(address, "GET", "/specials", "").await.json();
    assert_eq!(specials["bypassed"][0]["policy"], "per-user");
    let metrics = ask(address, "GET", "/metrics", "").await.body;
    assert!(metrics.contains("tollgate_bypassed{policy=\"per-user\",domain=\"shop\"} 1\n"));
    assert_eq!(bypass(0).await.json()["bypassed_until"], json!(null));
    assert_eq!(harness.decide("per-user", &[b"ann"], 50).await, 3);
    assert_eq!(bypass(86_400_001).await.status, 400, "at most a day");
    assert_eq!(bypass(86_400_000).await.status, 200);
    harness.hand.advance(Duration::from_secs(86_400));
    assert_eq!(harness.decide("per-user", &[b"ann"], 50).await, 3);
}

#[tokio::test]
async fn nonsense_is_refused_with_words_and_written_down() {
    let harness = Harness::with_token();
    let address = harness.listen().await;
    for (row, (path, body, status, word)) in [
        ("/reset", "", 400, "EOF"),
        ("/reset", "[1]", 400, "invalid"),
        ("/reset", r#"{"policy": "nobody"}"#, 404, "there is no policy"),
        ("/reset", r#"{"policy": "per-user"}"#, 400, "needs 1 key (user)"),
        ("/reset", r#"{"policy": "per-user", "key": "a", "keys": ["a"]}"#, 400, "either"),
        ("/reset", r#"{"policy": "per-user", "kye": "a"}"#, 400, "unknown field `kye`"),
        ("/reset", r#"{"policy": "per-user", "key": "a", "for_ms": 1}"#, 400, "not take `for_ms`"),
        ("/reset", r#"{"policy": "shop:free=all"}"#, 400, "counts nothing"),
        ("/block", r#"{"policy": "per-user", "key": "a"}"#, 400, "`for_ms` is missing"),
        ("/block", r#"{"policy": "per-user", "key": "a", "for_ms": 0}"#, 400, "give 1 to"),
        ("/bypass", r#"{"policy": "per-user"}"#, 400, "for_ms"),
        (
            "/override",
            r#"{"policy": "per-user", "key": "a", "for_ms": 1}"#,
            400,
            "`limit` is missing",
        ),
        (
            "/override",
            r#"{"policy": "per-user", "key": "a", "for_ms": 1, "limit": "7 bananas"}"#,
            400,
            "is not a quota",
        ),
        (
            "/override",
            r#"{"policy": "per-user", "key": "a", "for_ms": 1, "limit": "7/s burst 9"}"#,
            400,
            "burst",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let told = ask(address, "POST", path, body).await;
        assert_eq!(told.status, status, "row {row}: {told:?}");
        assert!(told.body.contains(word), "row {row}: {told:?}");
    }
    let audit = ask(address, "GET", "/audit?n=3", "").await.json();
    assert_eq!(audit["changes"].as_array().unwrap().len(), 3);
    assert_eq!(audit["changes"][0]["action"], "/override");
    assert!(audit["changes"][0]["error"].as_str().unwrap().contains("burst"));
    assert!(audit["changes"][0]["who"].as_str().unwrap().starts_with("127.0.0.1:"));
    let traffic = harness.shared.traffic(tollgate_server::net::Listener::Admin).counts();
    assert_eq!((traffic.bad_requests, traffic.requests), (14, 15));
}

#[derive(Default)]
pub(crate) struct Fake(pub(crate) Mutex<ControlStatus>);

impl Control for Fake {
    fn reload(&self) -> ControlFuture<'_> {
        Box::pin(async {
            match &self.0.lock().unwrap().last_load {
                Some(LoadStatus { error: Some(error), .. }) => Err(error.clone()),
                _ => Ok(ReloadReport { version: 2, warnings: vec!["mind the gap".into()] }),
            }
        })
    }

    fn status(&self) -> ControlStatus {
        self.0.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn reloads_and_their_errors_are_told() {
    let harness = Harness::with_token();
    let address = harness.listen().await;
    let control = Arc::new(Fake::default());
    assert!(harness.shared.admin.set_control(control.clone()));
    let told = ask(address, "POST", "/reload", "").await;
    assert_eq!(told.json(), json!({ "version": 2, "warnings": ["mind the gap"] }));
    let at = harness.shared.engine.now();
    let error = Some("shop.yaml:3:1: no".to_owned());
    let snapshot = SnapshotStatus {
        store: 0,
        path: "state.bin".into(),
        written: Some(at),
        error: Some("disk full".into()),
    };
    *control.0.lock().unwrap() = ControlStatus {
        files: vec!["shop.yaml".into()],
        loads: 2,
        failed_loads: 1,
        last_load: Some(LoadStatus { at, error, warnings: vec![] }),
        snapshots: vec![snapshot],
    };
    harness.hand.advance(Duration::from_millis(1500));
    let told = ask(address, "POST", "/reload", "").await;
    assert_eq!(told.status, 422, "{told:?}");
    let config = ask(address, "GET", "/config", "").await.json();
    assert_eq!(config["last_load"]["ok"], json!(false));
    assert_eq!(config["last_load"]["when"]["ago_ms"], json!(1500));
    assert_eq!(config["domains"], json!(["shop"]));
    let store = ask(address, "GET", "/store", "").await.json();
    assert_eq!(store["stores"][0]["kind"], "memory");
    assert_eq!(store["stores"][0]["snapshot"]["written"]["ago_ms"], json!(1500));
    assert_eq!(store["listeners"]["admin"]["open"], json!(1));
    let detail = ask(address, "GET", "/health/detail", "").await;
    assert_eq!(detail.status, 503);
    let problems = detail.json()["problems"].clone();
    assert_eq!(
        (&problems[0]["what"], &problems[1]["what"]),
        (&json!("config"), &json!("snapshot"))
    );
    control.0.lock().unwrap().snapshots[0].written = None;
    let metrics = ask(address, "GET", "/metrics", "").await.body;
    let seconds = |name: &str| {
        let value = metrics.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap_or_else(|| panic!("{name} is not in {metrics}")).trim().to_owned()
    };
    let since = seconds("tollgate_snapshot_timestamp_seconds{store=\"default\"}");
    assert_eq!(since, seconds("process_start_time_seconds"), "nothing is saved since the start");
}

#[tokio::test]
async fn a_policy_that_denies_for_a_minute_is_called_out() {
    let harness = Harness::with_token();
    let address = harness.listen().await;
    harness.decide("per-user", &[b"ann"], 3).await;
    harness.tick();
    harness.decide("per-user", &[b"bob"], 4).await;
    for _ in 0..59 {
        harness.decide("per-user", &[b"ann"], 2).await;
        harness.tick();
        assert_eq!(ask(address, "GET", "/health/detail", "").await.status, 200);
    }
    harness.tick();
    let detail = ask(address, "GET", "/health/detail", "").await;
    assert_eq!(detail.status, 503, "{detail:?}");
    let text = "policy \"per-user\" has denied 97 % for a minute: 119 of 122";
    assert_eq!(detail.json()["problems"][0]["text"], text);
    for (query, status) in [
        ("percent=98", 200),
        ("percent=97", 503),
        ("least=123", 200),
        ("least=122", 503),
        ("percent=101", 400),
    ] {
        let told = ask(address, "GET", &format!("/health/detail?{query}"), "").await;
        assert_eq!(told.status, status, "{query}");
    }
}

#[tokio::test]
async fn rates_survive_a_reload_and_a_late_sample() {
    let harness = Harness::with_token();
    harness.tick();
    harness.decide("per-user", &[b"ann"], 6).await;
    harness.hand.advance(Duration::from_secs(2));
    harness.tick(); // three seconds in one sample
    let engine = &harness.shared.engine;
    let old = engine.plan_arc();
    let text = CONFIG.replace("requests_per_unit: 3", "requests_per_unit: 30");
    let config = tollgate_server::config::Config::from_text("shop.yaml", &text).unwrap();
    engine.install(tollgate_server::plan::Plan::compile(config, Some(&old)).unwrap());
    harness.tick();
    let live = engine.plan_arc().rules()[0].live().clone();
    let rates = harness.shared.admin.sampler().rates(&live, tollgate_server::admin::Window::Short);
    assert_eq!((rates.allowed, rates.denied, rates.span), (3, 3, Duration::from_secs(4)));
    assert!((rates.allowed_per_second() - 0.75).abs() < 1e-9);
    harness.shared.admin.sampler().tick(engine); // time stands still
    assert_eq!(harness.shared.admin.sampler().history(&live, 60).len(), 2);
}

#[tokio::test]
async fn a_server_that_drains_is_not_ready_and_closes() {
    let harness = Harness::with_token();
    let address = harness.listen().await;
    harness.shared.start_draining();
    let told = ask_with(address, "GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert_eq!(told.status, 503, "{told:?}");
    assert!(told.head.contains("connection: close"), "{told:?}");
}

#[tokio::test]
async fn a_store_that_fails_three_seconds_in_a_row_makes_the_server_degraded() {
    let harness = Harness::without_reservations();
    let address = harness.listen().await;
    harness.tick();
    // fails in this second?, status of the strict /ready after it
    for (second, (fails, status)) in [
        (true, 200),
        (true, 200),
        (false, 200),
        (true, 200),
        (true, 200),
        (true, 503),
        (true, 503),
        (false, 200),
    ]
    .into_iter()
    .enumerate()
    {
        if fails {
            harness.reserve().await;
        }
        harness.tick();
        let told = ask(address, "GET", "/ready?strict=1", "").await;
        assert_eq!(told.status, status, "second {second}: {told:?}");
        let told = ask(address, "GET", "/ready", "").await;
        let word = if status == 200 { "ready" } else { "degraded" };
        assert_eq!((told.status, &told.json()["status"]), (200, &json!(word)), "second {second}");
    }
    let store = ask(address, "GET", "/store", "").await.json();
    assert_eq!((&store["errors"], &store["is_failing"]), (&json!(6), &json!(false)));
    assert!(store["last_error"].is_string(), "{store}");
    let metrics = ask(address, "GET", "/metrics", "").await.body;
    assert!(metrics.contains("\ntollgate_store_errors_total 6\n"));
}

#[tokio::test]
async fn bodies_and_heads_have_bounds() {
    let settings = Settings { max_request: 100, ..Settings::default() };
    let harness = Harness::new(CONFIG, settings);
    let long = format!(r#"{{"policy": "{}"}}"#, "x".repeat(100));
    assert_eq!(harness.ask_unix("POST", "/reset", &long).await.status, 413);
    let path = format!("/{}", "x".repeat(20 << 10));
    let mut stream = harness.open_unix();
    // The other end may close before it has read all.
    let _ = stream.write_all(request("GET", &path, "", "").as_bytes()).await;
    let mut told = Vec::new();
    let _ = stream.read_to_end(&mut told).await;
    assert!(!told.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&told));
}

#[tokio::test(start_paused = true)]
async fn who_says_nothing_is_disconnected() {
    let harness = Harness::new(CONFIG, Settings::default());
    // Time advances while no task has work: otherwise each of these would never end.
    for text in ["", "GET / HTTP/1.1\r\nHost:", "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"] {
        let mut stream = harness.open_unix();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut told = Vec::new();
        stream.read_to_end(&mut told).await.unwrap();
        assert_eq!(told.is_empty(), !text.contains("health"), "{text:?}");
    }
    let slow = "POST /reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{";
    let told = exchange(harness.open_unix(), slow).await;
    assert_eq!(told.status, 408, "{told:?}");
}
