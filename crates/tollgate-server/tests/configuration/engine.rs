//! The decisions of the engine, independent of the protocol.

mod adaptive;
mod bounds;
mod in_flight;

use std::time::Duration;
use tollgate::{Clock, ManualClock, store::MemoryStore, testing::block_on};
use tollgate_rig::quota_changes;
use tollgate_server::{
    config::{Config, Unit},
    engine::{AdHocLimit, Answer, Ask, Backend, Code, Engine, Hits, Request, Subject, Verb},
    plan::{Counted, Entry, Plan},
};

struct Bench {
    engine: Engine,
    hand: ManualClock,
    answer: Answer,
}

impl Bench {
    fn new(yaml: &str) -> Self {
        let (clock, hand) = Clock::manual();
        let store =
            || Backend::Memory(MemoryStore::builder().clock(clock.clone()).build().unwrap());
        let plan = plan(yaml, None);
        let stores = (0..=plan.config().stores.len()).map(|_| store()).collect();
        Self { engine: Engine::new(plan, stores), hand, answer: Answer::new() }
    }

    fn ask(&mut self, asks: &[Ask<'_>], verb: Verb) -> bool {
        let (plan, now) = (self.engine.plan_arc(), self.engine.now());
        let request = Request { domain: "d", asks, verb };
        block_on(self.engine.decide(&plan, now, &request, &mut self.answer)).unwrap();
        self.answer.is_allowed()
    }

    /// Checks descriptors, each written as `key=value|key=value`.
    fn check(&mut self, descriptors: &[&str]) -> bool {
        self.check_n(descriptors, Hits::Take(1))
    }

    fn check_n(&mut self, descriptors: &[&str], hits: Hits) -> bool {
        let entries: Vec<Vec<Entry<'_>>> = descriptors.iter().map(|text| entries(text)).collect();
        let asks: Vec<_> = entries.iter().map(|entries| ask(entries, hits)).collect();
        self.ask(&asks, Verb::Check)
    }

    fn codes(&self) -> Vec<Code> {
        self.answer.statuses().iter().map(|status| status.code).collect()
    }

    fn remaining(&self) -> Vec<Option<u64>> {
        let (plan, now) = (self.engine.plan_arc(), self.engine.now());
        let statuses = self.answer.statuses().iter();
        statuses
            .map(|at| self.answer.report_at(&plan, at, now).map(|told| told.remaining))
            .collect()
    }

    /// Checks until it is refused, and returns how many passed.
    fn drain(&mut self, descriptors: &[&str]) -> usize {
        (0..200).take_while(|_| self.check(descriptors)).count()
    }

    fn load(&self, yaml: &str) {
        let old = self.engine.plan_arc();
        self.engine.install(plan(yaml, Some(&old)));
    }
}

fn plan(yaml: &str, old: Option<&Plan>) -> Plan {
    let config = Config::from_text("test.yaml", &format!("domain: d\n{yaml}"));
    Plan::compile(config.unwrap_or_else(|errors| panic!("{errors}")), old).unwrap()
}

fn entries(text: &str) -> Vec<Entry<'_>> {
    text.split('|')
        .map(|part| part.split_once('=').unwrap())
        .map(|(k, v)| Entry::new(k, v))
        .collect()
}

fn ask<'a>(entries: &'a [Entry<'a>], hits: Hits) -> Ask<'a> {
    Ask { subject: Subject::Entries(entries), hits, limit: None }
}

#[test]
fn descriptors_meet_their_rules_as_in_the_reference() {
    let mut bench = Bench::new(
        "descriptors:
  - {key: k, value: exact, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: k, value: 'ex*', rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: k, value: 'e*', share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 4}}
  - {key: net, cidr: [10.0.0.0/8, '2001:db8::/32'], rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: re, regex: '^v[0-9]+$', rate_limit: {unit: hour, requests_per_unit: 6}}
  - key: a
    value: x
    descriptors:
      - {key: b, rate_limit: {unit: hour, requests_per_unit: 7}}
  - key: deep
    rate_limit: {unit: hour, requests_per_unit: 8}
    descriptors:
      - {key: er, value: er, rate_limit: {unit: hour, requests_per_unit: 9}}
",
    );
    // descriptor, how many pass
    for (descriptor, expected) in [
        ("k=exact", 1),
        ("k=exactly", 2),
        ("k=exit", 2), // a count of its own
        ("k=eager", 3),
        ("k=early", 0), // shares the count of the pattern
        ("k=other", 4),
        ("k=", 4),
        ("net=10.1.2.3", 5),
        ("net=::ffff:10.9.9.9", 5),
        ("net=2001:db8::1", 5),
        ("re=v12", 6),
        ("a=x|b=1", 7),
        ("deep=1", 8),
        ("deep=1|er=er", 9),
    ] {
        assert_eq!(bench.drain(&[descriptor]), expected, "{descriptor}");
    }
    for passes in ["net=11.1.2.3", "net=nonsense", "re=w1", "a=x", "a=y|b=1", "a=x|c=1", "none=1"] {
        assert!(bench.check(&[passes]), "{passes}");
        assert_eq!(bench.remaining(), [None], "{passes}");
        assert_eq!(bench.codes(), [Code::Unlimited], "{passes}");
    }
}

#[test]
fn a_refused_request_charges_nothing() {
    let mut bench = Bench::new(
        "descriptors:
  - {key: broad, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: narrow, rate_limit: {unit: hour, requests_per_unit: 2}}
",
    );
    assert_eq!(bench.drain(&["broad=1", "narrow=1"]), 2);
    assert_eq!(bench.codes(), [Code::Allowed, Code::Denied]);
    assert_eq!(bench.drain(&["broad=1"]), 8, "refusals took nothing from the broad limit");
}

#[test]
fn the_switch_charges_refusals_as_the_reference_does() {
    let mut bench = Bench::new(
        "defaults: {count_refused: true}
descriptors:
  - {key: broad, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: narrow, rate_limit: {unit: hour, requests_per_unit: 2}}
",
    );
    assert_eq!((0..5).filter(|_| bench.check(&["broad=1", "narrow=1"])).count(), 2);
    assert_eq!(bench.drain(&["broad=1"]), 5, "each request was charged");
}

/// As Envoy does with costs that are known at the end of a response: look first, report then.
#[test]
fn what_is_reported_beyond_the_limit_refuses_the_next_look() {
    for algorithm in ["fixed-window", "gcra", "sliding-counter", "sliding-log"] {
        let mut bench = Bench::new(&format!(
            "defaults: {{algorithm: {algorithm}}}
descriptors:
  - {{key: tokens, count_refused: true, rate_limit: {{unit: hour, requests_per_unit: 10}}}}
"
        ));
        assert!(bench.check_n(&["tokens=1"], Hits::Take(8)), "{algorithm}");
        assert!(bench.check_n(&["tokens=1"], Hits::Take(0)), "{algorithm}");
        assert!(!bench.check_n(&["tokens=1"], Hits::Take(5)), "{algorithm}: 13 of 10");
        assert!(!bench.check_n(&["tokens=1"], Hits::Take(0)), "{algorithm}: spent");
    }
}

#[test]
fn a_fixed_window_is_aligned_and_starts_over() {
    let mut bench = Bench::new(
        "descriptors:\n  - {key: k, rate_limit: {unit: minute, requests_per_unit: 3}}\n",
    );
    bench.hand.advance(Duration::from_secs(45));
    assert_eq!(bench.drain(&["k=1"]), 3);
    let (plan, now) = (bench.engine.plan_arc(), bench.engine.now());
    let told = bench.answer.report(&plan, now).unwrap();
    assert_eq!((told.limit, told.unit()), (3, Some(Unit::Minute)));
    let wait = told.retry_after.unwrap();
    assert!(wait <= Duration::from_secs(60), "{wait:?}");
    bench.hand.advance(wait - Duration::from_nanos(1));
    assert!(!bench.check(&["k=1"]));
    bench.hand.advance(Duration::from_nanos(1));
    assert_eq!(bench.drain(&["k=1"]), 3);
}

#[test]
fn what_remains_is_never_more_than_the_capacity_that_is_told() {
    let mut bench = Bench::new(
        "descriptors:\n  - {key: k, rate_limit: {quota: 10/s burst 20, algorithm: gcra}}\n",
    );
    assert!(bench.check(&["k=1"]));
    let (plan, now) = (bench.engine.plan_arc(), bench.engine.now());
    let told = bench.answer.report(&plan, now).unwrap();
    assert_eq!((told.limit, told.count, told.remaining), (20, 10, 19));
}

#[test]
fn several_limits_on_one_descriptor_are_one_decision() {
    let mut bench = Bench::new(
        "descriptors:
  - key: k
    rate_limits:
      - {name: second, quota: 2/s, algorithm: gcra}
      - {name: hour, unit: hour, requests_per_unit: 5}
",
    );
    assert_eq!(bench.drain(&["k=1"]), 2);
    bench.hand.advance(Duration::from_secs(1));
    assert_eq!(bench.drain(&["k=1"]), 2);
    bench.hand.advance(Duration::from_secs(1));
    assert_eq!(bench.drain(&["k=1"]), 1, "the hour's limit");
    let (plan, now) = (bench.engine.plan_arc(), bench.engine.now());
    assert_eq!(bench.answer.report(&plan, now).unwrap().policy, "hour");
}

#[test]
fn shadow_mode_reports_and_lets_pass() {
    let mut bench = Bench::new(
        "descriptors:
  - {key: s, shadow_mode: true, rate_limit: {name: s, unit: hour, requests_per_unit: 2}}
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 4}}
",
    );
    assert_eq!(bench.drain(&["s=1", "k=1"]), 4);
    let plan = bench.engine.plan_arc();
    let counts = plan.rule(plan.named("s").unwrap()).live().counts();
    assert_eq!((counts.of(Counted::Allowed), counts.of(Counted::Shadowed)), (2, 3));
}

#[test]
fn quota_mode_refuses_only_together() {
    let mut bench = Bench::new(
        "descriptors:
  - {key: a, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: b, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 4}}
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 5}}
",
    );
    assert!(bench.check(&["a=1", "b=1"]) && bench.check(&["a=1", "b=1"]));
    assert!(bench.check(&["a=1", "b=1"]));
    assert_eq!(bench.codes(), [Code::QuotaSpent, Code::Allowed]);
    assert!(bench.check(&["a=1", "b=1"]));
    assert!(!bench.check(&["a=1", "b=1"]));
    assert_eq!(bench.codes(), [Code::Denied, Code::Denied]);
    assert_eq!(bench.drain(&["k=1"]), 5);
    assert!(!bench.check(&["a=2", "b=2", "k=1"]), "a limit in force refuses alone");
    assert_eq!(bench.drain(&["a=2", "b=2"]), 4);
}

#[test]
fn hits_can_be_zero_many_or_given_back() {
    let mut bench =
        Bench::new("descriptors:\n  - {key: k, rate_limit: {unit: hour, requests_per_unit: 10}}\n");
    assert!(bench.check_n(&["k=1"], Hits::Take(0)));
    assert_eq!(bench.remaining(), [Some(10)]);
    assert!(bench.check_n(&["k=1"], Hits::Take(7)));
    assert_eq!(bench.remaining(), [Some(3)]);
    assert!(!bench.check_n(&["k=1"], Hits::Take(4)));
    assert!(bench.check_n(&["k=1"], Hits::Give(2)));
    assert_eq!((bench.remaining(), bench.answer.given()), (vec![Some(5)], 2));
    assert!(bench.check_n(&["k=1"], Hits::Give(100)));
    assert_eq!(bench.remaining(), [Some(10)], "no more than was taken");
}

#[test]
fn a_limit_can_come_with_the_request() {
    let mut bench =
        Bench::new("descriptors:\n  - {key: k, rate_limit: {unit: hour, requests_per_unit: 10}}\n");
    let list = entries("k=1");
    let with = |count| {
        let limit = Some(AdHocLimit { count, unit: Unit::Minute });
        [Ask { subject: Subject::Entries(&list), hits: Hits::Take(1), limit }]
    };
    let passed = (0..9).filter(|_| bench.ask(&with(3), Verb::Check)).count();
    assert_eq!(passed, 3);
    assert!(bench.ask(&with(5), Verb::Check), "the count goes on under another limit");
    assert!(!bench.ask(&with(0), Verb::Check));
    assert_eq!(bench.drain(&["k=1"]), 10, "the configured limit is another one");
}

#[test]
fn parents_are_charged_once_and_refuse_too() {
    let mut bench = Bench::new(
        "descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: hour, requests_per_unit: 5}
    descriptors:
      - key: user
        parents: [tenant]
        rate_limit: {name: user, unit: hour, requests_per_unit: 3}
",
    );
    assert_eq!(bench.drain(&["tenant=a|user=1"]), 3);
    assert_eq!(bench.drain(&["tenant=a|user=2"]), 2, "what the tenant has left");
    assert_eq!(bench.drain(&["tenant=b|user=1", "tenant=b|user=2"]), 3, "one event, charged once");
    assert!(
        bench.check(&["tenant=b"]) && bench.check(&["tenant=b"]) && !bench.check(&["tenant=b"])
    );
}

#[test]
fn names_replaces_overrides_and_percentages() {
    let mut bench = Bench::new(
        "descriptors:
  - {key: a, rate_limit: {name: basic, unit: hour, requests_per_unit: 1}}
  - {key: b, rate_limit: {name: vip, unit: hour, requests_per_unit: 3, replaces: [{name: basic}]}}
  - key: o
    rate_limit: {unit: hour, requests_per_unit: 1}
    overrides: [{value: big, requests_per_unit: 4}, {values: [free, gratis], unlimited: true}]
  - {key: half, enforce: 50%, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: zero, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: all, rate_limit: {unlimited: true}}
",
    );
    assert_eq!(bench.drain(&["a=1", "b=1"]), 3, "basic does not apply");
    assert_eq!(bench.drain(&["o=small"]), 1);
    assert_eq!(bench.drain(&["o=big"]), 4);
    assert_eq!(bench.drain(&["o=free"]), 200);
    assert!(!bench.check(&["zero=1"]));
    assert!(bench.check(&["all=1"]));
    let keys: Vec<_> = (0..200).map(|key| format!("half={key}")).collect();
    let mut enforced = 0;
    for key in &keys {
        let is_enforced = bench.drain(&[key]) == 1;
        // A layer selects the same keys: `layers/limit.rs` of tollgate-tower.
        let value = key.trim_start_matches("half=");
        assert_eq!(is_enforced, tollgate_tower::key::rollout_place([value]) < 50, "{key}");
        enforced += u64::from(is_enforced);
    }
    assert!((70..=130).contains(&enforced), "{enforced} of 200 keys are enforced");
}

#[test]
fn counts_survive_a_reload() {
    let yaml = |unit: &str, count: u64| {
        format!(
            "descriptors:\n  - {{key: k, rate_limit: {{name: k, unit: {unit}, requests_per_unit: {count}}}}}\n"
        )
    };
    let mut bench = Bench::new(&yaml("hour", 10));
    assert!(bench.check_n(&["k=1"], Hits::Take(8)));
    bench.load(&yaml("hour", 10));
    assert_eq!(bench.drain(&["k=1"]), 2, "an unchanged rule goes on");
    bench.load(&yaml("hour", 20));
    assert_eq!(bench.drain(&["k=1"]), 10, "what is used stays used");
    bench.load(&yaml("day", 30));
    assert_eq!(bench.drain(&["k=1"]), 30, "windows of another length start anew");
    let plan = bench.engine.plan_arc();
    assert_eq!(plan.version(), 4);
    assert_eq!(plan.rules()[0].live().counts().of(Counted::Allowed), 1 + 2 + 10 + 30);
}

/// The table of docs/keys.md.
#[test]
fn an_exhausted_key_passes_next_as_documented_after_a_reload() {
    for change in quota_changes() {
        let [before, after] = change.quotas.each_ref().map(|quota| {
            let limit = format!("{{quota: {quota}, algorithm: {}}}", change.algorithm);
            format!("descriptors:\n  - {{key: k, rate_limit: {limit}}}\n")
        });
        let mut bench = Bench::new(&before);
        while bench.check(&["k=1"]) {}
        bench.load(&after);
        if change.wait > Duration::ZERO {
            assert!(!bench.check(&["k=1"]), "{change:?}");
            bench.hand.advance(change.wait - Duration::from_nanos(1));
            assert!(!bench.check(&["k=1"]), "{change:?}: too early");
            bench.hand.advance(Duration::from_nanos(1));
        }
        assert!(bench.check(&["k=1"]), "{change:?}: too late");
    }
}

#[test]
fn blocks_overrides_and_bypasses_end_by_themselves() {
    let mut bench = Bench::new(
        "descriptors:\n  - {key: k, rate_limit: {name: k, unit: hour, requests_per_unit: 3}}\n",
    );
    let plan = bench.engine.plan_arc();
    let rule = plan.rule(0);
    let now = bench.engine.now();
    let until = now.saturating_add(Duration::from_secs(9));
    bench
        .engine
        .overlay()
        .change((rule, b"1"), now, |key| key.blocked_until = Some(until))
        .unwrap();
    assert!(!bench.check(&["k=1"]));
    assert_eq!(bench.codes(), [Code::Blocked]);
    let told = bench.answer.report(&plan, now).unwrap();
    assert_eq!(told.retry_after, Some(Duration::from_secs(9)));
    assert!(bench.check(&["k=2"]), "another key is not");
    bench.hand.advance(Duration::from_secs(9));
    assert_eq!(bench.drain(&["k=1"]), 3);
    rule.live().bypass_until(bench.engine.now().saturating_add(Duration::from_secs(5)));
    assert!(bench.check(&["k=1"]));
    assert_eq!(bench.codes(), [Code::Bypassed]);
    bench.hand.advance(Duration::from_secs(5));
    assert!(!bench.check(&["k=1"]));
}

#[test]
fn who_is_refused_again_and_again_is_blocked() {
    let mut bench = Bench::new(
        "descriptors:
  - key: k
    ban: {after: 3, within: 1m, for: 30s, most: 1h}
    rate_limit: {quota: 1/s, algorithm: gcra}
",
    );
    assert!(bench.check(&["k=1"]));
    assert!((0..3).all(|_| !bench.check(&["k=1"])));
    bench.hand.advance(Duration::from_secs(29));
    assert!(!bench.check(&["k=1"]), "its permit is back, and it is blocked");
    assert_eq!(bench.codes(), [Code::Blocked]);
    bench.hand.advance(Duration::from_secs(1));
    assert!(bench.check(&["k=1"]));
}

#[test]
fn reservations_are_settled_by_their_ticket() {
    let mut bench = Bench::new(
        "descriptors:
  - {key: a, rate_limit: {name: a, unit: hour, requests_per_unit: 100}}
  - {key: b, rate_limit: {name: b, unit: hour, requests_per_unit: 50}}
",
    );
    let keys: [&[u8]; 1] = [b"1"];
    let named = |policy| Ask {
        subject: Subject::Named { policy, keys: &keys },
        hits: Hits::Take(40),
        limit: None,
    };
    let life = Verb::Reserve(Duration::from_secs(60));
    assert!(bench.ask(&[named("a"), named("b")], life));
    let ticket = bench.answer.ticket().unwrap().clone();
    assert!(!bench.ask(&[named("b")], Verb::Check));
    let again: tollgate_server::engine::Ticket = ticket.to_string().parse().unwrap();
    assert_eq!(again, ticket);
    assert!(block_on(bench.engine.settle(&ticket, &[10, 0])).unwrap());
    assert!(!block_on(bench.engine.settle(&ticket, &[10, 0])).unwrap(), "only once");
    assert_eq!(bench.drain(&["a=1"]), 90);
    assert_eq!(bench.drain(&["b=1"]), 50);
    let forged = format!("0-1{}", &ticket.to_string()[3..]);
    let forged = block_on(bench.engine.settle(&forged.parse().unwrap(), &[0]));
    assert_eq!(forged, Ok(false), "nobody can guess a ticket");
}

#[test]
fn stores_of_their_own_are_charged_all_or_none() {
    let mut bench = Bench::new(
        "stores: {other: {}}
descriptors:
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: b, store: other, rate_limit: {unit: hour, requests_per_unit: 3}}
",
    );
    assert_eq!(bench.drain(&["a=1", "b=1"]), 3);
    assert_eq!(bench.drain(&["a=1"]), 7, "what the refused request took was given back");
}

#[test]
fn an_ad_hoc_quota_needs_no_rule() {
    let bench = Bench::new("descriptors: []\n");
    let quota = tollgate::Quota::per(10, Duration::from_secs(10)).burst(3);
    let (plan, now) = (bench.engine.plan_arc(), bench.engine.now());
    let take = |cost| block_on(bench.engine.throttle((&plan, now), b"k", quota, cost)).unwrap();
    assert_eq!(take(2).remaining(), 1);
    assert!(take(2).is_denied());
    let left = block_on(bench.engine.lives(now, b"k")).unwrap();
    assert_eq!(left, Some(Duration::from_secs(2)));
    assert!(block_on(bench.engine.forget(now, b"k")).unwrap());
    assert!(!block_on(bench.engine.forget(now, b"k")).unwrap());
    assert_eq!(take(0).remaining(), 3);
}
