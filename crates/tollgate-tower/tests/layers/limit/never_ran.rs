//! Requests that pass and never run give back their charge.

use super::{answer, ask, one, request, status};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};
use tollgate::{Algorithm, Clock, ManualClock, Quota, store::MemoryStore};
use tollgate_tower::{Policy, RateLimitLayer};
use tower::{Service, ServiceExt};
use tower_layer::Layer;

#[tokio::test]
async fn what_never_ran_costs_nothing() {
    let ran = Arc::new(AtomicU64::new(0));
    let (layer, _hand) = one(Policy::new("p", Quota::per_minute(2)));
    let count = Arc::clone(&ran);
    let mut service = layer.layer(tower::service_fn(move |request| {
        count.fetch_add(1, SeqCst);
        answer(request)
    }));
    for _ in 0..10 {
        // Called, and dropped before the first poll.
        drop(service.ready().await.unwrap().call(request("/", "a")));
    }
    for _ in 0..10 {
        // Shed further in.
        let mut shed = request("/", "a");
        shed.headers_mut().insert("x-shed", "1".parse().unwrap());
        assert_eq!(ask(&layer, shed).await.status(), 200);
    }
    assert_eq!(status(&layer, "/", "a").await, 200);
    assert_eq!(status(&layer, "/", "a").await, 200);
    assert_eq!(status(&layer, "/", "a").await, 429);
}

/// On the fast path, on the general path, and with a store that decides when the future is polled.
fn ways_of(policy: &Policy) -> [(&'static str, RateLimitLayer, ManualClock); 3] {
    ["fast", "general", "shared"].map(|way| {
        let (clock, hand) = Clock::manual();
        let store = MemoryStore::builder().clock(clock).build().unwrap();
        let builder = RateLimitLayer::builder().policy(policy.clone());
        let builder = match way {
            "fast" => builder.memory(store),
            "general" => builder.memory(store).policy(Policy::new("more", Quota::per_day(1000))),
            _ => builder.store(store),
        };
        (way, builder.build().unwrap(), hand)
    })
}

#[tokio::test]
async fn a_future_that_is_dropped_unpolled_gives_back_its_permit() {
    for algorithm in Algorithm::ALL {
        let policy = Policy::new("p", Quota::per_minute(2)).algorithm(algorithm);
        for (way, layer, hand) in ways_of(&policy) {
            let mut service = layer.layer(tower::service_fn(answer));
            let row = format!("{algorithm:?}, {way}");
            // requests that ran before, milliseconds between a call and its drop
            for (ran, ms) in [(0, 0), (0, 1), (0, 700), (1, 700)] {
                for _ in 0..ran {
                    assert_eq!(status(&layer, "/", "a").await, 200, "{row}");
                }
                for _ in 0..5 {
                    let call = service.ready().await.unwrap().call(request("/", "a"));
                    hand.advance(Duration::from_millis(ms));
                    drop(call);
                }
                for _ in ran..2 {
                    assert_eq!(status(&layer, "/", "a").await, 200, "{row}: {ran} ran, {ms} ms");
                }
                assert_eq!(status(&layer, "/", "a").await, 429, "{row}: {ran} ran, {ms} ms");
                hand.advance(Duration::from_secs(180));
            }
        }
    }
}

/// Permits that have refilled are not given back once more.
#[tokio::test]
async fn a_future_that_is_dropped_late_gives_back_what_is_left() {
    let policy = Policy::new("p", Quota::per_minute(1));
    for (way, layer, hand) in ways_of(&policy) {
        let call = layer.layer(tower::service_fn(answer)).call(request("/", "a"));
        hand.advance(Duration::from_secs(59));
        drop(call);
        assert_eq!(status(&layer, "/", "a").await, 200, "{way}");
        hand.advance(Duration::from_millis(59_999));
        assert_eq!(status(&layer, "/", "a").await, 429, "{way}");
        hand.advance(Duration::from_millis(1));
        assert_eq!(status(&layer, "/", "a").await, 200, "{way}");
    }
}
