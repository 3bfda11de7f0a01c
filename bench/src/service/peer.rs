//! The peers: redis-server, throttlecrab-server and a bare HTTP/2 echo.

use super::process::{Server, ask, free_port, wait_for};
use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A GCRA as it is usually written for Redis: one key, the time of Redis, five numbers as answer.
const LUA_GCRA: &str = "\
local time = redis.call('TIME') \
local now = time[1] * 1000 + math.floor(time[2] / 1000) \
local burst, count, period = tonumber(ARGV[1]) + 1, tonumber(ARGV[2]), tonumber(ARGV[3]) * 1000 \
local step = period / count \
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now) \
local after = tat + step \
local left = burst * step - (after - now) \
if left < 0 then return {1, burst, 0, math.ceil(-left / 1000), math.ceil((tat - now) / 1000)} end \
redis.call('SET', KEYS[1], after, 'PX', math.ceil(after - now)) \
return {0, burst, math.floor(left / step), -1, math.ceil((after - now) / 1000)}";

/// A running peer.
pub(super) struct Peer {
    pub(super) server: Server,
    /// One address for each protocol it speaks; empty where it speaks none.
    pub(super) resp: String,
    pub(super) http: String,
    pub(super) grpc: String,
}

/// Starts Redis without persistence.
pub(super) fn redis() -> Result<Peer, String> {
    let port = free_port()?;
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    command.args(["--save", "", "--appendonly", "no"]);
    let how = |error| format!("{error} (apt-get install redis-server)");
    let mut server = Server::spawn(&mut command).map_err(how)?;
    let resp = format!("127.0.0.1:{port}");
    wait_for(&mut server, &resp, Some(("PING\r\n", "+PONG")))?;
    Ok(Peer { server, resp, http: String::new(), grpc: String::new() })
}

/// Loads the Lua script and returns the command that calls it.
pub(super) fn lua_gcra(redis: &Peer) -> Result<String, String> {
    let length = LUA_GCRA.len();
    let question = format!("*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n${length}\r\n{LUA_GCRA}\r\n");
    let answer = ask(&redis.resp, &question).unwrap_or_default();
    match answer.strip_prefix("$40\r\n").and_then(|rest| rest.get(..40)) {
        Some(digest) => Ok(format!("EVALSHA {digest} 1 {{key}} 99 100 60")),
        None => Err(format!("redis does not load the script: {answer}")),
    }
}

/// Installs throttlecrab-server, if it is not there yet.
pub(super) fn build_throttlecrab() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let folder = root.join("target-bench/peers");
    let program = folder.join("bin/throttlecrab-server");
    if program.exists() {
        return Ok(program);
    }
    eprintln!("building throttlecrab-server, once");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["install", "throttlecrab-server", "--version", "0.4.40", "--root"]).arg(folder);
    match cargo.stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(program),
        Ok(_) => Err("cargo install throttlecrab-server failed; its build needs protoc \
                      (apt-get install protobuf-compiler)"
            .into()),
        Err(error) => Err(format!("cargo cannot be run: {error}")),
    }
}

/// Starts throttlecrab with its periodic store; the adaptive one stalls at many keys.
pub(super) fn throttlecrab(program: &Path) -> Result<Peer, String> {
    let (resp, http, grpc) = (free_port()?, free_port()?, free_port()?);
    let mut command = Command::new(program);
    let host = "127.0.0.1";
    command.args(["--redis", "--redis-host", host, "--redis-port", &resp.to_string()]);
    command.args(["--http", "--http-host", host, "--http-port", &http.to_string()]);
    command.args(["--store", "periodic", "--store-capacity", "1000000", "--log-level", "error"]);
    let mut server = Server::spawn(&mut command)?;
    let address = |port: u16| format!("{host}:{port}");
    wait_for(&mut server, &address(resp), None)?;
    wait_for(&mut server, &address(http), None)?;
    Ok(Peer { server, resp: address(resp), http: address(http), grpc: address(grpc) })
}

/// Starts the bare HTTP/2 echo, which is this program with a hidden argument.
pub(super) fn echo() -> Result<Peer, String> {
    let address = format!("127.0.0.1:{}", free_port()?);
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut server = Server::spawn(Command::new(program).args([super::echo::FLAG, &address]))?;
    wait_for(&mut server, &address, None)?;
    Ok(Peer { server, resp: String::new(), http: String::new(), grpc: address })
}
