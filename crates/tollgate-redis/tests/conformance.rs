//! The suite that every store must pass, on real servers.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod patient;

use patient::patient;
use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};
use tollgate::{
    Clock, ManualClock,
    testing::{Subject, conformance},
};
use tollgate_redis::{Link, Placement, RedisStore};
use tollgate_rig::{Flavor, Redis};

/// A store whose scripts get the time of a manual clock.
struct Given {
    store: RedisStore,
    hand: ManualClock,
}

impl Subject for Given {
    type Store = RedisStore;

    fn store(&self) -> &RedisStore {
        &self.store
    }

    async fn advance(&self, by: Duration) {
        self.hand.advance(by);
    }

    fn rounding(&self) -> Duration {
        Duration::from_micros(1)
    }
}

impl Given {
    fn new(link: Link, prefix: usize, placement: Placement) -> Self {
        let (clock, hand) = Clock::manual();
        // A round time, so that what is rounded to a grain is rounded alike.
        clock.set_wall_offset(Duration::from_secs(1_800_000_000));
        let builder = RedisStore::builder(link).prefix(format!("t{prefix}")).placement(placement);
        Self { store: builder.given_time(clock).build().unwrap(), hand }
    }
}

async fn judge(url: &str, placement: Placement) {
    let link = patient(url);
    link.ready(Duration::from_secs(20)).await.unwrap();
    let count = AtomicUsize::new(0);
    let report = conformance::run(async || {
        // ORDERING: Relaxed. A number that is given out once.
        Given::new(link.clone(), count.fetch_add(1, Relaxed), placement)
    })
    .await;
    assert!(report.is_passed(), "{report}");
}

#[tokio::test]
async fn a_standalone_redis_passes() {
    let redis = Redis::start(Flavor::Redis);
    judge(&redis.url(), Placement::ByKey).await;
}

#[tokio::test]
async fn a_standalone_valkey_passes() {
    let valkey = Redis::start(Flavor::Valkey);
    judge(&valkey.url(), Placement::ByKey).await;
}
