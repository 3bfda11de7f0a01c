//! Counts, observers, the denial log, health and snapshots.

use crate::support::*;
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tollgate::{
    Algorithm, Answer, Bypass, Clock, Decision, KeyedLimiter, Limiter, Outcome, Quota, Tick,
    observe::{Counts, DenialLog, Event, EventKey, Health, HealthCheck, KeyForm, Observer, Verb},
};

fn counted(quota: &str) -> (Limiter, tollgate::ManualClock) {
    let (clock, hand) = Clock::manual();
    let builder = Limiter::builder(quota.parse().unwrap()).clock(clock).name("api");
    (builder.counted().build().unwrap(), hand)
}

#[test]
fn counts_by_outcome_and_cost() {
    let (limiter, _) = counted("10/s");
    let _ = (limiter.try_acquire_n(4), limiter.try_acquire_n(7), limiter.try_acquire_n(11));
    let _ = (limiter.up_to(100), limiter.force(5));
    limiter.reserve_within(1, Duration::ZERO).unwrap_err();
    assert_eq!(limiter.refund(3), 3);
    limiter.bypass(Bypass::On);
    let _ = limiter.try_acquire_n(2);
    let counts = limiter.counts();
    assert_eq!((counts.allowed, counts.allowed_cost), (4, 4 + 6 + 5 + 2));
    assert_eq!((counts.denied_later, counts.denied_never, counts.denied_cost), (2, 1, 7 + 11 + 1));
    assert_eq!((counts.bypassed, counts.forced, counts.refunded), (1, 1, 3));
    assert_eq!((counts.denied(), counts.decided()), (3, 7));
}

#[test]
fn counts_from_many_threads_add_up() {
    let (limiter, _) = counted("1000/s");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..1000).filter(|_| limiter.try_acquire().is_allowed()).count());
        }
    });
    let counts = limiter.counts();
    assert_eq!((counts.allowed, counts.denied()), (1000, 7000));
}

#[test]
fn an_uncounted_limiter_counts_nothing() {
    let (limiter, _) = manual(Algorithm::Gcra, "10/s");
    let _ = limiter.try_acquire();
    assert_eq!(limiter.counts().decided(), 0);
    assert_eq!(limiter.snapshot().counts, None);
    assert_eq!(limiter.health(), Health::Unknown);
}

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<(String, Verb, Outcome, u64)>>);

impl Observer for Recorder {
    fn decided(&self, event: &Event<'_>) {
        let decision = event.decision;
        let row = (event.name.to_owned(), event.verb, decision.outcome(), decision.cost());
        self.0.lock().unwrap().push(row);
    }
}

#[test]
fn an_observer_hears_of_every_decision_and_peeking_is_none() {
    let recorder = Arc::new(Recorder::default());
    let (clock, _hand) = Clock::manual();
    let limiter = Limiter::builder(Quota::per_second(2))
        .clock(clock)
        .name("api")
        .observer((Arc::clone(&recorder), Recorder::default()))
        .build()
        .unwrap();
    let _ = (limiter.peek(), limiter.try_acquire(), limiter.try_acquire_n(3), limiter.up_to(9));
    let _ = (limiter.try_acquire(), limiter.force(1));
    limiter.reserve(1).unwrap().keep();
    let rows: Vec<_> = recorder
        .0
        .lock()
        .unwrap()
        .iter()
        .map(|(_, verb, outcome, cost)| (*verb, *outcome, *cost))
        .collect();
    assert_eq!(
        rows,
        [
            (Verb::TryAcquire, Outcome::Allowed, 1),
            (Verb::TryAcquire, Outcome::Never, 3),
            (Verb::UpTo, Outcome::Allowed, 1),
            (Verb::TryAcquire, Outcome::Later, 1),
            (Verb::Force, Outcome::Allowed, 1),
            (Verb::Reserve, Outcome::Allowed, 1),
        ]
    );
}

#[test]
fn the_denial_log_writes_once_per_interval_and_says_what_it_left_out() {
    let (clock, hand) = Clock::manual();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let log = DenialLog::new(clock.clone(), Duration::from_secs(1), move |line| {
        sink.lock().unwrap().push(line.to_string());
    });
    let limiter =
        Limiter::builder("1/min".parse().unwrap()).clock(clock).name("api").observer(log).build();
    let limiter = limiter.unwrap();
    for _ in 0..5 {
        let _ = limiter.try_acquire();
    }
    hand.advance(Duration::from_secs(1));
    let _ = (limiter.try_acquire(), limiter.try_acquire_n(2));
    assert_eq!(
        *lines.lock().unwrap(),
        [
            "denied by \"api\": cost 1 of 1, retry after 60s",
            "denied by \"api\": cost 1 of 1, retry after 59s (3 more since the last line)",
        ]
    );
}

#[test]
fn the_denial_log_says_what_was_only_watched() {
    let (clock, _hand) = Clock::manual();
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let log = DenialLog::new(clock.clone(), Duration::ZERO, move |line| {
        sink.lock().unwrap().push(line.to_string());
    });
    let limiter = Limiter::builder("1/min".parse().unwrap()).clock(clock).build().unwrap();
    let _ = limiter.try_acquire();
    let denied = limiter.try_acquire();
    let event = Event::new("api", Verb::TryAcquire, &denied);
    assert!(event.is_enforced && !event.not_enforced().is_enforced);
    log.decided(&event);
    log.decided(&event.not_enforced());
    let at = denied.at();
    let (outcome, full_at) = (Outcome::Later, None);
    let (cost, limit, remaining) = (1, 5, 0);
    let full = Answer { outcome, at, cost, limit, remaining, retry_at: at, full_at };
    log.decided(&Event::new("slots", Verb::TryAcquire, &Decision::answered(full)));
    assert_eq!(
        *lines.lock().unwrap(),
        [
            "denied by \"api\": cost 1 of 1, retry after 60s",
            "would be denied by \"api\": cost 1 of 1, retry after 60s",
            "denied by \"slots\": cost 1 of 5",
        ]
    );
}

type Lines = Arc<Mutex<Vec<String>>>;

fn lines_of(clock: &Clock, every: Duration) -> (DenialLog, Lines) {
    let lines = Lines::default();
    let sink = Arc::clone(&lines);
    let log = DenialLog::new(clock.clone(), every, move |line| {
        sink.lock().unwrap().push(line.to_string());
    });
    (log, lines)
}

#[test]
fn the_denial_log_samples_one_in_a_hundred_and_counts_the_others() {
    let (clock, _hand) = Clock::manual();
    let (log, lines) = lines_of(&clock, Duration::ZERO);
    let builder = Limiter::builder("1/min".parse().unwrap()).clock(clock).name("api");
    let limiter = builder.observer(log.sample_one_in(100)).build().unwrap();
    for _ in 0..=301 {
        let _ = limiter.try_acquire();
    }
    let rest = "denied by \"api\": cost 1 of 1, retry after 60s";
    let more = format!("{rest} (99 more since the last line)");
    assert_eq!(*lines.lock().unwrap(), [rest, &more, &more, &more], "denials 1, 101, 201, 301");
}

#[test]
fn sampled_lines_and_those_left_out_add_up_to_all_denials_of_eight_threads() {
    let (clock, _hand) = Clock::manual();
    let (lines, left_out) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (line_sum, left_out_sum) = (Arc::clone(&lines), Arc::clone(&left_out));
    let log = DenialLog::new(clock.clone(), Duration::ZERO, move |line| {
        line_sum.fetch_add(1, Relaxed);
        left_out_sum.fetch_add(line.left_out, Relaxed);
    });
    let log = Arc::new(log.sample_one_in(10));
    let builder = Limiter::builder("1/min".parse().unwrap()).clock(clock);
    let limiter = builder.observer(Arc::clone(&log)).build().unwrap();
    let _ = limiter.try_acquire();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..1000).filter(|_| limiter.try_acquire().is_allowed()).count());
        }
    });
    // The last line may have come before others were left out: the next denial that is due reports
    // them.
    while lines.load(Relaxed) + left_out.load(Relaxed) != limiter.counts().denied() {
        assert!(limiter.counts().denied() < 8100, "a denial is lost");
        let _ = limiter.try_acquire();
    }
    assert!((800..=811).contains(&lines.load(Relaxed)), "{lines:?} of {:?}", limiter.counts());
}

#[test]
fn a_denial_line_shows_key_quota_and_level_by_choice() {
    let (clock, _hand) = Clock::manual();
    let (log, lines) = lines_of(&clock, Duration::ZERO);
    let log = log.show_key(KeyForm::Hashed).show_level();
    let users = KeyedLimiter::<str>::builder("2/min".parse().unwrap());
    let users = users.clock(clock.clone()).name("users").observer(log).build().unwrap();
    users.override_quota("vip", "4/min".parse().unwrap(), None).unwrap();
    for (key, cost) in [("alice", 1), ("alice", 2), ("bob", 3), ("alice", 2), ("vip", 5)] {
        let _ = users.try_acquire_n(key, cost);
    }
    let lines = lines.lock().unwrap();
    let (starts, rest): (Vec<_>, Vec<_>) =
        lines.iter().map(|line| line.split_once(", key ").unwrap()).unzip();
    let keys: Vec<_> = rest.iter().map(|rest| &rest[..16]).collect();
    assert_eq!((keys[0] == keys[2], keys[0] == keys[1]), (true, false), "{lines:?}");
    assert!(keys.iter().all(|key| key.bytes().all(|byte| byte.is_ascii_hexdigit())), "{keys:?}");
    let ends: Vec<_> = rest.iter().map(|rest| &rest[16..]).collect();
    assert_eq!(starts[0], "denied by \"users\": cost 2 of 2, retry after 30s");
    assert_eq!(
        ends,
        [
            ", quota 2/min, 1 left",
            ", quota 2/min, 2 left",
            ", quota 2/min, 1 left",
            ", quota 4/min, 4 left"
        ]
    );
}

#[test]
fn a_plain_key_is_one_line_whatever_it_contains() {
    let (clock, _hand) = Clock::manual();
    let (log, lines) = lines_of(&clock, Duration::ZERO);
    let log = log.show_key(KeyForm::Plain);
    let limiter = Limiter::builder("1/min".parse().unwrap()).clock(clock).build().unwrap();
    let denied = (limiter.try_acquire(), limiter.try_acquire()).1;
    let event = Event::new("api", Verb::TryAcquire, &denied);
    let long = "x".repeat(1000);
    for key in ["alice", "a\nb\u{1b}[31m", &long] {
        log.decided(&event.with_key(EventKey::Plain(&key)));
    }
    log.decided(&event);
    let lines = lines.lock().unwrap();
    assert!(lines[0].ends_with(", key alice"), "{}", lines[0]);
    assert!(lines[1].ends_with(r", key a\nb\u{1b}[31m"), "{}", lines[1]);
    assert!(lines[2].ends_with(&format!("s, key {}", "x".repeat(128))), "{}", lines[2]);
    assert!(!lines[3].contains("key"), "{}", lines[3]);
    let hashed = |key: &str| EventKey::Plain(&key).text(KeyForm::Hashed);
    assert_eq!(hashed("alice"), hashed("alice"));
    assert_ne!(hashed("alice"), hashed("bob"));
}

#[test]
fn a_keyed_limiter_is_judged_over_all_its_keys() {
    let (clock, hand) = Clock::manual();
    let users = KeyedLimiter::<u32>::builder("1/min".parse().unwrap());
    let users = users.clock(clock).counted().build().unwrap();
    assert_eq!(users.health(), Health::Unknown);
    for key in 0..5 {
        assert_eq!((0..20).filter(|_| users.try_acquire(&key).is_allowed()).count(), 1);
    }
    hand.advance(Duration::from_secs(10));
    assert_eq!(users.health(), Health::Denying { denied_percent: 95 });
    users.reserve(&1, 1).unwrap().keep();
    assert_eq!(users.waits().count(), 1);
}

#[test]
fn ninety_nine_decisions_are_too_few_to_judge() {
    // denied, allowed, the judgment at the next look
    for (denied, allowed, expected) in [
        (99, 0, Health::Unknown),
        (100, 0, Health::Denying { denied_percent: 100 }),
        (95, 5, Health::Denying { denied_percent: 95 }),
        (94, 6, Health::Healthy),
    ] {
        let (check, mut counts) = (HealthCheck::default(), Counts::default());
        assert_eq!(check.judge(Tick::ZERO, &counts), Health::Unknown);
        (counts.denied_never, counts.allowed) = (denied, allowed);
        assert_eq!(check.judge(Tick::from_secs(10), &counts), expected, "{denied} denied");
    }
}

#[test]
fn denying_nearly_everything_for_a_while_is_unhealthy() {
    let (limiter, hand) = counted("1/s");
    let look = |denials: u64, passes: u64| {
        hand.advance(Duration::from_secs(100));
        for _ in 0..passes {
            hand.advance(Duration::from_secs(1));
            assert!(limiter.try_acquire().is_allowed());
        }
        for _ in 0..denials {
            assert!(limiter.try_acquire_n(2).is_denied());
        }
        limiter.health()
    };
    assert_eq!(look(5, 5), Health::Unknown, "too few to tell");
    assert_eq!(look(50, 50), Health::Healthy);
    assert_eq!(look(98, 2), Health::Denying { denied_percent: 98 });
    assert!(limiter.health().is_unhealthy(), "asked again at once, it says the same");
    assert_eq!(look(10, 90), Health::Healthy);
}

#[test]
fn waits_of_reservations_are_counted() {
    let (limiter, _) = counted("10/s burst 1");
    for _ in 0..11 {
        limiter.reserve(1).unwrap().keep();
    }
    let waits = limiter.waits();
    assert_eq!(waits.count(), 11);
    assert!(waits.percentile(100).unwrap() >= Duration::from_secs(1));
    assert_eq!(waits.buckets().next(), Some((Duration::ZERO, 1)));
}

#[test]
fn a_snapshot_shows_quota_level_and_counts() {
    let (limiter, _) = counted("10/s burst 20");
    let _ = limiter.try_acquire_n(5);
    let reservation = limiter.reserve(5).unwrap();
    let snapshot = limiter.snapshot();
    assert_eq!((snapshot.name.as_str(), snapshot.algorithm), ("api", "gcra"));
    assert_eq!((snapshot.available, snapshot.capacity), (10, 20));
    assert_eq!((snapshot.full_at_ns, snapshot.open_reservations), (Some(1_000_000_000), 1));
    assert_eq!(snapshot.counts.map(|counts| counts.allowed), Some(2));
    reservation.keep();
}

#[cfg(feature = "serde")]
#[test]
fn a_snapshot_serialises() {
    let (limiter, _) = counted("10/s burst 20");
    let _ = limiter.try_acquire();
    let json = serde_json::to_value(limiter.snapshot()).unwrap();
    assert_eq!(json["quota"], "10/s burst 20");
    assert_eq!(json["available"], 19);
    assert_eq!(json["counts"]["allowed"], 1);
    assert_eq!(serde_json::to_value(limiter.health()).unwrap()["health"], "unknown");
}

#[cfg(feature = "serde")]
#[test]
fn a_quota_is_its_text_and_nonsense_is_refused() {
    let quota: Quota = serde_json::from_str("\"1000/min burst 50\"").unwrap();
    assert_eq!(quota, Quota::per_minute(1000).burst(50));
    assert_eq!(serde_json::to_string(&quota).unwrap(), "\"1000/min burst 50\"");
    for bad in ["\"5 per 0s\"", "\"fast\"", "7"] {
        assert!(serde_json::from_str::<Quota>(bad).is_err(), "{bad}");
    }
}

#[test]
fn denials_of_a_budget_that_never_refills_count_as_never() {
    let limiter = Limiter::builder(Quota::once(1)).counted().build().unwrap();
    let keys = KeyedLimiter::<str>::builder(Quota::once(1)).counted().build().unwrap();
    for _ in 0..3 {
        let _ = (limiter.try_acquire(), keys.try_acquire("alice"));
    }
    for counts in [limiter.counts(), keys.counts()] {
        assert_eq!((counts.allowed, counts.denied_later, counts.denied_never), (1, 0, 2));
    }
}

#[cfg(feature = "tracing")]
#[test]
fn denials_are_events_on_the_current_span() {
    use tollgate::observe::TracingObserver;
    use tracing_subscriber::{Layer, layer::Context, layer::SubscriberExt, registry::LookupSpan};

    struct Enforced(Option<bool>);
    impl tracing::field::Visit for Enforced {
        fn record_bool(&mut self, field: &tracing::field::Field, value: bool) {
            if field.name() == "enforced" {
                self.0 = Some(value);
            }
        }
        fn record_debug(&mut self, _: &tracing::field::Field, _: &dyn std::fmt::Debug) {}
    }
    #[derive(Clone, Default)]
    struct Events(Arc<Mutex<Vec<String>>>);
    impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Events {
        fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
            let span = context.event_span(event).map(|span| span.name().to_owned());
            let level = event.metadata().level();
            let mut enforced = Enforced(None);
            event.record(&mut enforced);
            let text = format!("{level} in {}, {:?}", span.unwrap_or_default(), enforced.0);
            self.0.lock().unwrap().push(text);
        }
    }
    let events = Events::default();
    let subscriber = tracing_subscriber::registry().with(events.clone());
    tracing::subscriber::with_default(subscriber, || {
        let (clock, _hand) = Clock::manual();
        let builder = Limiter::builder(Quota::per_second(1)).clock(clock).name("api");
        let limiter = builder.observer(TracingObserver::new()).build().unwrap();
        let _inside = tracing::info_span!("request").entered();
        let denied = (limiter.try_acquire(), limiter.try_acquire()).1;
        TracingObserver::new()
            .decided(&Event::new("api", Verb::TryAcquire, &denied).not_enforced());
    });
    assert_eq!(
        *events.0.lock().unwrap(),
        [
            "TRACE in request, Some(true)",
            "INFO in request, Some(true)",
            "INFO in request, Some(false)",
        ]
    );
}

/// Counts the events of each level.
#[cfg(feature = "tracing")]
#[derive(Clone, Default)]
struct Tally(Arc<Mutex<std::collections::BTreeMap<tracing::Level, u64>>>);

#[cfg(feature = "tracing")]
impl<S: tracing::Subscriber> tracing_subscriber::Layer<S> for Tally {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        *self.0.lock().unwrap().entry(*event.metadata().level()).or_default() += 1;
    }
}

#[test]
#[cfg(feature = "tracing")]
fn span_events_sample_one_denial_in_a_hundred_and_every_admission() {
    use tollgate::observe::TracingObserver;
    use tracing::Level;
    use tracing_subscriber::layer::SubscriberExt;

    for (one_in, denials_seen) in [(0, 302), (1, 302), (100, 4), (302, 1)] {
        let tally = Tally::default();
        let subscriber = tracing_subscriber::registry().with(tally.clone());
        tracing::subscriber::with_default(subscriber, || {
            let (clock, _hand) = Clock::manual();
            let observer = TracingObserver::new().sample_one_in(one_in);
            // A clone goes on counting: the sample is of both limiters together.
            let limiters = [observer.clone(), observer].map(|observer| {
                let builder = Limiter::builder("5/min".parse().unwrap()).clock(clock.clone());
                builder.observer(observer).build().unwrap()
            });
            for limiter in limiters {
                for _ in 0..156 {
                    let _ = limiter.try_acquire();
                }
            }
        });
        let seen = tally.0.lock().unwrap().clone();
        let expected = [(Level::INFO, denials_seen), (Level::TRACE, 10)];
        assert_eq!(seen, expected.into(), "one in {one_in}");
    }
}
