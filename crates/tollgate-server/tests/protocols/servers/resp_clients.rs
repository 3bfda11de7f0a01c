//! Real clients: redis-cli, redis-rs, redis-py, ioredis.
//!
//! They are looked for on the path, in the virtual environment `.venv` (or `TOLLGATE_VENV`), and in
//! `target/npm` (or `TOLLGATE_NPM`).

use crate::resp_support::Server;
use std::{path::PathBuf, process::Command};
use tollgate_server::{
    net::{Access, Listener, Secret, Token},
    server::Settings,
};

fn server() -> Server {
    let access = Access::new(vec![Token::of(Listener::Resp, Secret::new("sesame"))]);
    Server::with(Settings { access, ..Settings::default() })
}

/// Returns a folder that a variable names, or else one in the workspace.
fn folder(variable: &str, default: &str) -> PathBuf {
    let workspace = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    std::env::var_os(variable).map_or_else(|| workspace.join(default), PathBuf::from)
}

fn script(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

/// Runs a client and returns what it prints; fails with how to install it.
fn run(command: &mut Command, install: &str) -> String {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{command:?} does not start ({error}); install it: {install}")
    });
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?} failed; if it is not installed: {install}\n{said}{wrong}"
    );
    said
}

#[test]
fn redis_cli_talks_to_it() {
    let server = server();
    let cli = |args: &[&str]| {
        let mut command = Command::new("redis-cli");
        command
            .args(["-p", &server.address.port().to_string(), "--no-auth-warning", "-a", "sesame"])
            .args(args);
        run(&mut command, "apt-get install redis-tools")
    };
    assert_eq!(cli(&["PING"]), "PONG\n");
    assert_eq!(cli(&["CL.THROTTLE", "cli", "15", "30", "60"]), "0\n16\n15\n-1\n2\n");
    assert_eq!(cli(&["-3", "CL.THROTTLE", "cli", "15", "30", "60"]), "0\n16\n14\n-1\n4\n");
    let checked = cli(&["--json", "TG.CHECK", "per-user", "cli"]);
    let json = "{\"allowed\":true,\"limit\":3,\"remaining\":2,\"retry_after_ms\":0,\
                \"reset_after_ms\":20000,\"refused_by\":null}";
    assert_eq!(checked.trim(), json);
    assert!(cli(&["INFO"]).contains("tollgate_version:"));
    assert_eq!(
        cli(&["GET", "a"]).trim(),
        "ERR unknown command 'GET', with args beginning with: 'a'"
    );
    // Its help comes from COMMAND DOCS.
    let help = cli(&["help", "TG.RESERVE"]);
    for words in ["policy key [cost] [LIFE milliseconds]", "corrected later.", "rate-limit"] {
        assert!(help.contains(words), "{words} in {help}");
    }
    assert!(cli(&["help", "CLIENT", "NO-EVICT"]).contains("Accepts ON or OFF"));
    // Twenty calls over one connection, as lines.
    let repeated = cli(&["-r", "20", "CL.THROTTLE", "many", "4", "1", "60"]);
    assert_eq!(repeated.lines().filter(|line| *line == "-1").count(), 5);
}

#[test]
fn redis_py_talks_to_it() {
    let server = server();
    for protocol in ["2", "3"] {
        let python = folder("TOLLGATE_VENV", ".venv").join("bin/python");
        let mut command = Command::new(python);
        command.arg(script("client.py")).args([&server.address.port().to_string(), protocol]);
        let install = "python3 -m venv .venv && .venv/bin/pip install redis";
        assert_eq!(run(&mut command, install), "ok\n");
    }
}

#[test]
fn ioredis_talks_to_it() {
    let server = server();
    for protocol in ["2", "3"] {
        let modules = folder("TOLLGATE_NPM", "target/npm").join("node_modules");
        let mut command = Command::new("node");
        command.env("NODE_PATH", modules).arg(script("client.js"));
        command.args([&server.address.port().to_string(), protocol]);
        let install = "apt-get install nodejs npm && npm install --prefix target/npm ioredis@6";
        assert_eq!(run(&mut command, install), "ok\n");
    }
}

#[tokio::test]
async fn redis_rs_talks_to_it() {
    let server = server();
    for query in ["", "?protocol=resp3"] {
        let key = format!("rs{query}");
        let url = format!("redis://default:sesame@{}/{query}", server.address);
        let client = redis::Client::open(url).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut throttle = redis::cmd("CL.THROTTLE");
        throttle.arg(&key).arg(1).arg(1).arg(60);
        for expected in [[0, 2, 1, -1, 60], [0, 2, 0, -1, 120], [1, 2, 0, 60, 120]] {
            let reply: [i64; 5] = throttle.query_async(&mut connection).await.unwrap();
            assert_eq!(reply, expected);
        }
        for (name, mut pipeline) in
            [("many", redis::pipe()), ("transaction", redis::pipe().atomic().clone())]
        {
            for _ in 0..20 {
                pipeline.cmd("CL.THROTTLE").arg(format!("{key} {name}")).arg(4).arg(1).arg(60);
            }
            let replies: Vec<[i64; 5]> = pipeline.query_async(&mut connection).await.unwrap();
            assert_eq!(replies.iter().filter(|reply| reply[0] == 0).count(), 5, "{name}");
        }
        let mut unknown = redis::cmd("TG.CHECK");
        unknown.arg("per-us").arg(&key);
        let error = unknown.query_async::<redis::Value>(&mut connection).await.unwrap_err();
        assert!(error.to_string().contains("did you mean"), "{error}");
    }
    let wrong = redis::Client::open(format!("redis://:nonsense@{}", server.address)).unwrap();
    assert!(wrong.get_multiplexed_async_connection().await.is_err());
}
