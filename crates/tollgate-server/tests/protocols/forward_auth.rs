//! Forward-auth: which descriptors become of a request, and what the proxy is told.

use crate::http_support::{Client, Got, start};
use tollgate_server::server::Settings;

const CONFIG: &str = "
domain: edge
descriptors:
  - key: ip
    rate_limit: {unit: minute, requests_per_unit: 2, name: per-address}
  - key: api_key
    rate_limit: {unit: hour, requests_per_unit: 3, name: per-key}
  - key: method
    value: POST
    descriptors:
      - key: path
        value: /login
        descriptors:
          - key: ip
            rate_limit: {unit: day, requests_per_unit: 1, name: logins}
  - key: host
    rate_limit: {unit: hour, requests_per_unit: 2, name: per-host}
  - key: tier
    rate_limit: {unit: hour, requests_per_unit: 1, name: tiers}
forward_auth:
  - path: /by-ip
    domain: edge
    descriptors: [[{key: ip, from: client-address}]]
  - path: /by-ip-2
    domain: edge
    trusted_hops: 1
    descriptors: [[{key: ip, from: client-address}]]
  - path: /by-key
    domain: edge
    descriptors: [[{key: api_key, header: X-Api-Key}]]
  - path: /login
    domain: edge
    descriptors:
      - [{key: method, from: method}, {key: path, from: path}, {key: ip, from: client-address}]
  - path: /by-host
    domain: edge
    descriptors: [[{key: host, from: host}]]
  - path: /tier
    domain: edge
    descriptors: [[{key: tier, header: X-Tier, default: basic}]]
  - path: /both
    domain: edge
    descriptors:
      - [{key: ip, from: client-address}]
      - [{key: api_key, header: x-api-key}]
  - path: /fixed
    domain: edge
    descriptors: [[{key: tier, value: all}]]
";

async fn ask(client: &mut Client, path: &str, headers: &str) -> Got {
    client.send(format!("GET {path} HTTP/1.1\r\nHost: proxy.test\r\n{headers}\r\n")).await;
    client.read().await
}

/// Each group starts afresh: path, headers, status.
const GROUPS: &[&[(&str, &str, u16)]] = &[
    // The last entry is the proxy's word; the others are the client's.
    &[
        ("/by-ip", "X-Forwarded-For: 192.0.2.1\r\n", 200),
        ("/by-ip", "X-Forwarded-For: 6.6.6.6, 192.0.2.1\r\n", 200),
        ("/by-ip", "X-Forwarded-For: 7.7.7.7\r\nX-Forwarded-For: ::ffff:192.0.2.1\r\n", 429),
        ("/by-ip", "X-Forwarded-For: 192.0.2.2\r\n", 200),
    ],
    // With a trusted proxy before it, the one before is the client.
    &[
        ("/by-ip-2", "X-Forwarded-For: 6.6.6.6, 192.0.2.1, 10.0.0.1\r\n", 200),
        ("/by-ip-2", "X-Forwarded-For: 192.0.2.1, 10.0.0.2\r\n", 200),
        ("/by-ip-2", "X-Forwarded-For: 192.0.2.1, 10.0.0.3\r\n", 429),
        // Nonsense ends the search at the last good one.
        ("/by-ip-2", "X-Forwarded-For: nonsense, 192.0.2.1\r\n", 429),
        ("/by-ip-2", "X-Forwarded-For: 192.0.2.1\r\n", 429),
    ],
    // One network of 64 bits is one client.
    &[
        ("/by-ip", "X-Forwarded-For: 2001:db8:0:1::1\r\n", 200),
        ("/by-ip", "X-Forwarded-For: 2001:db8:0:1:ffff::9\r\n", 200),
        ("/by-ip", "X-Forwarded-For: 2001:DB8:0:1:1:2:3:4\r\n", 429),
        ("/by-ip", "X-Forwarded-For: 2001:db8:0:2::1\r\n", 200),
    ],
    // X-Real-IP if there is no list; the connection's address if there is neither.
    &[
        ("/by-ip", "X-Real-IP: 192.0.2.7\r\n", 200),
        ("/by-ip", "X-Real-IP: 192.0.2.7\r\n", 200),
        ("/by-ip", "X-Real-IP: 192.0.2.7\r\n", 429),
        ("/by-ip", "", 200),
        ("/by-ip", "X-Forwarded-For: unknown\r\n", 200),
        ("/by-ip", "X-Forwarded-For: 127.0.0.1\r\n", 429),
    ],
    // A request without the header has no such descriptor.
    &[
        ("/by-key", "", 200),
        ("/by-key", "X-Api-Key: \r\n", 200),
        ("/by-key", "x-api-key: k\r\n", 200),
        ("/by-key", "X-API-KEY: k\r\n", 200),
        ("/by-key", "X-Api-Key:  k \r\n", 200),
        ("/by-key", "X-Api-Key: k\r\n", 429),
        ("/by-key", "", 200),
    ],
    // Path without query, method, and an address.
    &[
        (
            "/login?x",
            "X-Forwarded-Method: POST\r\nX-Forwarded-Uri: /login?next=/\r\nX-Forwarded-For: 192.0.2.1\r\n",
            200,
        ),
        (
            "/login",
            "X-Original-Method: POST\r\nX-Original-URI: /login#x\r\nX-Forwarded-For: 192.0.2.1\r\n",
            429,
        ),
        (
            "/login",
            "X-Forwarded-Method: GET\r\nX-Forwarded-Uri: /login\r\nX-Forwarded-For: 192.0.2.1\r\n",
            200,
        ),
        (
            "/login",
            "X-Forwarded-Method: POST\r\nX-Forwarded-Uri: /logout\r\nX-Forwarded-For: 192.0.2.1\r\n",
            200,
        ),
        ("/login", "X-Forwarded-Method: POST\r\nX-Forwarded-For: 192.0.2.1\r\n", 200),
    ],
    &[
        ("/by-host", "X-Forwarded-Host: Shop.Example\r\n", 200),
        ("/by-host", "X-Forwarded-Host: shop.example:443\r\n", 200),
        ("/by-host", "X-Forwarded-Host: SHOP.EXAMPLE.\r\n", 429),
        ("/by-host", "", 200),
        ("/by-host", "X-Forwarded-Host: proxy.test\r\n", 200),
        ("/by-host", "", 429),
    ],
    &[
        ("/tier", "", 200),
        ("/tier", "X-Tier: basic\r\n", 429),
        ("/tier", "X-Tier: gold\r\n", 200),
        ("/tier", "X-Tier: \u{e9}\r\n", 200),
        ("/tier", "X-Tier: \u{e9}\r\n", 429),
    ],
    &[("/fixed", "", 200), ("/fixed", "", 429)],
    // All or nothing over two descriptors.
    &[
        ("/both", "X-Forwarded-For: 192.0.2.1\r\nX-Api-Key: k\r\n", 200),
        ("/both", "X-Forwarded-For: 192.0.2.1\r\nX-Api-Key: k\r\n", 200),
        ("/both", "X-Forwarded-For: 192.0.2.1\r\nX-Api-Key: k\r\n", 429),
        ("/both", "X-Forwarded-For: 192.0.2.2\r\nX-Api-Key: k\r\n", 200),
        ("/both", "X-Forwarded-For: 192.0.2.2\r\nX-Api-Key: k\r\n", 429),
        ("/both", "X-Forwarded-For: 192.0.2.2\r\n", 200),
    ],
];

#[tokio::test]
async fn requests_are_counted_by_what_the_configuration_says() {
    for (group, rows) in GROUPS.iter().enumerate() {
        let (address, ..) = start(CONFIG, Settings::default()).await;
        let mut client = Client::connect(address).await;
        for (row, (path, headers, status)) in rows.iter().enumerate() {
            let got = ask(&mut client, path, headers).await;
            assert_eq!(
                got.status, *status,
                "group {group}, row {row}: {path} {headers:?}: {got:?}"
            );
        }
    }
}

#[tokio::test]
async fn the_proxy_is_told_all_that_it_may_pass_on() {
    let (address, ..) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    let headers = "X-Forwarded-For: 192.0.2.1\r\nX-Api-Key: k\r\n";
    for (remaining, status) in [("1", 200), ("0", 200), ("0", 429)] {
        let got = ask(&mut client, "/both", headers).await;
        assert_eq!(got.status, status, "{got:?}");
        assert_eq!(got.header("ratelimit-limit"), Some("2"));
        assert_eq!(got.header("ratelimit-remaining"), Some(remaining));
        assert_eq!(got.header("ratelimit-reset"), Some("23"));
        assert_eq!(
            got.header("ratelimit-policy"),
            Some("\"per-address\";q=2;w=60, \"per-key\";q=3;w=3600")
        );
        assert_eq!(got.header("ratelimit"), Some(&*format!("\"per-address\";r={remaining};t=23")));
        assert_eq!(got.header("retry-after"), (status == 429).then_some("23"));
        if status == 429 {
            assert_eq!(got.header("content-type"), Some("application/problem+json"));
            assert_eq!(got.json()["violated-policies"], serde_json::json!(["per-address"]));
            assert_eq!(got.json()["status"], 429);
        } else {
            assert_eq!(got.body, "");
        }
    }
    for method in ["POST", "PUT", "OPTIONS", "PROPFIND"] {
        assert_eq!(client.ask(method, "/by-key", "body").await.status, 200, "{method}");
    }
    assert_eq!(client.ask("HEAD", "/both", "").await.status, 200);
}

#[tokio::test]
async fn a_reload_changes_what_proxies_may_ask() {
    let (address, shared, _) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    assert_eq!(ask(&mut client, "/by-ip", "").await.status, 200);
    let config = tollgate_server::config::Config::from_text("b.yaml", "domain: other").unwrap();
    let plan = tollgate_server::plan::Plan::compile(config, Some(&shared.engine.plan())).unwrap();
    shared.engine.install(plan);
    assert_eq!(ask(&mut client, "/by-ip", "").await.status, 404);
}
