//! A real Prometheus that scrapes one program, and the queries of Grafana dashboards.

use crate::{
    Port,
    program::{Process, Start, on_path},
    within,
};
use serde_json::Value;
use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    time::Duration,
};
use tempfile::TempDir;

/// How long a query may take to find series: some scrapes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A Prometheus that scrapes `/metrics` of one address each second. It ends with this value.
#[derive(Debug)]
pub struct Prometheus {
    port: Port,
    _process: Process,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts it.
    ///
    /// # Panics
    ///
    /// If `prometheus` is not installed.
    #[must_use]
    pub fn start(target: SocketAddr) -> Self {
        let folder = tempfile::tempdir().expect("a folder for Prometheus");
        let file = |name: &str| folder.path().join(name);
        let config = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: tollgate\n    \
             static_configs: [{{targets: ['{target}']}}]\n"
        );
        fs::write(file("prometheus.yml"), config).expect("a configuration");
        let port = Port::reserve();
        let program: PathBuf = on_path("prometheus")
            .expect("prometheus is missing; install it: apt-get install prometheus");
        let process = Process::start(Start {
            program,
            arguments: vec![
                format!("--config.file={}", file("prometheus.yml").display()),
                format!("--storage.tsdb.path={}", file("data").display()),
                format!("--web.listen-address={}", port.address()),
            ],
            variables: Vec::new(),
            log: file("log"),
        });
        Self { port, _process: process, _folder: folder }
    }

    /// Waits until a query of a dashboard finds series. `poke` runs before each attempt: rates need a
    /// count that moves.
    ///
    /// # Panics
    ///
    /// If it finds none within 30 s, or Prometheus does not understand it.
    pub fn finds(&self, query: &str, mut poke: impl FnMut()) {
        within(PATIENCE, &format!("series for {query}"), || {
            poke();
            self.query(query).is_some_and(|found| !found.is_empty())
        });
    }

    /// Returns the series of a query; `None` while Prometheus cannot answer.
    ///
    /// # Panics
    ///
    /// If Prometheus does not understand the query.
    #[must_use]
    pub fn query(&self, query: &str) -> Option<Vec<Value>> {
        let text: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let mut stream = TcpStream::connect(self.port.address()).ok()?;
        let head = format!("GET /api/v1/query?query={text} HTTP/1.0\r\nhost: localhost\r\n\r\n");
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.write_all(head.as_bytes()).ok()?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).ok()?;
        let (head, body) = reply.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?;
        assert!(!["400", "422"].contains(&status), "{query}: {body}");
        let found: Value = serde_json::from_str(body).ok()?;
        Some(found["data"]["result"].as_array()?.clone())
    }
}

/// Returns the queries of a Grafana dashboard, with values for its variables.
///
/// # Panics
///
/// If the text is no dashboard, or has a variable that has no value here.
#[must_use]
pub fn dashboard_queries(dashboard: &str) -> Vec<String> {
    let dashboard: Value = serde_json::from_str(dashboard).expect("a dashboard is JSON");
    let panels = dashboard["panels"].as_array().expect("a dashboard has panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries = targets.map(|target| target["expr"].as_str().expect("a target has a query"));
    queries
        .map(|query| {
            let query = query.replace("$__rate_interval", "30s").replace("$instance", ".*");
            assert!(!query.contains('$'), "{query}");
            query
        })
        .collect()
}
