//! Refusals and peeks write nothing, and a login with few permissions is enough.

use crate::servers::patient::{patient, patient_by};
use std::time::Duration;
use tollgate::{
    Algorithm, Quota,
    store::{Demand, Permits, Policy, Store},
};
use tollgate_redis::{RedisStore, Secret, Settings};
use tollgate_rig::{Flavor, Redis};

/// How many changes the server has made to its data.
fn changes(redis: &Redis) -> String {
    redis.info("persistence")["rdb_changes_since_last_save"].clone()
}

#[tokio::test]
async fn a_refusal_writes_nothing() {
    let redis = Redis::start(Flavor::Redis);
    let link = patient(&redis.url());
    link.ready(Duration::from_secs(20)).await.unwrap();
    let store = RedisStore::new(link).unwrap();
    for algorithm in Algorithm::ALL {
        let policy =
            |name, limit| Policy::with_algorithm(name, Quota::per_year(limit), algorithm).unwrap();
        let (tight, wide) = (policy("tight", 3), policy("wide", 100));
        let _ = store.acquire(&mut [Demand::new(&tight, b"key", 3)]).await.unwrap();
        let _ = store.acquire(&mut [Demand::new(&wide, b"key", 3)]).await.unwrap();
        let before = changes(&redis);
        for cost in [1, 3, 4, u64::MAX] {
            let mut one = [Demand::new(&tight, b"key", cost)];
            assert!(store.acquire(&mut one).await.unwrap().is_denied());
            assert!(store.up_to(&mut one[0]).await.unwrap().is_denied());
            let mut set = [Demand::new(&wide, b"key", 1), one[0]];
            assert!(store.acquire(&mut set).await.unwrap().is_denied());
            assert!(store.reserve(&mut set, Duration::from_secs(9)).await.unwrap().id.is_none());
            assert!(store.peek(&mut set).await.unwrap().is_denied());
        }
        let mut nothing = [Demand::new(&wide, b"key", 0), Demand::new(&wide, b"other", 0)];
        assert!(store.acquire(&mut nothing).await.unwrap().is_allowed());
        assert!(store.peek(&mut [Demand::new(&wide, b"key", 5)]).await.unwrap().is_allowed());
        assert_eq!(changes(&redis), before, "{algorithm}");
    }
    let permits = Permits::new("flight", b"key", 1);
    let _ = store.enter(&permits, Duration::from_secs(60)).await.unwrap();
    let before = changes(&redis);
    assert!(store.enter(&permits, Duration::from_secs(60)).await.unwrap().id.is_none());
    assert_eq!(changes(&redis), before, "permits");
}

/// The rights that docs/redis.md names are enough.
#[tokio::test]
async fn a_user_with_few_rights_will_do() {
    let rights = "~tollgate:* -@all +@read +@write +@scripting +@connection +time +role";
    let redis = Redis::builder(Flavor::Redis).user("limiter", "secret", rights).start();
    let settings: Settings = redis.url().parse().unwrap();
    let settings = settings.user(Some("limiter".into())).password(Some(Secret::new("secret")));
    let link = patient_by(settings);
    link.ready(Duration::from_secs(20)).await.unwrap();
    let store = RedisStore::new(link).unwrap();
    let minute = Duration::from_secs(60);
    for algorithm in Algorithm::ALL {
        let policy = Policy::with_algorithm("few", Quota::per_year(30), algorithm).unwrap();
        let wider = Policy::with_algorithm("few", Quota::per_year(40), algorithm).unwrap();
        let demand = |cost| Demand::new(&policy, b"key", cost);
        assert!(store.acquire(&mut [demand(2), demand(1)]).await.unwrap().is_allowed());
        assert!(store.force(&demand(1)).await.unwrap().is_allowed());
        assert_eq!(store.refund(&demand(1)).await.unwrap(), 1);
        let id = store.reserve(&mut [demand(1)], minute).await.unwrap().id.unwrap();
        assert!(store.settle(id, &[0]).await.unwrap());
        assert!(store.lease(&mut demand(1), minute).await.unwrap().id.is_some());
        let left = store.peek(&mut [Demand::new(&wider, b"key", 0)]).await.unwrap();
        // Four of 30 are used: by GCRA that share of 40, else four of 40.
        let expected = if algorithm == Algorithm::Gcra { 34 } else { 36 };
        assert_eq!(left.remaining(), expected, "{algorithm}");
        store.reset(&demand(0)).await.unwrap();
    }
    let permits = Permits::new("flight", b"key", 1);
    let id = store.enter(&permits, minute).await.unwrap().id.unwrap();
    assert!(store.leave(&permits, id).await.unwrap());
}
