//! A corrupt byte at every place of a reply, for every algorithm.

use super::fleet::{KEY, until};
use std::time::Duration;
use tollgate::{
    Algorithm, Quota,
    store::{Demand, Policy, Store},
};
use tollgate_redis::{Guarded, Link, RedisStore, Settings};
use tollgate_rig::{Flavor, Mode, Proxy, Redis};

/// More than a reply has bytes.
const PLACES: u64 = 56;
const LIMIT: u64 = 10_000;

/// Corrupts the reply to one take after the other. Whatever is noticed, and however: no call is booked
/// twice, and none is lost that the store has admitted.
pub(crate) async fn everywhere() {
    let redis = Redis::start(Flavor::Redis);
    let proxy = Proxy::start(redis.address());
    // Patient, as it is not about deadlines; and back soon after each break.
    let (soon, long) = (Duration::from_millis(1), Duration::from_secs(60));
    let settings: Settings = format!("redis://{}", proxy.address()).parse().unwrap();
    let settings = settings.deadline(long).connect_timeout(long).probe_min(soon).probe_max(soon);
    let store = RedisStore::new(Link::open(settings).unwrap()).unwrap();
    for algorithm in Algorithm::ALL {
        let guard = Guarded::builder(store.clone()).build().unwrap();
        let policy = Policy::with_algorithm(algorithm.name(), Quota::per_year(LIMIT), algorithm);
        let policy = policy.unwrap();
        let take =
            async || guard.acquire(&mut [Demand::new(&policy, KEY, 1)]).await.expect("a decision");
        let (mut by_store, mut noticed) = (0, 0);
        for place in 0..PLACES {
            until("all is well", async || {
                let decision = take().await;
                by_store += u64::from(!decision.is_degraded());
                !decision.is_degraded()
            })
            .await;
            until("the spend is carried back", async || guard.status().pending_spend == 0).await;
            proxy.set(Mode::Corrupt(place));
            let decision = take().await;
            assert!(decision.is_allowed(), "{algorithm:?}, byte {place}");
            match decision.is_degraded() {
                true => noticed += 1,
                false => by_store += 1,
            }
            proxy.set(Mode::Pass);
        }
        until("the spend is carried back", async || guard.status().pending_spend == 0).await;
        let mut left = None;
        until("it can be looked at", async || {
            let looked = guard.peek(&mut [Demand::new(&policy, KEY, 0)]).await.unwrap();
            left = (!looked.is_degraded()).then(|| looked.remaining());
            left.is_some()
        })
        .await;
        let (status, spent) = (guard.status(), LIMIT - left.unwrap());
        let booked = by_store + status.carried_back;
        let say = format!("{algorithm:?}: {spent} booked, {by_store} admitted, {status:?}");
        assert!(noticed > 0 && status.dropped_spend == 0, "{say}");
        assert!(spent >= booked, "none is lost: {say}");
        assert!(spent <= booked + status.unknown_outcomes, "none is booked twice: {say}");
    }
}
