//! What those hear who watch a layer that limits.

use crate::away::Away;
use http::{Request, Response};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, atomic::Ordering::SeqCst},
    time::Duration,
};
use tollgate::{
    Clock, Quota,
    store::MemoryStore,
    watch::{Event, Observer},
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

/// Notes what it hears.
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

/// Returns what was counted, by name and labels.
fn counted(snapshotter: &Snapshotter) -> BTreeMap<String, u64> {
    let all = snapshotter.snapshot().into_vec().into_iter();
    all.filter_map(|(key, _, _, value)| {
        let (_, key) = key.into_parts();
        let labels = key.labels().map(|label| format!(" {}", label.value()));
        match value {
            DebugValue::Counter(count @ 1..) => {
                Some((format!("{}{}", key.name(), labels.collect::<String>()), count))
            }
            _ => None,
        }
    })
    .collect()
}

#[test]
fn labels_are_bounded_whatever_clients_send() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let layer = builder()
                .policy(Policy::new("each", Quota::once(1)).key(Key::header("x-user")))
                .policy(Policy::new("new", Quota::once(1)).mode(Mode::Shadow))
                .metrics()
                .build()
                .unwrap();
            for number in 0..10_000 {
                assert_eq!(ask(&layer, &format!("user-{number}")).await, 200);
            }
            assert_eq!(ask(&layer, "user-7").await, 429);
            assert_eq!(ask(&layer, "").await, 403);
        });
    });
    let counted = counted(&snapshotter);
    for (name, expected) in [
        ("tollgate_decisions_total each allowed", 10_000),
        ("tollgate_decisions_total each denied_never", 1),
        ("tollgate_decisions_total new allowed", 1),
        ("tollgate_decisions_total new shadow_denied_never", 9_999),
        ("tollgate_no_key_total each", 1),
    ] {
        assert_eq!(counted.get(name), Some(&expected), "{name}: {counted:?}");
    }
    assert!(counted.len() <= 12, "{counted:?}");
}

#[test]
fn failures_of_the_store_are_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let store = Away::new(MemoryStore::new());
            let layer = RateLimitLayer::builder()
                .store(store.clone())
                .policy(Policy::new("p", Quota::once(9)))
                .metrics()
                .build()
                .unwrap();
            assert_eq!(ask(&layer, "a").await, 200);
            store.is_down.store(true, SeqCst);
            assert_eq!(ask(&layer, "a").await, 200);
        });
    });
    let counted = counted(&snapshotter);
    assert_eq!(counted.get("tollgate_store_errors_total p"), Some(&1), "{counted:?}");
    assert_eq!(counted.get("tollgate_decisions_total p allowed"), Some(&1), "{counted:?}");
}
