//! The figures of an answer: codes, remaining permits, retry times.

use super::bench::Bench;
use std::time::Duration;
use tollgate_server::{
    engine::{Code, Hits, Verb},
    plan::Counted,
};

const RULES: &str = "stores: {other: {}}
descriptors:
  - {key: a, rate_limit: {name: a, unit: hour, requests_per_unit: 10}}
  - {key: b, rate_limit: {name: b, quota: 1/s, algorithm: gcra}}
  - {key: far, store: other, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: none, rate_limit: {unit: hour, requests_per_unit: 0}}
  - key: two
    rate_limits:
      - {name: short, quota: 2/s, algorithm: gcra}
      - {name: long, quota: 2/h, algorithm: gcra}
";

#[test]
fn what_was_not_charged_does_not_look_charged() {
    let mut bench = Bench::new(RULES);
    assert!(bench.check(&["b=1", "far=1"]));
    assert!(!bench.check(&["a=1", "b=1"]));
    assert_eq!(bench.remaining(), [Some(10), Some(0)]);
    assert!(!bench.check(&["a=1", "far=1"]));
    assert_eq!(bench.remaining(), [Some(10), Some(0)], "it was given back");
    assert_eq!(bench.left("a=1"), 10);
}

#[test]
fn the_longest_wait_is_told() {
    let mut bench = Bench::new(RULES);
    let (plan, now) = (bench.engine.plan_arc(), bench.engine.now());
    let rule = plan.rule(plan.named("a").unwrap());
    let until = now.saturating_add(Duration::from_secs(600));
    let block = |key: &mut tollgate_server::engine::Special| key.blocked_until = Some(until);
    bench.engine.overlay().change((rule, b"1"), now, block).unwrap();
    assert!(bench.check(&["b=1"]));
    for asks in [["a=1", "b=1"], ["b=1", "a=1"]] {
        assert!(!bench.check(&asks));
        assert_eq!(bench.retry_after(), Some(Duration::from_secs(600)), "{asks:?}");
    }
    for asks in [["none=1", "b=1"], ["a=1", "none=1"]] {
        assert!(!bench.check(&asks));
        assert_eq!(bench.retry_after(), None, "{asks:?}: no wait helps");
    }
}

#[test]
fn of_two_limits_that_refuse_the_one_to_wait_for_is_told() {
    let mut bench = Bench::new(RULES);
    assert!(bench.verb(&[("two=1", Hits::Take(2))], Verb::Check));
    assert!(!bench.check(&["two=1"]));
    let (plan, now) = (bench.engine.plan_arc(), bench.engine.now());
    let status = bench.answer.statuses()[0];
    let told = bench.answer.report_at(&plan, &status, now).unwrap();
    assert_eq!((told.policy, told.retry_after), ("long", Some(Duration::from_secs(1800))));
}

/// It looked as if nothing were left.
#[test]
fn a_bypassed_limit_tells_nothing() {
    let mut bench = Bench::new(RULES);
    let plan = bench.engine.plan_arc();
    let until = bench.engine.now().saturating_add(Duration::from_secs(5));
    plan.rule(0).live().bypass_until(until);
    assert!(bench.check(&["a=1"]));
    assert_eq!((bench.codes(), bench.remaining()), (vec![Code::Bypassed], vec![None]));
}

/// A rule took over the counts of another one, whose name was its id.
#[test]
fn a_name_that_looks_like_an_id_is_not_one() {
    let rule = |key: &str, name: &str, count: u64| {
        format!(
            "  - {{key: {key}, rate_limit: {{name: '{name}', unit: hour, requests_per_unit: {count}}}}}\n"
        )
    };
    let mut bench = Bench::new(&format!("descriptors:\n{}", rule("a", "d:b", 5)));
    assert!(bench.check(&["a=1"]));
    let both = format!("descriptors:\n{}{}", rule("a", "d:b", 5), rule("b", "other", 7));
    bench.load(&both);
    let plan = bench.engine.plan_arc();
    assert_eq!(plan.rules()[1].live().counts().of(Counted::Allowed), 0);
}
