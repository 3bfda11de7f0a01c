//! wrk, as a client with many connections that stay open.

use std::{net::SocketAddr, path::Path, process::Command};

/// The task of a client.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) connections: u64,
    pub(super) seconds: u32,
    /// How many clients it simulates, by `X-Forwarded-For`; none if zero.
    pub(super) addresses: u32,
}

/// The counts of a client.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) passed: u64,
    pub(super) refused: u64,
}

/// Loads a server until the time is over. Blocks.
pub(super) fn load(server: SocketAddr, load: Load) -> Counted {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/layers/servers/limit_under_load/load.lua");
    let mut wrk = Command::new("wrk");
    wrk.args(["-t1", &format!("-c{}", load.connections), &format!("-d{}s", load.seconds), "-s"]);
    wrk.arg(script).arg(format!("http://{server}/")).args(["--", &load.addresses.to_string()]);
    let output = match wrk.output() {
        Ok(output) => output,
        Err(error) => panic!("wrk cannot be run: {error}; apt-get install wrk"),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("counted "));
    let numbers = line.map(|line| line.split(' ').map(|word| word.parse().unwrap()));
    let numbers: Vec<u64> = numbers.map(Iterator::collect).unwrap_or_default();
    let [all, refused, broken] = numbers[..] else { panic!("wrk said: {text}") };
    assert_eq!(broken, 0, "sockets failed: {text}");
    Counted { passed: all - refused, refused }
}
