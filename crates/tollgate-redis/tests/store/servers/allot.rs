//! Shares on a real server, in real time.

use crate::servers::patient::patient;
use std::time::Duration;
use tollgate_redis::{Allotment, AllotmentStatus, Link, Member, Mode, Rate, Resource};
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
async fn until(allotment: &Allotment, good: impl Fn(&AllotmentStatus) -> bool) {
    let mut pause = tokio::time::interval(Duration::from_millis(5));
    let wait = async {
        while !good(&allotment.status()) {
            pause.tick().await;
        }
    };
    let reached = tokio::time::timeout(PATIENCE, wait).await;
    assert!(reached.is_ok(), "{:?}", allotment.status());
}

fn join(link: Link, resource: Resource, wants: u64) -> Allotment {
    let allotment = Allotment::join(link, resource, Member::new()).unwrap();
    allotment.wants(Rate::per_second(wants)).unwrap();
    allotment
}

#[tokio::test]
async fn three_processes_share_fairly_and_one_leaves() {
    let redis = Redis::start(Flavor::Redis);
    let fleet = [1000, 50, 10].map(|wants| join(patient(&redis.url()), partner(), wants));
    let [first, second, third] = fleet;
    until(&third, |status| status.mode == Mode::Granted).await;
    for (allotment, share) in [(&first, 60), (&second, 50), (&third, 10)] {
        until(allotment, |status| status.share == Rate::per_second(share)).await;
        assert_eq!(allotment.share(), allotment.status().share);
        // So many in a million seconds.
        assert_eq!(allotment.limiter().quota().count(), share * 1_000_000);
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
    let allotment = Allotment::join(patient(&redis.url()), resource, member).unwrap();
    until(&allotment, |status| status.share == Rate::per_second(3)).await;
    let mut pause = tokio::time::interval(Duration::from_millis(1));
    let burst = async {
        while allotment.share() < Rate::per_second(50) {
            let _ = allotment.limiter().try_acquire();
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
    let allotment = join(patient(&redis.url()), resource, 100);
    until(&allotment, |status| status.share == Rate::per_second(100)).await;
    drop(redis);
    until(&allotment, |status| status.mode == Mode::Safe).await;
    until(&allotment, |status| status.share == Rate::per_second(7)).await;
    let status = allotment.status();
    assert!(status.failures > 0 && status.last_error.is_some(), "{status:?}");
    assert_eq!(allotment.limiter().quota().count(), 7_000_000);
}

#[tokio::test]
async fn nonsense_is_refused() {
    let redis = Redis::start(Flavor::Redis);
    let resource = partner().lease(Duration::from_millis(150));
    let error = Allotment::join(patient(&redis.url()), resource, Member::new()).unwrap_err();
    let text = "lease 150ms is shorter than two refreshes of 100ms; make it three or more";
    assert_eq!(error.to_string(), text);
    let allotment = Allotment::join(patient(&redis.url()), partner(), Member::new()).unwrap();
    assert!(allotment.wants(Rate::per_second(2_000_000_000)).is_err());
}

#[test]
fn handles_are_shared_between_threads() {
    fn is_shared<T: Send + Sync + std::fmt::Debug>() {}
    is_shared::<Allotment>();
    is_shared::<tollgate_redis::Heartbeat>();
}
