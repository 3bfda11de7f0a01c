//! Public names of the service, recorded in `rig/golden`: JSON fields, headers and commands.

use crate::{
    admin::Fake, admin_harness, http_openapi::resolved, http_support, resp_support, support,
};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};
use tollgate_rig::golden;
use tollgate_server::{
    admin::{ControlStatus, LoadStatus, SnapshotStatus},
    net::{Access, Listener, Secret, Token},
    rls,
    server::Settings,
};

/// A request to every endpoint of the administrators' interface that answers in JSON. They run in this
/// order, so that replies have something to show.
const ADMIN: [(&str, &str, &str); 23] = [
    ("GET", "/health", ""),
    ("GET", "/ready", ""),
    ("GET", "/version", ""),
    ("GET", "/health/detail", ""),
    ("GET", "/policies?history=3", ""),
    ("GET", "/policies/per-user", ""),
    ("GET", "/policies/exports", ""),
    ("GET", "/policies/upstream", ""),
    ("GET", "/top", ""),
    ("POST", "/block", r#"{"policy": "per-user", "key": "ann", "for_ms": 1000}"#),
    ("POST", "/override", r#"{"policy": "per-user", "key": "ann", "limit": "7/s", "for_ms": 9}"#),
    ("POST", "/bypass", r#"{"policy": "whole-site", "for_ms": 1000}"#),
    ("GET", "/key?policy=per-user&key=ann", ""),
    ("GET", "/explain?domain=shop&entry=user%3Dann", ""),
    ("GET", "/specials", ""),
    ("POST", "/unblock", r#"{"policy": "per-user", "key": "ann"}"#),
    ("POST", "/override/clear", r#"{"policy": "per-user", "key": "ann"}"#),
    ("POST", "/reset", r#"{"policy": "per-user", "key": "ann"}"#),
    ("POST", "/reset", r#"{"policy": "nobody", "key": "ann"}"#),
    ("GET", "/audit", ""),
    ("GET", "/config", ""),
    ("GET", "/store", ""),
    ("POST", "/reload", ""),
];

/// Collects the fields of a value: `a.b`, and `a[].b` for those of a list's entries.
fn collect(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    for (name, value) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        collect(value, &at, found);
        found.insert(at);
    }
    for value in value.as_array().into_iter().flatten() {
        collect(value, &format!("{at}[]"), found);
    }
}

/// Collects the fields that a schema of the OpenAPI document describes, and the schemas that it names.
fn describe(schema: &Value, at: &str, found: &mut BTreeSet<String>) {
    if let Some(path) = schema["$ref"].as_str() {
        found.insert(format!("{at}: {}", path.rsplit('/').next().unwrap()));
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        describe(schema, &at, found);
        found.insert(at);
    }
    if schema.get("items").is_some() {
        describe(&schema["items"], &format!("{at}[]"), found);
    }
    for kind in ["oneOf", "anyOf", "allOf"] {
        for schema in schema[kind].as_array().into_iter().flatten() {
            describe(schema, at, found);
        }
    }
}

/// A server with everything to report: refusals, a failed load, a failed snapshot.
async fn busy() -> admin_harness::Harness {
    let harness = admin_harness::Harness::new(admin_harness::CONFIG, Settings::default());
    harness.decide("per-user", &[b"ann"], 5).await;
    harness.tick();
    let at = harness.shared.engine.now();
    let error = Some("no".to_owned());
    let status = ControlStatus {
        files: vec!["shop.yaml".into()],
        loads: 2,
        failed_loads: 1,
        last_load: Some(LoadStatus { at, error: error.clone(), warnings: vec!["w".into()] }),
        snapshots: vec![SnapshotStatus { store: 0, path: "s".into(), written: Some(at), error }],
    };
    assert!(harness.shared.admin.set_control(Arc::new(Fake(Mutex::new(status)))));
    harness
}

#[tokio::test]
async fn json_fields_are_as_recorded() {
    let mut found = BTreeSet::new();
    let document = include_str!("../../src/http/openapi.json");
    let document: Value = serde_json::from_str(document).unwrap();
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        describe(schema, name, &mut found);
    }
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let question = &operation["requestBody"]["content"]["application/json"]["schema"];
            describe(question, &format!("{method} {path} request"), &mut found);
            for (status, reply) in operation["responses"].as_object().into_iter().flatten() {
                let reply = resolved(&document, reply);
                for content in reply["content"].as_object().into_iter().flatten() {
                    let at = format!("{method} {path} {status}");
                    describe(&content.1["schema"], &at, &mut found);
                }
            }
        }
    }
    let harness = busy().await;
    for (method, path, body) in ADMIN {
        let told = harness.ask_unix(method, path, body).await;
        let path = path.split('?').next().unwrap();
        let at = format!("admin {} {path} {}", method.to_lowercase(), told.status);
        collect(&told.json(), &at, &mut found);
    }
    let index = harness.ask_unix("GET", "/", "").await.body;
    for line in index.lines().filter(|line| line.starts_with(['G', 'P'])) {
        let path = line.split_whitespace().nth(1).unwrap().replace("{name}", "per-user");
        let others = ["/", "/metrics", "/events", "/login", "/logout"];
        let is_text = others.contains(&path.as_str()) || path.starts_with("/ui/");
        let is_asked = |(_, asked, _): &(&str, &str, &str)| asked.split('?').next() == Some(&path);
        assert!(is_text || ADMIN.iter().any(is_asked), "{path} is not in the list");
    }
    golden("json", &found);
}

/// The headers of the HTTP listener.
async fn http_headers() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let config = format!(
        "{}forward_auth:\n  - path: /auth\n    domain: shop\n    \
         descriptors: [[{{key: user, header: x-user}}]]\n  - path: /shut\n    domain: shop\n    \
         descriptors: [[{{key: shut, value: y}}]]\n",
        http_support::CONFIG
    );
    let token = Token::of(Listener::Http, Secret::new("open"));
    let locked = Settings { access: Access::new(vec![token]), ..Settings::default() };
    for settings in [Settings::default(), locked] {
        let (address, ..) = http_support::start(&config, settings).await;
        for (method, target) in [
            ("GET", "/v1/check?policy=api&key=a"),
            ("GET", "/v1/check?policy=api&key=b&cost=5"),
            ("GET", "/v1/check?policy=api&key=b&cost=5"),
            ("GET", "/v1/check"),
            ("DELETE", "/v1/check"),
            ("GET", "/nothing"),
            ("GET", "/auth"),
            ("GET", "/shut"),
            ("GET", "/healthz"),
            ("GET", "/"),
        ] {
            let mut client = http_support::Client::connect(address).await;
            client
                .send(format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nX-User: u\r\nConnection: close\r\n\r\n"))
                .await;
            let got = client.read().await;
            found.extend(got.headers.iter().map(|(name, _)| format!("http {name}").to_lowercase()));
        }
    }
    // Headers of rare replies, such as those without a store, stand in the sources.
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/http")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let [header, text] = [".header(\"", ".header_text(\""].map(|call| text.split(call).skip(1));
        let names = header.chain(text).filter_map(|rest| rest.split('"').next());
        found.extend(names.map(|name| format!("http {name}").to_lowercase()));
    }
    found
}

#[tokio::test]
async fn response_headers_are_as_recorded() {
    let mut found = http_headers().await;
    let harness = admin_harness::Harness::with_token();
    let address = harness.listen().await;
    for (method, path) in [("GET", "/health"), ("GET", "/policies"), ("POST", "/health")] {
        let request = admin_harness::request(method, path, "", "");
        let told = admin_harness::ask_with(address, &request).await;
        let names = told.head.lines().skip(1).filter_map(|line| line.split_once(": "));
        found.extend(names.map(|(name, _)| format!("admin {name}")));
    }
    let rule = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1}}]\n";
    let (shared, _hand) = support::server(rule, Settings::default());
    let mut client = support::Client::connect(&shared).await;
    let good = prost::Message::encode_to_vec(&support::request(&[("user", "a")]));
    let mut compressed = support::framed(&good).to_vec();
    compressed[0] = 1;
    for body in [support::framed(&good), support::framed(b"\x0b"), compressed.into()] {
        let reply = client.call(rls::METHOD, body).await;
        let names = reply.headers.keys().chain(reply.trailers.keys());
        found.extend(names.map(|name| format!("grpc {name}")));
    }
    // The headers that Envoy is to send: one request passes, one is refused.
    for _ in 0..2 {
        let reply = client.ask(&support::request(&[("user", "b")])).await;
        let names = reply.response_headers_to_add.iter().map(|header| &header.key);
        found.extend(names.map(|name| format!("envoy {}", name.to_lowercase())));
    }
    golden("headers", &found);
}

/// Each line: the name, the arity, the flags, and the first, last and step of the keys.
#[test]
fn resp_commands_are_as_recorded() {
    let server = resp_support::Server::start();
    let mut client = server.connect();
    client.send("COMMAND\r\nQUIT\r\n");
    let reply = client.rest();
    let mut found = BTreeSet::new();
    for command in reply.split("*10\r\n").skip(1) {
        let words = command.lines().filter(|line| !line.starts_with(['$', '*']) && *line != "+OK");
        let words: Vec<_> = words.map(|word| word.trim_start_matches([':', '+'])).collect();
        found.insert(words.join(" "));
    }
    golden("commands", &found);
}
