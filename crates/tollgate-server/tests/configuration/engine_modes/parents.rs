//! Which limits are charged, and how often.

use super::bench::{Bench, entries};
use tollgate::testing::block_on;
use tollgate_server::{
    config::Unit,
    engine::{AdHocLimit, Ask, Hits, Request, RequestError, Subject, Verb},
};

const TENANTS: &str = "descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: hour, requests_per_unit: 100}
    descriptors:
      - key: user
        parents: [tenant]
        rate_limit: {name: user, unit: hour, requests_per_unit: 50}
      - key: vip
        rate_limit: {name: vip, unit: hour, requests_per_unit: 50, replaces: [{name: user}]}
";

/// It depended on their order.
#[test]
fn a_parent_that_is_asked_too_is_charged_once() {
    for order in [["tenant=a", "tenant=a|user=1"], ["tenant=a|user=1", "tenant=a"]] {
        let mut bench = Bench::new(TENANTS);
        let [first, second] = order;
        let hits = |text: &str| Hits::Take(if text.contains("user") { 5 } else { 2 });
        assert!(bench.verb(&[(first, hits(first)), (second, hits(second))], Verb::Check));
        assert_eq!(bench.left("tenant=a"), 95, "{order:?}");
        assert_eq!(bench.left("tenant=a|user=1"), 45, "{order:?}");
    }
}

#[test]
fn the_same_descriptor_twice_is_charged_twice() {
    let mut bench = Bench::new(TENANTS);
    assert!(bench.verb(&[("tenant=a", Hits::Take(3)), ("tenant=a", Hits::Take(4))], Verb::Check));
    assert_eq!(bench.left("tenant=a"), 93);
    let all = [("tenant=a", Hits::Take(u64::MAX)), ("tenant=a", Hits::Take(u64::MAX))];
    assert!(!bench.verb(&all, Verb::Check));
    assert!(!bench.verb(&all, Verb::Peek));
    assert_eq!(bench.left("tenant=a"), 93);
}

/// The parent was given back to, and what was taken was forgotten.
#[test]
fn a_parent_is_charged_and_given_back_to_in_one_request() {
    for turned in [false, true] {
        let mut bench = Bench::new(TENANTS);
        assert!(bench.verb(&[("tenant=a|user=1", Hits::Take(20))], Verb::Check));
        let mut both = [("tenant=a|user=1", Hits::Give(5)), ("tenant=a|user=2", Hits::Take(3))];
        if turned {
            both.reverse();
        }
        assert!(bench.verb(&both, Verb::Check));
        assert_eq!(bench.left("tenant=a|user=1"), 35);
        assert_eq!(bench.left("tenant=a|user=2"), 47);
        assert_eq!(bench.left("tenant=a"), 82, "20 - 5 + 3 are used");
    }
}

#[test]
fn parents_of_a_replaced_limit_are_not_charged() {
    let mut bench = Bench::new(TENANTS);
    assert!(bench.check(&["tenant=a|user=1", "tenant=a|vip=1"]));
    assert_eq!(bench.left("tenant=a|user=1"), 50);
    assert_eq!(bench.left("tenant=a|vip=1"), 49);
    assert_eq!(bench.left("tenant=a"), 100);
}

#[test]
fn to_look_at_a_gift_is_to_look_at_nothing() {
    let mut bench = Bench::new(TENANTS);
    assert!(bench.verb(&[("tenant=a", Hits::Take(99))], Verb::Check));
    assert!(bench.verb(&[("tenant=a", Hits::Give(2))], Verb::Peek));
    assert_eq!(bench.left("tenant=a"), 1);
}

fn with_limit<'a>(entries: &'a [tollgate_server::plan::Entry<'a>], count: u64) -> Ask<'a> {
    let limit = Some(AdHocLimit { count, unit: Unit::Hour });
    Ask { subject: Subject::Entries(entries), hits: Hits::Take(1), limit }
}

/// A shift by more than 63 it was.
#[test]
fn more_than_64_limits_are_an_error_wherever_they_come_from() {
    let mut bench = Bench::new(TENANTS);
    let list = entries("tenant=a|user=1");
    let texts: Vec<_> = (0..63).map(|index| format!("x={index}")).collect();
    let others: Vec<_> = texts.iter().map(|text| entries(text)).collect();
    let mut asks = vec![Ask { subject: Subject::Entries(&list), hits: Hits::Take(1), limit: None }];
    asks.extend(others.iter().map(|other| with_limit(other, 5)));
    assert_eq!(bench.try_ask(&asks, Verb::Check), Err(RequestError::TooMany { count: 65 }));
    asks.pop();
    assert_eq!(bench.try_ask(&asks, Verb::Check), Ok(true));
}

/// The store could not decide it, so that all of the request passed.
#[test]
fn one_descriptor_with_two_limits_of_the_request_opens_nothing() {
    let mut bench = Bench::new(TENANTS);
    let (list, tenant) = (entries("k=1"), entries("tenant=a"));
    let spent = Ask { subject: Subject::Entries(&tenant), hits: Hits::Take(101), limit: None };
    let asks = [with_limit(&list, 1), with_limit(&list, 2), spent];
    assert_ne!(bench.try_ask(&asks, Verb::Check), Ok(true));
    assert_eq!(bench.engine.health().errors(), 0);
    assert!(bench.ask(&[with_limit(&list, 2), with_limit(&list, 2)], Verb::Check));
}

/// To reset a user set the tenant free.
#[test]
fn to_reset_a_child_is_not_to_reset_its_parents() {
    let mut bench = Bench::new(TENANTS);
    assert!(bench.verb(&[("tenant=a|user=1", Hits::Take(20))], Verb::Check));
    let list = entries("tenant=a|user=1");
    let asks = [Ask { subject: Subject::Entries(&list), hits: Hits::Take(1), limit: None }];
    let request = Request { domain: "d", asks: &asks, verb: Verb::Check };
    let (plan, now) = (bench.engine.plan_arc(), bench.engine.now());
    block_on(bench.engine.reset(&plan, now, &request, &mut bench.answer)).unwrap();
    assert_eq!((bench.left("tenant=a|user=1"), bench.left("tenant=a")), (50, 80));
}
