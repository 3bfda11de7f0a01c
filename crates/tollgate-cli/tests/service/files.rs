//! Files that are no files: reading one must not block the service.

use crate::process::{Service, http};
use std::{path::Path, process::Command, thread};

const YAML: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {name: k, quota: 1000/year}}
";

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Runs the program to its end, and returns what it says.
fn run(args: &[&str]) -> String {
    let any = ["--http", "off", "--grpc", "off", "--admin", "off", "--resp", "127.0.0.1:0"];
    let any = if args[0] == "serve" { &any[..] } else { &[] };
    let output =
        Command::new(env!("CARGO_BIN_EXE_tollgate")).args(args).args(any).output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(!output.status.success(), "{args:?}: {said}");
    said
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_an_error_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let (config, pipe) = (folder.path().join("config"), folder.path().join("config/x.yaml"));
    std::fs::create_dir(&config).unwrap();
    std::fs::write(config.join("a.yaml"), YAML).unwrap();
    let good = config.join("a.yaml").display().to_string();
    make_pipe(&pipe);
    let (config, pipe) = (config.to_str().unwrap(), pipe.to_str().unwrap());
    for args in [
        &["serve", "--config", config][..],
        &["serve", "--config", pipe],
        &["check", config],
        &["check", pipe],
        &["serve", "--config", &good, "--admin-token-file", pipe],
        &["serve", "--config", &good, "--resp-password-file", pipe],
        &["serve", "--config", &good, "--tls-cert", pipe, "--tls-key", pipe],
        &["serve", "--config", &good, "--store", "redis://[::1]:9", "--store-password-file", pipe],
        &[
            "serve",
            "--config",
            &good,
            "--store",
            "redis://[::1]:9",
            "--store-key-secret-file",
            pipe,
        ],
        &["serve", "--config", &good, "--store", &format!("rediss://[::1]:9?ca={pipe}")],
    ] {
        let said = run(args);
        assert!(said.contains(pipe) && said.contains("a named pipe (FIFO)"), "{args:?}: {said}");
    }
}

/// The watcher opened it, and accept, signals and decisions stood still from then on.
#[test]
fn a_pipe_that_appears_in_the_configuration_blocks_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let more = folder.path().join("more");
    std::fs::create_dir(&more).unwrap();
    std::fs::write(more.join("e.yaml"), "domain: e\n").unwrap();
    let pipe = more.join("x.yaml");
    let flags = ["--watch-interval", "10ms", "--config", more.to_str().unwrap()];
    let mut service = Service::start(folder.path(), YAML, &flags);
    make_pipe(&pipe);
    let config = || service.admin("GET", "/config", "").1;
    while !config().contains("a named pipe (FIFO)") {
        thread::yield_now();
    }
    let (status, said) = service.admin("POST", "/reload", "");
    assert!(status >= 400 && said.contains("x.yaml") && said.contains("named pipe"), "{said}");
    assert_eq!(service.client().count_ones("TG.CHECK k x 1", 20).unwrap(), 20);
    assert_eq!(http(service.http, "GET", "/healthz", "").0, 200);
    std::fs::remove_file(&pipe).unwrap();
    while config().contains("named pipe") {
        thread::yield_now();
    }
    make_pipe(&pipe);
    service.signal("HUP");
    service.signal("TERM");
    assert!(service.wait());
}
