//! The permissions of callers: tokens, negative hits, wrong tokens, and web pages.

use crate::http_support::{CONFIG, Client, Got, JSON, start};
use std::{net::SocketAddr, time::Duration};
use tokio::time::timeout;
use tollgate_server::{
    net::{Access, Listener, Permission, Permissions, Secret, Token},
    server::Settings,
};

fn token(secret: &str, permissions: &[Permission]) -> Token {
    let permissions = permissions.iter().copied().fold(Permissions::NONE, Permissions::with);
    Token::new(Secret::new(secret), &[Listener::Http], permissions)
}

fn access() -> Access {
    use Permission::{Check, Read, Settle};
    Access::new(vec![
        token("reader", &[Read]),
        token("checker", &[Check]),
        token("settler", &[Settle]),
        token("both", &[Check, Settle]),
        Token::new(Secret::new("elsewhere"), &[Listener::Grpc], Permissions::CLIENT),
    ])
}

async fn send(address: SocketAddr, start: &str, headers: &str, body: &str) -> Got {
    let mut client = Client::connect(address).await;
    let length = body.len();
    client
        .send(format!("{start} HTTP/1.1\r\nContent-Length: {length}\r\n{headers}\r\n{body}"))
        .await;
    client.read().await
}

async fn with_token(address: SocketAddr, token: &str, path: &str, body: &str) -> Got {
    let headers = format!("Host: localhost\r\n{JSON}Authorization: Bearer {token}\r\n");
    send(address, &format!("POST {path}"), &headers, body).await
}

#[tokio::test]
async fn a_token_grants_what_its_permissions_say() {
    let (address, ..) = start(CONFIG, Settings { access: access(), ..Default::default() }).await;
    let body = r#"{"policy":"big","key":"a"}"#;
    for (path, needed) in [
        ("/v1/peek", "read"),
        ("/v1/check", "check"),
        ("/v1/reserve", "check"),
        ("/v1/enter", "check"),
        ("/v1/renew", "check"),
        ("/v1/leave", "check"),
        ("/v1/refund", "settle"),
        ("/v1/reset", "settle"),
        ("/v1/settle", "settle"),
        ("/v1/cancel", "settle"),
        ("/v1/report", "settle"),
        ("/json", "check"),
    ] {
        for (token, grants) in [
            ("reader", &["read"][..]),
            ("checker", &["check"]),
            ("settler", &["settle"]),
            ("both", &["check", "settle"]),
        ] {
            let got = with_token(address, token, path, body).await;
            let row = format!("{path} {token}: {got:?}");
            if grants.contains(&needed) {
                assert!(!matches!(got.status, 401 | 403), "{row}");
                continue;
            }
            assert_eq!(got.status, 403, "{row}");
            assert_eq!(got.json()["type"], "urn:tollgate:problem:forbidden", "{row}");
            assert!(
                got.json()["detail"].as_str().unwrap().contains(&format!("`{needed}`")),
                "{row}"
            );
        }
        let got = send(address, &format!("POST {path}"), "Host: localhost\r\n", body).await;
        assert_eq!(got.status, 401, "no token: {path}");
    }
    let got = with_token(address, "elsewhere", "/v1/check", body).await;
    assert_eq!(got.status, 401, "a token of another listener");
}

/// A client that gives back the permits that it has taken would pass forever.
#[tokio::test]
async fn negative_hits_need_the_key_and_the_permission_to_settle() {
    let hit = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}"#;
    let give = r#"{"domain":"shop","descriptors":[
        {"entries":[{"key":"user","value":"a"}],"isNegativeHits":true,"hitsAddend":"1"}]}"#;
    for (negative_hits, tokens, token, may) in [
        (false, vec![], "", false),
        (true, vec![], "", true),
        (false, access().tokens, "both", false),
        (true, access().tokens, "checker", false),
        (true, access().tokens, "both", true),
    ] {
        let access = Access { negative_hits, ..Access::new(tokens) };
        let (address, ..) = start(CONFIG, Settings { access, ..Default::default() }).await;
        let mut passed = 0;
        for _ in 0..20 {
            passed += usize::from(with_token(address, token, "/json", hit).await.status == 200);
            let got = with_token(address, token, "/json", give).await;
            assert_eq!(got.status, if may { 200 } else { 403 }, "{negative_hits} {token} {got:?}");
            let text = if negative_hits { "`settle`" } else { "`negative_hits: true`" };
            assert!(may || got.body.contains(text), "{got:?}");
        }
        assert_eq!(passed, if may { 20 } else { 5 }, "{negative_hits} {token}");
    }
}

#[tokio::test]
async fn the_reply_to_a_wrong_token_waits_and_a_right_token_does_not() {
    let (address, shared, _hand) =
        start(CONFIG, Settings { access: access(), ..Default::default() }).await;
    let get = |token: &str| {
        let start = "GET /v1/policies HTTP/1.1\r\nHost: localhost\r\n";
        format!("{start}Authorization: Bearer {token}\r\n\r\n")
    };
    let ask = async |token: &str| {
        let mut client = Client::connect(address).await;
        client.send(get(token)).await;
        client
    };
    for _ in 0..5 {
        assert_eq!(ask("wrong").await.read().await.status, 401);
    }
    // The clock of the server stands still: these wait for one second to five.
    let mut waiting = Vec::new();
    for _ in 0..4 {
        waiting.push(ask("wrong").await);
    }
    // A right request in front of a wrong one on the same connection, and one on another.
    let mut client = Client::connect(address).await;
    client.send(get("reader") + &get("wrong")).await;
    assert_eq!(client.read().await.status, 200);
    waiting.push(client);
    assert_eq!(ask("reader").await.read().await.status, 200);
    // One too many waits as well, so that a guesser does not learn sooner that it is wrong.
    waiting.push(ask("wrong").await);
    for client in &mut waiting {
        let early = timeout(Duration::from_millis(20), client.read()).await;
        assert!(early.is_err(), "{early:?}");
    }
    let counts = shared.traffic(Listener::Http).counts();
    assert_eq!((counts.wrong_secrets, counts.cut_off), (11, 1));
    // Shutdown does not wait for them.
    shared.start_draining();
    for client in &mut waiting {
        let got = timeout(Duration::from_millis(900), client.read()).await.expect("at once");
        assert_eq!(got.status, 401);
    }
    let mut closed = waiting.pop().expect("the last one is cut off");
    assert_eq!(closed.read_to("GET").await, None);
}

/// Headers that a request has, and what it is answered.
const PAGES: [(&str, &str, u16); 11] = [
    ("localhost", "", 200),
    ("127.0.0.1:8080", "", 200),
    ("localhost:8080", "http://localhost:8080", 200),
    ("localhost:8080", "https://ui.test", 200),
    ("localhost:8080", "http://localhost:3000", 403),
    ("localhost:8080", "https://evil.test", 403),
    ("localhost:8080", "null", 403),
    ("rebound.test:8080", "", 421),
    ("rebound.test:8080", "http://rebound.test:8080", 421),
    ("limits.test", "", 200),
    ("limits.test", "http://limits.test", 200),
];

fn of_pages() -> Settings {
    let access = Access {
        origins: vec!["https://ui.test".into()],
        hosts: vec!["limits.test".into()],
        ..Access::default()
    };
    Settings { access, ..Settings::default() }
}

#[tokio::test]
async fn a_web_page_of_another_origin_or_name_is_refused() {
    let (address, ..) = start(CONFIG, of_pages()).await;
    let hit = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"big","value":"a"}]}]}"#;
    for (host, origin, status) in PAGES {
        for (start, body) in [
            ("POST /v1/check", r#"{"policy":"big","key":"a"}"#),
            ("GET /v1/check?policy=big&key=a", ""),
            ("GET /v1/policies", ""),
            ("POST /json", hit),
        ] {
            let origin =
                if origin.is_empty() { String::new() } else { format!("Origin: {origin}\r\n") };
            let headers = format!("Host: {host}\r\n{JSON}{origin}");
            let got = send(address, start, &headers, body).await;
            assert_eq!(got.status, status, "{start} {headers} {got:?}");
            let key = if status == 421 { "`hosts`" } else { "`origins`" };
            assert!(status == 200 || got.body.contains(key), "{got:?}");
        }
        let got = send(address, "GET /healthz", &format!("Host: {host}\r\n"), "").await;
        assert_eq!(got.status, 200, "health is open: {host}");
    }
    // An `<img>` of another page has no `Origin`, but browsers say where it comes from.
    for (site, status) in
        [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
    {
        let headers = format!("Host: localhost\r\nSec-Fetch-Site: {site}\r\n");
        let got = send(address, "GET /v1/check?policy=big&key=a", &headers, "").await;
        assert_eq!(got.status, status, "{site}");
    }
    // `/json` takes any type, and `/v1` only JSON.
    for (path, body, status) in
        [("/json", hit, 200), ("/v1/check", r#"{"policy":"big","key":"a"}"#, 415)]
    {
        for kind in ["", "Content-Type: text/plain\r\n"] {
            let headers = format!("Host: localhost\r\n{kind}");
            let got = send(address, &format!("POST {path}"), &headers, body).await;
            assert_eq!(got.status, status, "{path} {kind} {got:?}");
        }
    }
}

#[tokio::test]
async fn http2_is_checked_by_the_same_rules() {
    let (address, ..) = start(CONFIG, of_pages()).await;
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut send, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    for (host, origin, status) in PAGES {
        let mut request = http::Request::get(format!("http://{host}/v1/policies"));
        if !origin.is_empty() {
            request = request.header("origin", origin);
        }
        send = send.ready().await.unwrap();
        let (answer, _) = send.send_request(request.body(()).unwrap(), true).unwrap();
        assert_eq!(answer.await.unwrap().status().as_u16(), status, "{host} {origin}");
    }
}
