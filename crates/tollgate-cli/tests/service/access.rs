//! Permissions, secrets and negative hits of the built program.

use crate::process::{PATIENCE, Service, http};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
};

const YAML: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {name: k, unit: day, requests_per_unit: 5}}
";

/// Sends a POST with a token. Returns the status.
fn post(address: SocketAddr, path: &str, token: &str, body: &str) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.split(' ').nth(1).unwrap().parse().unwrap()
}

/// 200 of 200 passed at 5 a day.
#[test]
fn a_client_that_gives_back_what_it_takes_is_admitted_five_times() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path(), YAML, &[]);
    let hit = r#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"x"}]}]}"#;
    let give = hit.replace("]}]}", r#"],"isNegativeHits":true}]}"#);
    let mut admitted = 0;
    for _ in 0..200 {
        admitted += usize::from(http(service.http, "POST", "/json", hit).0 == 200);
        let (status, body) = http(service.http, "POST", "/json", &give);
        assert!(status == 403 && body.contains("negative_hits"), "{status} {body}");
    }
    assert_eq!(admitted, 5);
    let left = service.client().ask("TG.PEEK k x 0");
    assert_eq!(left.split(", ").nth(2), Some("0"), "{left}");
}

#[test]
fn a_reload_reads_rotated_secrets_and_keeps_the_old_ones_if_it_cannot() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let write = |name: &str, text: &str| std::fs::write(at(name), text).unwrap();
    write("http", "http-one\n");
    write("resp", "resp-one\n");
    write("more", "more-one\n");
    let yaml = format!(
        "{YAML}server:
  http_token_file: {}
  resp_password_file: {}
  tokens: [{{file: {}, listeners: http, permissions: [check]}}]
",
        at("http").display(),
        at("resp").display(),
        at("more").display()
    );
    let service = Service::start(folder.path(), &yaml, &["--watch-interval", "0s"]);
    let check = |token: &str| {
        post(service.http, "/v1/check", token, r#"{"policy":"k","key":"y","cost":0}"#)
    };
    let auth = |password: &str| service.client().ask(&format!("AUTH {password}"));
    let peek = |token: &str| post(service.http, "/v1/peek", token, r#"{"policy":"k","key":"y"}"#);
    let mut old = service.client();
    assert_eq!(old.ask("AUTH resp-one"), "OK");
    assert_eq!((check("http-one"), check("more-one"), peek("more-one")), (200, 200, 403));
    write("http", "http-two\n");
    write("resp", "resp-two\n");
    write("more", "more-two\n");
    assert_eq!(service.admin("POST", "/reload", "").0, 200);
    assert_eq!((check("http-two"), check("more-two")), (200, 200));
    assert_eq!((check("http-one"), check("more-one")), (401, 401));
    assert_eq!(auth("resp-two"), "OK");
    assert!(auth("resp-one").starts_with("-WRONGPASS"));
    old.send("PING", 1);
    assert!(old.reply().is_err(), "the old password is gone, and so is its connection");
    // An empty or a missing file leaves all as it was, and says so.
    for (name, is_missing) in [("http", false), ("resp", true), ("more", false)] {
        let kept = std::fs::read_to_string(at(name)).unwrap();
        match is_missing {
            true => std::fs::remove_file(at(name)).unwrap(),
            false => write(name, "\n"),
        }
        let (status, body) = service.admin("POST", "/reload", "");
        assert!(status == 422 && body.contains(&*at(name).to_string_lossy()), "{status} {body}");
        assert_eq!((check("http-two"), check("more-two")), (200, 200));
        assert_eq!(auth("resp-two"), "OK");
        write(name, &kept);
    }
    // The administrators' own token, by a signal.
    write("token", "let nobody in");
    service.signal("HUP");
    while service.admin("GET", "/config", "").0 != 401 {
        std::thread::yield_now();
    }
}

#[test]
fn a_changed_secret_is_found_without_a_reload() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http");
    std::fs::write(&path, "one").unwrap();
    let yaml = format!("{YAML}server: {{http_token_file: {}}}\n", path.display());
    let service = Service::start(folder.path(), &yaml, &["--watch-interval", "20ms"]);
    let check = |token: &str| post(service.http, "/v1/peek", token, r#"{"policy":"k","key":"y"}"#);
    assert_eq!(check("one"), 200);
    std::fs::write(&path, "two").unwrap();
    // The old token passes until then, so no wrong one is sent.
    while check("one") == 200 {
        std::thread::yield_now();
    }
    assert_eq!(check("two"), 200);
}

#[test]
fn the_password_of_a_store_is_shown_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path(), YAML, &["--watch-interval", "0s"]);
    for url in ["redis://:s3cret@h:x", "redis://u:a/s3cret@h", "redis://u:s3cret", "u:s3cret@h"] {
        let yaml = format!("{YAML}server: {{store: '{url}'}}\n");
        service.write_config(&yaml);
        let (status, body) = service.admin("POST", "/reload", "");
        assert!(status == 422 && !body.contains("s3cret"), "{status} {body}");
        let (_, body) = service.admin("GET", "/config", "");
        assert!(body.contains("limits.yaml") && !body.contains("s3cret"), "{body}");
        let file = folder.path().join("bad.yaml");
        std::fs::write(&file, &yaml).unwrap();
        let file = file.to_str().unwrap();
        for (args, env) in [
            (&["serve", "--config", file][..], ""),
            (&["serve", "--store", url], ""),
            (&["serve"], url),
            (&["check", file], ""),
        ] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
            command.args(args);
            if !env.is_empty() {
                command.env("TOLLGATE_STORE", env);
            }
            let told = command.output().unwrap();
            let text = format!(
                "{}{}",
                String::from_utf8_lossy(&told.stderr),
                String::from_utf8_lossy(&told.stdout)
            );
            assert!(!told.status.success() && !text.contains("s3cret"), "{args:?}: {text}");
        }
    }
}

#[test]
fn an_address_that_others_can_reach_without_a_secret_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "x").unwrap();
    let token = token.to_str().unwrap();
    for (flags, expected) in [
        (&["--http", "0.0.0.0:0"][..], 1),
        (&["--http", "[::]:0", "--resp", "0.0.0.0:0"], 2),
        (&["--http", "0.0.0.0:0", "--http-token-file", token], 0),
        (&["--http", "127.0.0.1:0"], 0),
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
            .args(["serve", "--grpc", "off", "--admin", "unix:admin.sock"])
            .args(if flags.contains(&"--resp") { &[][..] } else { &["--resp", "off"] })
            .args(flags)
            .current_dir(folder.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let lines: Vec<_> = lines.take_while(|line| !line.starts_with("listening admin")).collect();
        let _ = child.kill();
        child.wait().unwrap();
        let _ = std::fs::remove_file(folder.path().join("admin.sock"));
        let warned = lines.iter().filter(|line| line.contains("anyone who can reach")).count();
        assert_eq!(warned, expected, "{flags:?} {lines:#?}");
    }
}
