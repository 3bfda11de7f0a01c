//! `tollgate load`, `tollgate top` and `tollgate soak` with a real service.

use crate::process::{Service, serve};
use serde_json::Value;
use std::{
    net::{SocketAddr, TcpListener},
    process::{Command, Output},
};
use tollgate_rig::Certificates;

fn tollgate(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate")).args(words).output().unwrap()
}

fn address(service: &Service, protocol: &str) -> SocketAddr {
    match protocol {
        "http" => service.http,
        "grpc" => service.grpc,
        _ => service.resp,
    }
}

#[test]
fn the_defaults_of_load_meet_limits_of_the_built_in_example() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::spawn(folder.path(), &mut serve());
    for protocol in ["http", "grpc", "resp"] {
        let address = address(&service, protocol).to_string();
        let words = ["load", protocol, &address, "--requests", "1000", "--dist", "one"];
        let output = tollgate(&[&words[..], &["--format", "json"]].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{protocol}: {text}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["denied"].as_u64().unwrap() > 0, "{protocol}: {report}");
    }
}

#[test]
fn a_load_that_meets_no_limit_ends_in_the_first_second_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::spawn(folder.path(), &mut serve());
    let descriptors =
        r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"x"}]}]}"#;
    let unknown = r#"{"policy":"shop","key":"{key}"}"#;
    for (protocol, flags, expected) in [
        ("grpc", &["--domain", "shop"][..], "no limit for --domain shop --descriptor user={key}"),
        ("http", &["--body", descriptors], "no limit for --path '/v1/check' --body '{\"domain"),
        ("http", &["--body", unknown], "use one of api, login, downloads, address, everybody"),
        ("resp", &["--command", "TG.DESCRIPTOR shop 1 user {key}"], "no limit for --command"),
        ("resp", &["--command", "TG.CHECK shop {key}"], "; use one of api, login"),
    ] {
        let address = address(&service, protocol).to_string();
        let words = [&["load", protocol, &address, "--format", "json"], flags].concat();
        let output = tollgate(&words);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {text}");
        assert!(text.contains(expected), "{words:?}: {text}");
        // Requests count from the end of the warm-up on: it ended before the first second was over.
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["sent"], 0, "{words:?}: {report}");
        // With text there is the sentence, and no table of zeros.
        let words = [&["load", protocol, &address, "--requests", "5"], flags].concat();
        assert!(tollgate(&words).stdout.is_empty(), "{words:?}");
    }
}

/// A short run: checks every counter, but not yet memory.
#[test]
fn a_soak_finds_that_clients_and_service_have_counted_the_same() {
    let output = tollgate(&["soak", "--for", "2s", "--rate", "400", "--keys", "50"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{error}");
    for part in ["too short to judge", "resp denied", "held used, by the store", "soak passed"] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn load_and_top_speak_tls_with_certificates_of_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let Certificates { authority, server, client } = Certificates::make(folder.path());
    let mut command = serve();
    command.arg("--tls-cert").arg(&server.certificate).arg("--tls-key").arg(&server.key);
    let service = Service::spawn(folder.path(), command.arg("--tls-client-ca").arg(&authority));
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let (ca, cert, key) = (text(&authority), text(&client.certificate), text(&client.key));
    let trusting = ["--cacert", &ca];
    let known = [&trusting[..], &["--cert", &cert, "--key", &key]].concat();
    for (protocol, scheme) in [("http", "https"), ("grpc", "grpcs"), ("resp", "rediss")] {
        let plain = address(&service, protocol).to_string();
        let url = format!("{scheme}://{plain}");
        for (address, flags, is_good) in
            [(&url, &known, true), (&plain, &known, true), (&url, &trusting.to_vec(), false)]
        {
            let words = ["load", protocol, address, "--requests", "40", "--connections", "2"];
            let output = tollgate(&[&words, &flags[..]].concat());
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.success(), is_good, "{address} {flags:?}: {text}");
        }
    }
    let admin = format!("https://{}", service.admin);
    let shown = tollgate(&[&["top", "--once", "--admin", &admin], &known[..]].concat());
    let picture = String::from_utf8(shown.stdout).unwrap();
    assert!(picture.contains("(tls)") && picture.contains("everybody"), "{picture}");
    // Authorities of the system do not know this server.
    let output = tollgate(&["top", "--once", "--admin", &admin]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("certificate"), "{text}");
}

#[test]
fn a_server_that_never_answers_a_handshake_is_given_up_within_a_second() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let ca = Certificates::make(folder.path()).authority;
    let output = tollgate(&["load", "http", &address, "--cacert", ca.to_str().unwrap()]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("no response within 900ms; is the server running"), "{text}");
}
