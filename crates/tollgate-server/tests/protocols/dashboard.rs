//! The endpoints of the dashboard, over real sockets and with a manual clock: pages, sessions, live figures.

use crate::admin_harness::{CONFIG, Harness, Told, ask_with};
use serde_json::{Value, json};
use std::{net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};
use tollgate_server::{
    net::{Access, Listener, Permission, Permissions, Secret, Token},
    server::Settings,
};

fn text(method: &str, path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    )
}

async fn login(address: SocketAddr, token: &str) -> Told {
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    ask_with(address, &text("POST", "/login", form, &format!("token={token}"))).await
}

/// Returns the `Cookie` header of the session that a login has begun.
fn cookie(told: &Told) -> String {
    let line = told.head.lines().find(|line| line.starts_with("set-cookie: ")).unwrap();
    let value = line["set-cookie: ".len()..].split(';').next().unwrap();
    format!("Cookie: {value}\r\n")
}

#[tokio::test]
async fn browsers_get_pages_and_programs_get_text() {
    let harness = Harness::with_token();
    let address = harness.listen().await;
    let at = |path: &str, headers: &str| text("GET", path, headers, "");
    let page = ask_with(address, &at("/", "Accept: text/html,*/*;q=0.8\r\n")).await;
    assert_eq!(page.status, 303);
    assert!(page.head.contains("location: /ui/"), "{page:?}");
    assert!(ask_with(address, &at("/", "Accept: */*\r\n")).await.body.contains("GET  /policies"));
    let page = ask_with(address, &at("/ui/", "")).await;
    assert!(page.body.contains("action=\"/login\"") && !page.body.contains("app.js"), "{page:?}");
    for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "nosniff"] {
        assert!(page.head.contains(part), "{part}: {page:?}");
    }
    let script = ask_with(address, &at("/ui/app.js", "")).await;
    assert_eq!(script.status, 200);
    let tag = script.head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    let again = at("/ui/app.js", &format!("If-None-Match: {tag}\r\n"));
    assert_eq!(ask_with(address, &again).await.status, 304);
    for (path, status) in [("/ui/nothing.js", 404), ("/ui/index.html", 404), ("/login", 303)] {
        assert_eq!(ask_with(address, &at(path, "")).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn a_session_stands_for_its_token_until_it_ends_or_the_token_changes() {
    let harness = Harness::with_token();
    let address = harness.listen().await;
    let wrong = login(address, "open+barley").await;
    assert_eq!(wrong.status, 401);
    assert!(
        wrong.body.contains("not the token") && !wrong.head.contains("set-cookie"),
        "{wrong:?}"
    );
    let right = login(address, "open+sesame%0A").await;
    assert_eq!(right.status, 303, "{right:?}");
    let cookie = cookie(&right);
    let get =
        async |path: &str, headers: &str| ask_with(address, &text("GET", path, headers, "")).await;
    assert_eq!(get("/policies", &cookie).await.status, 200);
    assert!(get("/ui/", &cookie).await.body.contains("/ui/app.js"));
    let forged = cookie.replace("tollgate=1", "tollgate=2");
    assert_eq!(get("/policies", &forged).await.status, 401);
    // A header that is there counts, even if it is wrong.
    let both = format!("{cookie}Authorization: Bearer wrong\r\n");
    assert_eq!(get("/policies", &both).await.status, 401);
    let out = ask_with(address, &text("POST", "/logout", &cookie, "")).await;
    assert!(out.head.contains("set-cookie: tollgate=; path=/; max-age=0"), "{out:?}");
    harness.hand.advance(Duration::from_secs(12 * 3600 - 1));
    assert_eq!(get("/policies", &cookie).await.status, 200);
    harness.hand.advance(Duration::from_secs(1));
    assert_eq!(get("/policies", &cookie).await.status, 401);
    assert!(get("/ui/", &cookie).await.body.contains("action=\"/login\""));
}

/// A session that no token has signed is a guess of a token, wherever its sender could see whether it is right.
#[tokio::test]
async fn a_forged_session_waits_like_a_wrong_token() {
    let forged = format!("Cookie: tollgate=9999999999.{}\r\n", "0".repeat(64));
    let wrong = "Authorization: Bearer wrong\r\n".to_owned();
    for (path, headers, status) in
        [("/policies", &forged, 401), ("/ui/", &forged, 200), ("/ui/", &wrong, 200)]
    {
        let harness = Harness::with_token();
        let address = harness.listen().await;
        let ask = || {
            let text = text("GET", path, headers, "");
            async move { ask_with(address, &text).await }
        };
        for _ in 0..5 {
            let told = ask().await;
            assert_eq!(told.status, status, "{told:?}");
            let ends = told.head.contains("set-cookie: tollgate=; path=/; max-age=0");
            assert_eq!(ends, path == "/ui/" && *headers == forged, "{told:?}");
        }
        let sixth = tokio::time::timeout(Duration::from_millis(20), ask()).await;
        assert!(sixth.is_err(), "{path} {headers}: it waits");
        let files = ask_with(address, &text("GET", "/ui/app.css", headers, "")).await;
        assert_eq!(files.status, 200, "files say nothing of a token");
        let right =
            format!("{}Cookie: theme=dark\r\n", cookie(&login(address, "open+sesame").await));
        assert_eq!(ask_with(address, &text("GET", "/policies", &right, "")).await.status, 200);
    }
}

#[tokio::test]
async fn policies_of_one_name_are_told_apart() {
    let limit = "unit: hour, requests_per_unit: 3 } }";
    let shop =
        format!("domain: shop\ndescriptors:\n  - {{ key: user, rate_limit: {{ name: x, {limit}");
    let zip = format!(
        "domain: zip\ndescriptors:\n  - {{ key: user, rate_limit: {{ name: x, {limit}\n  - {{ key: plan, rate_limit: {{ name: own, {limit}"
    );
    let access = Access::new(vec![Token::of(Listener::Admin, Secret::new("open sesame"))]);
    let settings = Settings { access, ..Settings::default() };
    let harness = Harness::of(&[("shop.yaml", &shop), ("zip.yaml", &zip)], settings);
    let address = harness.listen().await;
    let bearer = "Authorization: Bearer open sesame\r\n";
    let get = async |path: &str| ask_with(address, &text("GET", path, bearer, "")).await.json();
    let policies = get("/policies").await;
    let labels: Vec<_> =
        policies["policies"].as_array().unwrap().iter().map(|row| &row["label"]).collect();
    assert_eq!(labels, ["shop/x", "zip/x", "own"]);
    let json = format!("{bearer}Content-Type: application/json\r\n");
    let block = json!({ "policy": "zip/x", "key": "ann", "for_ms": 1000 }).to_string();
    assert_eq!(ask_with(address, &text("POST", "/block", &json, &block)).await.status, 200);
    let bypass = json!({ "policy": "shop/x", "for_ms": 1000 }).to_string();
    assert_eq!(ask_with(address, &text("POST", "/bypass", &json, &bypass)).await.status, 200);
    let specials = get("/specials").await;
    for (list, policy) in [("blocked", "zip/x"), ("bypassed", "shop/x")] {
        let row = &specials[list][0];
        assert_eq!(row["policy"], policy, "{specials}");
        let found = get(&format!("/policies/{}", row["id"].as_str().unwrap())).await;
        assert_eq!(found["label"], policy, "the id names it: {found}");
    }
    let ambiguous = get("/policies/x").await;
    let detail = ambiguous["detail"].as_str().unwrap();
    assert!(detail.contains("use one of ") && detail.matches(", ").count() == 1, "{detail}");
}

#[tokio::test]
async fn a_session_changes_something_only_from_a_page_of_this_server() {
    let (all, read) = (Secret::new("all"), Secret::new("read"));
    let only_read = Permissions::NONE.with(Permission::Read);
    let reader = Token::new(read, &[Listener::Admin], only_read);
    let access = Access::new(vec![Token::of(Listener::Admin, all), reader]);
    let harness = Harness::new(CONFIG, Settings { access, ..Settings::default() });
    let address = harness.listen().await;
    let (all, read) = (cookie(&login(address, "all").await), cookie(&login(address, "read").await));
    let (json, own) = ("Content-Type: application/json\r\n", "Origin: http://localhost\r\n");
    let body = r#"{"policy": "per-user", "key": "ann", "for_ms": 1000}"#;
    // headers, status
    for (row, (headers, status)) in [
        (format!("{all}{json}"), 403),
        (format!("{all}{json}Origin: http://localhost:9\r\n"), 403),
        (format!("{all}{json}Origin: null\r\n"), 403),
        (format!("{all}{own}Content-Type: text/plain\r\n"), 415),
        (format!("{read}{json}{own}"), 403),
        (format!("{json}{own}"), 401),
        (format!("{all}{json}{own}"), 200),
        (format!("{json}Authorization: Bearer all\r\n"), 200),
    ]
    .into_iter()
    .enumerate()
    {
        let told = ask_with(address, &text("POST", "/block", &headers, body)).await;
        assert_eq!(told.status, status, "row {row}: {told:?}");
    }
    let state = Stream::open(address, &read).await.next().await;
    assert_eq!((&state.1["may_change"], &state.1["has_session"]), (&json!(false), &json!(true)));
    assert!(state.1["read_only_because"].as_str().unwrap().contains("administer"));
}

/// A stream of events.
struct Stream(BufReader<TcpStream>);

impl Stream {
    async fn open(address: SocketAddr, headers: &str) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = text("GET", "/events", headers, "").replace("Connection: close\r\n", "");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut stream = Self(BufReader::new(stream));
        let head = stream.line().await;
        assert!(head.contains(" 200 "), "{head}");
        while !stream.line().await.is_empty() {}
        stream
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.0.read_line(&mut line);
        tokio::time::timeout(Duration::from_secs(30), read).await.unwrap().unwrap();
        line.trim_end().to_owned()
    }

    /// Waits for the end of the stream; nothing may come before.
    async fn wait_for_end(mut self) {
        // The last chunk of the body is empty.
        loop {
            match self.line().await.as_str() {
                "" => {}
                "0" => return,
                line => panic!("{line}"),
            }
        }
    }

    /// Returns the name of the next event, and its data.
    async fn next(&mut self) -> (String, Value) {
        let mut name = String::new();
        loop {
            let line = self.line().await;
            if let Some(found) = line.strip_prefix("event: ") {
                name = found.to_owned();
            }
            if let Some(data) = line.strip_prefix("data: ") {
                return (name, serde_json::from_str(data).unwrap());
            }
        }
    }
}

#[tokio::test]
async fn a_stream_begins_with_the_last_minute_and_goes_on_every_second() {
    let harness = Harness::new(CONFIG, Settings::default());
    let address = harness.listen().await;
    harness.tick();
    harness.decide("per-user", &[b"ann"], 5).await;
    harness.tick();
    let mut stream = Stream::open(address, "").await;
    let (name, state) = stream.next().await;
    assert_eq!(
        (name.as_str(), &state["history"], &state["sample"]),
        ("state", &json!([[3, 2]]), &json!(2))
    );
    assert_eq!((&state["policies"], &state["status"]["word"]), (&json!(6), &json!("ready")));
    assert_eq!((&state["may_change"], &state["has_session"]), (&json!(false), &json!(false)));
    assert!(state["read_only_because"].as_str().unwrap().contains("admin_token_file"));
    harness.decide("whole-site", &[], 4).await;
    harness.tick();
    let (name, tick) = stream.next().await;
    assert_eq!((name.as_str(), &tick["last"], &tick["busy"]), ("tick", &json!([4, 0]), &json!(2)));
    assert_eq!(tick["rows"][0]["label"], "per-user", "the most refusals first");
    assert_eq!(
        ["last", "level", "capacity"].map(|field| &tick["rows"][1][field]),
        [&json!([4, 0]), &json!(100), &json!(100)]
    );
    assert_eq!(tick["denied_per_second"], json!(1.0), "two in two seconds");
    assert_eq!(tick["stores"][0]["servers"], json!(null), "a store in memory has none");
    // A slow reader gets the newest only.
    for _ in 0..3 {
        harness.tick();
    }
    let (_, newest) = stream.next().await;
    assert_eq!(newest["sample"], json!(6));
}

#[tokio::test]
async fn a_request_is_explained_and_nothing_is_charged() {
    let harness = Harness::new(CONFIG, Settings::default());
    let address = harness.listen().await;
    let explain = async |query: &str| {
        ask_with(address, &text("GET", &format!("/explain?{query}"), "", "")).await
    };
    assert_eq!(harness.decide("per-user", &[b"ann"], 2).await, 2);
    for cost in [1, 1, 2] {
        let found = explain(&format!("domain=shop&entry=user%3Dann&cost={cost}")).await.json();
        assert_eq!(found["allowed"], json!(cost == 1), "{found}");
        assert_eq!(found["rules"][0]["policy"], "per-user");
        assert_eq!(
            (&found["rules"][0]["limit"], &found["rules"][0]["before"]),
            (&json!(3), &json!(1))
        );
        assert_eq!(found["asks"][0]["would_pass"]["cost"], json!(1), "{found}");
    }
    // The only domain needs no name.
    let nothing = explain("entry=color%3Dred").await.json();
    assert_eq!((&nothing["allowed"], &nothing["rules"]), (&json!(true), &json!([])));
    for wrong in ["", "entry=", "entry=%3Dx", "entry=a&cost=x", "entry=%ff", "what=1"] {
        assert_eq!(explain(wrong).await.status, 400, "{wrong}");
    }
    let nowhere = explain("domain=nowhere&entry=a%3Db").await.json();
    assert_eq!(nowhere["asks"][0]["matched"], json!(["there is no domain \"nowhere\""]));
}

#[tokio::test]
async fn lists_of_keys_have_the_values_of_each_key() {
    let harness = Harness::with_token();
    let address = harness.listen().await;
    let bearer = "Authorization: Bearer open sesame\r\n";
    let get = async |path: &str| ask_with(address, &text("GET", path, bearer, "")).await.json();
    let pair = [&b"a, b\\"[..], b"c"];
    harness.decide("tenant-path", &pair, 3).await;
    let top = get("/top?policy=tenant-path").await;
    for side in ["allowed", "denied"] {
        assert_eq!(top[side][0]["key"], json!("a\\, b\\\\, c"), "{top}");
        assert_eq!(top[side][0]["keys"], json!(["a, b\\", "c"]), "{top}");
    }
    // Of a long key the list has the beginning, and bytes that are no text cannot be sent in JSON: no call can name them.
    for key in [&[b'x'; 200][..], b"\xff"] {
        harness.decide("per-user", &[key], 1).await;
    }
    harness.decide("per-user", &[b"ann"], 2).await;
    let top = get("/top?policy=per-user").await;
    let keys = top["allowed"].as_array().unwrap().iter().map(|row| &row["keys"]);
    assert_eq!(keys.collect::<Vec<_>>(), [&json!(["ann"]), &json!(null), &json!(null)], "{top}");
    let json = format!("{bearer}Content-Type: application/json\r\n");
    for body in [
        json!({ "policy": "tenant-path", "keys": ["a, b\\", "c"], "for_ms": 1000 }),
        json!({ "policy": "per-user", "key": "", "for_ms": 1000 }),
    ] {
        let blocked = ask_with(address, &text("POST", "/block", &json, &body.to_string())).await;
        assert_eq!(blocked.status, 200, "{blocked:?}");
    }
    let specials = get("/specials").await;
    let blocked = specials["blocked"].as_array().unwrap().iter();
    let mut blocked: Vec<_> = blocked.map(|row| row["keys"].to_string()).collect();
    blocked.sort();
    assert_eq!(blocked, [r#"[""]"#, r#"["a, b\\","c"]"#]);
}

#[tokio::test]
async fn an_update_is_bounded_and_so_are_the_streams() {
    use std::fmt::Write;
    let mut config = String::from("domain: many\ndescriptors:\n");
    for number in 0..300 {
        writeln!(config, "  - {{key: k{number}, value: v, rate_limit: {{name: p{number}, unit: hour, requests_per_unit: 1}}}}").unwrap();
    }
    let harness = Harness::new(&config, Settings::default());
    let address = harness.listen().await;
    harness.tick();
    for number in 0..300_u64 {
        harness.decide(&format!("p{number}"), &[], 1 + number).await;
    }
    harness.tick();
    let mut streams = Vec::new();
    for _ in 0..32 {
        streams.push(Stream::open(address, "").await);
    }
    let (_, state) = streams[0].next().await;
    assert_eq!((&state["busy"], state["rows"].as_array().unwrap().len()), (&json!(300), 200));
    assert_eq!(state["rows"][0]["label"], "p299");
    assert_eq!(state["rows"][199]["label"], "p100");
    let refused = ask_with(address, &text("GET", "/events", "", "")).await;
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("close one"), "{refused:?}");
}

#[tokio::test]
async fn a_stream_ends_with_its_session_and_with_its_token() {
    let replaced = || Access::new(vec![Token::of(Listener::Admin, Secret::new("open barley"))]);
    let bearer = "Authorization: Bearer open sesame\r\n";
    // whether it has a session, how long it lasts, whether the token is replaced then, whether the stream goes on
    for (row, (by_session, lasts, is_replaced, goes_on)) in [
        (true, Duration::from_secs(12 * 3600 - 10), false, true),
        (true, Duration::from_secs(12 * 3600), false, false),
        (true, Duration::from_secs(1), true, false),
        (false, Duration::from_secs(12 * 3600), false, true),
        (false, Duration::from_secs(1), true, false),
    ]
    .into_iter()
    .enumerate()
    {
        let harness = Harness::with_token();
        let address = harness.listen().await;
        let session = cookie(&login(address, "open+sesame").await);
        let mut stream = Stream::open(address, if by_session { &session } else { bearer }).await;
        assert_eq!(stream.next().await.0, "state", "row {row}");
        harness.hand.advance(lasts);
        if is_replaced {
            harness.shared.set_access(replaced());
        }
        harness.tick();
        match goes_on {
            true => assert_eq!(stream.next().await.0, "tick", "row {row}"),
            false => stream.wait_for_end().await,
        }
    }
}
