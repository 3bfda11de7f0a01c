use crate::Link;
use crate::store::{RedisStore, calls::Wanted};
use std::time::Duration;
use tollgate::{
    Clock, Quota,
    store::{Demand, Policy, Store},
};
use tollgate_rig::{Flavor, Redis};

/// A take, a reservation after it, and another take. After four permits have refilled, the first
/// take is undone (none of it is left), and then the reservation.
#[tokio::test]
async fn what_is_undone_is_not_given_back_again_by_a_younger_claim() {
    let redis = Redis::start(Flavor::Redis);
    let settings: crate::Settings = redis.url().parse().unwrap();
    let link = Link::open(settings.deadline(Duration::from_secs(60))).unwrap();
    link.ready(Duration::from_secs(20)).await.unwrap();
    let (clock, hand) = Clock::manual();
    clock.set_wall_offset(Duration::from_secs(1_800_000_000));
    let store = RedisStore::builder(link).given_time(clock).build().unwrap();
    let policy = Policy::new("p", Quota::per_second(1).burst(20)).unwrap();
    let demand = |cost| Demand::new(&policy, b"key", cost);
    let left = async || store.peek(&mut [demand(0)]).await.unwrap().remaining();
    let state = store.state(&demand(4)).unwrap();
    let told = store.decide_one(&state, Wanted::Take).await.unwrap();
    let id = store.reserve(&mut [demand(4)], Duration::from_secs(60)).await.unwrap().id;
    assert!(store.acquire(&mut [demand(2)]).await.unwrap().is_allowed());
    hand.advance(Duration::from_secs(1));
    // Three are still outstanding of the first take.
    store.undo_one(&state, told).await.unwrap();
    assert_eq!(left().await, 14);
    hand.advance(Duration::from_secs(2));
    // Without the first take, two of the reservation are left by now, and the two of others.
    assert!(store.settle(id.unwrap(), &[0]).await.unwrap());
    assert_eq!(left().await, 18, "what others have taken stays taken");
}
