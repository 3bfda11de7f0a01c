//! Calls that wait for others of the same key.

use super::fleet::{KEY, until};
use std::time::Duration;
use tokio::task::JoinSet;
use tollgate::{
    Clock, Quota,
    store::{Demand, Policy, Store},
};
use tollgate_redis::{Link, RedisStore, Settings};
use tollgate_rig::{Flavor, Redis};

/// Calls at a time, of which four are sent on their own and the others are joined.
const CALLS: u64 = 50;
const LIMIT: u64 = 1000;

/// No call takes much longer than the deadline, and one that was never sent does not say that it may
/// have been carried out.
pub(crate) async fn keeps_the_deadline() {
    let mut redis = Redis::start(Flavor::Redis);
    let deadline = Duration::from_secs(1);
    // The breaker stays closed, so that every caller waits.
    let settings: Settings = redis.url().parse().unwrap();
    let settings = settings.deadline(deadline).breaker_window(64).breaker_failures(64);
    let store = RedisStore::new(Link::open(settings).unwrap()).unwrap();
    let policy = Policy::new("line", Quota::per_year(LIMIT)).unwrap();
    store.link().ready(Duration::from_secs(60)).await.unwrap();

    redis.freeze();
    let mut tasks = JoinSet::new();
    for _ in 0..CALLS {
        let (store, policy) = (store.clone(), policy.clone());
        tasks.spawn(async move {
            let clock = Clock::monotonic();
            let began = clock.now();
            let error = store.acquire(&mut [Demand::new(&policy, KEY, 1)]).await.unwrap_err();
            (clock.now().since(began), error)
        });
    }
    let results = tasks.join_all().await;
    let slowest = results.iter().map(|(took, _)| *took).max().unwrap();
    assert!(slowest < deadline * 7 / 4, "{slowest:?}");
    let unknown = results.iter().filter(|(_, error)| error.is_timeout()).count() as u64;
    assert!(unknown < CALLS, "those that were not sent say so");

    redis.thaw();
    let mut left = None;
    until("it answers", async || {
        let looked = store.peek(&mut [Demand::new(&policy, KEY, 0)]).await;
        left = looked.ok().map(|looked| looked.remaining());
        left.is_some()
    })
    .await;
    let spent = LIMIT - left.unwrap();
    assert!(spent <= unknown, "{spent} booked, {unknown} unknown");
}
