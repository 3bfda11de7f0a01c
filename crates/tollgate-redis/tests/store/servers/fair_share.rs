//! Shares on a real server, in real time.

use crate::servers::patient::patient;
use std::time::Duration;
use tollgate_redis::{FairShare, FairShareStatus, Link, Member, Mode, Rate, Resource};
use tollgate_rig::{Flavor, Redis};

const PATIENCE: Duration = Duration::from_secs(10);

fn partner() -> Resource {
    Resource::new("partner", Rate::per_second(120))
        .lease(Duration::from_secs(10))
        .learning(Duration::from_millis(300))
        .refresh(Duration::from_millis(100))
        .soonest(Duration::from_millis(10))
}

/// Waits until the state is as expected.
async fn until(fair_share: &FairShare, good: impl Fn(&FairShareStatus) -> bool) {
    let mut pause = tokio::time::interval(Duration::from_millis(5));
    let wait = async {
        while !good(&fair_share.status()) {
            pause.tick().await;
        }
    };
    let reached = tokio::time::timeout(PATIENCE, wait).await;
    assert!(reached.is_ok(), "{:?}", fair_share.status());
}

fn join(link: Link, resource: Resource, wants: u64) -> FairShare {
    let fair_share = FairShare::join(link, resource, Member::new()).unwrap();
    fair_share.wants(Rate::per_second(wants)).unwrap();
    fair_share
}

#[tokio::test]
async fn three_processes_share_fairly_and_one_leaves() {
    let redis = Redis::start(Flavor::Redis);
    let fleet = [1000, 50, 10].map(|wants| join(patient(&redis.url()), partner(), wants));
    let [first, second, third] = fleet;
    until(&third, |status| status.mode == Mode::Granted).await;
    for (fair_share, share) in [(&first, 60), (&second, 50), (&third, 10)] {
        until(fair_share, |status| status.share == Rate::per_second(share)).await;
        assert_eq!(fair_share.share(), fair_share.status().share);
        // So many in a million seconds.
        assert_eq!(fair_share.limiter().quota().count(), share * 1_000_000);
    }
    assert_eq!(first.status().clients, Some(3));
    assert_eq!(first.status().last_error, None);
    let limiter = second.limiter().clone();
    second.leave().await;
    assert!(limiter.try_acquire().is_denied(), "what is given back is not used");
    until(&first, |status| status.share == Rate::per_second(110)).await;
    drop(third);
    until(&first, |status| status.share == Rate::per_second(120)).await;
}

#[tokio::test]
async fn demand_is_measured_and_a_denial_asks_for_more_before_the_refresh() {
    let redis = Redis::start(Flavor::Redis);
    // A rise is measured for a quarter of the refresh, and the next report is due after more than the
    // patience.
    let resource = partner().refresh(Duration::from_secs(12)).lease(Duration::from_secs(60));
    let resource = resource.learning(Duration::ZERO);
    let member = Member::new().at_least(Rate::per_second(3));
    let fair_share = FairShare::join(patient(&redis.url()), resource, member).unwrap();
    until(&fair_share, |status| status.share == Rate::per_second(3)).await;
    let mut pause = tokio::time::interval(Duration::from_millis(1));
    let burst = async {
        while fair_share.share() < Rate::per_second(50) {
            let _ = fair_share.limiter().try_acquire();
            pause.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, burst).await.expect("much more than 3/s is wanted");
}

#[tokio::test]
async fn without_the_store_the_safe_share_holds_after_the_lease() {
    let redis = Redis::start(Flavor::Redis);
    let resource = partner().learning(Duration::ZERO).lease(Duration::from_millis(500));
    let resource = resource.safe_capacity(Rate::per_second(7));
    let fair_share = join(patient(&redis.url()), resource, 100);
    until(&fair_share, |status| status.share == Rate::per_second(100)).await;
    drop(redis);
    until(&fair_share, |status| status.mode == Mode::Safe).await;
    until(&fair_share, |status| status.share == Rate::per_second(7)).await;
    let status = fair_share.status();
    assert!(status.failures > 0 && status.last_error.is_some(), "{status:?}");
    assert_eq!(fair_share.limiter().quota().count(), 7_000_000);
}

#[tokio::test]
async fn nonsense_is_refused() {
    let redis = Redis::start(Flavor::Redis);
    let resource = partner().lease(Duration::from_millis(150));
    let error = FairShare::join(patient(&redis.url()), resource, Member::new()).unwrap_err();
    let text = "lease 150ms is shorter than two refreshes of 100ms; make it three or more";
    assert_eq!(error.to_string(), text);
    let fair_share = FairShare::join(patient(&redis.url()), partner(), Member::new()).unwrap();
    assert!(fair_share.wants(Rate::per_second(2_000_000_000)).is_err());
}

#[test]
fn handles_are_shared_between_threads() {
    fn is_shared<T: Send + Sync + std::fmt::Debug>() {}
    is_shared::<FairShare>();
    is_shared::<tollgate_redis::Heartbeat>();
}
