//! Our own service: how it is built, started and distinguished from its peers.
//!
//! Everything the benchmark knows about `tollgate serve` is in this file.

use super::process::{Server, free_port, wait_for};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// How many worker threads the service has. Redis has one, so this is one too.
pub(super) const WORKERS: u32 = 1;

/// The command of the RESP rows.
pub(super) const THROTTLE: &str = "CL.THROTTLE {key} 99 100 60";

/// The request of the HTTP rows.
pub(super) const HTTP: [&str; 4] =
    ["--path", "/v1/check", "--body", r#"{"policy":"api","key":"{key}"}"#];

/// The request of the gRPC rows.
pub(super) const GRPC: [&str; 4] = ["--domain", "api", "--descriptor", "user={key}"];

/// The configuration that the requests above refer to: 100 each minute and key.
const CONFIG: &str = "\
domain: api
descriptors:
  - key: user
    rate_limit: {name: api, unit: minute, requests_per_unit: 100}
";

/// The addresses of the service.
pub(super) struct Tollgate {
    pub(super) server: Server,
    pub(super) http: String,
    pub(super) grpc: String,
    pub(super) resp: String,
}

/// Builds the release program and returns its path.
pub(super) fn build() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["build", "--release", "-p", "tollgate-cli"]);
    // The program lands beside this one, whatever the target directory is.
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = program.parent().unwrap_or(Path::new("."));
    match cargo.stdout(Stdio::null()).status() {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("cargo build -p tollgate-cli: {status}")),
        Err(error) => return Err(format!("cargo cannot be run: {error}")),
    }
    let tollgate = folder.join("tollgate");
    if tollgate.exists() {
        return Ok(tollgate);
    }
    Err(format!("{} is missing: run with cargo run --release", tollgate.display()))
}

/// Starts the service, and returns when it is ready.
pub(super) fn start(program: &Path) -> Result<Tollgate, String> {
    let config = std::env::temp_dir().join(format!("tollgate-bench-{}.yaml", std::process::id()));
    std::fs::write(&config, CONFIG).map_err(|error| error.to_string())?;
    let address = || free_port().map(|port| SocketAddr::from(([127, 0, 0, 1], port)).to_string());
    let (http, grpc, resp, admin) = (address()?, address()?, address()?, address()?);
    let mut command = Command::new(program);
    command.arg("serve").args(["--http", &http, "--grpc", &grpc, "--resp", &resp]);
    command.args(["--admin", &admin, "--workers", &WORKERS.to_string(), "--config"]).arg(&config);
    let mut server = Server::spawn(&mut command)?;
    let ready = "GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    wait_for(&mut server, &admin, Some((ready, "HTTP/1.1 200")))?;
    Ok(Tollgate { server, http, grpc, resp })
}
