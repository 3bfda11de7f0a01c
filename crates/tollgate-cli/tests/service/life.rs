//! Start, signals and shutdown.

use crate::process::{Service, http};
use std::{io::Write, process::Command, thread, time::Duration};

const YAML: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {name: k, quota: 5/year}}
";

#[test]
fn a_changed_file_is_found_and_a_hang_up_loads_it() {
    let folder = tempfile::tempdir().unwrap();
    let more = YAML.replace("5/year", "7/year");
    for (flags, by_signal) in
        [(["--watch-interval", "20ms"], false), (["--watch-interval", "0s"], true)]
    {
        let service = Service::start(folder.path(), YAML, &flags);
        service.write_config(&more);
        if by_signal {
            service.signal("HUP");
        }
        // If the version never arrives, the test's own time limit ends the loop.
        while !service.admin("GET", "/config", "").1.contains("\"version\":2") {
            thread::yield_now();
        }
        assert_eq!(service.client().count_ones("TG.CHECK k x 1", 9).unwrap(), 7);
    }
}

#[test]
fn a_request_that_has_begun_is_answered_before_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut service = Service::start(folder.path(), YAML, &[]);
    let mut client = service.client();
    client.ask("PING");
    client.send("TG.CHECK k x 1", 3);
    assert!(client.reply().unwrap().starts_with("[1,"));
    service.signal("TERM");
    assert!(client.reply().unwrap().starts_with("[1,"));
    assert!(client.reply().unwrap().starts_with("[1,"));
    assert!(service.wait());
    assert!(client.reply().is_err(), "the connection is closed");
}

/// Regression: two drain timeouts ran one after the other, and the service manager killed the
/// process before it had written its snapshot.
#[test]
fn the_end_has_one_deadline_and_the_snapshot_is_written_whatever_clients_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let flags = ["--snapshot", path.to_str().unwrap(), "--snapshot-every", "1h"];
    let drain = ["--drain-delay", "300ms", "--drain-timeout", "1s"];
    let mut service = Service::start(folder.path(), YAML, &[&flags[..], &drain[..]].concat());
    assert_eq!(service.client().count_ones("TG.CHECK k x 1", 3).unwrap(), 3);
    let open = |address| std::net::TcpStream::connect(address).unwrap();
    let idle: Vec<_> = (0..1000)
        .map(|at| open([service.http, service.grpc, service.resp, service.admin][at % 4]))
        .collect();
    let mut rude = Vec::new();
    for (address, start) in [
        (service.resp, &b"*3\r\n$8\r\nTG.CHECK\r\n$1\r\n"[..]),
        (service.http, b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{"),
        (service.grpc, b"PRI * HTTP/2.0\r\n\r\nSM"),
        (service.admin, b"POST /reload HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{"),
    ] {
        let mut stream = open(address);
        stream.write_all(start).unwrap();
        rude.push(stream);
    }
    // A client that sends requests and never reads.
    let mut deaf = open(service.resp);
    deaf.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let question = b"TG.PEEK k x 1\r\n".repeat(1000);
    while deaf.write_all(&question).is_ok() {}

    let clock = tollgate::Clock::monotonic();
    let start = clock.now();
    service.signal("TERM");
    assert!(service.wait());
    let took = clock.now().since(start);
    // The delay, the timeout, and three seconds.
    assert!(took < Duration::from_millis(4300), "{took:?}");
    let mut service = Service::start(folder.path(), YAML, &flags);
    assert_eq!(service.client().count_ones("TG.CHECK k x 1", 5).unwrap(), 2);
    drop((idle, rude, deaf));
    service.kill();
}

#[test]
fn during_the_drain_delay_the_service_is_not_ready_and_serves_on() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--drain-delay", "1h"];
    let mut service = Service::start(folder.path(), YAML, &flags);
    assert_eq!(http(service.http, "GET", "/healthz", "").0, 200);
    service.signal("TERM");
    while service.admin("GET", "/ready", "").0 != 503 {
        thread::yield_now();
    }
    assert_eq!(http(service.http, "GET", "/healthz", "").0, 503);
    assert_eq!(service.client().count_ones("TG.CHECK k x 1", 9).unwrap(), 5, "new clients too");
    // A further signal ends the delay.
    service.signal("TERM");
    assert!(service.wait());
}

#[test]
fn unix_sockets_are_made_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("resp.sock");
    let flag = format!("unix:{}", path.display());
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--http", "off", "--grpc", "off", "--admin", "off", "--resp", &flag])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    // The path exists a moment before the server listens on it.
    while std::os::unix::net::UnixStream::connect(&path).is_err() {
        thread::yield_now();
    }
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!path.exists());
}

#[test]
fn the_service_manager_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(crate::process::PATIENCE)).unwrap();
    let any = "127.0.0.1:0";
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--http", any, "--grpc", "off", "--admin", "off", "--resp", "off"])
        .env("NOTIFY_SOCKET", &path)
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let told = || {
        let mut text = [0; 64];
        let length = manager.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    assert_eq!(told(), "READY=1");
    for (signal, expected) in
        [("-HUP", &["RELOADING=1", "READY=1"][..]), ("-TERM", &["STOPPING=1"])]
    {
        Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        expected.iter().for_each(|state| assert_eq!(told(), *state));
    }
    assert!(child.wait().unwrap().success());
}

#[test]
fn what_is_wrong_at_the_start_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.yaml");
    std::fs::write(&bad, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: eon}}]\n").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (flags, expected) in [
        (vec!["--config", bad.to_str().unwrap()], "invalid rate limit unit 'eon'"),
        (vec!["--config", "no/such/file"], "no/such/file"),
        (vec!["--http", "nonsense"], "nonsense"),
        (
            vec!["--http", "off", "--grpc", "off", "--admin", "off", "--resp", &taken],
            "choose another with --resp",
        ),
        (vec!["--snapshot-every", "fast"], "fast"),
        (vec!["--tls-cert", "missing.pem", "--tls-key", "missing.key"], "missing.pem"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .arg("serve")
            .args(&flags)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(expected), "{flags:?}: {text}");
    }
}
