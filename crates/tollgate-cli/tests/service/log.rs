//! The log of the service: no control characters of clients, no flood, and no wait for its reader.

use crate::process::{Resp, Service, http, serve};
use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

const YAML: &str = "
domain: d
descriptors:
  - {key: k, rate_limit: {name: k, quota: 1/year}}
";

#[test]
fn keys_cannot_forge_lines_or_reach_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    for (format, escaped) in [
        ("text", r"a\u{1b}[31m\nERROR forged\u{9b}2J\u{202e}"),
        ("json", r"a\u001b[31m\nERROR forged"),
    ] {
        let flags = ["--denial-log", "1", "--log-keys", "--log-format", format];
        let service = Service::start(folder.path(), YAML, &flags);
        let key = r"a\u001b[31m\nERROR forged\u009b2J\u202e";
        let body = format!(r#"{{"policy":"k","key":"{key}"}}"#);
        assert_eq!(http(service.http, "POST", "/v1/check", &body).0, 200);
        assert_eq!(http(service.http, "POST", "/v1/check", &body).0, 429);
        let line = service.log_line("denied");
        assert!(line.contains(escaped), "{line:?}");
        assert!(!line.contains('\x1b'), "{line:?}");
    }
}

#[test]
fn a_logged_denial_has_the_rate_and_what_is_left_and_the_key_by_choice() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "
domain: d
descriptors:
  - {key: k, rate_limit: {name: k, quota: 10/h burst 20, algorithm: gcra}}
";
    for (flags, key) in [
        (&["--denial-log", "1"][..], ""),
        // A key cannot pass for other fields.
        (&["--denial-log", "1", "--log-keys"], r#" key="alice\" limit=5""#),
    ] {
        let service = Service::start(folder.path(), yaml, flags);
        let mut client = service.client();
        for cost in [15, 7] {
            client.ask(&format!("TG.CHECK k 'alice\" limit=5' {cost}"));
        }
        let line = service.log_line("denied");
        let fields =
            format!("denied policy=\"k\"{key} cost=7 rate=10/h limit=20 remaining=5 one_in=1");
        assert!(line.contains(&fields), "{line}");
    }
}

#[test]
fn a_key_that_nears_its_limit_is_logged_once_and_named_only_if_keys_may_be() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "
domain: d
descriptors:
  - {key: k, rate_limit: {name: k, quota: 10/year, warn: [50%, 80%]}}
";
    for (flags, key) in [(&[][..], false), (&["--log-keys"][..], true)] {
        let mut service = Service::start(folder.path(), yaml, flags);
        let mut client = service.client();
        for cost in [4, 4, 1] {
            client.ask(&format!("TG.CHECK k alice {cost}"));
        }
        for threshold in ["50%", "80%"] {
            let line = service.log_line(&format!("threshold={threshold}"));
            assert!(line.contains("a key nears its limit policy=\"k\""), "{line}");
            assert!(line.contains("used=8 limit=10"), "{line}");
            assert_eq!(line.contains("alice"), key, "{line}");
            let metrics = service.admin("GET", "/metrics", "").1;
            let sample = format!(
                "tollgate_thresholds_crossed_total{{policy=\"k\",domain=\"d\",threshold=\"{threshold}\"}} 1\n"
            );
            assert!(metrics.contains(&sample), "{metrics}");
        }
        service.signal("TERM");
        assert!(service.wait());
    }
}

#[test]
fn a_flood_of_lines_is_throttled_and_the_rest_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    for format in ["text", "json"] {
        let limit = ["--log-limit", "1/h burst 2", "--denial-log", "1", "--log-format", format];
        let mut service = Service::start(folder.path(), YAML, &limit);
        let mut client = service.client();
        client.send("TG.CHECK k alice", 21);
        (0..21).for_each(|_| drop(client.reply().unwrap()));
        let metrics = service.admin("GET", "/metrics", "").1;
        let lost = "tollgate_log_lines_lost_total{reason=\"throttled\"} 18\n";
        assert!(metrics.contains(lost), "{metrics}");
        // Otherwise it would come after 30 seconds, or with the next line that passes.
        service.signal("TERM");
        let notice = service.log_line("log lines left out");
        assert!(notice.contains("18 log lines left out"), "{notice}");
        assert!(notice.contains("engine/health.rs:"), "{notice}");
        assert!(service.wait());
    }
}

#[test]
fn a_reader_that_has_stopped_does_not_stop_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("limits.yaml");
    std::fs::write(&config, YAML).unwrap();
    let mut command = serve();
    command.arg(&config).args(["--log-limit", "off", "--denial-log", "1", "--log-keys"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let resp = lines.find_map(|line| line.strip_prefix("listening resp ").map(String::from));
    let mut client = Resp::connect(resp.unwrap().parse().unwrap());
    // A pipe holds 64 KiB and the writer 1 MiB; these are more than 2 MB of log lines.
    let key = "k".repeat(200);
    for _ in 0..20 {
        client.send(&format!("TG.CHECK k {key}"), 500);
        (0..500).for_each(|_| drop(client.reply().unwrap()));
    }
    // The writer logs the loss as soon as the reader continues.
    let notice = lines.find(|line| line.contains("log lines dropped")).unwrap();
    assert!(notice.contains("dropped="), "{notice}");
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_log_limit_that_is_no_quota_is_refused() {
    let output = serve().args(["--log-limit", "lots"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("--log-limit") && text.contains("or write off"), "{text}");
}
