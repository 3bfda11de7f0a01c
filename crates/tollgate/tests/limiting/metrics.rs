//! Metrics of every type, through the registry and its outputs.

mod outputs;
mod parser;
mod registry;

use parser::parse;
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};
use tollgate::{
    Admission, Breaker, CallOutcome, Clock, Coalescer, Concurrency, Debouncer, Driver, Hierarchy,
    KeyedBreaker, KeyedConcurrency, KeyedDebouncer, KeyedLimiter, Limiter, ManualClock, Pacer,
    Quota, RetryBudget, RetryPolicy, StripedLimiter, Throttle, Trip,
    adaptive::{
        AdaptiveConcurrency,
        rate::{AdaptiveRate, StepRate},
    },
    hedge::HedgePolicy,
    hierarchy::Class,
    observe::{Collector, Health, Registry, Report},
    retry_sync,
    self_throttle::SelfThrottle,
};

/// Reads one collector alone.
fn reports(collector: &impl Collector) -> Vec<Report> {
    let registry = Registry::new();
    registry.add("it", collector).unwrap();
    parse(&registry.prometheus());
    registry.list()
}

/// A row: a report's name and kind, its counts as (metric, label, value), its gauges.
type Row<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str, u64)], &'a [(&'a str, f64)]);

fn check(collector: &impl Collector, rows: &[Row<'_>]) {
    let reports = reports(collector);
    for (name, kind, counts, gauges) in rows {
        let report = reports.iter().find(|report| report.name == *name);
        let report = report.unwrap_or_else(|| panic!("{name} in {reports:#?}"));
        assert_eq!(report.kind, *kind, "{name}");
        for (metric, label, expected) in *counts {
            assert_eq!(report.count(metric, label), Some(*expected), "{name}: {metric} {label}");
        }
        for (metric, expected) in *gauges {
            assert_eq!(report.gauge(metric), Some(*expected), "{name}: {metric}");
        }
    }
}

const DECISIONS: &str = "tollgate_decisions_total";
const PERMITS: &str = "tollgate_permits_total";
const LEVEL: &str = "tollgate_level";
const CAPACITY: &str = "tollgate_capacity";
const RATE: &str = "tollgate_rate";
const IN_FLIGHT: &str = "tollgate_in_flight";
const IN_FLIGHT_LIMIT: &str = "tollgate_in_flight_limit";
const WAITING: &str = "tollgate_waiting";
const KEYS: &str = "tollgate_keys";
const TRIGGERS: &str = "tollgate_triggers_total";
const RUNS: &str = "tollgate_runs_total";
const COALESCED: &str = "tollgate_coalesced_total";

#[test]
fn limiters_report_decisions_permits_level_and_rate() {
    let (clock, _hand) = Clock::manual();
    let limiter = Limiter::builder(Quota::per_minute(600).burst(20));
    let limiter = limiter.clock(clock.clone()).counted().build().unwrap();
    for cost in [5, 5, 0, 11, 21] {
        let _ = limiter.try_acquire_n(cost);
    }
    limiter.refund(2);
    check(
        &limiter,
        &[(
            "it",
            "limiter",
            &[
                (DECISIONS, "allowed", 3),
                (DECISIONS, "denied_later", 1),
                (DECISIONS, "denied_never", 1),
                (PERMITS, "allowed", 10),
                (PERMITS, "denied", 32),
                (PERMITS, "refunded", 2),
            ],
            &[(LEVEL, 12.0), (CAPACITY, 20.0), (RATE, 10.0), (WAITING, 0.0)],
        )],
    );
    let users = KeyedLimiter::<u32>::builder(Quota::per_second(2)).clock(clock.clone());
    let users = users.counted().build().unwrap();
    let passed = (0..30).filter(|call| users.try_acquire(&(call % 5)).is_allowed()).count();
    assert_eq!(passed, 10);
    check(
        &users,
        &[(
            "it",
            "keyed_limiter",
            &[(DECISIONS, "allowed", 10), (DECISIONS, "denied_later", 20)],
            &[(KEYS, 5.0), (RATE, 2.0)],
        )],
    );
    let striped = StripedLimiter::builder(Quota::per_second(100).burst(40)).stripes(4);
    let striped = striped.clock(clock).counted().build().unwrap();
    let passed = (0..50).filter(|_| striped.try_acquire().is_allowed()).count();
    assert_eq!(passed, 40);
    let _ = (striped.try_acquire_for("key"), striped.force(3));
    check(
        &striped,
        &[(
            "it",
            "striped_limiter",
            &[
                (DECISIONS, "allowed", 41),
                (DECISIONS, "denied_later", 11),
                ("tollgate_forced_total", "", 1),
            ],
            &[(LEVEL, 0.0), (CAPACITY, 40.0)],
        )],
    );
    assert_eq!(striped.counts().decided(), 52);
}

#[test]
fn trees_report_each_level_and_class() {
    let (clock, _hand) = Clock::manual();
    let strict = Hierarchy::strict("service", Quota::per_second(100))
        .level("user", Quota::per_second(2))
        .clock(clock.clone())
        .counted()
        .build()
        .unwrap();
    for _ in 0..3 {
        let _ = strict.try_acquire(&["alice"]).unwrap();
    }
    let denied = [(DECISIONS, "allowed", 2), (DECISIONS, "denied_later", 1)];
    check(
        &strict,
        &[
            ("it", "strict_tree", &[], &[]),
            // Each level counts its own answer: the root allows the third call, which "user" refuses.
            ("it/service", "limiter", &[(DECISIONS, "allowed", 3)], &[(LEVEL, 98.0)]),
            ("it/user", "keyed_limiter", &denied, &[(KEYS, 1.0)]),
        ],
    );
    let all = Quota::per_second(1000).burst(10);
    let borrowing = Hierarchy::borrowing("service", Class::new(all))
        .class("free", Class::new(Quota::per_second(300).burst(3)).ceiling(all))
        .clock(clock)
        .build()
        .unwrap();
    for _ in 0..11 {
        let _ = borrowing.try_acquire(&["free"]).unwrap();
    }
    let permits = [
        (PERMITS, "allowed", 10),
        (PERMITS, "denied", 1),
        ("tollgate_shared_permits_total", "borrowed", 7),
    ];
    let lent = [("tollgate_shared_permits_total", "lent", 7)];
    check(
        &borrowing,
        &[
            ("it", "borrowing_tree", &[], &[]),
            ("it/service", "class", &lent, &[(LEVEL, 0.0)]),
            ("it/free", "class", &permits, &[(LEVEL, 0.0), (CAPACITY, 3.0), (RATE, 300.0)]),
        ],
    );
}

#[test]
fn limits_on_calls_in_flight_report_slots_and_waits() {
    let (clock, hand) = Clock::manual();
    let limit = Concurrency::builder(1).max_waiting(5).clock(clock.clone()).counted();
    let limit = limit.build().unwrap();
    let held = limit.try_acquire().unwrap();
    assert!(limit.try_acquire().is_err());
    let mut waits = std::pin::pin!(limit.acquire());
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(waits.as_mut().poll(&mut context).is_pending());
    hand.advance(Duration::from_millis(3));
    let gauges = [(IN_FLIGHT, 1.0), (IN_FLIGHT_LIMIT, 1.0), (WAITING, 1.0)];
    let counts = [(DECISIONS, "allowed", 1), (DECISIONS, "denied", 1)];
    check(&limit, &[("it", "concurrency", &counts, &gauges)]);
    drop(held);
    assert!(waits.as_mut().poll(&mut context).is_ready());
    let registry = Registry::new();
    registry.add("it", &limit).unwrap();
    let text = parse(&registry.prometheus());
    let bucket = |le| text.value("tollgate_wait_seconds_bucket", &[("limiter", "it"), ("le", le)]);
    assert_eq!([bucket("0.002"), bucket("0.004"), bucket("+Inf")], [0.0, 1.0, 1.0]);
    assert_eq!(text.value("tollgate_wait_seconds_sum", &[("limiter", "it")]), 0.003);

    let keyed = KeyedConcurrency::<str>::builder(1).counted().build().unwrap();
    let _held = (keyed.try_acquire("a").unwrap(), keyed.try_acquire("b").unwrap());
    assert!(keyed.try_acquire("a").is_err());
    let counts = [(DECISIONS, "allowed", 2), (DECISIONS, "denied", 1)];
    check(&keyed, &[("it", "keyed_concurrency", &counts, &[(IN_FLIGHT, 2.0), (KEYS, 2.0)])]);

    let adaptive =
        AdaptiveConcurrency::over(limit, tollgate::adaptive::law::ProbingGradient::default());
    assert_eq!(reports(&adaptive)[0].kind, "adaptive_concurrency");
    assert_eq!(reports(&adaptive)[0].state, Some("starting"));
}

#[test]
fn flow_control_reports_what_was_merged_and_what_waits() {
    let hand = ManualClock::new();
    let ms = Duration::from_millis;
    let pacer = Pacer::builder(Quota::per_second(10)).capacity(2);
    let pacer = pacer.driver(Driver::manual(&hand)).start().unwrap();
    assert_eq!((0..5).filter(|_| pacer.slot().is_ok()).count(), 3);
    let counts = [(DECISIONS, "allowed", 3), (DECISIONS, "denied", 2)];
    check(&pacer, &[("it", "pacer", &counts, &[(WAITING, 2.0), (RATE, 10.0)])]);

    let debouncer = Debouncer::builder(ms(100)).driver(Driver::manual(&hand));
    let debouncer = debouncer.start(|_: tollgate::Fired<u32>| {}).unwrap();
    (0..5).for_each(|value| assert!(debouncer.trigger(value)));
    check(
        &debouncer,
        &[("it", "debouncer", &[(TRIGGERS, "", 5), (RUNS, "", 0)], &[(WAITING, 1.0)])],
    );
    hand.advance(ms(100));
    let merged = [(TRIGGERS, "", 5), (RUNS, "", 1), (COALESCED, "", 4)];
    check(&debouncer, &[("it", "debouncer", &merged, &[(WAITING, 0.0)])]);

    let throttle = Throttle::builder(ms(100)).leading().driver(Driver::manual(&hand));
    let throttle = throttle.start(|_: tollgate::Fired<u32>| {}).unwrap();
    (0..5).for_each(|value| assert!(throttle.trigger(value)));
    check(&throttle, &[("it", "throttle", &merged, &[])]);

    let keyed = KeyedDebouncer::builder(ms(100)).max_keys(2).driver(Driver::manual(&hand));
    let keyed = keyed.start(|_: &str, _: tollgate::Fired<u32>| {}).unwrap();
    for key in ["a", "b", "a", "c"] {
        let _ = keyed.trigger(key, 0);
    }
    let counts = [(TRIGGERS, "", 3), (DECISIONS, "denied", 1)];
    check(&keyed, &[("it", "keyed_debouncer", &counts, &[(KEYS, 2.0)])]);
    hand.advance(ms(100));
    check(&keyed, &[("it", "keyed_debouncer", &[(RUNS, "", 2), (COALESCED, "", 1)], &[])]);

    let coalescer = Coalescer::set().window(ms(50)).max_size(2).driver(Driver::manual(&hand));
    let coalescer = coalescer.start(|_: tollgate::Batch<&str, ()>| {}).unwrap();
    for key in ["a", "a", "a"] {
        coalescer.try_insert(key).unwrap();
    }
    check(&coalescer, &[("it", "coalescer", &[(TRIGGERS, "", 3), (RUNS, "", 0)], &[(KEYS, 1.0)])]);
    hand.advance(ms(50));
    check(&coalescer, &[("it", "coalescer", &[(RUNS, "", 1), (COALESCED, "", 2)], &[(KEYS, 0.0)])]);
}

#[test]
fn breakers_and_retries_report_states_and_reasons() {
    let (clock, _hand) = Clock::manual();
    let builder = || Breaker::builder().trip(Trip::consecutive(2)).clock(clock.clone());
    let breaker = builder().build().unwrap();
    drop(breaker.try_pass().unwrap());
    breaker.try_pass().unwrap().end(CallOutcome::Ignore);
    for outcome in [CallOutcome::Success, CallOutcome::Failure, CallOutcome::Failure] {
        breaker.try_pass().unwrap().end(outcome);
    }
    assert!(breaker.try_pass().is_err());
    let counts = [
        (DECISIONS, "allowed", 5),
        (DECISIONS, "denied", 1),
        ("tollgate_breaker_calls_total", "ignored", 2),
        ("tollgate_breaker_calls_total", "failure", 2),
        ("tollgate_breaker_opened_total", "", 1),
    ];
    check(&breaker, &[("it", "breaker", &counts, &[])]);
    assert_eq!(reports(&breaker)[0].state, Some("open"));
    let registry = Registry::new();
    registry.add("db", &breaker).unwrap();
    let text = parse(&registry.prometheus());
    let state =
        |state| text.value("tollgate_breaker_state", &[("limiter", "db"), ("state", state)]);
    assert_eq!((state("open"), state("closed")), (1.0, 0.0));

    let keyed: KeyedBreaker<str> = builder().build_keyed(10).unwrap();
    for (key, outcome) in [("a", CallOutcome::Failure), ("a", CallOutcome::Failure)] {
        keyed.try_pass(key).unwrap().end(outcome);
    }
    let _passed = keyed.try_pass("b").unwrap();
    assert!(keyed.try_pass("a").is_err());
    let counts = [(DECISIONS, "allowed", 3), (DECISIONS, "denied", 1)];
    check(&keyed, &[("it", "keyed_breaker", &counts, &[(KEYS, 2.0)])]);

    let retry = RetryPolicy::builder().max_attempts(1).build().unwrap();
    assert_eq!(retry_sync(&retry, || Err::<(), _>("down")), Err("down"));
    let counts = [("tollgate_retries_total", "out_of_attempts", 1)];
    let budget = [("tollgate_retry_budget_refused_total", "", 0)];
    check(
        &retry,
        &[("it", "retry_policy", &counts, &[]), ("it/budget", "retry_budget", &budget, &[])],
    );
    let budget = RetryBudget::builder().min_per_second(0).clock(clock.clone()).build().unwrap();
    assert!(!budget.try_withdraw());
    let refused = [("tollgate_retry_budget_refused_total", "", 1)];
    check(&budget, &[("it", "retry_budget", &refused, &[("tollgate_retry_budget", 0.0)])]);
    let hedge = HedgePolicy::after(Duration::from_millis(5)).clock(clock.clone()).build().unwrap();
    let _attempts = hedge.start(clock.now());
    check(&hedge, &[("it", "hedge_policy", &[("tollgate_hedges_total", "considered", 1)], &[])]);
    let throttle = SelfThrottle::builder().clock(clock).build().unwrap();
    throttle.try_pass(tollgate::Priority::NORMAL).unwrap().end(CallOutcome::Overload);
    let counts = [(DECISIONS, "allowed", 1), ("tollgate_overloaded_total", "", 1)];
    check(&throttle, &[("it", "self_throttle", &counts, &[("tollgate_refusal_probability", 0.0)])]);
}

#[test]
fn an_admission_reports_its_parts_and_an_adaptive_rate_its_rate() {
    let (clock, _hand) = Clock::manual();
    let rate = Limiter::builder(Quota::per_second(10)).clock(clock.clone()).counted();
    let rate = rate.build().unwrap();
    let limit = Concurrency::builder(1).counted().build().unwrap();
    let admission = Admission::new().rate(&rate).concurrency(&limit);
    let _permit = admission.try_acquire().unwrap();
    let allowed = [(DECISIONS, "allowed", 1)];
    check(
        &admission,
        &[
            ("it", "admission", &[], &[]),
            ("it/rate", "limiter", &allowed, &[(LEVEL, 9.0)]),
            ("it/concurrency", "concurrency", &allowed, &[(IN_FLIGHT, 1.0)]),
        ],
    );
    let law = StepRate::builder(5.0..=10.0).build().unwrap();
    let adaptive = AdaptiveRate::of_limiter(&rate, &limit, law).build().unwrap();
    check(&adaptive, &[("it", "adaptive_rate", &[], &[(RATE, 10.0)])]);
}

#[cfg(feature = "log")]
#[test]
fn a_log_throttle_reports_its_lines_and_reading_it_flushes_nothing() {
    let throttle = tollgate::log::LogThrottle::builder(Quota::per_second(1)).build().unwrap();
    let handle = throttle.handle();
    let lines = [("tollgate_log_lines_total", "passed", 0)];
    check(&handle, &[("it", "log_throttle", &lines, &[])]);
}

#[test]
fn an_uncounted_limiter_reports_its_level_and_no_decisions() {
    let limiter = Limiter::new(Quota::per_second(5)).unwrap();
    let _ = limiter.try_acquire();
    let report = &reports(&limiter)[0];
    assert_eq!((report.count(DECISIONS, "allowed"), report.gauge(CAPACITY)), (None, Some(5.0)));
    assert_eq!(report.health, Health::Unknown);
}

#[test]
fn the_text_of_metrics_has_every_decision_of_eight_threads() {
    let (clock, _hand) = Clock::manual();
    let limiter = Limiter::builder(Quota::per_second(1000)).clock(clock.clone()).counted();
    let users = KeyedLimiter::<u64>::builder(Quota::per_second(100)).clock(clock.clone()).counted();
    let striped = StripedLimiter::builder(Quota::per_second(1000)).clock(clock).counted();
    let (limiter, users) = (limiter.build().unwrap(), users.build().unwrap());
    let striped = striped.build().unwrap();
    let slots = Concurrency::builder(2).counted().build().unwrap();
    let registry = Registry::new();
    registry.add("limiter", &limiter).unwrap();
    registry.add("users", &users).unwrap();
    registry.add("striped", &striped).unwrap();
    registry.add("slots", &slots).unwrap();
    let allowed: [AtomicU64; 4] = Default::default();
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (limiter, users, striped, slots, allowed) =
                (&limiter, &users, &striped, &slots, &allowed);
            let registry = &registry;
            scope.spawn(move || {
                for call in 0..1000 {
                    let passed = [
                        limiter.try_acquire_n(call % 3).is_allowed(),
                        users.try_acquire(&(thread % 4)).is_allowed(),
                        striped.try_acquire().is_allowed(),
                        slots.try_acquire().is_ok(),
                    ];
                    for (count, passed) in allowed.iter().zip(passed) {
                        count.fetch_add(passed.into(), Relaxed);
                    }
                    if call % 500 == 0 {
                        parse(&registry.prometheus());
                    }
                }
            });
        }
    });
    let text = parse(&registry.prometheus());
    for (name, allowed) in ["limiter", "users", "striped", "slots"].iter().zip(&allowed) {
        let outcome = |outcome| {
            let labels = [("limiter", *name), ("outcome", outcome)];
            let series = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            text.values.get(&(DECISIONS.to_owned(), series)).copied().unwrap_or(0.0)
        };
        let denied = ["denied_later", "denied_never", "denied"].map(outcome).iter().sum::<f64>();
        let allowed = allowed.load(Relaxed) as f64;
        assert_eq!((outcome("allowed"), denied), (allowed, 8000.0 - allowed), "{name}");
    }
}

#[test]
fn a_table_of_keys_says_how_many_it_takes() {
    let limiter = || KeyedLimiter::<u64>::builder(Quota::per_second(1));
    let bounded = limiter().bounded(1000).build().unwrap();
    let capped = limiter().max_keys(5000).build().unwrap();
    let registry = Registry::new();
    registry.add("bounded", &bounded).unwrap();
    registry.add("capped", &capped).unwrap();
    let _ = capped.try_acquire(&1);
    let text = registry.prometheus();
    for line in [
        "tollgate_keys_limit{limiter=\"bounded\"} 1000",
        "tollgate_keys_limit{limiter=\"capped\"} 5000",
        "tollgate_keys{limiter=\"capped\"} 1",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn a_flood_of_keys_adds_no_series() {
    let users = KeyedLimiter::<u64>::builder(Quota::per_second(1)).bounded(1000).counted();
    let users = users.build().unwrap();
    let hosts: KeyedBreaker<u64> = Breaker::builder().build_keyed(100).unwrap();
    let slots = KeyedConcurrency::<u64>::builder(1).counted().build().unwrap();
    let registry = Registry::new();
    registry.add("users", &users).unwrap();
    registry.add("hosts", &hosts).unwrap();
    registry.add("slots", &slots).unwrap();
    let series = || parse(&registry.prometheus()).values.into_keys().collect::<Vec<_>>();
    let before = series();
    for key in 0..20_000 {
        let _ = (users.try_acquire(&key), slots.try_acquire(&key));
        let _ = hosts.try_pass(&(key % 1000));
    }
    assert_eq!(series(), before);
}
