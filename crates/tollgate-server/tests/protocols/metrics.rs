//! The output of `/metrics`, compared with a golden text and checked by Prometheus' own checker.

use crate::admin_harness::{CONFIG, Harness, ask_with, request};
use std::{fmt::Write as _, path::Path};
use tollgate_server::{
    admin::LostLogLines,
    metrics::{Exposition, Format},
    server::Settings,
};

async fn busy() -> Harness {
    let harness = Harness::new(CONFIG, Settings::default());
    harness.decide("per-user", &[b"ann"], 5).await;
    harness.decide("whole-site", &[], 7).await;
    harness.decide("shop:free=all", &[], 2).await;
    harness.enter("exports", &[b"ann"], 3).await;
    harness.enter("exports", &[b"bob"], 1).await;
    harness.report("upstream", 20);
    let lost = LostLogLines { throttled: 7, dropped: 2 };
    assert!(harness.shared.admin.set_lost_log_lines(move || lost));
    let timing = harness.shared.engine.timing();
    for ns in [90, 150, 3_000, 20_000_000_000] {
        timing.note(std::time::Duration::from_nanos(ns));
    }
    let block = r#"{"policy": "per-user", "key": "bob", "for_ms": 1000}"#;
    assert_eq!(harness.ask_unix("POST", "/block", block).await.status, 200);
    harness
}

#[tokio::test]
async fn says_what_the_golden_text_says() {
    let harness = busy().await;
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/metrics_golden.txt");
    let text: String = Exposition::new(&harness.shared, Format::Prometheus).collect();
    let is_steady = |line: &&str| !line.starts_with("process_resident_memory_bytes ");
    let text: String = text.lines().filter(is_steady).flat_map(|line| [line, "\n"]).collect();
    if std::env::var_os("TOLLGATE_WRITE_GOLDEN").is_some() {
        std::fs::write(&golden, &text).unwrap();
    }
    let wanted = std::fs::read_to_string(&golden).unwrap();
    for (row, (said, wanted)) in text.lines().zip(wanted.lines()).enumerate() {
        assert_eq!(said, wanted, "line {}; TOLLGATE_WRITE_GOLDEN=1 writes it anew", row + 1);
    }
    assert_eq!(text.lines().count(), wanted.lines().count());
    let labels = text.lines().filter_map(|line| line.split_once('{')?.1.rsplit_once('}'));
    for (labels, _) in labels {
        assert!(!labels.contains("ann") && !labels.contains("bob"), "a key is no label: {labels}");
    }
}

#[tokio::test]
async fn openmetrics_names_counters_without_total_and_ends() {
    let harness = busy().await;
    let address = harness.listen().await;
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let told = ask_with(address, &request("GET", "/metrics", accept, "")).await;
    assert!(told.head.contains("content-type: application/openmetrics-text; version=1.0.0"));
    assert!(told.body.contains("# TYPE tollgate_decisions counter\ntollgate_decisions_total{"));
    assert!(told.body.ends_with("\n# EOF\n"));
    assert_eq!(told.body.matches("# EOF").count(), 1);
    let told = ask_with(address, &request("GET", "/metrics", "", "")).await;
    assert!(told.head.contains("content-type: text/plain; version=0.0.4"));
    assert!(!told.body.contains("# EOF"));
}

/// A thousand rules, half of them with names that another one has, too.
fn many_rules() -> Harness {
    let mut config = "domain: \"a\\\"b\\\\c\"\ndescriptors:\n".to_owned();
    for number in 0..1000 {
        let name = if number % 2 == 0 { number } else { 1 };
        writeln!(
            config,
            "  - {{ key: k, value: v{number}, rate_limit: {{ name: n{name}, unit: day, requests_per_unit: 9 }} }}"
        )
        .unwrap();
    }
    Harness::new(&config, Settings::default())
}

#[tokio::test]
async fn many_rules_come_in_pieces_and_no_series_twice() {
    let harness = many_rules();
    let pieces: Vec<String> = Exposition::new(&harness.shared, Format::Prometheus).collect();
    assert!(pieces.len() > 10, "{} pieces", pieces.len());
    assert!(pieces.iter().all(|piece| piece.len() < 34 << 10), "a piece is too long");
    let text = pieces.concat();
    let mut series: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').unwrap().0)
        .collect();
    let count = series.len();
    series.sort_unstable();
    series.dedup();
    assert_eq!(series.len(), count);
    let level = "tollgate_level{policy=\"n2\",domain=\"a\\\"b\\\\c\"} 9\n";
    assert!(text.contains(level));
}

#[cfg(feature = "test-servers")]
mod servers {
    use super::*;
    use std::{
        io::Write as _,
        process::{Command, Stdio},
    };

    fn promtool(arguments: &[&str], input: &str) {
        let mut child = Command::new("promtool")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("promtool must be installed: apt-get install prometheus");
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        let out = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "promtool {arguments:?}: {said}");
    }

    #[tokio::test]
    async fn promtool_finds_nothing_to_complain_about() {
        for harness in [busy().await, many_rules()] {
            let text: String = Exposition::new(&harness.shared, Format::Prometheus).collect();
            promtool(&["check", "metrics"], &text);
        }
    }

    #[test]
    fn the_alert_rules_are_valid_and_fire_when_they_should() {
        let alerts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/alerts");
        let path = |name: &str| alerts.join(name).to_str().unwrap().to_owned();
        for (rules, tests) in
            [("tollgate.rules.yml", "tests.yml"), ("library.rules.yml", "library.tests.yml")]
        {
            promtool(&["check", "rules", &path(rules)], "");
            promtool(&["test", "rules", &path(tests)], "");
        }
    }
}
