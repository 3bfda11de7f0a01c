//! Heartbeats on a real server, in real time.

use crate::servers::patient::patient;
use std::time::Duration;
use tollgate_redis::{FleetSize, HeartbeatSettings};
use tollgate_rig::{Flavor, Redis};

const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until the count is as expected.
async fn reaches(fleet: &FleetSize, count: u32) {
    let mut pause = tokio::time::interval(Duration::from_millis(10));
    let wait = async {
        while fleet.get() != count {
            pause.tick().await;
        }
    };
    let reached = tokio::time::timeout(PATIENCE, wait).await;
    assert!(reached.is_ok(), "{fleet:?} instead of {count}");
}

#[tokio::test]
async fn processes_count_each_other_and_who_leaves_is_not_counted() {
    let redis = Redis::start(Flavor::Redis);
    let settings = HeartbeatSettings::new()
        .interval(Duration::from_millis(50))
        .life(Duration::from_millis(500))
        .expected(7);
    let join = || FleetSize::counted(patient(&redis.url()), "gateways", settings).unwrap();
    let (first, first_beat) = join();
    assert_eq!(first.get(), 7, "what was expected, until there is an answer");
    assert!(first_beat.ready(PATIENCE).await);
    assert_eq!(first.get(), 1);
    let (second, second_beat) = join();
    let (third, third_beat) = join();
    for fleet in [&first, &second, &third] {
        reaches(fleet, 3).await;
    }
    let (elsewhere, other) =
        FleetSize::counted(patient(&redis.url()), "other", settings.expected(1)).unwrap();
    assert!(other.ready(PATIENCE).await);
    assert_eq!(elsewhere.get(), 1, "another name is another fleet");
    third_beat.leave().await;
    reaches(&first, 2).await;
    drop(second_beat);
    reaches(&first, 1).await;
    first_beat.leave().await;
}

#[tokio::test]
async fn the_count_stays_when_the_store_is_away() {
    let redis = Redis::start(Flavor::Redis);
    let settings =
        HeartbeatSettings::new().interval(Duration::from_millis(50)).life(Duration::from_secs(2));
    let (first, beat) = FleetSize::counted(patient(&redis.url()), "gateways", settings).unwrap();
    let (_second, _beat) = FleetSize::counted(patient(&redis.url()), "gateways", settings).unwrap();
    reaches(&first, 2).await;
    drop(redis);
    let wait = async {
        let mut pause = tokio::time::interval(Duration::from_millis(10));
        while beat.last_error().is_none() {
            pause.tick().await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
    assert_eq!(first.get(), 2);
}

#[test]
fn without_a_runtime_there_is_an_error() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let settings = "redis://127.0.0.1:1".parse().unwrap();
    let link = runtime.block_on(async { tollgate_redis::Link::open(settings) }).unwrap();
    let error = FleetSize::counted(link, "gateways", HeartbeatSettings::new()).unwrap_err();
    let text = "there is no tokio runtime here; join from inside one";
    assert_eq!(error.to_string(), text);
}
