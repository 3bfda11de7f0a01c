//! The service under test, and a small client for it.

use serde_json::Value;
use std::{
    collections::HashMap,
    fs,
    io::{self, BufRead, BufReader},
    path::PathBuf,
    process::{Child, ChildStderr, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader as AsyncReader},
    net::TcpStream,
    time::timeout,
};

/// The domain of the soak's policies.
pub(super) const DOMAIN: &str = "soak";

/// How long the service may take to start, and to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Keys come and go under three algorithms, so that tables grow and forget. Permits of `held` never come back by themselves, so its
/// sums are exact. `spare` is another rule at each reload.
fn config(version: u64) -> String {
    format!(
        "domain: {DOMAIN}
descriptors:
  - {{key: http, rate_limit: {{name: http, quota: 30/min burst 10, algorithm: gcra, warn: [80%, 100%]}}}}
  - {{key: resp, rate_limit: {{name: resp, quota: 20/10s, algorithm: fixed-window}}}}
  - {{key: grpc, rate_limit: {{name: grpc, quota: 5/10s, algorithm: sliding-log}}}}
  - {{key: held, rate_limit: {{name: held, unit: year, requests_per_unit: 1000000000}}}}
  - {{key: slot, concurrency: {{name: slots, limit: 3, lease: 10s}}}}
  - {{key: spare, rate_limit: {{name: spare, unit: hour, requests_per_unit: {}}}}}
",
        version + 1
    )
}

/// A running `tollgate serve`. It ends with this value.
#[derive(Debug)]
pub(super) struct Service {
    child: Child,
    folder: PathBuf,
    addresses: HashMap<String, String>,
}

impl Service {
    /// Starts the service on free ports, with a configuration in its own folder.
    pub(super) fn start() -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("tollgate-soak-{}", std::process::id()));
        fs::create_dir(&folder)?;
        let file = folder.join("soak.yaml");
        let started = fs::write(&file, config(0)).and_then(|()| {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("serve").arg(&file).args(["--log-format", "json", "--log-keys"]);
            for listener in ["http", "grpc", "resp", "admin"] {
                command.args([format!("--{listener}"), "127.0.0.1:0".into()]);
            }
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()
        });
        let child = started.inspect_err(|_| drop(fs::remove_dir_all(&folder)))?;
        let mut service = Self { child, folder, addresses: HashMap::new() };
        let stderr = service.child.stderr.take();
        let stderr = stderr.ok_or_else(|| io::Error::other("standard error is not piped"))?;
        service.addresses = addresses(stderr)?;
        Ok(service)
    }

    /// Returns where a listener listens.
    pub(super) fn address(&self, listener: &str) -> &str {
        self.addresses.get(listener).map_or("", String::as_str)
    }

    /// Rewrites the configuration; the service loads it within a second.
    pub(super) fn reload(&self, version: u64) -> io::Result<()> {
        let (new, file) = (self.folder.join("soak.yaml.new"), self.folder.join("soak.yaml"));
        fs::write(&new, config(version))?;
        fs::rename(new, file)
    }

    /// Returns the metrics of now.
    pub(super) async fn metrics(&self) -> io::Result<Metrics> {
        let asked = async {
            let mut stream = TcpStream::connect(self.address("admin")).await?;
            // The answer to HTTP/1.0 ends with the connection, so it has no chunks.
            stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").await?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await?;
            Ok(Metrics(text))
        };
        timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(late("/metrics")))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn late(path: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("the service did not answer {path} within {PATIENCE:?}"),
    )
}

/// Reads the addresses from the log, and goes on reading it, so that the service never waits for that. Errors are shown.
fn addresses(stderr: ChildStderr) -> io::Result<HashMap<String, String>> {
    let (found, listening) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let json: Value = serde_json::from_str(&line).unwrap_or_default();
            let field = |name: &str| json["fields"][name].as_str().unwrap_or_default().to_owned();
            if field("message") == "listening" {
                let _ = found.send((field("listener"), field("address")));
            } else if json["level"] == "ERROR" {
                crate::complain(format_args!("the service says: {line}"));
            }
        }
    });
    let mut addresses = HashMap::new();
    while addresses.len() < 4 {
        let (listener, address) = listening.recv_timeout(PATIENCE).map_err(|_| {
            io::Error::other("the service did not start; run `tollgate serve` to see why")
        })?;
        addresses.insert(listener, address);
    }
    Ok(addresses)
}

/// The text of `/metrics`.
#[derive(Debug)]
pub(super) struct Metrics(pub(super) String);

impl Metrics {
    /// Returns the sum of the samples of a metric that have these labels, each written as `name="value"`.
    pub(super) fn sum(&self, name: &str, labels: &[&str]) -> u64 {
        let value = |line: &str| {
            let (series, value) = line.rsplit_once(' ')?;
            let (its_name, its_labels) = series.split_once('{').unwrap_or((series, ""));
            let fits = its_name == name && labels.iter().all(|label| its_labels.contains(label));
            value.parse::<f64>().ok().filter(|_| fits)
        };
        // OVERFLOW: the conversion saturates; counts here are far below 2^53.
        self.0.lines().filter_map(value).sum::<f64>() as u64
    }

    /// Returns how many decisions of a policy had a result.
    pub(super) fn decisions(&self, policy: &str, result: &str) -> u64 {
        let labels = [format!("policy=\"{policy}\""), format!("result=\"{result}\"")];
        self.sum("tollgate_decisions_total", &[&labels[0], &labels[1]])
    }

    /// Returns a figure of one policy.
    pub(super) fn of_policy(&self, name: &str, policy: &str) -> u64 {
        self.sum(name, &[&format!("policy=\"{policy}\"")])
    }
}

/// A connection to `/v1`.
#[derive(Debug)]
pub(super) struct Http {
    stream: AsyncReader<TcpStream>,
    calls: u64,
}

/// A reply of `/v1`.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Value,
}

impl Http {
    pub(super) async fn connect(address: &str) -> io::Result<Self> {
        Ok(Self { stream: AsyncReader::new(TcpStream::connect(address).await?), calls: 0 })
    }

    /// Returns how many calls were made.
    pub(super) const fn calls(&self) -> u64 {
        self.calls
    }

    pub(super) async fn post(&mut self, path: &str, body: &Value) -> io::Result<Reply> {
        self.calls += 1;
        let asked = timeout(PATIENCE, self.exchange(path, body.to_string())).await;
        asked.unwrap_or_else(|_| Err(late(path)))
    }

    async fn exchange(&mut self, path: &str, body: String) -> io::Result<Reply> {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        self.stream.get_mut().write_all(request.as_bytes()).await?;
        let wrong = |text: &str| io::Error::other(format!("{path}: {text}"));
        let (mut status, mut length, mut line) = (None, None, String::new());
        loop {
            line.clear();
            if self.stream.read_line(&mut line).await? == 0 {
                return Err(wrong("the service closed the connection"));
            }
            let head = line.trim_end().to_ascii_lowercase();
            if head.is_empty() {
                break;
            }
            if status.is_none() {
                status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
            } else if let Some(value) = head.strip_prefix("content-length:") {
                length = value.trim().parse::<usize>().ok();
            }
        }
        let (Some(status), Some(length)) = (status, length) else {
            return Err(wrong("the reply has no status or no length"));
        };
        let mut bytes = vec![0; length.min(1 << 20)];
        self.stream.read_exact(&mut bytes).await?;
        Ok(Reply { status, body: serde_json::from_slice(&bytes).unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_loads_at_every_version() {
        for version in [0, 7] {
            let loaded = tollgate_server::config::Config::from_text("soak.yaml", &config(version));
            assert!(loaded.is_ok(), "{loaded:?}");
        }
    }

    #[test]
    fn sums_the_series_of_a_metric() {
        let metrics = Metrics(
            "# HELP tollgate_decisions_total x\n\
             tollgate_decisions_total{policy=\"a\",result=\"allowed\",reason=\"quota\"} 3\n\
             tollgate_decisions_total{policy=\"a\",result=\"allowed\",reason=\"shadow\"} 4\n\
             tollgate_decisions_total{policy=\"b\",result=\"allowed\",reason=\"quota\"} 9\n\
             tollgate_keys{store=\"default\"} 5\nprocess_resident_memory_bytes 4096\n"
                .into(),
        );
        assert_eq!(metrics.decisions("a", "allowed"), 7);
        assert_eq!(metrics.decisions("a", "denied"), 0);
        assert_eq!(metrics.sum("tollgate_keys", &[]), 5);
        assert_eq!(metrics.sum("process_resident_memory_bytes", &[]), 4096);
    }
}
