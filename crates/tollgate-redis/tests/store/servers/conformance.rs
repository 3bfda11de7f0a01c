//! The suite that every store must pass, on real servers.

use crate::servers::patient::patient_by;
use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};
use tollgate::{
    Clock, ManualClock,
    testing::{Subject, conformance},
};
use tollgate_redis::{Link, Placement, RedisStore, Secret, Settings};
use tollgate_rig::{Cluster, Flavor, Redis, Sentinel, Tls};

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
        let builder = RedisStore::builder(link)
            .prefix(format!("t{prefix}{placement:?}"))
            .placement(placement);
        Self { store: builder.given_time(clock).build().unwrap(), hand }
    }
}

async fn judge(url: &str, placement: Placement) {
    judge_by(url.parse().unwrap(), placement).await;
}

async fn judge_by(settings: Settings, placement: Placement) {
    let link = patient_by(settings);
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

#[tokio::test]
async fn a_cluster_passes() {
    let cluster = Cluster::start(Flavor::Redis);
    judge(&cluster.url(), Placement::ByKey).await;
    judge(&cluster.url(), Placement::OneSlot).await;
}

#[tokio::test]
async fn a_cluster_of_valkey_passes() {
    let cluster = Cluster::start(Flavor::Valkey);
    judge(&cluster.url(), Placement::ByKey).await;
}

#[tokio::test]
async fn a_primary_behind_sentinels_passes() {
    let sentinel = Sentinel::start(Flavor::Redis);
    judge(&sentinel.url(), Placement::ByKey).await;
}

#[tokio::test]
async fn a_server_with_tls_and_a_password_passes() {
    let redis = Redis::builder(Flavor::Redis)
        .tls(Tls::Only)
        .client_certificates()
        .user("limiter", "pass:word/{}", "~* &* +@all")
        .start();
    let certificates = redis.certificates().unwrap();
    let url = redis.tls_url().unwrap();
    let mut settings: Settings = url.parse().unwrap();
    settings.user = Some("limiter".into());
    settings.password = Some(Secret::new("pass:word/{}"));
    let mut tls = tollgate_redis::Tls::default();
    tls.ca = Some(certificates.authority.clone());
    tls.certificate = Some(certificates.client.certificate.clone());
    tls.key = Some(certificates.client.key.clone());
    settings.tls = Some(tls);
    judge_by(settings, Placement::ByKey).await;
}

#[tokio::test]
async fn a_server_that_speaks_the_old_protocol_passes() {
    let redis = Redis::builder(Flavor::Redis).password("secret").start();
    let settings: Settings = redis.url().parse().unwrap();
    judge_by(settings.protocol(2), Placement::ByKey).await;
}

#[tokio::test]
async fn a_unix_socket_passes() {
    let redis = Redis::start(Flavor::Redis);
    let url = format!("redis+unix://{}", redis.socket().display());
    judge(&url, Placement::OneSlot).await;
}
