//! The reports that observers of a rate limit layer receive.

use crate::{away::Away, heard::Heard};
use http::{Request, Response};
use std::{
    convert::Infallible,
    sync::{Arc, Mutex, atomic::Ordering::SeqCst},
    time::Duration,
};
use tollgate::{
    Clock, Quota,
    observe::{DenialLog, Event, Health, KeyForm, Observer, TracingObserver},
    store::MemoryStore,
};
use tollgate_tower::{Charge, Mode, Policy, RateLimitBuilder, RateLimitLayer, key::Key};
use tower::ServiceExt;
use tower_layer::Layer;

async fn answer(
    _: Request<()>,
) -> Result<Response<http_body_util::Empty<bytes::Bytes>>, Infallible> {
    Ok(Response::default())
}

async fn ask(layer: &RateLimitLayer, user: &str) -> u16 {
    let request = Request::get("/").header("x-user", user).body(()).unwrap();
    let response = layer.layer(tower::service_fn(answer)).oneshot(request).await.unwrap();
    response.status().as_u16()
}

fn builder() -> RateLimitBuilder {
    let (clock, _hand) = Clock::manual();
    RateLimitLayer::builder().memory(MemoryStore::builder().clock(clock).build().unwrap())
}

/// Records its events.
#[derive(Clone, Debug, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Observer for Notes {
    fn decided(&self, event: &Event<'_>) {
        let Event { name, decision, is_enforced, .. } = event;
        let (verb, passes) = (event.verb.name(), decision.is_allowed());
        self.0.lock().unwrap().push(format!("{name} {verb} {passes} {is_enforced}"));
    }
}

impl Notes {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

#[tokio::test]
async fn an_observer_hears_of_what_was_charged_and_of_what_refused() {
    let notes = Notes::default();
    let layer = builder()
        .policy(Policy::new("all", Quota::once(2)))
        .policy(
            Policy::new("each", Quota::once(1))
                .key(Key::header("x-user"))
                .tier("gold", Quota::once(9))
                .tier_by(|info| (info.headers()["x-user"] == "gold").then_some(0)),
        )
        .policy(Policy::new("new", Quota::once(1)).mode(Mode::Shadow))
        .observer(notes.clone())
        .build()
        .unwrap();
    for (user, status, heard) in [
        (
            "a",
            200,
            &[
                "all try_acquire true true",
                "each try_acquire true true",
                "new try_acquire true false",
            ][..],
        ),
        ("a", 429, &["each try_acquire false true"]),
        (
            "gold",
            200,
            &[
                "all try_acquire true true",
                "each/gold try_acquire true true",
                "new try_acquire false false",
            ],
        ),
        ("gold", 429, &["all try_acquire false true"]),
    ] {
        assert_eq!(ask(&layer, user).await, status);
        assert_eq!(notes.take(), heard);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_is_heard_of_once() {
    let notes = Notes::default();
    let memory = MemoryStore::builder().clock(Clock::tokio()).build().unwrap();
    let layer = RateLimitLayer::builder()
        .memory(memory)
        .policy(Policy::new("p", Quota::per_second(1)))
        .wait_up_to(Duration::from_secs(5))
        .observer(notes.clone())
        .build()
        .unwrap();
    assert_eq!((ask(&layer, "a").await, ask(&layer, "a").await), (200, 200));
    assert_eq!(notes.take(), ["p try_acquire true true", "p acquire true true"]);
}

#[tokio::test]
async fn a_reservation_is_heard_of_as_such() {
    let notes = Notes::default();
    let policy = Policy::new("p", Quota::once(1)).charge(Charge::on_failure());
    let layer = builder().policy(policy).observer(notes.clone()).build().unwrap();
    assert_eq!(ask(&layer, "a").await, 200);
    assert_eq!(notes.take(), ["p reserve true true"]);
}

#[tokio::test]
async fn requests_are_counted_by_policy_and_outcome() {
    let store = Away::new(MemoryStore::new());
    let layer = RateLimitLayer::builder()
        .store(store.clone())
        .policy(Policy::new("each", Quota::once(1)).key(Key::header("x-user")))
        .policy(Policy::new("new", Quota::once(1)).mode(Mode::Shadow))
        .counted()
        .build()
        .unwrap();
    for number in 0..100 {
        assert_eq!(ask(&layer, &format!("user-{number}")).await, 200);
    }
    assert_eq!(ask(&layer, "user-7").await, 429);
    assert_eq!(ask(&layer, "").await, 403);
    store.is_down.store(true, SeqCst);
    assert_eq!(ask(&layer, "user-8").await, 200);
    let each = layer.counts("each").unwrap();
    assert_eq!((each.decisions.allowed, each.decisions.denied_never), (100, 1));
    assert_eq!((each.no_key, each.store_errors, each.shadow.denied()), (1, 1, 0));
    let new = layer.counts("new").unwrap();
    assert_eq!((new.decisions.allowed, new.decisions.denied(), new.shadow.denied()), (1, 0, 99));
    assert_eq!(new.store_errors, 0, "a policy in shadow mode is not asked after a failure");
    assert_eq!(layer.counts("other"), None);
}

#[tokio::test]
async fn failures_are_counted_and_decisions_only_by_choice() {
    let store = Away::new(MemoryStore::new());
    let policy = Policy::new("p", Quota::once(9));
    let layer = RateLimitLayer::builder().store(store.clone()).policy(policy).build().unwrap();
    assert_eq!(ask(&layer, "a").await, 200);
    store.is_down.store(true, SeqCst);
    assert_eq!(ask(&layer, "a").await, 200);
    let counts = layer.counts("p").unwrap();
    assert_eq!((counts.store_errors, counts.decisions.decided()), (1, 0));
    assert_eq!(layer.health("p"), Some(Health::Unknown));
}

#[tokio::test]
async fn a_policy_that_denies_95_of_100_requests_is_unhealthy() {
    let (clock, hand) = Clock::manual();
    let memory = MemoryStore::builder().clock(clock).build().unwrap();
    let layer = RateLimitLayer::builder()
        .memory(memory)
        .policy(Policy::new("p", Quota::once(5)))
        .counted()
        .build()
        .unwrap();
    assert_eq!(layer.health("p"), Some(Health::Unknown));
    // decisions until the next look, seconds until then, the result
    for (requests, seconds, expected) in [
        (99, 10, Health::Unknown), // too few
        (100, 9, Health::Unknown), // too early
        (0, 1, Health::Denying { denied_percent: 100 }),
        (99, 10, Health::Unknown),
    ] {
        for _ in 0..requests {
            let _ = ask(&layer, "a").await;
        }
        hand.advance(Duration::from_secs(seconds));
        assert_eq!(layer.health("p"), Some(expected), "{requests} in {seconds} s");
    }
    assert_eq!(layer.health("other"), None);
}

#[test]
fn one_denial_in_a_hundred_is_logged_with_key_quota_and_level() {
    let by_name = || {
        Key::from_fn(|info, key| {
            info.headers().get("x-user").inspect(|name| key.push(name.as_bytes())).is_some()
        })
    };
    let heard = Heard::during(|| {
        let policy = Policy::new("p", Quota::per_hour(1)).key(by_name());
        let log = |log: DenialLog| log.sample_one_in(100).show_key(KeyForm::Plain).show_level();
        let layer = builder().policy(policy).log_denials_with(Duration::ZERO, log);
        let layer = layer.build().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for _ in 0..102 {
                let _ = ask(&layer, "alice").await;
            }
        });
    });
    let line = |left_out: u64, more: &str| {
        format!(
            "WARN message=denied by \"p\": cost 1 of 1, retry after 3600s, key alice, quota 1/h, \
             0 left{more} limiter=p cost=1 limit=1 key=alice quota=1/h retry_after_ms=3600000 \
             never=false enforced=true left_out={left_out}"
        )
    };
    assert_eq!(heard, [line(0, ""), line(99, " (99 more since the last line)")]);
}

#[test]
fn span_events_show_keys_by_choice() {
    for (observer, expected) in [
        (TracingObserver::new(), None),
        (TracingObserver::new().show_key(KeyForm::Plain), Some(" key=#")),
        (TracingObserver::new().show_key(KeyForm::Hashed), Some(" key=")),
    ] {
        let heard = Heard::during(|| {
            let policy = Policy::new("p", Quota::once(1)).key(Key::header("x-user"));
            let layer = builder().policy(policy).observer(observer).build().unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                assert_eq!((ask(&layer, "a").await, ask(&layer, "a").await), (200, 429));
            });
        });
        let [_, denied] = &heard[..] else { panic!("{heard:?}") };
        assert_eq!(denied.contains(" key="), expected.is_some(), "{denied}");
        assert!(expected.is_none_or(|key| denied.contains(key)), "{denied}");
    }
}
