//! The real Envoy calls this service: the responses that its clients see.

use crate::support::{envoy::Envoy, server};
use serde_json::{Value, json};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{net::TcpListener, task::JoinHandle};
use tollgate_server::{
    net::{Connection, Listener, Stream},
    rls,
    server::{Settings, Shared},
};

const SHOP: &str = r"
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3, name: per-user}
  - key: odd
    rate_limit: {per: 30s, requests_per_unit: 5}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
";

/// Serves on a free port. To stop it, abort the task; `shared` signals the shutdown to its
/// connections.
async fn serve(shared: &Arc<Shared>) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shared = Arc::clone(shared);
    let task = tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let connection = Connection::new(Arc::clone(&shared), Listener::Grpc, Some(peer));
            tokio::spawn(rls::serve(Stream::Tcp(stream), connection));
        }
    });
    (address, task)
}

/// A descriptor from the header of the same name, for each name.
fn by_headers(names: &[&str]) -> Value {
    let action = |name: &&str| json!({"actions": [{"request_headers": {"header_name": name, "descriptor_key": name}}]});
    names.iter().map(action).collect()
}

#[tokio::test]
async fn clients_see_limits_and_waits() {
    let (shared, hand) = server(SHOP, Settings::default());
    let (address, _task) = serve(&shared).await;
    let envoy = Envoy::start(address, &json!({}), by_headers(&["user", "odd", "shadow"])).await;
    for (row, (secs, headers, status, expected)) in [
        // limit, remaining, reset by Envoy; retry by us
        (0, [("user", "a")], 200, ["3, 3;w=60;name=\"per-user\"", "2", "41", ""]),
        (0, [("user", "a")], 200, ["3, 3;w=60;name=\"per-user\"", "1", "41", ""]),
        (1, [("user", "a")], 200, ["3, 3;w=60;name=\"per-user\"", "0", "40", ""]),
        (0, [("user", "a")], 429, ["3, 3;w=60;name=\"per-user\"", "0", "40", "40"]),
        (0, [("user", "b")], 200, ["3, 3;w=60;name=\"per-user\"", "2", "40", ""]),
        (40, [("user", "a")], 200, ["3, 3;w=60;name=\"per-user\"", "2", "60", ""]),
        // Envoy has no such unit: its header has no window, and the rest is right.
        (0, [("odd", "a")], 200, ["5", "4", "30", ""]),
        (0, [("shadow", "a")], 200, ["1, 1;w=60", "0", "60", ""]),
        (0, [("shadow", "a")], 200, ["1, 1;w=60", "0", "60", ""]),
        // Envoy sends no descriptor.
        (0, [("other", "a")], 200, ["", "", "", ""]),
    ]
    .into_iter()
    .enumerate()
    {
        hand.advance(Duration::from_secs(secs));
        let answer = envoy.get("/", &headers).await;
        let names =
            ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "retry-after"];
        let told = names.map(|name| answer.header(name).unwrap_or_default());
        assert_eq!((answer.status, told), (status, expected), "row {row}: {answer:?}");
        assert_eq!(answer.header("x-envoy-ratelimited").is_some(), status == 429, "row {row}");
        if !expected[1].is_empty() {
            assert_eq!(answer.header("ratelimit-remaining"), Some(expected[1]), "row {row}");
        }
    }
}

#[tokio::test]
async fn a_route_says_how_many_hits() {
    let (shared, _hand) = server(SHOP, Settings::default());
    let (address, _task) = serve(&shared).await;
    let mut limits = by_headers(&["user"]);
    limits[0]["hits_addend"] = json!({"format": "%DYNAMIC_METADATA(test:cost)%"});
    let envoy = Envoy::start(address, &json!({}), limits).await;
    for (row, (cost, status, remaining)) in
        [("2", 200, "1"), ("0", 200, "1"), ("2", 429, "0"), ("1", 200, "0"), ("1", 429, "0")]
            .into_iter()
            .enumerate()
    {
        let answer = envoy.get("/", &[("user", "a"), ("cost", cost)]).await;
        let told = answer.header("x-ratelimit-remaining").unwrap_or_default();
        assert_eq!((answer.status, told), (status, remaining), "row {row}: {answer:?}");
    }
}

#[tokio::test]
async fn envoy_decides_when_the_service_is_gone() {
    for (deny, expected) in [(false, 200), (true, 500)] {
        let (shared, _hand) = server(SHOP, Settings::default());
        let (address, task) = serve(&shared).await;
        let filter = json!({"failure_mode_deny": deny});
        let envoy = Envoy::start(address, &filter, by_headers(&["user"])).await;
        let answer = envoy.get("/", &[("user", "a")]).await;
        assert_eq!(answer.header("x-ratelimit-remaining"), Some("2"), "{answer:?}");
        // Connections finish and close; nothing listens on the port any more.
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        shared.start_draining();
        while shared.traffic(Listener::Grpc).counts().open > 0 {
            tokio::task::yield_now().await;
        }
        for _ in 0..5 {
            let answer = envoy.get("/", &[("user", "a")]).await;
            assert_eq!(answer.status, expected, "failure_mode_deny {deny}: {answer:?}");
        }
    }
}

#[test]
fn the_configurations_of_the_page_are_good() {
    let page = include_str!("../../../../../docs/envoy.md");
    let mut blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let (shop, envoy) = (blocks.next().unwrap(), blocks.next().unwrap());
    tollgate_server::config::Config::from_text("shop.yaml", shop).unwrap();
    crate::support::envoy::validate(envoy);
}
