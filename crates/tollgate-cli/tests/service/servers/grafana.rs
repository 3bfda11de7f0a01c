//! The Grafana dashboards: every query runs against a real Prometheus that scrapes the real service.

use crate::process::{PATIENCE, Service, http};
use serde_json::Value;
use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
};
use tollgate_rig::within;

/// A Prometheus that is killed when dropped.
struct Prometheus(Child, SocketAddr);

impl Prometheus {
    fn start(folder: &Path, target: SocketAddr) -> Self {
        let config = folder.join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: tollgate\n    static_configs: [{{targets: ['{target}']}}]\n"
        );
        std::fs::write(&config, text).unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("./test installs prometheus");
        Self(child, address)
    }

    /// Returns the series of a query; `None` while Prometheus cannot answer.
    fn query(&self, query: &str) -> Option<Vec<Value>> {
        let text: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        std::net::TcpStream::connect(self.1).ok()?;
        let (status, body) = http(self.1, "GET", &format!("/api/v1/query?query={text}"), "");
        let found: Value = serde_json::from_str(&body).ok()?;
        assert!(status != 400 && status != 422, "{query}: {body}");
        Some(found["data"]["result"].as_array()?.clone())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const YAML: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {name: api, unit: hour, requests_per_unit: 2}}
  - {key: site, value: all, rate_limit: {name: site, unit: hour, requests_per_unit: 5}}
  - {key: e, concurrency: {name: slots, limit: 3, lease: 1h}}
  - {key: u, rate_limit: {name: up, quota: 100/s, algorithm: gcra}, adaptive: {follow: reports, min: 10/s}}
";

/// Queries of shared stores, which this service does not have.
const NEEDS_REDIS: &str = "tollgate_store_node_";

#[test]
fn every_query_of_the_service_dashboard_finds_series() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path(), YAML, &[]);
    let prometheus = Prometheus::start(folder.path(), service.admin);
    let text = include_str!("../../../../../docs/grafana/service.json");
    let dashboard: Value = serde_json::from_str(text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let queries: Vec<String> = targets
        .map(|target| target["expr"].as_str().unwrap())
        .map(|query| query.replace("$__rate_interval", "30s").replace("$instance", ".*"))
        .collect();
    assert!(queries.len() >= 20, "{}", queries.len());
    for query in &queries {
        assert!(!query.contains('$'), "{query}");
        within(PATIENCE, &format!("series for {query}"), || {
            // Rates need a count that moves.
            for _ in 0..4 {
                let _ = http(service.http, "GET", "/v1/check?policy=api&key=a", "");
            }
            let found = prometheus.query(query);
            found.is_some_and(|found| !found.is_empty() || query.contains(NEEDS_REDIS))
        });
    }
}
