//! Counts of decisions, charges and bans.

use super::bench::{Bench, entries};
use std::time::Duration;
use tollgate::{Quota, testing::block_on};
use tollgate_server::{
    config::Unit,
    engine::{AdHocLimit, Ask, Hits, Subject, Verb},
    plan::{Counted, LiveCounts},
};

const RULES: &str = "descriptors:
  - {key: a, rate_limit: {name: a, unit: hour, requests_per_unit: 5}}
  - {key: b, rate_limit: {name: b, unit: hour, requests_per_unit: 2}}
  - {key: s, shadow_mode: true, rate_limit: {name: s, unit: hour, requests_per_unit: 1}}
  - {key: q, quota_mode: true, rate_limit: {name: q, unit: hour, requests_per_unit: 1}}
  - {key: r, quota_mode: true, rate_limit: {name: r, unit: hour, requests_per_unit: 9}}
  - {key: free, rate_limit: {name: free, unlimited: true}}
  - {key: x, count_refused: true, rate_limit: {name: x, unit: hour, requests_per_unit: 3}}
";

fn counts(bench: &Bench, policy: &str) -> LiveCounts {
    let plan = bench.engine.plan_arc();
    plan.rule(plan.named(policy).unwrap()).live().counts()
}

/// Returns each counted kind, with its count.
fn kinds(bench: &Bench, policy: &str) -> Vec<(Counted, u64)> {
    let counts = counts(bench, policy);
    let each = Counted::ALL.into_iter().map(|kind| (kind, counts.of(kind)));
    each.filter(|(_, count)| *count > 0).collect()
}

fn charged(bench: &Bench, policy: &str) -> (u64, u64) {
    let LiveCounts { charged, returned, .. } = counts(bench, policy);
    (charged, returned)
}

#[test]
fn allowed_by_a_quota_is_what_was_charged() {
    let mut bench = Bench::new(RULES);
    assert!(bench.check(&["a=1", "b=1"]) && bench.check(&["a=1", "b=1"]));
    assert!(!bench.check(&["a=1", "b=1"]));
    assert_eq!(kinds(&bench, "a"), [(Counted::Allowed, 2), (Counted::RefusedElsewhere, 1)]);
    assert_eq!(kinds(&bench, "b"), [(Counted::Allowed, 2), (Counted::Denied, 1)]);
    assert!(bench.check(&["s=1"]) && bench.check(&["s=1"]));
    assert_eq!(kinds(&bench, "s"), [(Counted::Allowed, 1), (Counted::Shadowed, 1)]);
    assert!(bench.check(&["q=1", "r=1"]) && bench.check(&["q=1", "r=1"]));
    assert_eq!(kinds(&bench, "q"), [(Counted::Allowed, 1), (Counted::QuotaSpent, 1)]);
    assert_eq!(kinds(&bench, "r"), [(Counted::Allowed, 2)]);
    assert!(bench.check(&["free=1"]));
    assert_eq!(kinds(&bench, "free"), [(Counted::Unlimited, 1)]);
    let labels = [Counted::RefusedElsewhere, Counted::QuotaSpent].map(Counted::labels);
    assert_eq!(labels, [("allowed", "refused-elsewhere"), ("allowed", "quota-spent")]);
    for (policy, expected) in [("a", 2), ("b", 2), ("s", 1), ("q", 1), ("r", 2), ("free", 0)] {
        assert_eq!(charged(&bench, policy), (expected, 0), "{policy}");
    }
}

#[test]
fn charges_follow_refusals_settlements_and_refunds() {
    let mut bench = Bench::new(RULES);
    let reserve = Verb::Reserve(Duration::from_secs(60));
    assert!(bench.verb(&[("a=1", Hits::Take(4))], reserve));
    assert_eq!(charged(&bench, "a"), (4, 0));
    let ticket = bench.answer.ticket().unwrap().clone();
    assert_eq!(block_on(bench.engine.settle(&ticket, &[1])), Ok(true));
    assert_eq!(charged(&bench, "a"), (4, 3));
    assert!(bench.verb(&[("a=1", Hits::Take(1))], reserve));
    let ticket = bench.answer.ticket().unwrap().clone();
    assert_eq!(block_on(bench.engine.settle(&ticket, &[3])), Ok(true));
    assert_eq!((charged(&bench, "a"), bench.left("a=1")), ((7, 3), 1));
    assert!(bench.verb(&[("a=1", Hits::Give(9))], Verb::Check));
    assert_eq!((charged(&bench, "a"), bench.left("a=1")), ((7, 7), 5));
    // A cancellation in the next window gives nothing back.
    assert!(bench.verb(&[("b=1", Hits::Take(2))], Verb::Reserve(Duration::from_secs(9999))));
    let ticket = bench.answer.ticket().unwrap().clone();
    bench.hand.advance(Duration::from_secs(3600));
    assert_eq!(block_on(bench.engine.settle(&ticket, &[0])), Ok(true));
    assert_eq!(charged(&bench, "b"), (2, 0));
    // A refusal that is charged.
    assert!(bench.verb(&[("x=1", Hits::Take(2))], Verb::Check));
    assert!(!bench.verb(&[("x=1", Hits::Take(2))], Verb::Check));
    assert_eq!(charged(&bench, "x"), (4, 0));
}

/// Regression: the answer reported 1 left, which the same call had taken.
#[test]
fn a_charged_refusal_reports_what_is_left_after_its_charge() {
    let mut bench = Bench::new(
        "defaults: {count_refused: true}
descriptors:
  - {key: a, rate_limit: {name: a, unit: hour, requests_per_unit: 9}}
  - {key: b, rate_limit: {name: b, unit: hour, requests_per_unit: 3}}
",
    );
    let both = [("a=1", Hits::Take(2)), ("b=1", Hits::Take(2))];
    assert!(bench.verb(&both, Verb::Check));
    assert_eq!(bench.remaining(), [Some(7), Some(1)]);
    assert!(!bench.verb(&both, Verb::Check));
    assert_eq!(bench.remaining(), [Some(5), Some(0)]);
    assert_eq!((bench.left("a=1"), bench.left("b=1")), (5, 0));
    // A descriptor twice: both report the permits that remain after both charges.
    assert!(!bench.verb(
        &[("a=1", Hits::Take(2)), ("a=1", Hits::Take(2)), ("b=1", Hits::Take(1))],
        Verb::Check
    ));
    assert_eq!(bench.remaining(), [Some(1), Some(1), Some(0)]);
}

#[test]
fn a_window_resets_when_it_ends_used_or_not() {
    let mut bench = Bench::new(
        "descriptors:
  - {key: minute, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: zero, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: bucket, rate_limit: {quota: 3/minute, algorithm: gcra}}
",
    );
    bench.hand.advance(Duration::from_secs(70));
    for (descriptor, hits, verb, reset) in [
        ("minute=1", 0, Verb::Peek, 50),
        ("minute=1", 4, Verb::Check, 50),
        ("minute=1", 1, Verb::Check, 50),
        ("zero=1", 1, Verb::Check, 50),
        ("bucket=1", 0, Verb::Peek, 0),
        ("bucket=1", 1, Verb::Check, 20),
    ] {
        bench.verb(&[(descriptor, Hits::Take(hits))], verb);
        let (plan, now) = (bench.engine.plan_arc(), bench.engine.now());
        let report = bench.answer.report(&plan, now).unwrap();
        assert_eq!(report.reset_after, Duration::from_secs(reset), "{descriptor}, {hits} hits");
    }
}

#[test]
fn a_blocked_key_has_one_wait_and_its_limit() {
    let mut bench = Bench::new(
        "descriptors:\n  - {key: a, rate_limit: {name: a, quota: 10/s burst 20, algorithm: gcra}}\n",
    );
    let (plan, now) = (bench.engine.plan_arc(), bench.engine.now());
    let rule = plan.rule(plan.named("a").unwrap());
    let nine = Duration::from_secs(9);
    let block = |key: &mut tollgate_server::engine::Special| {
        key.blocked_until = Some(now.saturating_add(nine));
    };
    bench.engine.overlay().change((rule, b"1"), now, block).unwrap();
    assert!(!bench.check(&["a=1"]));
    let report = bench.answer.report(&plan, now).unwrap();
    assert_eq!((report.limit, report.remaining), (20, 0));
    assert_eq!((report.retry_after, report.reset_after), (Some(nine), nine));
}

#[test]
fn limits_of_calls_are_counted_and_listed() {
    let mut bench = Bench::new(RULES);
    let plan = bench.engine.plan_arc();
    assert_eq!(plan.rules_in_use().count(), plan.rules().len());
    let list = entries("any=thing");
    let limit = Some(AdHocLimit { count: 1, unit: Unit::Day });
    let asks = [Ask { subject: Subject::Entries(&list), hits: Hits::Take(1), limit }];
    assert!(bench.ask(&asks, Verb::Check) && !bench.ask(&asks, Verb::Check));
    assert_eq!(kinds(&bench, "d!override"), [(Counted::Allowed, 1), (Counted::Denied, 1)]);
    let now = bench.engine.now();
    let quota = Quota::per_minute(1);
    let throttle = |cost| block_on(bench.engine.throttle((&plan, now), b"k", quota, cost)).unwrap();
    assert!(throttle(1).is_allowed() && throttle(1).is_denied());
    let given = block_on(bench.engine.unthrottle((&plan, now), b"k", quota, 5)).unwrap();
    assert_eq!(given.remaining(), 1);
    assert_eq!(kinds(&bench, "cl.throttle"), [(Counted::Allowed, 1), (Counted::Denied, 1)]);
    assert_eq!(charged(&bench, "cl.throttle"), (1, 1));
    let listed: Vec<_> = plan.rules_in_use().skip(plan.rules().len()).map(|it| it.id()).collect();
    assert_eq!(listed, ["d!override", "cl.throttle"]);
    let top = |id: &str| {
        let rule = plan.rule(plan.named(id).unwrap());
        rule.top_keys().unwrap().top_denied(9).into_iter().map(|key| key.name).collect::<Vec<_>>()
    };
    assert_eq!(
        (top("d!override"), top("cl.throttle")),
        (vec!["any, thing".into()], vec!["k".into()])
    );
    // A request cannot name the `CL.THROTTLE` policy.
    let named = Subject::Named { policy: "cl.throttle", keys: &[b"k"] };
    let asks = [Ask { subject: named, hits: Hits::Take(1), limit: None }];
    let error = bench.try_ask(&asks, Verb::Check).unwrap_err().to_string();
    assert!(error.contains("takes its limit from each call"), "{error}");
}

#[test]
fn banned_keys_are_listed_until_their_bans_end() {
    let mut bench = Bench::new(
        "descriptors:
  - {key: a, ban: {after: 2, within: 1m, for: 30s}, rate_limit: {name: a, unit: hour, requests_per_unit: 1}}
",
    );
    assert!(bench.check(&["a=mallory"]));
    assert!(!bench.check(&["a=mallory"]) && !bench.check(&["a=mallory"]));
    let plan = bench.engine.plan_arc();
    let live = plan.rules()[0].live();
    let banned = live.banned(bench.engine.now());
    assert_eq!(banned.len(), 1);
    assert_eq!(*banned[0].0, *b"mallory");
    bench.hand.advance(Duration::from_secs(30));
    assert!(live.banned(bench.engine.now()).is_empty());
}

#[test]
fn a_name_stands_for_all_limits_of_its_descriptor() {
    let mut bench = Bench::new(
        "descriptors:
  - key: t
    rate_limits:
      - {name: burst, quota: 5/s burst 10, algorithm: gcra}
      - {name: day, quota: 10k/day}
",
    );
    let keys: [&[u8]; 1] = [b"acme"];
    let named = |policy| Ask {
        subject: Subject::Named { policy, keys: &keys },
        hits: Hits::Take(3),
        limit: None,
    };
    assert!(bench.ask(&[named("burst")], Verb::Check));
    assert_eq!((charged(&bench, "burst"), charged(&bench, "day")), ((3, 0), (3, 0)));
    assert!(bench.ask(&[named("day")], Verb::Check));
    assert_eq!((charged(&bench, "burst"), charged(&bench, "day")), ((6, 0), (6, 0)));
    assert!(bench.check(&["t=acme"]));
    assert_eq!(charged(&bench, "day"), (7, 0));
    let error = bench.try_ask(&[named("burst"), named("day")], Verb::Check).unwrap_err();
    assert!(error.to_string().ends_with("charged together; name one of them"), "{error}");
    assert!(bench.ask(&[named("day")], Verb::Reserve(Duration::from_secs(9))));
    let ticket = bench.answer.ticket().unwrap().clone();
    assert_eq!(block_on(bench.engine.settle(&ticket, &[0])), Ok(true));
    assert_eq!((charged(&bench, "burst"), charged(&bench, "day")), ((10, 3), (10, 3)));
}

#[test]
fn an_override_of_the_same_unit_shares_the_count_of_the_rule() {
    let mut bench = Bench::new(
        "descriptors:
  - {key: k, rate_limit: {name: k, unit: minute, requests_per_unit: 10}}
  - {key: w, value: \"a*\", share_threshold: true, rate_limit: {name: w, unit: minute, requests_per_unit: 10}}
",
    );
    let (list, shared) = (entries("k=1"), entries("w=ab"));
    let with = |entries, count, unit| Ask {
        subject: Subject::Entries(entries),
        hits: Hits::Take(1),
        limit: Some(AdHocLimit { count, unit }),
    };
    let without = |entries, hits| Ask { subject: Subject::Entries(entries), hits, limit: None };
    assert!(bench.ask(&[without(&list, Hits::Take(4))], Verb::Check));
    assert!(bench.ask(&[with(&list, 5, Unit::Minute)], Verb::Check));
    assert_eq!(bench.remaining(), [Some(0)]);
    assert!(!bench.ask(&[with(&list, 5, Unit::Minute)], Verb::Check));
    assert_eq!(bench.left("k=1"), 5);
    assert!(bench.ask(&[with(&list, 5, Unit::Hour)], Verb::Check), "another unit: another count");
    assert_eq!((bench.left("k=1"), charged(&bench, "k")), (5, (5, 0)));
    // Twice in one request: with one limit both are charged; two limits cannot share one count.
    assert!(
        bench.ask(&[with(&list, 10, Unit::Minute), without(&list, Hits::Take(2))], Verb::Check)
    );
    assert_eq!((bench.left("k=1"), charged(&bench, "k")), (2, (8, 0)));
    for asks in [
        [with(&list, 9, Unit::Minute), without(&list, Hits::Take(1))],
        [without(&list, Hits::Take(1)), with(&list, 9, Unit::Minute)],
        [with(&list, 8, Unit::Minute), with(&list, 9, Unit::Minute)],
        [with(&list, 8, Unit::Hour), with(&list, 9, Unit::Hour)],
    ] {
        let error = bench.try_ask(&asks, Verb::Check).unwrap_err().to_string();
        assert!(error.starts_with("a descriptor appears twice, with limits of"), "{error}");
    }
    assert_eq!(bench.left("k=1"), 2, "nothing was charged");
    // The reference counts an override by its value where values share a count.
    assert!(bench.ask(&[without(&shared, Hits::Take(9))], Verb::Check));
    assert!(bench.ask(&[with(&shared, 1, Unit::Minute)], Verb::Check));
    assert_eq!(bench.left("w=ab"), 1);
}
