//! Runs the program as a user does.

#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::Value;
use std::process::{Command, Output};

fn tollgate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate")).args(args).output().unwrap()
}

/// Runs a command that must succeed, and returns what it printed.
fn prints(args: &[&str]) -> String {
    let output = tollgate(args);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {errors}");
    assert_eq!(errors, "", "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that must be refused as bad input, and returns the complaint.
fn refuses(args: &[&str]) -> String {
    let output = tollgate(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The workload of `docs/choosing.md`.
const FOUR_HUNDRED: &str = "every 10ms for 1s, 2s every 1ms for 100ms, 3s every 5ms for 1s";

#[test]
fn without_a_quota_a_newcomer_sees_what_a_table_is() {
    let text = prints(&["table"]);
    assert_eq!(
        text,
        "\
5/s burst 3 by gcra, 8 arrivals of cost 1: 0s x4, 100ms, 200ms, 1s x2

   time  cost   answer  remaining  retry after  full after
     0s     1  allowed          2            -       200ms
     0s     1  allowed          1            -       400ms
     0s     1  allowed          0            -       600ms
     0s     1   denied          0        200ms       600ms
  100ms     1   denied          0        100ms       500ms
  200ms     1  allowed          0            -       600ms
     1s     1  allowed          2            -       200ms
     1s     1  allowed          1            -       400ms

admitted 6 of 8

  ▪    ·     ■                                           ■
  ┴──────────────────────────────────────────────────────┴
  0s                                                    1s
  ■ all passed   ▪ some passed   · none passed

Try next:
  tollgate table 10/min burst 2      your own quota, event by event
  tollgate compare 10/s              every algorithm on the same events
  tollgate explain 60/min            what a quota means, in words and numbers
"
    );
    let table = prints(&["table"]);
    assert!(text.starts_with(&table), "`table` is the default");
}

#[test]
fn the_hints_work() {
    let text = prints(&["table"]);
    let hints = text.lines().filter(|line| line.starts_with("  tollgate"));
    let hints: Vec<_> = hints.map(|line| &line[..35]).collect();
    assert_eq!(hints.len(), 3);
    for hint in hints {
        let words: Vec<_> = hint.split_whitespace().skip(1).collect();
        prints(&words);
    }
}

#[test]
fn a_quota_may_be_quoted_or_not() {
    let quoted = prints(&["table", "100/min burst 10", "--cost", "2"]);
    assert_eq!(prints(&["table", "100/min", "burst", "10", "--cost", "2"]), quoted);
}

#[test]
fn csv_has_one_row_per_event_and_nothing_else() {
    let text =
        prints(&["table", "3/s", "burst", "1", "--arrivals", "0s x2, 334ms", "--format", "csv"]);
    assert_eq!(
        text,
        "\
at_ns,cost,answer,remaining,retry_after_ns,full_after_ns
0,1,allowed,0,,333333334
0,1,denied,0,333333334,333333334
334000000,1,allowed,0,,333333334
"
    );
}

#[test]
fn json_is_valid_and_agrees_with_csv() {
    for algorithm in [
        "gcra",
        "token-bucket",
        "fixed-window",
        "anchored-window",
        "sliding-counter",
        "sliding-log",
    ] {
        let args = ["table", "5/s", "--algorithm", algorithm, "--format"];
        let json: Value =
            serde_json::from_str(&prints(&[args.as_slice(), &["json"]].concat())).unwrap();
        let csv = prints(&[args.as_slice(), &["csv"]].concat());
        let events = json["events"].as_array().unwrap();
        assert_eq!(events.len() + 1, csv.lines().count());
        for (event, row) in events.iter().zip(csv.lines().skip(1)) {
            let fields =
                ["at_ns", "cost", "answer", "remaining", "retry_after_ns", "full_after_ns"];
            let cells = fields.map(|field| match &event[field] {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                number => number.to_string(),
            });
            assert_eq!(cells.join(","), row, "{algorithm}");
        }
        let summary = &json["summary"];
        let passed = events.iter().filter(|e| e["answer"] == "allowed").count();
        assert_eq!(summary["arrivals"], events.len());
        assert_eq!(summary["allowed"], passed);
        assert_eq!(summary["denied"], events.len() - passed);
        assert_eq!(summary["never"], 0);
    }
}

#[test]
fn what_does_not_apply_is_null() {
    let json: Value =
        serde_json::from_str(&prints(&["table", "unlimited", "--format", "json"])).unwrap();
    let event = &json["events"][0];
    assert_eq!(event["answer"], "allowed");
    assert!(event["remaining"].is_null() && event["retry_after_ns"].is_null());

    let text = prints(&["table", "0/s burst 1", "--format", "json"]);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["events"][1]["answer"], "never");
    assert!(json["events"][1]["full_after_ns"].is_null());
}

#[test]
fn a_cost_above_the_burst_is_never_and_said_so() {
    let text = prints(&["table", "5/s", "burst", "3", "--cost", "4"]);
    assert!(text.contains("never"), "{text}");
    assert!(text.contains("admitted 0 of 5\n5 can never pass"), "{text}");
}

/// Returns the figures behind the picture of an algorithm: passed, and in the busiest period.
fn figures(text: &str, algorithm: &str) -> Option<(u64, u64)> {
    let line = text.lines().find(|line| line.starts_with(algorithm))?;
    let mut numbers = line.split_whitespace().rev().map_while(|w| w.parse().ok());
    let (busiest, passed) = (numbers.next()?, numbers.next()?);
    Some((passed, busiest))
}

#[test]
fn compare_counts_the_four_hundred_arrivals_of_the_docs() {
    let text = prints(&["compare", "100/s", "--arrivals", FOUR_HUNDRED]);
    for (algorithm, expected) in [
        ("gcra", (399, 199)),
        ("fixed-window", (300, 100)),
        ("anchored-window", (300, 100)),
        ("sliding-counter", (300, 100)),
        ("sliding-log", (300, 100)),
    ] {
        assert_eq!(figures(&text, algorithm), Some(expected), "{algorithm}");
    }
}

#[test]
fn compare_shows_the_border_burst_by_default() {
    let text = prints(&["compare"]);
    assert_eq!(figures(&text, "fixed-window"), Some((40, 20)), "twice the 10");
    assert_eq!(figures(&text, "sliding-log"), Some((30, 10)), "never above 10");
}

#[test]
fn compare_drops_the_burst_for_windows_and_says_so() {
    let text = prints(&["compare", "5/s", "burst", "20", "--arrivals", "0s x25"]);
    assert_eq!(figures(&text, "gcra"), Some((20, 20)));
    assert_eq!(figures(&text, "fixed-window"), Some((5, 5)));
    assert!(text.contains("note: windows have no burst: they run with 5/s"));
}

#[test]
fn compare_leaves_out_what_cannot_run_and_says_why() {
    let text = prints(&["compare", "0/s", "burst", "3"]);
    assert_eq!(figures(&text, "sliding-log"), None);
    assert!(text.contains("note: sliding-log is left out: a budget that never refills"));

    let text = prints(&["compare", "2M/h"]);
    assert_eq!(figures(&text, "sliding-log"), None);
    assert!(text.contains("note: sliding-log is left out: limit 2000000"));
}

#[test]
fn explain_says_what_passes_in_the_first_minute() {
    let text = prints(&["explain", "60/min"]);
    for line in [
        "  rate         60 every 1min, one every 1s",
        "  from empty   the first passes after 1s, full after 1min",
        "  in any 1min             120 = 60 + 60",
        "  sliding-log      60 in every 1min, exactly",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn explain_knows_the_odd_quotas() {
    for (quota, words) in [
        ("unlimited", "Everything passes"),
        ("5/s burst 0", "Nothing passes"),
        ("0/s burst 4", "4, and then nothing"),
        ("1/day initial empty", "empty: nothing passes at once"),
        ("9/s initial 2", "2 pass at once, then the rate"),
        ("7/min", "one about every 8.571428571s"),
        ("5/s burst 3", "they would accept 5/s"),
        ("700M/s", "sliding-log      rejects it: limit 700000000"),
    ] {
        let text = prints(&["explain", quota]);
        assert!(text.contains(words), "{quota}:\n{text}");
    }
}

#[test]
fn bad_input_is_named_with_a_way_out() {
    for (args, words) in [
        (&["table", "2.5/s"][..], "write 2.5/s as \"5 per 2s\""),
        (&["table", "2000M/s"], "above 1000000000 per second; lower"),
        (&["table", "-a", "foo"], "\"foo\" is not an algorithm; use one of"),
        (
            &["table", "5/s burst 3", "-a", "fixed-window"],
            "burst 3 has no effect with fixed-window",
        ),
        (
            &["table", "--arrivals", "every 1ns for 1s"],
            "1000000000 events or more, above the limit of 100000 per run; use",
        ),
        (&["compare", "--arrivals", "soon"], "arrival \"soon\""),
        (&["table", "--cost", "many"], "invalid value 'many'"),
        (&["table", "--format", "xml"], "[possible values: text, csv, json]"),
        (&["explain"], "<QUOTA>"),
        (&["explain", "often"], "\"often\" is not a quota"),
        (&["tabel"], "a similar subcommand exists: 'table'"),
    ] {
        let complaint = refuses(args);
        assert!(complaint.contains(words), "{args:?}: {complaint}");
        assert!(complaint.starts_with("error: "), "{args:?}: {complaint}");
    }
}

#[test]
fn help_and_version_are_there() {
    assert_eq!(prints(&["--version"]), format!("tollgate {}\n", env!("CARGO_PKG_VERSION")));
    assert!(prints(&["--help"]).contains("Examples:"));
    for (protocol, own) in [("http", "--body"), ("grpc", "--domain"), ("resp", "--command")] {
        let help = prints(&["load", protocol, "--help"]);
        let (own, tls) = (help.find(own).unwrap(), help.find("\nTLS:").unwrap());
        assert!(own < tls, "{protocol}: a heading holds flags of another");
    }
    for command in ["table", "compare"] {
        let help = prints(&[command, "--help"]);
        assert!(help.contains("every 50ms for 2s"), "{command}");
        assert!(help.contains("At most 100000 events"), "{command}");
    }
}

#[test]
fn every_flag_of_serve_has_an_environment_variable_in_the_help() {
    let help = prints(&["serve", "--help"]);
    let flags: Vec<&str> = help.split("\n      --").skip(1).collect();
    assert!(flags.len() > 25, "{help}");
    for flag in flags {
        let name = flag.split([' ', '\n']).next().unwrap();
        let variable = name.to_uppercase().replace('-', "_");
        // A URL may hold a password, so the help shows no value of that variable.
        let end = if name == "store" { "]" } else { "=" };
        assert!(flag.contains(&format!("[env: TOLLGATE_{variable}{end}")), "--{flag}");
    }
}

#[test]
fn one_of_a_kind_is_singular_and_a_wrong_path_is_suggested() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits.yaml");
    let other = folder.path().join("other.yaml");
    std::fs::write(&other, "domain: e\ndescriptors: [{key: user, rate_limit: {quota: 1/s}}]\n")
        .unwrap();
    let (path, other) = (path.to_str().unwrap(), other.to_str().unwrap());
    let one = "domain: d\ndescriptors: [{key: path, rate_limit: {quota: 1/s}}]\n";
    for (text, paths, expected) in [
        ("domain: d\ndescriptors: []\n", &[path][..], "ok: 0 limits in 1 domain, 0 warnings\n"),
        (one, &[path], "ok: 1 limit in 1 domain, 1 warning\n"),
        (one, &[path, other], "ok: 2 limits in 2 domains, 1 warning\n"),
    ] {
        std::fs::write(path, text).unwrap();
        let said = prints(&[&["check"], paths].concat());
        assert!(said.ends_with(expected), "{said}");
        // As docs/operating.md says, every table has a bound.
        let is_bounded = !said.contains("client-chosen-key") || said.contains("10 million keys");
        assert!(is_bounded, "{said}");
    }
    let said = refuses(&[path]);
    assert!(said.contains(&format!("write `tollgate serve {path}`")), "{said}");
    for command in ["check", "serve"] {
        let wrong = folder.path().join("limit.yml");
        let output = tollgate(&[command, wrong.to_str().unwrap()]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("limit.yml: there is no such file; did you mean 'limits.yaml'?"));
    }
}

#[test]
fn check_says_what_limits_an_enter() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.yaml");
    let text = "domain: d\ndescriptors:\n  - {key: k, concurrency: {name: slots, limit: 2}}\n";
    std::fs::write(&file, text).unwrap();
    let said = prints(&["check", file.to_str().unwrap(), "--list", "--entry", "k=a"]);
    for wanted in [
        "  d:k#concurrency (slots): 2 in flight, lease 60s  [",
        "no rate limit applies: a check passes and nothing is counted\n",
        "an enter is limited by d:k#concurrency (slots): 2 in flight, lease 60s",
    ] {
        assert!(said.contains(wanted), "{wanted}\n{said}");
    }
}
