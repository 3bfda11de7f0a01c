//! An outage under a policy whose permits are leased.

use super::fleet::{KEY, until};
use std::time::Duration;
use tollgate::{
    Clock, Quota,
    store::{Demand, Policy, Store},
};
use tollgate_redis::{FleetSize, Guarded, LeaseSettings, Link, RedisStore, TwoTier};
use tollgate_rig::{Flavor, Redis};

/// Calls as fast as they are answered, before, during and after: what passes stays within what the
/// tiers and the guard promise together, and leases are of the store's permits again afterwards.
pub(crate) async fn outage() {
    let mut redis = Redis::start(Flavor::Redis);
    let store = RedisStore::new(Link::open(redis.url().parse().unwrap()).unwrap()).unwrap();
    let fleet = FleetSize::fixed(1);
    let guard = Guarded::builder(store).fleet(fleet.clone()).build().unwrap();
    let tiers = TwoTier::builder(guard.clone(), fleet).leases(LeaseSettings::new());
    let tiers = tiers.build().unwrap();
    let policy = Policy::new("leased", Quota::per_second(200).burst(200)).unwrap();
    assert!(tiers.bounds(&policy).is_leased());

    let (clock, mut admitted, mut degraded) = (Clock::monotonic(), 0_u64, 0_u64);
    let began = clock.now();
    let mut take = async |is_wanted: fn(bool) -> bool| {
        let mut seen = 0;
        until("decisions of that kind", async || {
            for _ in 0..20 {
                let mut demand = [Demand::new(&policy, KEY, 1)];
                let decision = tiers.acquire(&mut demand).await.expect("a decision");
                admitted += u64::from(decision.is_allowed());
                degraded += u64::from(decision.is_degraded());
                seen += u64::from(is_wanted(decision.is_degraded()));
            }
            seen >= 200
        })
        .await;
    };
    take(|is_degraded| !is_degraded).await;
    redis.kill();
    take(|is_degraded| is_degraded).await;
    redis.restart();
    take(|is_degraded| !is_degraded).await;
    until("the spend is carried back", async || guard.status().pending_spend == 0).await;

    let (lasted, status) = (clock.now().since(began), tiers.status());
    let (bound, bounds) = (guard.bound(&policy).unwrap(), tiers.bounds(&policy));
    let capacity = policy.quota().capacity();
    // Before and after: the full burst each, because the server has lost its state. In between: the
    // share. At any time: the rate, and the held permits.
    let rate = 200.0 * (lasted + Duration::from_secs(1)).as_secs_f64();
    let most = 2 * capacity
        + bound.while_down_once.unwrap()
        + 2 * bounds.over_admission()
        + rate.ceil() as u64;
    let say = format!("{admitted} in {lasted:?}, {degraded} degraded, {status:?}");
    assert!(admitted <= most, "at most {most}: {say}");
    assert!(status.allowed_by_leases > 0 && guard.status().carried_back > 0, "{say}");
    println!("at most {most}: {say}");
}
