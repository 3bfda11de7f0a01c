//! Tokens, permissions and web pages on the admin listener.

use crate::admin_harness::{CONFIG, Harness, ask_with, request};
use std::time::Duration;
use tokio::time::timeout;
use tollgate_server::{
    net::{Access, Listener, Permission, Permissions, Secret, Token},
    server::Settings,
};

fn harness() -> Harness {
    let token = |secret, permission| {
        let permissions = Permissions::NONE.with(permission);
        Token::new(Secret::new(secret), &[Listener::Admin], permissions)
    };
    let tokens = vec![token("reader", Permission::Read), token("operator", Permission::Administer)];
    let access = Access { origins: vec!["https://ui.test".into()], ..Access::new(tokens) };
    Harness::new(CONFIG, Settings { access, ..Settings::default() })
}

const RESET: &str = r#"{"policy": "per-user", "key": "ann"}"#;

#[tokio::test]
async fn a_token_grants_reading_or_changes() {
    let harness = harness();
    let address = harness.listen().await;
    for (token, method, path, status) in [
        ("reader", "GET", "/policies", 200),
        ("reader", "POST", "/reset", 403),
        ("operator", "POST", "/reset", 200),
        ("operator", "GET", "/policies", 403),
        ("other", "GET", "/policies", 401),
    ] {
        let body = if method == "POST" { RESET } else { "" };
        let token = format!("Authorization: Bearer {token}\r\n");
        let told = ask_with(address, &request(method, path, &token, body)).await;
        assert_eq!(told.status, status, "{token} {path} {told:?}");
        let needed = if method == "POST" { "`administer`" } else { "`read`" };
        assert!(status != 403 || told.body.contains(needed), "{told:?}");
    }
    let told = harness.ask_unix("POST", "/reset", RESET).await;
    assert_eq!(told.status, 401, "a Unix socket needs the token, too: {told:?}");
}

#[tokio::test]
async fn a_web_page_cannot_reach_an_administrators_browser() {
    let harness = harness();
    let address = harness.listen().await;
    let head = "Authorization: Bearer operator\r\nConnection: close\r\n";
    let length = RESET.len();
    for (host, more, status) in [
        ("localhost", "Content-Type: application/json\r\n", 200),
        ("localhost", "Content-Type: application/json\r\nOrigin: http://localhost\r\n", 200),
        ("localhost", "Content-Type: application/json\r\nOrigin: https://ui.test\r\n", 200),
        ("localhost", "Content-Type: application/json\r\nOrigin: https://evil.test\r\n", 403),
        ("localhost", "Content-Type: application/json\r\nOrigin: null\r\n", 403),
        ("localhost", "Content-Type: text/plain\r\n", 415),
        ("localhost", "Content-Type: application/x-www-form-urlencoded\r\n", 415),
        ("localhost", "", 415),
    ] {
        let text = format!(
            "POST /reset HTTP/1.1\r\nHost: {host}\r\n{head}Content-Length: {length}\r\n{more}\r\n{RESET}"
        );
        let told = ask_with(address, &text).await;
        assert_eq!(told.status, status, "{host} {more} {told:?}");
    }
    // Without a token nothing else keeps out a page whose name resolves to this address.
    let open = Harness::new(CONFIG, Settings::default());
    let address = open.listen().await;
    for (host, status) in
        [("localhost:6070", 200), ("127.0.0.1", 200), ("[::1]:6070", 200), ("evil.test:6070", 421)]
    {
        for path in ["/policies", "/metrics", "/"] {
            let text = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            let told = ask_with(address, &text).await;
            assert_eq!(told.status, status, "{host} {told:?}");
            assert!(status == 200 || told.body.contains("`hosts`"), "{told:?}");
        }
    }
}

#[tokio::test]
async fn the_reply_to_a_wrong_token_waits_and_a_right_token_does_not() {
    let harness = harness();
    let address = harness.listen().await;
    let ask = |token: &str| {
        let token = format!("Authorization: Bearer {token}\r\n");
        let text = request("GET", "/policies", &token, "");
        Box::pin(async move { ask_with(address, &text).await.status })
    };
    for _ in 0..5 {
        assert_eq!(ask("wrong").await, 401);
    }
    let mut waiting: Vec<_> = (0..5).map(|_| ask("wrong")).collect();
    for one in &mut waiting {
        assert!(timeout(Duration::from_millis(20), one.as_mut()).await.is_err(), "it waits");
    }
    assert_eq!(ask("wrong").await, 401, "one more is closed at once");
    assert_eq!(ask("reader").await, 200);
    let counts = harness.shared.traffic(Listener::Admin).counts();
    assert_eq!((counts.wrong_secrets, counts.cut_off), (11, 1));
    harness.shared.start_draining();
    for one in waiting {
        assert_eq!(timeout(Duration::from_millis(900), one).await, Ok(401));
    }
}
