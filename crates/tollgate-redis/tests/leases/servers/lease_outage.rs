//! The admissions of a fleet when its store stops, with leases and without.
//!
//! `cargo test -p tollgate-redis --features test-servers --test leases -- --nocapture lease_outage`

use crate::servers::tier::{Away, idle};
use std::{sync::atomic::Ordering::Relaxed, time::Duration};
use tollgate::{
    ManualClock, Quota, Tick,
    store::{Demand, Policy, Store},
};
use tollgate_redis::{FleetSize, Guarded, LeaseSettings, TwoTier};

/// When the store stops.
const STOP: Duration = Duration::from_secs(3);
const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Outage {
    processes: u32,
    offered_per_second: f64,
    leases: Option<LeaseSettings>,
    /// The share of the traffic that goes to the first process, beside its share of the rest.
    skew: f64,
}

impl Outage {
    /// Returns what passes in the last second before the store stops and in the two after it.
    fn run(&self, seed: u64) -> [u64; 3] {
        fastrand::seed(seed);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let hand = ManualClock::new();
            let store = Away::new(&hand);
            let size = FleetSize::fixed(self.processes);
            let policy = Policy::new("api", Quota::per_second(1000)).unwrap();
            let node = |_| {
                let guarded = Guarded::builder(store.clone()).fleet(size.clone()).build().unwrap();
                let builder = TwoTier::builder(guarded, size.clone());
                match self.leases {
                    Some(settings) => builder.leases(settings),
                    None => builder,
                }
                .build()
                .unwrap()
            };
            let nodes: Vec<_> = (0..self.processes).map(node).collect();
            let (mut at, mut passed) = (0.0_f64, [0; 3]);
            loop {
                at -= (1.0 - random.f64()).ln() / self.offered_per_second;
                let now = Duration::from_secs_f64(at);
                if now >= STOP + 2 * SECOND {
                    return passed;
                }
                hand.set(Tick::ZERO.saturating_add(now));
                // ORDERING: Relaxed, one thread.
                store.is_down.store(now >= STOP, Relaxed);
                let who = if random.f64() < self.skew { 0 } else { random.usize(0..nodes.len()) };
                let node = &nodes[who];
                let mut demand = [Demand::new(&policy, b"key", 1)];
                let decision = node.acquire(&mut demand).await.unwrap();
                idle().await;
                if let Some(second) = (now + SECOND).checked_sub(STOP) {
                    passed[second.as_secs() as usize] += u64::from(decision.is_allowed());
                }
            }
        })
    }
}

/// An outage does not begin with a burst, whether traffic is even or one process has most of it, and
/// whether or not permits were leased.
#[test]
fn the_first_second_of_an_outage_admits_the_rate() {
    for processes in [4, 8] {
        for (offered_per_second, skew) in [(2000.0, 0.0), (5000.0, 0.0), (5000.0, 0.5)] {
            for leases in [None, Some(LeaseSettings::new())] {
                let outage = Outage { processes, offered_per_second, leases, skew };
                let passed = outage.run(1);
                println!("{outage:?}: {passed:?}");
                for passed in passed {
                    assert!((920..=1080).contains(&passed), "{outage:?}: {passed}");
                }
            }
        }
    }
}
