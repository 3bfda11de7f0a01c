//! A rate that moves before every call, over one Redis: the quota travels with the call, so a
//! change costs no extra request.

use crate::servers::patient::patient;
use std::time::Duration;
use tollgate::{
    Algorithm, Clock, Quota,
    adaptive::rate::{AdaptiveRate, AimdRate, CurrentPolicy},
    store::{Demand, Policy, Store},
};
use tollgate_redis::RedisStore;
use tollgate_rig::{Flavor, Proxy, Redis};

#[tokio::test]
async fn a_change_of_rate_costs_no_request() {
    let redis = Redis::start(Flavor::Redis);
    let proxy = Proxy::start(redis.address());
    let link = patient(&format!("redis://{}", proxy.address()));
    link.ready(Duration::from_secs(20)).await.unwrap();
    for algorithm in Algorithm::ALL {
        let store = RedisStore::builder(link.clone()).prefix(algorithm.name()).build().unwrap();
        let policy = Policy::with_algorithm("users", Quota::per_hour(3600), algorithm).unwrap();
        let (users, (clock, hand)) = (CurrentPolicy::new(policy), Clock::manual());
        let law = AimdRate::builder(0.1..=1.0).step(0.2).factor(0.5).min_calls(1).build().unwrap();
        let rate = AdaptiveRate::of_policy(&users, law).clock(clock);
        let rate = rate.period(Duration::from_millis(1)).build().unwrap();
        // Sends the script.
        let _ = store.acquire(&mut [Demand::new(&users.get(), b"warm", 1)]).await.unwrap();
        let before = proxy.requests();
        let (mut admitted, mut changes, mut last) = (0, 0, users.get().quota());
        for call in 0..1000_u64 {
            hand.advance(Duration::from_millis(2));
            if call % 3 == 0 {
                rate.failure()
            } else {
                rate.success()
            }
            let (policy, key) = (users.get(), (call % 10).to_string());
            let decision = store.acquire(&mut [Demand::new(&policy, key.as_bytes(), 1)]).await;
            let decision = decision.unwrap();
            assert_eq!(decision.limit(), policy.quota().capacity(), "{algorithm}, call {call}");
            changes += u64::from(policy.quota() != last);
            (admitted, last) = (admitted + u64::from(decision.is_allowed()), policy.quota());
        }
        assert_eq!(proxy.requests() - before, 1000, "{algorithm}: one request for each call");
        assert!(changes > 600, "{algorithm}: {changes} changes");
        // A hundred calls of each key fit the lowest rate, 360 an hour.
        assert_eq!(admitted, 1000, "{algorithm}");
    }
}
