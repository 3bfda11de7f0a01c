//! Quota mode and shadow mode together with blocks, closed limits and stores that fail.

use super::bench::{Bench, entries};
use std::{sync::atomic::Ordering::SeqCst, time::Duration};
use tollgate_server::{
    config::Unit,
    engine::{AdHocLimit, Ask, Code, Hits, Subject, Verb},
};

const QUOTAS: &str = "stores: {other: {}}
descriptors:
  - {key: a, quota_mode: true, rate_limit: {name: a, unit: hour, requests_per_unit: 2}}
  - {key: b, quota_mode: true, rate_limit: {name: b, unit: hour, requests_per_unit: 3}}
  - {key: none, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: far, quota_mode: true, store: other, failure: deny, rate_limit: {unit: hour, requests_per_unit: 9}}
";

/// Regression: requests passed forever, and nothing was charged.
#[test]
fn a_closed_quota_does_not_make_the_others_free() {
    let mut bench = Bench::new(QUOTAS);
    let passed = (0..9).filter(|_| bench.check(&["none=1", "b=1"])).count();
    assert_eq!(passed, 3);
    assert_eq!(bench.codes(), [Code::Denied, Code::Denied]);
}

#[test]
fn a_blocked_quota_does_not_make_the_others_free() {
    let mut bench = Bench::new(QUOTAS);
    let (plan, now) = (bench.engine.plan_arc(), bench.engine.now());
    let rule = plan.rule(plan.named("a").unwrap());
    let until = now.saturating_add(Duration::from_secs(9));
    let block = |key: &mut tollgate_server::engine::Special| key.blocked_until = Some(until);
    bench.engine.overlay().change((rule, b"1"), now, block).unwrap();
    assert!(bench.verb(&[("a=1", Hits::Take(1)), ("b=1", Hits::Take(1))], Verb::Peek));
    assert_eq!(bench.codes(), [Code::QuotaSpent, Code::Allowed]);
    assert!(bench.check(&["a=1", "b=1"]));
    assert_eq!(bench.codes(), [Code::QuotaSpent, Code::Allowed]);
    assert!(bench.check(&["a=1", "b=1"]) && bench.check(&["a=1", "b=1"]));
    assert!(!bench.check(&["a=1", "b=1"]));
    assert!(!bench.check(&["a=1"]), "alone, it refuses");
}

/// Regression: the check did not return.
#[test]
fn a_store_that_fails_in_quota_mode_is_a_quota_that_is_spent() {
    let mut bench = Bench::new(QUOTAS);
    bench.fails.store(true, SeqCst); // ORDERING: SeqCst. A test.
    let passed = (0..9).filter(|_| bench.check(&["b=1", "far=1"])).count();
    assert_eq!(passed, 3);
    assert!(!bench.check(&["far=1"]));
}

#[test]
fn shadows_and_spent_quotas_count_refusals_if_the_rule_does() {
    let mut bench = Bench::new(
        "defaults: {count_refused: true}
descriptors:
  - {key: s, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: q, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: r, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 99}}
",
    );
    for key in ["s=1", "q=1"] {
        assert!(bench.verb(&[(key, Hits::Take(8)), ("r=1", Hits::Take(1))], Verb::Check));
        assert!(bench.verb(&[(key, Hits::Take(8)), ("r=1", Hits::Take(1))], Verb::Check));
        assert_eq!(bench.left(key), 0, "{key}: the reference has 16 on its count now");
    }
    assert_eq!(bench.left("r=1"), 95, "what passed was charged once");
}

/// Regression: the report had 0 remaining, although requests kept passing.
#[test]
fn a_spent_quota_does_not_bind_while_another_has_room() {
    let mut bench = Bench::new(QUOTAS);
    assert!((0..3).all(|_| bench.check(&["a=1", "b=1"])));
    assert!(!bench.check(&["a=1", "b=1"]));
    let mut bench = Bench::new(QUOTAS);
    assert!(bench.verb(&[("a=1", Hits::Take(2))], Verb::Check));
    assert!(bench.check(&["a=1", "b=1"]));
    let (plan, now) = (bench.engine.plan_arc(), bench.engine.now());
    let told = bench.answer.report(&plan, now).unwrap();
    assert_eq!((told.policy, told.remaining), ("b", 2));
}

/// A limit that comes with the request follows the domain's defaults, too.
#[test]
fn limits_of_the_request_follow_the_defaults_of_the_domain() {
    let list = entries("k=1");
    let ask = |count, hits| {
        let limit = Some(AdHocLimit { count, unit: Unit::Hour });
        [Ask { subject: Subject::Entries(&list), hits: Hits::Take(hits), limit }]
    };
    let mut bench = Bench::new("defaults: {shadow_mode: true}\n");
    for (count, hits) in [(3, 4), (0, 1)] {
        assert!(bench.ask(&ask(count, hits), Verb::Check));
        assert_eq!(bench.codes(), [Code::Shadowed]);
    }
    let mut bench = Bench::new("defaults: {count_refused: true}\n");
    assert!(!bench.ask(&ask(3, 4), Verb::Check));
    assert!(!bench.ask(&ask(3, 1), Verb::Check), "the refused hits count");
}
