//! If a bound of a store is reached, it denies, regardless of the failure policies.

use super::{Bench, ask, entries, plan};
use std::{sync::Arc, time::Duration};
use tollgate::{
    Clock, Quota,
    store::{MemoryStore, MemoryStoreBuilder, Operation, Policy, Store, StoreError, forward_store},
};
use tollgate_server::{
    config::{Rate, Unit},
    engine::{AdHocLimit, Answer, Ask, Backend, Code, Engine, Hits, Subject, Verb},
    plan::{Counted, Kind},
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A bench whose store has other bounds.
fn bench(yaml: &str, bounds: impl FnOnce(MemoryStoreBuilder) -> MemoryStoreBuilder) -> Bench {
    let (clock, hand) = Clock::manual();
    let store = bounds(MemoryStore::builder().clock(clock)).build().unwrap();
    let engine = Engine::new(plan(yaml, None), vec![Backend::Memory(store)]);
    Bench { engine, hand, answer: Answer::new() }
}

fn reserve(bench: &mut Bench, descriptor: &str, cost: u64) -> Code {
    let entries = entries(descriptor);
    bench.ask(&[ask(&entries, Hits::Take(cost))], Verb::Reserve(DAY));
    bench.codes()[0]
}

#[test]
fn a_bound_refuses_whatever_the_failure_policy_says() {
    let limit = "rate_limit: {unit: day, requests_per_unit: 5}";
    let rules: String = ["open", "closed", "local"]
        .map(|failure| format!("  - {{key: {failure}, failure: {failure}, {limit}}}\n"))
        .concat();
    let yaml = format!(
        "descriptors:\n{rules}  - {{key: quota, quota_mode: true, {limit}}}\n  - {{key: shadow, shadow_mode: true, {limit}}}\n"
    );
    let mut bench = bench(&yaml, |store| store.max_reservations(2));
    // Whoever fills the store needs no permit for it.
    assert_eq!(reserve(&mut bench, "open=flood", 0), Code::Allowed);
    assert_eq!(reserve(&mut bench, "open=flood", 0), Code::Allowed);
    for (row, key) in ["open", "closed", "local", "quota"].into_iter().enumerate() {
        let descriptor = format!("{key}=k");
        for cost in [0, 1] {
            assert_eq!(reserve(&mut bench, &descriptor, cost), Code::Full, "row {row}");
            assert!(!bench.answer.is_allowed() && bench.answer.ticket().is_none(), "row {row}");
            let bound = bench.answer.bound().unwrap();
            assert!(bound.contains("max_reservations"), "row {row}: {bound}");
            assert!(!bench.answer.is_degraded(), "row {row}: the store has answered");
        }
        assert_eq!(bench.drain(&[&descriptor]), 5, "row {row}: a check is decided by its quota");
        assert_eq!(bench.answer.bound(), None, "row {row}");
    }
    // A rule that is not enforced reserves nothing, so it meets no bound.
    assert_eq!(reserve(&mut bench, "shadow=k", 1), Code::Allowed);
    let plan = bench.engine.plan_arc();
    let counted = |at: usize| plan.rules()[at].live().counts().of(Counted::Full);
    assert_eq!([0, 1, 2, 3, 4].map(counted), [2, 2, 2, 2, 0]);
    let health = bench.engine.health();
    assert_eq!((health.bounds_reached(), health.errors()), (8, 0));
    assert!(health.last_bound().unwrap().1.contains("max_reservations"));
    bench.hand.advance(DAY);
    assert_eq!(reserve(&mut bench, "open=k", 1), Code::Allowed, "their lives are over");
}

/// A store that rejects every call as invalid.
struct Senseless(MemoryStore);

impl Senseless {
    async fn run<T>(
        &self,
        _operation: Operation,
        _call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        Err(StoreError::invalid("no quota for this"))
    }
}

impl Store for Senseless {
    forward_store!(self => &self.0, through run);
}

#[test]
fn a_call_that_the_store_can_make_no_sense_of_does_not_pass() {
    let yaml = "descriptors:\n  - {key: k, failure: open, rate_limit: {unit: day, requests_per_unit: 5}}\n";
    let store = Backend::Other(Arc::new(Senseless(MemoryStore::new())));
    let engine = Engine::new(plan(yaml, None), vec![store]);
    let mut bench = Bench { engine, hand: Clock::manual().1, answer: Answer::new() };
    assert!(!bench.check(&["k=a"]));
    assert_eq!(bench.codes(), [Code::FailedClosed]);
}

/// Rules with distinct quotas.
fn distinct(rules: std::ops::Range<u64>) -> String {
    let rule = |number: u64| {
        format!(
            "  - {{key: k, value: v{number}, rate_limit: {{unit: day, requests_per_unit: {number}}}}}\n"
        )
    };
    format!("descriptors:\n{}", rules.map(rule).collect::<String>())
}

#[test]
fn rules_have_any_number_of_quotas_and_each_is_enforced() {
    const RULES: u64 = 5000;
    let mut bench = Bench::new(&distinct(1..RULES + 1));
    for number in 1..=RULES {
        let text = format!("k=v{number}");
        let entries = entries(&text);
        assert!(bench.ask(&[ask(&entries, Hits::Take(number))], Verb::Check), "{number}");
        assert!(!bench.ask(&[ask(&entries, Hits::Take(1))], Verb::Check), "{number}");
    }
}

#[test]
fn a_storm_of_reloads_with_fresh_quotas_is_loaded_and_limits() {
    let bench = &mut Bench::new(&distinct(1..2));
    for round in 0..30_u64 {
        let first = round * 100 + 2;
        bench.load(&distinct(first..first + 100));
        for number in first..first + 100 {
            assert!(bench.check(&[&format!("k=v{number}")]), "{round}: {number} was not used yet");
        }
    }
    let entries = entries("k=v2902");
    assert!(bench.ask(&[ask(&entries, Hits::Take(2901))], Verb::Check));
    assert!(!bench.ask(&[ask(&entries, Hits::Take(1))], Verb::Check));
}

#[test]
fn any_number_of_overrides_have_quotas_of_their_own() {
    let mut bench = Bench::new(
        "descriptors:\n  - {key: k, failure: open, rate_limit: {unit: day, requests_per_unit: 9}}\n",
    );
    let plan = bench.engine.plan_arc();
    let (rule, now) = (&plan.rules()[0], bench.engine.now());
    for number in 1..=3000_u64 {
        let policy = Policy::new(rule.id(), Quota::per_day(number)).unwrap();
        let rate = Rate::Counted { count: number, per: DAY, unit: Some(Unit::Day), burst: None };
        let kind = Kind::Counted { policy, rate };
        let key = format!("key-{number}");
        let end = now.saturating_add(DAY);
        let how =
            |special: &mut tollgate_server::engine::Special| special.limit = Some((kind, end));
        bench.engine.overlay().change((rule, key.as_bytes()), now, how).unwrap();
    }
    for number in 1..=3000_u64 {
        let text = format!("k=key-{number}");
        let entries = entries(&text);
        assert!(bench.ask(&[ask(&entries, Hits::Take(number))], Verb::Check), "{number}");
        assert!(!bench.ask(&[ask(&entries, Hits::Take(1))], Verb::Check), "{number}");
    }
    assert_eq!(bench.drain(&["k=other"]), 9, "the rule has its own still");
    assert_eq!(bench.engine.health().bounds_reached(), 0);
}

#[test]
fn limits_that_come_with_a_request_need_no_quota_of_their_own() {
    let mut bench = Bench::new("descriptors: []\n");
    for count in 1..=3000_u64 {
        let text = format!("k=v{count}");
        let entries = entries(&text);
        let limit = Some(AdHocLimit { count, unit: Unit::Day });
        let ask =
            |hits| [Ask { subject: Subject::Entries(&entries), hits: Hits::Take(hits), limit }];
        assert!(bench.ask(&ask(count), Verb::Check), "{count}");
        assert!(!bench.ask(&ask(1), Verb::Check), "{count}");
    }
    assert_eq!(bench.engine.health().bounds_reached(), 0);
}
