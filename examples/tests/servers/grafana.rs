//! The Grafana dashboard of the library: every query runs against a real Prometheus that scrapes the
//! example `observed`.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};
use tollgate_rig::{Prometheus, dashboard_queries};

/// The example as a process, which ends with this value.
struct Observed(Child, SocketAddr);

impl Observed {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_observed"))
            .arg("127.0.0.1:0")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit('/').next().unwrap().parse().unwrap();
        Self(child, address)
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.1).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let head = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\nx-user: alice\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_query_of_the_library_dashboard_finds_series() {
    let observed = Observed::start();
    let prometheus = Prometheus::start(observed.1);
    let queries = dashboard_queries(include_str!("../../../docs/grafana/library.json"));
    assert!(queries.len() >= 15, "{}", queries.len());
    for query in &queries {
        prometheus.finds(query, || drop(observed.get("/")));
    }
}

#[test]
fn promtool_finds_nothing_wrong_with_the_metrics() {
    let observed = Observed::start();
    for _ in 0..3 {
        let _ = observed.get("/");
    }
    let reply = observed.get("/metrics");
    let (_, metrics) = reply.split_once("\r\n\r\n").unwrap();
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("./test installs promtool");
    promtool.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}\n{metrics}");
}
