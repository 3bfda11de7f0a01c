//! Many rules, each with its own quota, over all algorithms: enforced, reloaded and overridden
//! exactly.
//!
//! Prints the duration of a start and of a reload, and the memory of a rule. docs/operating.md has
//! the figures of
//! `TOLLGATE_LONG=1 cargo test --release -p tollgate-cli --test service -- rules:: --nocapture`.

use crate::process::{Service, TOKEN, serve};
use std::{fmt::Write as _, fs, path::Path};
use tollgate::{Algorithm, Clock};

/// How many rules of each algorithm each step calls.
const ASKED: usize = 40;

/// One of many rules: its quota is its number per year, and a bit more after a reload.
#[derive(Clone, Copy)]
struct Rule {
    number: u64,
    algorithm: Algorithm,
}

impl Rule {
    fn new(number: u64) -> Self {
        Self { number, algorithm: Algorithm::ALL[number as usize % Algorithm::ALL.len()] }
    }

    /// Checks that exactly this many permits pass.
    fn passes(self, service: &Service, permits: u64, step: &str) {
        let Self { number, algorithm } = self;
        let mut client = service.client();
        let mut ask = |cost| client.ask(&format!("TG.CHECK r{number} '' {cost}"));
        let told = ask(permits);
        assert!(told.starts_with("[1,"), "{step}: {permits} of r{number} by {algorithm}: {told}");
        let told = ask(1);
        assert!(
            told.starts_with("[0,"),
            "{step}: {permits} + 1 of r{number} by {algorithm}: {told}"
        );
    }
}

/// Writes the rules to ten files: one file holds up to a million values.
fn write_rules(folder: &Path, rules: u64, more: u64) {
    for file in 0..10 {
        let mut text = String::from("domain: d\nmerge: true\ndescriptors:\n");
        for number in file * rules / 10 + 1..=(file + 1) * rules / 10 {
            let (quota, algorithm) = (number + more, Rule::new(number).algorithm);
            let limit = format!("{{name: r{number}, quota: {quota}/year, algorithm: {algorithm}}}");
            writeln!(text, "  - {{key: k, value: v{number}, rate_limit: {limit}}}").unwrap();
        }
        fs::write(folder.join(format!("{file}.yaml")), text).unwrap();
    }
}

#[test]
fn every_one_of_many_rules_has_its_own_quota() {
    let rules = if std::env::var_os("TOLLGATE_LONG").is_some() { 100_000 } else { 3_000 };
    let folder = tempfile::tempdir().unwrap();
    let (limits, token) = (folder.path().join("limits"), folder.path().join("token"));
    fs::create_dir(&limits).unwrap();
    fs::write(&token, TOKEN).unwrap();
    let start = || {
        let mut command = serve();
        command.arg(&limits).arg("--admin-token-file").arg(&token).args(["--watch-interval", "0s"]);
        Service::spawn(folder.path(), &mut command)
    };
    let clock = Clock::monotonic();
    write_rules(&limits, 10, 0);
    let least = start().resident();

    write_rules(&limits, rules, 0);
    let begun = clock.now();
    let service = start();
    assert_eq!(service.admin("GET", "/ready", "").0, 200);
    println!("{rules} rules: ready after {:?}", clock.now().since(begun));
    let bytes = |service: &Service| service.resident().saturating_sub(least);
    println!("memory: {} bytes for each rule", bytes(&service) / rules);

    // Numbers far from each other, over all algorithms; no two steps call the same rule.
    let numbers: Vec<_> = (0..rules).map(|it| it * 7919 % rules + 1).collect();
    let steps: Vec<_> = numbers.chunks(ASKED * Algorithm::ALL.len()).take(3).collect();
    for number in steps[0] {
        Rule::new(*number).passes(&service, *number, "at the start");
    }

    write_rules(&limits, rules, 10);
    let begun = clock.now();
    let (status, told) = service.admin("POST", "/reload", "");
    assert_eq!(status, 200, "{told}");
    println!("reload with {rules} changed quotas: {:?}", clock.now().since(begun));
    println!("memory: {} bytes for each rule", bytes(&service) / rules);
    for number in steps[0] {
        // Used permits stay used: the permits of a window, the time of a token bucket.
        let rule = Rule::new(*number);
        rule.passes(
            &service,
            if rule.algorithm == Algorithm::Gcra { 0 } else { 10 },
            "used before",
        );
    }
    for number in steps[1] {
        Rule::new(*number).passes(&service, number + 10, "after a reload");
    }

    for number in steps[2] {
        let limit = 2 * number + 3;
        let body =
            format!(r#"{{"policy":"r{number}","key":"","limit":"{limit}/year","for_ms":3600000}}"#);
        let (status, told) = service.admin("POST", "/override", &body);
        assert_eq!(status, 200, "{number}: {told}");
        Rule::new(*number).passes(&service, limit, "overridden");
    }
}
