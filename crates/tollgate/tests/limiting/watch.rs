//! Counts, observers, the denial log, health and snapshots.

use crate::support::*;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tollgate::{
    Algorithm, Answer, Bypass, Clock, Decision, Limiter, Outcome, Quota,
    watch::{DenialLog, Event, Health, Observer, Verb},
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
    assert!(event.is_enforced && !event.watched().is_enforced);
    log.decided(&event);
    log.decided(&event.watched());
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

#[cfg(feature = "metrics")]
#[test]
fn metrics_are_counted_by_limiter_and_outcome() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};
    use tollgate::watch::MetricsObserver;
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || {
        let (clock, _hand) = Clock::manual();
        let builder = Limiter::builder(Quota::per_second(5)).clock(clock);
        let observer = Arc::new(MetricsObserver::new("api"));
        let limiter = builder.observer(Arc::clone(&observer)).build().unwrap();
        let _ = (limiter.try_acquire_n(3), limiter.try_acquire_n(3), limiter.try_acquire_n(9));
        let denied = limiter.peek_n(3);
        observer.decided(&Event::new("api", Verb::TryAcquire, &denied).watched());
    });
    let mut seen: Vec<_> = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .map(|(key, _, _, value)| {
            let labels: Vec<_> = key
                .key()
                .labels()
                .map(|label| format!("{}={}", label.key(), label.value()))
                .collect();
            let DebugValue::Counter(value) = value else { panic!("not a counter") };
            format!("{}{{{}}} {value}", key.key().name(), labels.join(","))
        })
        .collect();
    seen.sort();
    assert_eq!(
        seen,
        [
            "tollgate_decisions_total{limiter=api,outcome=allowed} 1",
            "tollgate_decisions_total{limiter=api,outcome=denied_later} 1",
            "tollgate_decisions_total{limiter=api,outcome=denied_never} 1",
            "tollgate_decisions_total{limiter=api,outcome=shadow_denied_later} 1",
            "tollgate_decisions_total{limiter=api,outcome=shadow_denied_never} 0",
            "tollgate_permits_total{limiter=api,outcome=allowed} 3",
            "tollgate_permits_total{limiter=api,outcome=denied_later} 3",
            "tollgate_permits_total{limiter=api,outcome=denied_never} 9",
            "tollgate_permits_total{limiter=api,outcome=shadow_denied_later} 3",
            "tollgate_permits_total{limiter=api,outcome=shadow_denied_never} 0",
        ]
    );
}

#[cfg(feature = "tracing")]
#[test]
fn denials_are_events_on_the_current_span() {
    use tollgate::watch::TracingObserver;
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
        let limiter = builder.observer(TracingObserver).build().unwrap();
        let _inside = tracing::info_span!("request").entered();
        let denied = (limiter.try_acquire(), limiter.try_acquire()).1;
        TracingObserver.decided(&Event::new("api", Verb::TryAcquire, &denied).watched());
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
