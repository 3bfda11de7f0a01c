//! The service admits exactly the limit, for any clients and over any protocol.

use crate::process::Service;
use std::{
    process::{Child, Command, Stdio},
    thread,
};

pub(crate) const YAML: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {name: k, quota: 1000/year}}
  - {key: gcra, rate_limit: {name: gcra, quota: 1000/year, algorithm: gcra}}
  - key: tenant
    rate_limit: {name: tenant, quota: 700/year}
    descriptors:
      - key: user
        rate_limit: {name: user, quota: 1000/year}
        parents: [tenant]
";

/// Starts a load of 2000 requests on one key. 800 are in flight: 50 x 16 over RESP, 8 x 100 over
/// gRPC, and 100 x 8 over HTTP.
pub(crate) fn load(service: &Service, protocol: &str, key: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["load", protocol]);
    let all = ["--requests", "2000", "--warmup", "0s", "--dist", "one", "--format", "json"];
    match protocol {
        "resp" => command
            .arg(service.resp.to_string())
            .args(["-c", "50", "-P", "16"])
            .args(["--command", &format!("TG.DESCRIPTOR d 1 {}", key.replace(['=', '|'], " "))]),
        "grpc" => command
            .arg(service.grpc.to_string())
            .args(["-c", "8", "--streams", "100"])
            .args(["--domain", "d", "--descriptor", &key.replace('|', ",")]),
        _ => command.arg(service.http.to_string()).args(["-c", "100", "-P", "8"]).args([
            "--path",
            "/v1/check",
            "--body",
            &body(key),
        ]),
    };
    command.args(all).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap()
}

fn body(key: &str) -> String {
    let entry = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap();
        format!(r#"{{"key":"{key}","value":"{value}"}}"#)
    };
    let entries: Vec<_> = key.split('|').map(entry).collect();
    format!(r#"{{"domain":"d","descriptors":[{{"entries":[{}]}}]}}"#, entries.join(","))
}

pub(crate) fn allowed(load: Child) -> u64 {
    let output = load.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["errors"], 0, "{text}");
    report["allowed"].as_u64().unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn each_protocol_admits_exactly_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path(), YAML, &[]);
    for protocol in ["resp", "http", "grpc"] {
        for (rule, limit) in [("k", 1000), ("gcra", 1000)] {
            let key = format!("{rule}={protocol}");
            assert_eq!(allowed(load(&service, protocol, &key)), limit, "{key}");
        }
    }
}

#[test]
fn all_protocols_at_once_admit_exactly_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path(), YAML, &["--workers", "4"]);
    for (key, limit) in [("k=all", 1000), ("tenant=t|user=u", 700)] {
        let loads = ["resp", "http", "grpc"].map(|protocol| load(&service, protocol, key));
        let admitted: u64 = thread::scope(|scope| {
            let counts = loads.map(|load| scope.spawn(|| allowed(load)));
            counts.into_iter().map(|count| count.join().unwrap()).sum()
        });
        assert_eq!(admitted, limit, "{key}");
    }
}
