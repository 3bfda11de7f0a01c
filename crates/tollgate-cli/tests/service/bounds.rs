//! A client that fills up a bound of the service: it gets nothing for it, and others are decided.

use crate::process::{Service, http};

const YAML: &str = "
domain: d
defaults: {failure: open}
descriptors:
  - {key: k, rate_limit: {name: k, quota: 5/year}}
  - {key: other, rate_limit: {name: other, quota: 5/year}}
server:
  memory: {max_reservations: 4000, max_reservations_per_policy: 3000, max_reservations_per_key: 100}
";

/// Opens reservations of a day with cost 0, `each` at once for each key. Returns how many are open.
fn flood(service: &Service, policy: &str, keys: usize, each: usize) -> usize {
    let mut client = service.client();
    let command = |key: usize| format!("TG.RESERVE {policy} flood-{key} 0 LIFE 86400000");
    (0..keys).map(|key| client.count_ones(&command(key), each).unwrap()).sum()
}

#[test]
fn a_flood_of_reservations_opens_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path(), YAML, &[]);
    let before = service.resident();
    assert_eq!(flood(&service, "k", 1, 1000), 100, "of one key");
    assert_eq!(flood(&service, "k", 60, 100), 2900, "of one policy, with those before");
    // A reservation above a bound fails, regardless of `failure`.
    for cost in [0, 1, 5] {
        let command = format!("TG.RESERVE k x {cost} LIFE 1000");
        assert_eq!(service.client().count_ones(&command, 50).unwrap(), 0, "cost {cost}");
    }
    let body = r#"{"policy":"k","key":"x","cost":1}"#;
    let (status, told) = http(service.http, "POST", "/v1/reserve", body);
    assert_eq!(status, 429, "{told}");
    let wanted = [r#""reason":"full""#, r#""detail":"policy \"d:k\" has 3000 open reservations"#];
    assert!(wanted.iter().all(|wanted| told.contains(wanted)), "{told}");
    // A check needs no reservation, and another policy is below its bound: both pass as often as
    // their quotas allow.
    let ones = |command: &str| service.client().count_ones(command, 50).unwrap();
    assert_eq!((ones("TG.CHECK k x 1"), ones("TG.RESERVE other x 1")), (5, 5));
    assert_eq!(flood(&service, "other", 20, 100), 995, "of the store");
    assert_eq!((ones("TG.RESERVE other y 1"), ones("TG.CHECK other y 1")), (0, 5));
    // The bound shows, and the service is ready nevertheless.
    let (status, told) = service.admin("GET", "/health/detail", "");
    assert_eq!(status, 503);
    let wanted = [r#""what":"bound""#, "calls were denied in the last minute", "max_reservations"];
    assert!(wanted.iter().all(|wanted| told.contains(wanted)), "{told}");
    let (_, told) = service.admin("GET", "/store", "");
    assert!(told.contains(r#""errors":0"#) && !told.contains(r#""bounds_reached":0"#), "{told}");
    let (_, told) = service.admin("GET", "/metrics", "");
    let denied = r#"policy="k",domain="d",result="denied",reason="full""#;
    assert!(told.contains(denied) && told.contains("\ntollgate_bounds_reached_total "), "{told}");
    assert_eq!(service.admin("GET", "/ready?strict=1", "").0, 200);
    let grown = service.resident().saturating_sub(before);
    assert!(grown < 32 << 20, "{} MiB more than before", grown >> 20);
}

/// Rules with distinct quotas.
fn distinct(rules: u64) -> String {
    let rule = |number: u64| {
        format!("  - {{key: k, value: v{number}, rate_limit: {{quota: {number}/day}}}}\n")
    };
    format!("domain: d\ndescriptors:\n{}", (1..=rules).map(rule).collect::<String>())
}

#[test]
fn thousands_of_quotas_are_loaded_and_enforced() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(folder.path(), &distinct(10), &[]);
    service.write_config(&distinct(5000));
    let (status, told) = service.admin("POST", "/reload", "");
    assert_eq!(status, 200, "{told}");
    for number in (1..=5000_u64).step_by(101) {
        let ask = |cost| service.client().ask(&format!("TG.CHECK d:k=v{number} '' {cost}"));
        assert!(ask(number).starts_with("[1,"), "{number}");
        assert!(ask(1).starts_with("[0,"), "{number}");
    }
}

#[test]
fn thousands_of_overrides_have_quotas_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "domain: d\ndescriptors:\n  - {key: k, rate_limit: {name: k, quota: 3/year}}\n";
    let service = Service::start(folder.path(), yaml, &[]);
    for number in 1..=2100_u64 {
        let body = format!(
            r#"{{"policy":"k","key":"u{number}","limit":"{number}/day","for_ms":3600000}}"#
        );
        let (status, told) = service.admin("POST", "/override", &body);
        assert_eq!(status, 200, "{number}: {told}");
        let ask = |cost| service.client().ask(&format!("TG.CHECK k u{number} {cost}"));
        assert!(ask(number).starts_with("[1,") && ask(1).starts_with("[0,"), "{number}");
    }
}
