//! The first steps of a new user.

use crate::process::{Service, serve};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};
use tollgate_rig::Certificates;

fn rule(name: &str) -> String {
    format!(
        "domain: {name}\ndescriptors: [{{key: k, rate_limit: {{name: {name}, quota: 5/year}}}}]"
    )
}

/// The policies of a server that was started by this command.
fn policies(command: &mut Command) -> String {
    let folder = tempfile::tempdir().unwrap();
    Service::spawn(folder.path(), command).client().ask("TG.POLICIES")
}

#[test]
fn a_path_is_a_configuration_and_beats_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| -> PathBuf {
        let path = folder.path().join(format!("{name}.yaml"));
        fs::write(&path, rule(name)).unwrap();
        path
    };
    let (one, two, env) = (file("one"), file("two"), file("three"));
    for (row, (paths, config, is_in_env, found)) in [
        (vec![&one], None, false, "one"),
        (vec![&one, &two], None, false, "one two"),
        (vec![&one], Some(&two), false, "one two"),
        (vec![], Some(&two), false, "two"),
        (vec![], None, true, "three"),
        (vec![&one], None, true, "one"),
        (vec![], Some(&two), true, "two"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut command = serve();
        command.args(paths);
        if let Some(config) = config {
            command.arg("--config").arg(config);
        }
        if is_in_env {
            command.env("TOLLGATE_CONFIG", &env);
        }
        let policies = policies(&mut command);
        for name in ["one", "two", "three"] {
            let is_there = policies.contains(&format!(", {name},"));
            assert_eq!(is_there, found.contains(name), "row {row}: {name} in {policies}");
        }
    }
}

#[test]
fn a_variable_sets_a_flag_and_the_command_line_wins() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    for listener in ["HTTP", "GRPC", "RESP", "ADMIN"] {
        command.env(format!("TOLLGATE_{listener}"), "127.0.0.1:0");
    }
    command.env("TOLLGATE_LOG_KEYS", "1").env("TOLLGATE_WORKERS", "1");
    let folder = tempfile::tempdir().unwrap();
    // Without a command it serves, and reads the same variables.
    let service = Service::spawn(folder.path(), &mut command);
    assert!(service.client().ask("TG.POLICIES").contains("downloads"));
    let mut wrong = serve();
    let output = wrong.env("TOLLGATE_HTTP", "nonsense").env("TOLLGATE_WORKERS", "many").output();
    let text = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(text.contains("'many' for '--workers") && !text.contains("nonsense"), "{text}");
}

#[test]
fn an_error_names_the_variable_that_a_bad_value_comes_from() {
    for (variable, value, args, named) in [
        ("TOLLGATE_WORKERS", "many", &[][..], true),
        ("TOLLGATE_LOG_KEYS", "perhaps", &[], true),
        ("TOLLGATE_STORE", "somewhere", &[], true),
        ("TOLLGATE_WORKERS", "1", &["--workers", "many"], false),
        ("TOLLGATE_WORKERS", "1", &["--workers=many"], false),
        ("TOLLGATE_STORE", "memory", &["--store", "somewhere"], false),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = command.arg("serve").args(args).env(variable, value).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert_eq!(text.contains(variable), named, "{variable}={value} {args:?}: {text}");
    }
}

#[test]
fn a_service_that_could_serve_nobody_does_not_start() {
    let off = ["--http", "off", "--grpc", "off", "--resp", "off", "--admin", "off"];
    let none = "all listeners are off, so no client can connect; turn on at least one of http, \
                grpc, resp and admin";
    for (flags, code, expected) in [
        (&off[..], 1, none),
        (&["--workers", "0"], 2, "must be at least 1"),
        (&["--max-connections", "0"], 2, "must be at least 1"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = command.arg("serve").args(flags).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(expected), "{flags:?}: {text}");
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {text}");
    }
}

/// Returns the server's standard error, up to a line that contains `end`.
fn said_until(command: &mut Command, end: &str) -> Vec<String> {
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = Vec::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok) {
        let is_last = line.contains(end);
        lines.push(line);
        if is_last {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    lines
}

#[test]
fn a_log_in_json_is_json_from_its_first_line_to_its_last() {
    let mut command = serve();
    let said = said_until(command.args(["--log-format", "json"]), "\"admin\"");
    let events: Vec<Value> = said.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let starts = &events.iter().find(|it| it["fields"]["store"] == "memory").unwrap()["fields"];
    assert_eq!((&starts["limits"], &starts["domains"]), (&5.into(), &1.into()), "{starts}");
    for name in ["http", "grpc", "resp", "admin"] {
        let fields = &events.iter().find(|it| it["fields"]["listener"] == name).unwrap()["fields"];
        assert_eq!((&fields["message"], &fields["tls"]), (&"listening".into(), &false.into()));
        assert!(fields["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{fields}");
    }
    let output = serve().args(["no/such/file", "--log-format", "json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    for line in String::from_utf8(output.stderr).unwrap().lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert!(event["fields"]["message"].as_str().unwrap().contains("no/such/file"), "{event}");
    }
}

#[test]
fn the_banner_marks_listeners_with_tls() {
    let folder = tempfile::tempdir().unwrap();
    let certificates = Certificates::make(folder.path());
    let plain = said_until(&mut serve(), "tollgate top").join("\n");
    assert!(plain.contains("the built-in example: 5 limits in 1 domain, memory store"), "{plain}");
    assert!(plain.contains("http://") && !plain.to_lowercase().contains("tls"), "{plain}");
    let mut command = serve();
    command.arg("--tls-cert").arg(&certificates.server.certificate);
    command.arg("--tls-key").arg(&certificates.server.key);
    let said = said_until(&mut command, "tollgate top");
    let listening: Vec<_> = said.iter().filter(|line| line.starts_with("listening ")).collect();
    assert_eq!(listening.len(), 4);
    assert!(listening.iter().all(|line| line.ends_with(" (tls)")), "{listening:?}");
    let text = said.join("\n");
    for part in ["curl -i --cacert ca.pem 'https://", "redis-cli -p", "--tls", "grpcurl -cacert"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("http://") && !text.contains("-plaintext"), "{text}");
    assert!(text.contains("https://localhost:"), "certificates are for names: {text}");
    // A command that the server would refuse is not offered.
    let token = folder.path().join("token");
    std::fs::write(&token, "secret").unwrap();
    let said = said_until(serve().arg("--http-token-file").arg(&token), "tollgate top").join("\n");
    assert!(said.contains("redis-cli") && !said.contains("curl -i"), "{said}");
}
