//! The scripts as shipped: the time is the server's, and the test stops it or moves it in steps.

use crate::servers::patient::patient;
use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, UNIX_EPOCH},
};
use tollgate::{
    Algorithm, Clock, Decision, ManualClock, Quota,
    store::{Demand, Policy, Store},
    testing::{Subject, conformance},
};
use tollgate_redis::{Link, RedisStore};
use tollgate_rig::{Flavor, Redis};

/// A round time, so that what is rounded to a grain is rounded alike.
const START: Duration = Duration::from_secs(1_800_000_000);

/// A store on a server whose clock is in our hands.
struct Faked<'a> {
    store: RedisStore,
    hand: ManualClock,
    redis: &'a Mutex<Redis>,
}

impl<'a> Faked<'a> {
    fn new(link: &Link, redis: &'a Mutex<Redis>, prefix: &str) -> Self {
        let (clock, hand) = Clock::manual();
        clock.set_wall_offset(START);
        let store = RedisStore::builder(link.clone()).prefix(prefix).clock(clock).build().unwrap();
        let faked = Self { store, hand, redis };
        faked.show();
        faked
    }

    /// Sets the server's clock to the one of the test.
    fn show(&self) {
        let clock = self.store.clock();
        self.redis.lock().unwrap().stop_time(UNIX_EPOCH + clock.to_wall(clock.now()));
    }
}

impl Subject for Faked<'_> {
    type Store = RedisStore;

    fn store(&self) -> &RedisStore {
        &self.store
    }

    async fn advance(&self, by: Duration) {
        self.hand.advance(by);
        self.show();
    }

    fn rounding(&self) -> Duration {
        Duration::from_micros(1)
    }
}

async fn start() -> (Mutex<Redis>, Link) {
    let redis = Redis::builder(Flavor::Redis).faketime().start();
    let link = patient(&redis.url());
    link.ready(Duration::from_secs(20)).await.unwrap();
    (Mutex::new(redis), link)
}

#[tokio::test]
async fn the_suite_passes_with_the_time_of_the_server() {
    let ((redis, link), count) = (start().await, AtomicUsize::new(0));
    let report = conformance::run(async || {
        // ORDERING: Relaxed. A number that is given out once.
        Faked::new(&link, &redis, &format!("t{}", count.fetch_add(1, Relaxed)))
    })
    .await;
    assert!(report.is_passed(), "{report}");
}

async fn take(store: &RedisStore, policy: &Policy, key: &str, cost: u64) -> Decision {
    store.acquire(&mut [Demand::new(policy, key.as_bytes(), cost)]).await.unwrap()
}

/// Ten of ten are spent, then the server's clock goes back: this grants no permits, and no caller
/// waits for the length of the step.
#[tokio::test]
async fn a_step_back_grants_nothing_and_costs_a_window_at_most() {
    let (redis, link) = start().await;
    for algorithm in Algorithm::ALL {
        for step in
            [Duration::from_millis(40), Duration::from_secs(90), Duration::from_secs(86_400)]
        {
            let faked = Faked::new(&link, &redis, &format!("{algorithm}{step:?}"));
            let policy = Policy::with_algorithm("back", Quota::per_minute(10), algorithm).unwrap();
            // In the middle of a window.
            faked.advance(Duration::from_secs(30)).await;
            assert!(take(&faked.store, &policy, "key", 10).await.is_allowed());
            let back = START + Duration::from_secs(30) - step;
            redis.lock().unwrap().stop_time(UNIX_EPOCH + back);
            let refused = take(&faked.store, &policy, "key", 1).await;
            assert!(refused.is_denied(), "{algorithm}, back by {step:?}: granted");
            let wait = refused.retry_after(refused.at()).unwrap();
            assert!(wait <= Duration::from_secs(121), "{algorithm}, back by {step:?}: {wait:?}");
            // Time goes on from there.
            redis.lock().unwrap().stop_time(UNIX_EPOCH + back + wait);
            let passed = take(&faked.store, &policy, "key", 1).await;
            assert!(passed.is_allowed(), "{algorithm}, back by {step:?}: refused after {wait:?}");
        }
    }
}

#[tokio::test]
async fn a_step_ahead_fills_and_does_no_more() {
    let (redis, link) = start().await;
    for algorithm in Algorithm::ALL {
        let faked = Faked::new(&link, &redis, &format!("{algorithm}"));
        let policy = Policy::with_algorithm("ahead", Quota::per_minute(10), algorithm).unwrap();
        let _ = take(&faked.store, &policy, "key", 10).await;
        faked.advance(Duration::from_secs(10_000_000)).await;
        assert_eq!(take(&faked.store, &policy, "key", 4).await.remaining(), 6, "{algorithm}");
        assert!(take(&faked.store, &policy, "key", 7).await.is_denied(), "{algorithm}");
    }
}

/// So it is while an excess is carried: it is not paid off sooner, nor later by the step.
#[tokio::test]
async fn a_step_back_leaves_an_excess_as_it_was() {
    let (redis, link) = start().await;
    for algorithm in [Algorithm::SlidingCounter, Algorithm::SlidingLog] {
        for step in [Duration::from_secs(90), Duration::from_secs(86_400)] {
            let faked = Faked::new(&link, &redis, &format!("{algorithm}{step:?}"));
            let policy = Policy::with_algorithm("back", Quota::per_minute(10), algorithm).unwrap();
            let back = Duration::from_secs(86_400 * 2);
            faked.advance(back).await;
            let _ = faked.store.force(&Demand::new(&policy, b"key", 45)).await.unwrap();
            redis.lock().unwrap().stop_time(UNIX_EPOCH + START + back - step);
            let refused = take(&faked.store, &policy, "key", 1).await;
            let wait = refused.retry_after(refused.at()).unwrap();
            let row = format!("{algorithm}, back by {step:?}: {wait:?}");
            assert!(
                wait > Duration::from_secs(3 * 60) && wait <= Duration::from_secs(5 * 60),
                "{row}"
            );
            let stop = |at: Duration| redis.lock().unwrap().stop_time(UNIX_EPOCH + START + at);
            stop(back - step + wait - Duration::from_micros(1));
            assert!(take(&faked.store, &policy, "key", 1).await.is_denied(), "{row}");
            stop(back - step + wait);
            assert!(take(&faked.store, &policy, "key", 1).await.is_allowed(), "{row}");
        }
    }
}

/// Debts are no mistake of the clock.
#[tokio::test]
async fn a_debt_is_not_healed() {
    let (redis, link) = start().await;
    let faked = Faked::new(&link, &redis, "debt");
    let policy = Policy::new("debt", Quota::per_minute(10)).unwrap();
    let _ = faked.store.force(&Demand::new(&policy, b"key", 10_000)).await.unwrap();
    let refused = take(&faked.store, &policy, "key", 1).await;
    let expected = Duration::from_secs(6 * (10_000 + 1 - 10));
    assert_eq!(refused.retry_after(refused.at()), Some(expected));
    // Nor forgotten.
    faked.advance(expected - Duration::from_micros(1)).await;
    assert!(take(&faked.store, &policy, "key", 1).await.is_denied());
    faked.advance(Duration::from_micros(1)).await;
    assert!(take(&faked.store, &policy, "key", 1).await.is_allowed());
}

/// Every key that is ever written has an end, and it is not far.
#[tokio::test]
async fn every_key_expires() {
    let (redis, link) = start().await;
    let faked = Faked::new(&link, &redis, "ttl");
    let store = &faked.store;
    for algorithm in Algorithm::ALL {
        let policy = Policy::with_algorithm("ttl", Quota::per_minute(10), algorithm).unwrap();
        let wider = Policy::with_algorithm("ttl", Quota::per_minute(20), algorithm).unwrap();
        let demand = |cost| Demand::new(&policy, b"key", cost);
        let _ = take(store, &policy, "key", 3).await;
        let _ = store.refund(&demand(1)).await.unwrap();
        let _ = store.force(&demand(1)).await.unwrap();
        let minute = Duration::from_secs(60);
        let id = store.reserve(&mut [demand(1), demand(1)], minute).await.unwrap().id.unwrap();
        let _ = store.reserve(&mut [demand(1)], minute).await.unwrap();
        let _ = store.lease(&mut demand(2), minute).await.unwrap();
        store.settle(id, &[0, 2]).await.unwrap();
        let _ = take(store, &wider, "key", 1).await;
    }
    let permits = tollgate::store::Permits::new("ttl", b"key", 5);
    let id = store.enter(&permits, Duration::from_secs(60)).await.unwrap().id.unwrap();
    store.renew(&permits, id, Duration::from_secs(60)).await.unwrap();
    let server = redis.lock().unwrap();
    let keys = server.cli(&["KEYS", "*"]);
    assert!(keys.lines().count() > 10, "{keys}");
    for key in keys.lines() {
        let left: i64 = server.cli(&["PTTL", key]).parse().unwrap();
        assert!((1..=300_000).contains(&left), "{key} lives for {left} ms");
    }
}
