//! Bounds of a store that are reached: they refuse, whatever the failure policies say.

use super::{Bench, ask, entries, plan};
use std::{sync::Arc, time::Duration};
use tollgate::{
    Clock, Quota,
    store::{MemoryStore, MemoryStoreBuilder, Policy, StoreError},
    testing::{Around, Call, StoreFuture, block_on},
};
use tollgate_server::{
    config::{Config, Rate, Unit},
    engine::{AdHocLimit, Answer, Ask, Backend, Code, Engine, Hits, Subject, Verb},
    plan::{Counted, Kind, Plan},
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

/// A store that can make no sense of a call.
struct Senseless(MemoryStore);

impl Around for Senseless {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.0
    }

    async fn run<T: Send>(&self, _call: Call, _work: impl StoreFuture<T>) -> Result<T, StoreError> {
        Err(StoreError::invalid("no quota for this"))
    }
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

/// Rules with a quota of its own each.
fn distinct(rules: std::ops::Range<u64>) -> String {
    let rule = |number: u64| {
        format!(
            "  - {{key: k, value: v{number}, rate_limit: {{unit: day, requests_per_unit: {number}}}}}\n"
        )
    };
    format!("descriptors:\n{}", rules.map(rule).collect::<String>())
}

fn compile(yaml: &str) -> Result<Plan, String> {
    let config = Config::from_text("shop.yaml", &format!("domain: d\n{yaml}")).unwrap();
    Plan::compile(config, None).map_err(|error| error.to_string())
}

#[test]
fn rules_beyond_the_quotas_of_a_store_are_errors_that_name_the_rule() {
    // 2047 less one for each unit, for limits that come with a request, and one for CL.THROTTLE.
    let most = 2047 - 7 - 1;
    let mut bench = Bench::new(&distinct(1..most + 1));
    assert!(compile(&distinct(1..most + 1)).is_ok());
    // The rules begin in the third line.
    for rules in [most + 1, 3000] {
        let error = compile(&distinct(1..rules + 1)).unwrap_err();
        let line = most + 3;
        let start = format!("shop.yaml:{line}:");
        let policy =
            format!("of policy \"d:k=v{}\" is one too many: a store holds 2047 distinct", most + 1);
        assert!(error.starts_with(&start) && error.contains(&policy), "{error}");
    }
    // Rules that share their quotas are as many as one likes.
    let same = "descriptors:\n".to_owned()
        + &(0..5000)
            .map(|it| format!("  - {{key: k, value: v{it}, rate_limit: {{unit: day, requests_per_unit: {}}}}}\n", it % 9 + 1))
            .collect::<String>();
    assert!(compile(&same).is_ok());
    // In Redis there is no such bound, unless a rule decides here when that is away.
    for (failure, is_good) in [("open", true), ("closed", true), ("local", false)] {
        let server = "server: {store: 'redis://127.0.0.1:1'}\n";
        let yaml = format!("{server}defaults: {{failure: {failure}}}\n{}", distinct(1..3001));
        assert_eq!(compile(&yaml).is_ok(), is_good, "{failure}");
    }
    // Those that fit are all limited, each on its own.
    for number in [1, 2, 1024, 1025, most] {
        let descriptor = format!("k=v{number}");
        let passed = (0..=most).take_while(|_| bench.check(&[&descriptor])).count() as u64;
        assert_eq!(passed, number);
    }
}

#[test]
fn a_storm_of_reloads_with_fresh_quotas_is_refused_and_never_lets_pass() {
    let mut bench = Bench::new(&distinct(1..2));
    let mut refused = 0;
    for round in 0..30_u64 {
        let first = round * 100 + 2;
        let before = bench.engine.plan_arc();
        let new = plan(&distinct(first..first + 100), Some(&before));
        match bench.engine.declare(&new) {
            Ok(()) => block_on(bench.engine.install(new)).unwrap(),
            Err(error) => {
                assert!(error.to_string().contains("an earlier configuration"), "{error}");
                refused += 1;
            }
        }
        // Keys of all rules in force are live, so that their quotas stay known.
        let plan = bench.engine.plan_arc();
        for rule in plan.rules() {
            let descriptor = rule.id().strip_prefix("d:").unwrap();
            assert!(bench.check(&[descriptor]), "{round}: {descriptor} was not used yet");
            if refused > 0 {
                break;
            }
        }
    }
    assert_eq!(refused, 10, "20 fit");
    // The last one that was loaded is in force, and limits.
    let passed = (0..3000).filter(|_| bench.check(&["k=v1902"])).count();
    assert_eq!(passed, 1902 - 11, "one has passed in each round since");
}

#[test]
fn an_override_without_room_for_its_quota_refuses() {
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
    let mut without = 0;
    for number in 1..=3000_u64 {
        let descriptor = format!("k=key-{number}");
        let first = bench.check(&[&descriptor]);
        match bench.codes()[0] {
            Code::Allowed => assert!(first),
            Code::Full => without += 1,
            other => panic!("{number}: {other:?}"),
        }
        assert_eq!(first, bench.codes()[0] == Code::Allowed);
        // Never above the override, and never by the rule instead of it.
        if number <= 3 {
            assert_eq!(bench.drain(&[&descriptor]) as u64, number - 1);
        }
    }
    assert!((900..1000).contains(&without), "{without}");
    assert_eq!(bench.drain(&["k=other"]), 9, "the rule has its own still");
    assert_eq!(bench.engine.health().bounds_reached(), without);
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
