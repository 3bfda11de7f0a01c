//! Reservations, by all modes.

use super::bench::{Bench, ask, entries};
use std::{sync::atomic::Ordering::SeqCst, time::Duration};
use tollgate::testing::block_on;
use tollgate_server::engine::{Answer, Code, Hits, Request, Ticket, Verb};

const LIFE: Verb = Verb::Reserve(Duration::from_secs(60));

const RULES: &str = "descriptors:
  - key: t
    rate_limit: {name: t, unit: hour, requests_per_unit: 100}
    descriptors:
      - {key: u, parents: [t], rate_limit: {unit: hour, requests_per_unit: 50}}
  - {key: s, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: a, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: b, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 30}}
";

fn settle(bench: &Bench, actual: &[u64]) -> Result<bool, String> {
    let ticket: Ticket = bench.answer.ticket().unwrap().to_string().parse().unwrap();
    block_on(bench.engine.settle(&ticket, actual)).map_err(|error| error.to_string())
}

#[test]
fn parents_are_settled_with_their_children() {
    let mut bench = Bench::new(RULES);
    assert!(bench.verb(&[("t=1|u=1", Hits::Take(20))], LIFE));
    assert_eq!(settle(&bench, &[7]), Ok(true));
    assert_eq!((bench.left("t=1"), bench.left("t=1|u=1")), (93, 43));
}

#[test]
fn quotas_are_reserved_where_one_has_room() {
    let mut bench = Bench::new(RULES);
    assert!(bench.verb(&[("a=1", Hits::Take(10)), ("b=1", Hits::Take(10))], LIFE));
    assert_eq!(bench.codes(), [Code::QuotaSpent, Code::Allowed]);
    assert_eq!(settle(&bench, &[4, 4]), Ok(true));
    assert_eq!((bench.left("a=1"), bench.left("b=1")), (2, 26));
    assert!(!bench.verb(&[("a=1", Hits::Take(40)), ("b=1", Hits::Take(40))], LIFE));
    assert_eq!(bench.codes(), [Code::Denied, Code::Denied]);
    assert_eq!(bench.answer.ticket(), None);
}

#[test]
fn a_shadow_alone_is_decided() {
    let mut bench = Bench::new(RULES);
    assert!(bench.verb(&[("s=1", Hits::Take(4))], LIFE));
    assert_eq!((bench.codes(), bench.remaining()), (vec![Code::Allowed], vec![Some(1)]));
    assert!(bench.verb(&[("s=1", Hits::Take(4))], LIFE));
    assert_eq!(bench.codes(), [Code::Shadowed]);
}

/// The last had no limit, and so could not be settled.
#[test]
fn each_ask_has_its_cost_whether_a_limit_applies_or_not() {
    let mut bench = Bench::new(RULES);
    let asks = [("none=1", Hits::Take(9)), ("t=1", Hits::Take(9)), ("none=2", Hits::Take(9))];
    assert!(bench.verb(&asks, LIFE));
    assert_eq!(settle(&bench, &[1, 2, 3]), Ok(true));
    assert_eq!(bench.left("t=1"), 98);
    assert!(bench.verb(&asks, LIFE));
    assert!(settle(&bench, &[1, 2]).is_err());
    assert_eq!(settle(&bench, &[5]), Ok(true), "one for all");
    assert_eq!(bench.left("t=1"), 93);
    assert!(bench.verb(&asks[1..2], LIFE));
    let error = settle(&bench, &[1, 2]).unwrap_err();
    assert!(error.contains("2 costs, but the number of reserved limits is 1;"), "{error}");
}

#[test]
fn a_store_that_fails_to_settle_refund_or_reset_is_counted() {
    let mut bench = Bench::new(
        "stores: {away: {memory: {}}}
descriptors:
  - {key: t, store: away, rate_limit: {unit: hour, requests_per_unit: 100}}
",
    );
    assert!(bench.verb(&[("t=1", Hits::Take(20))], LIFE));
    bench.fails.store(true, SeqCst); // ORDERING: SeqCst. A test.
    assert!(settle(&bench, &[7]).is_err());
    assert_eq!(bench.engine.health().errors(), 1);
    let (entries, mut answer) = (entries("t=1"), Answer::new());
    let asks = [ask(&entries, Hits::Take(1))];
    let request = Request { domain: "d", asks: &asks, verb: Verb::Check };
    let (plan, now) = (bench.engine.plan_arc(), bench.engine.now());
    assert!(block_on(bench.engine.refund(&plan, now, &request, &mut answer)).is_err());
    assert_eq!(bench.engine.health().errors(), 2);
    assert!(block_on(bench.engine.reset(&plan, now, &request, &mut answer)).is_err());
    assert_eq!(bench.engine.health().errors(), 3);
}
