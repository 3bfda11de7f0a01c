//! Forward-auth: the descriptors of a request, and the response to the proxy.

use crate::http_support::{Client, Got, start};
use tollgate_server::server::Settings;
use tollgate_tower::{
    Info,
    answer::Legacy,
    key::{Key, KeyBytes},
};

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
  - path: /by-network
    domain: edge
    trusted_networks: [127.0.0.0/8, 10.0.0.0/8]
    ipv4_prefix: 24
    ipv6_prefix: 48
    descriptors: [[{key: ip, from: client-address}]]
  - path: /by-stranger
    domain: edge
    trusted_networks: [10.0.0.0/8]
    descriptors: [[{key: ip, from: client-address}]]
  - path: /by-secret
    domain: edge
    descriptors:
      - [{key: tier, from: bearer}]
      - [{key: tier, cookie: sid}]
      - [{key: tier, secret_header: X-Key}]
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

/// Each group starts with fresh limits: path, headers, status.
const GROUPS: &[&[(&str, &str, u16)]] = &[
    // The proxy has written the last entry; the client has sent the others.
    &[
        ("/by-ip", "X-Forwarded-For: 192.0.2.1\r\n", 200),
        ("/by-ip", "X-Forwarded-For: 6.6.6.6, 192.0.2.1\r\n", 200),
        ("/by-ip", "X-Forwarded-For: 7.7.7.7\r\nX-Forwarded-For: ::ffff:192.0.2.1\r\n", 429),
        ("/by-ip", "X-Forwarded-For: 192.0.2.2\r\n", 200),
    ],
    // With a trusted proxy in front, the entry before its address is the client.
    &[
        ("/by-ip-2", "X-Forwarded-For: 6.6.6.6, 192.0.2.1, 10.0.0.1\r\n", 200),
        ("/by-ip-2", "X-Forwarded-For: 192.0.2.1, 10.0.0.2\r\n", 200),
        ("/by-ip-2", "X-Forwarded-For: 192.0.2.1, 10.0.0.3\r\n", 429),
        // An entry that no trusted proxy has written is ignored: the connection's address counts.
        ("/by-ip-2", "X-Forwarded-For: nonsense, 192.0.2.1\r\n", 200),
        ("/by-ip-2", "X-Forwarded-For: 192.0.2.1\r\n", 200),
        ("/by-ip-2", "X-Forwarded-For: 192.0.2.1\r\n", 429),
    ],
    // A client behind NAT64 counts as its IPv4 address, and so does one in mapped notation.
    &[
        ("/by-ip", "X-Forwarded-For: 64:ff9b::192.0.2.1\r\n", 200),
        ("/by-ip", "X-Forwarded-For: 64:ff9b::c000:202\r\n", 200),
        ("/by-ip", "X-Forwarded-For: [::ffff:c000:201]:443\r\n", 200),
        ("/by-ip", "X-Forwarded-For: 192.0.2.1\r\n", 429),
    ],
    // Only proxies in the trusted networks are trusted.
    &[
        ("/by-network", "X-Forwarded-For: 6.6.6.6, 192.0.2.1, 10.0.0.1, 10.9.9.9\r\n", 200),
        ("/by-network", "X-Forwarded-For: 192.0.2.200\r\n", 200),
        ("/by-network", "X-Forwarded-For: 192.0.2.3, 10.0.0.1\r\n", 429),
        ("/by-network", "X-Forwarded-For: 2001:db8:1:2::9\r\n", 200),
        ("/by-network", "X-Forwarded-For: 2001:db8:1:3::9\r\n", 200),
        ("/by-network", "X-Real-IP: 2001:db8:1::\r\n", 429),
    ],
    &[
        ("/by-stranger", "X-Forwarded-For: 192.0.2.1\r\n", 200),
        ("/by-stranger", "X-Forwarded-For: 192.0.2.2\r\n", 200),
        ("/by-stranger", "X-Real-IP: 192.0.2.3\r\n", 429),
    ],
    // Secrets: a request without one is not counted, and two different ones are an error.
    &[
        ("/by-secret", "", 200),
        ("/by-secret", "Authorization: Basic a\r\n", 200),
        ("/by-secret", "Authorization: Bearer a\r\n", 200),
        ("/by-secret", "authorization: bearer  a\r\n", 429),
        ("/by-secret", "Cookie: x=1; sid=b\r\n", 200),
        ("/by-secret", "Cookie: sid=\"b\"\r\n", 429),
        ("/by-secret", "X-Key: c\r\n", 200),
        ("/by-secret", "X-Key: c\r\nX-Key: c\r\n", 429),
        ("/by-secret", "X-Key: d\r\nX-Key: e\r\n", 400),
        ("/by-secret", "Cookie: sid=d; sid=e\r\n", 400),
        ("/by-secret", "Authorization: Bearer d\r\nAuthorization: Bearer e\r\n", 400),
    ],
    // One /64 network is one client.
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
    // All or nothing across two descriptors.
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

/// Returns the key that the layer counts by, as text.
fn layer_text(key: &Key, header: (&str, &str)) -> String {
    let request = http::Request::builder().header(header.0, header.1).body(()).unwrap();
    let mut bytes = KeyBytes::new();
    assert!(key.find(&Info::of(&request), &mut bytes).is_counted());
    String::from_utf8(bytes.texts().next().unwrap().into_owned()).unwrap()
}

#[tokio::test]
async fn a_secret_is_counted_by_the_hash_that_the_layer_counts_it_by() {
    let (address, ..) = start(CONFIG, Settings::default()).await;
    let mut client = Client::connect(address).await;
    for (key, name, value) in [
        (Key::bearer(), "Authorization", "Bearer tok"),
        (Key::cookie("sid"), "Cookie", "sid=session"),
        (Key::header("x-key"), "X-Key", "k"),
    ] {
        let header = format!("{name}: {value}\r\n");
        assert_eq!(ask(&mut client, "/by-secret", &header).await.status, 200);
        let hash = layer_text(&key, (name, value));
        let path = format!("/v1/peek?policy=tiers&key={hash}");
        assert_eq!(client.ask("GET", &path, "").await.json()["remaining"], 0, "{name}");
    }
}

#[tokio::test]
async fn x_ratelimit_headers_come_by_choice() {
    for (choice, reset) in
        [(Legacy::Off, None), (Legacy::Delta, Some("23")), (Legacy::Epoch, Some("784111800"))]
    {
        let settings = Settings { x_ratelimit_headers: choice, ..Settings::default() };
        let (address, ..) = start(CONFIG, settings).await;
        let mut client = Client::connect(address).await;
        for (path, remaining) in
            [("/by-ip", "1"), ("/v1/check?policy=per-address&key=127.0.0.1", "0")]
        {
            let got = client.ask("GET", path, "").await;
            let names = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
            let expected = [reset.map(|_| "2"), reset.map(|_| remaining), reset];
            assert_eq!(names.map(|name| got.header(name)), expected, "{choice:?} {path}: {got:?}");
            assert_eq!(got.header("ratelimit-remaining"), Some(remaining));
        }
    }
}

#[tokio::test]
async fn a_name_outside_ascii_is_spelled_alike_in_headers_and_problems() {
    let config = CONFIG.replace("name: per-address", "name: \"Größe 5 %\"");
    let (address, ..) = start(&config, Settings::default()).await;
    let mut client = Client::connect(address).await;
    let mut got = ask(&mut client, "/by-ip", "").await;
    while got.status == 200 {
        got = ask(&mut client, "/by-ip", "").await;
    }
    let spelled = "Gr%C3%B6%C3%9Fe 5 %25";
    assert_eq!(got.header("ratelimit"), Some(&*format!("\"{spelled}\";r=0;t=23")));
    assert_eq!(got.json()["violated-policies"], serde_json::json!([spelled]));
    // Percent-decoded, it is the name.
    let path = format!("/v1/peek?policy={}&key=a", spelled.replace(' ', "%20"));
    assert_eq!(client.ask("GET", &path, "").await.json()["policy"], "Größe 5 %");
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
