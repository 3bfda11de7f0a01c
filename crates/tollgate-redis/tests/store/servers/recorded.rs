//! The keys that the crate writes in Redis, recorded in `rig/golden`.

use crate::servers::patient::patient;
use std::{collections::BTreeSet, time::Duration};
use tollgate::{
    Algorithm, Quota,
    store::{Demand, Permits, Policy, Store},
};
use tollgate_redis::{
    FairShare, FleetSize, HeartbeatSettings, Member, Placement, Rate, RedisStore, Resource,
};
use tollgate_rig::{Flavor, Redis, golden};

const LIFE: Duration = Duration::from_secs(100);

/// Notes every key with its type, and a string with its length in bytes. Ids and slots of reservations
/// are random, and their length depends on the names in them.
fn note(redis: &Redis, found: &mut BTreeSet<String>) {
    for key in redis.cli(&["keys", "*"]).lines() {
        let kind = redis.cli(&["type", key]);
        if let Some((prefix, _)) = key.split_once(":r:{") {
            found.insert(format!("{prefix}:r:{{SLOT}}:ID {}", kind.trim()));
        } else if kind.trim() == "string" {
            found.insert(format!("{key} string of {}", redis.cli(&["strlen", key]).trim()));
        } else {
            found.insert(format!("{key} {}", kind.trim()));
        }
    }
}

/// Every verb of the store, with every algorithm.
async fn every_verb(redis: &Redis, store: &RedisStore, algorithm: Algorithm) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let name = format!("POLICY-{algorithm}");
    let [old, new] = [Quota::per_hour(100), Quota::per_hour(50)]
        .map(|quota| Policy::with_algorithm(&*name, quota, algorithm).unwrap());
    let mut one = Demand::new(&old, b"KEY", 2);
    assert!(store.acquire(&mut [one]).await.unwrap().is_allowed());
    assert!(store.force(&one).await.unwrap().is_allowed());
    assert!(store.up_to(&mut one).await.unwrap().is_allowed());
    note(redis, &mut found);
    let id = store.reserve(&mut [one], LIFE).await.unwrap().id.unwrap();
    note(redis, &mut found);
    store.settle(id, &[1]).await.unwrap();
    store.lease(&mut one, LIFE).await.unwrap();
    note(redis, &mut found);
    // A process that has the new quota, then one that still has the old.
    for policy in [&new, &old] {
        assert!(store.acquire(&mut [Demand::new(policy, b"KEY", 1)]).await.unwrap().is_allowed());
        note(redis, &mut found);
    }
    found
}

#[tokio::test]
async fn redis_keys_are_as_recorded() {
    let redis = Redis::start(Flavor::Redis);
    let link = patient(&redis.url());
    link.ready(Duration::from_secs(20)).await.unwrap();
    let store = RedisStore::new(link.clone()).unwrap();
    let mut found = BTreeSet::new();
    for algorithm in Algorithm::ALL {
        found.extend(every_verb(&redis, &store, algorithm).await);
    }
    store.enter(&Permits::new("LIMIT", b"KEY", 3), LIFE).await.unwrap();
    let policy = Policy::new("POLICY", Quota::per_hour(100)).unwrap();
    let builder = || RedisStore::builder(link.clone());
    let one_slot = builder().placement(Placement::OneSlot).prefix("PREFIX").build().unwrap();
    for (store, key) in [(&one_slot, &b"KEY"[..]), (&store, b""), (&store, b"a b:{c}")] {
        assert!(store.acquire(&mut [Demand::new(&policy, key, 1)]).await.unwrap().is_allowed());
    }
    assert!(
        store.acquire(&mut [Demand::new(&policy, &[b'x'; 300], 1)]).await.unwrap().is_allowed()
    );
    let (_size, beat) =
        FleetSize::counted(link.clone(), "FLEET", HeartbeatSettings::new()).unwrap();
    assert!(beat.ready(LIFE).await);
    let resource = Resource::new("RESOURCE", Rate::per_second(9)).learning(Duration::ZERO);
    let share = FairShare::join(link, resource, Member::new()).unwrap();
    while share.status().clients.is_none() {
        tokio::task::yield_now().await;
    }
    note(&redis, &mut found);
    golden("redis", &found);
}
