//! The cost of a decision without the store.
//!
//! `cargo test --release -p tollgate-redis --features test-servers --test leases -- --ignored --nocapture`

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tollgate::{
    Clock, Decision, Quota,
    store::{Demand, MemoryStore, Policy, Store, StoreError},
};
use tollgate_redis::{FleetSize, LeaseSettings, TwoTier};

const CALLS: u32 = 2_000_000;

/// Polls once: no call here waits.
fn now_or_never(call: impl Future<Output = Result<Decision, StoreError>>) -> Decision {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => decision.unwrap(),
        Poll::Pending => unreachable!("a memory store does not wait"),
    }
}

fn measure(name: &str, store: &impl Store, policy: &Policy) {
    let (clock, mut allowed) = (Clock::monotonic(), 0_u32);
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let start = clock.now();
        for _ in 0..CALLS / 5 {
            let mut demands = [Demand::new(policy, b"user:1234567890", 1)];
            allowed += u32::from(now_or_never(store.acquire(&mut demands)).is_allowed());
        }
        best = best.min(clock.now().since(start) / (CALLS / 5));
    }
    println!("{name}: {best:?} each, {allowed} of {CALLS} allowed");
}

#[test]
#[ignore = "a measurement, for a release build"]
fn cost_of_a_local_decision() {
    let fleet = || FleetSize::fixed(8);
    let build = || TwoTier::builder(MemoryStore::new(), fleet()).leases(LeaseSettings::new());
    let ample = Policy::new("ample", Quota::per_second(500_000_000)).unwrap();
    let scarce = Policy::new("scarce", Quota::per_minute(1)).unwrap();
    let busy = Policy::new("busy", Quota::per_second(10_000)).unwrap();

    let tier = build().build().unwrap();
    measure("held permits", &tier, &ample);
    println!("  {:?}", tier.status());
    let tier = build().build().unwrap();
    measure("refused, paced", &tier, &busy);
    println!("  {:?}", tier.status());
    let tier = build().build().unwrap();
    measure("refused, remembered", &tier, &scarce);
    println!("  {:?}", tier.status());
    let tier = TwoTier::builder(MemoryStore::new(), fleet()).build().unwrap();
    measure("no leases, allowed by a memory store", &tier, &ample);
    measure("memory store alone", &MemoryStore::new(), &ample);
}
