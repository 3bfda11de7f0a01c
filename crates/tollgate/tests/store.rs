//! The store in memory: passes the suite of all stores, boxed and unboxed, and allocates nothing.
#![cfg(feature = "testing")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};
use tollgate::{
    Algorithm, Clock, ManualClock, Quota,
    store::{Demand, DynStore, MemoryStore, MemoryStoreBuilder, Policy, Store},
    testing::{Subject, block_on, conformance},
};

struct InMemory<S>(S, ManualClock);

impl<S: Store> Subject for InMemory<S> {
    type Store = S;

    fn store(&self) -> &S {
        &self.0
    }

    async fn advance(&self, by: Duration) {
        self.1.advance(by);
    }
}

fn judge(builder: impl Fn() -> MemoryStoreBuilder) {
    let report = block_on(conformance::run(async || {
        let (clock, hand) = Clock::manual();
        InMemory(builder().clock(clock).build().unwrap(), hand)
    }));
    assert!(report.is_passed(), "{report}");
    assert!(report.checks.len() >= 27, "{report}");
}

#[test]
fn the_growing_store_conforms() {
    judge(MemoryStore::builder);
}

#[test]
fn the_bounded_store_conforms() {
    judge(|| MemoryStore::builder().bounded(10_000));
}

#[test]
fn a_store_chosen_at_run_time_conforms() {
    let report = block_on(conformance::run(async || {
        let (clock, hand) = Clock::manual();
        let store: Arc<dyn DynStore> =
            Arc::new(MemoryStore::builder().clock(clock).build().unwrap());
        InMemory(store, hand)
    }));
    assert!(report.is_passed(), "{report}");
    let boxed: Box<dyn DynStore> = Box::new(MemoryStore::new());
    let policy = Policy::new("p", Quota::per_hour(1)).unwrap();
    let mut demands = [Demand::new(&policy, b"k", 1)];
    assert!(block_on(boxed.acquire(&mut demands)).unwrap().is_allowed());
}

/// The suite can fail: a store that forgets to charge does not conform.
#[test]
fn a_store_that_is_wrong_does_not_conform() {
    let report = block_on(conformance::run(async || {
        let (clock, hand) = Clock::manual();
        // A table so small that keys lose their state.
        InMemory(MemoryStore::builder().clock(clock).bounded(1).build().unwrap(), hand)
    }));
    assert!(!report.is_passed());
    assert!(report.to_string().contains("FAILED"), "{report}");
}

#[test]
fn many_threads_over_many_policies_admit_exactly_the_limits() {
    for bounded in [None, Some(10_000)] {
        let (clock, _) = Clock::manual();
        let builder = MemoryStore::builder().clock(clock);
        let builder = if let Some(keys) = bounded { builder.bounded(keys) } else { builder };
        let store = builder.build().unwrap();
        let policies = Algorithm::ALL
            .map(|one| Policy::with_algorithm(one.name(), Quota::per_hour(800), one).unwrap());
        let (passed, barrier) = (AtomicU64::new(0), Barrier::new(64));
        thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| {
                    barrier.wait();
                    for _ in 0..20 {
                        let demands =
                            policies.each_ref().map(|policy| Demand::new(policy, b"k", 1));
                        let mut demands = demands;
                        let decision = block_on(store.acquire(&mut demands)).unwrap();
                        passed.fetch_add(u64::from(decision.is_allowed()), Relaxed);
                    }
                });
            }
        });
        assert_eq!(passed.load(Relaxed), 800);
        assert_eq!(store.len(), 5);
    }
}

#[test]
fn bounds_are_errors_that_say_so() {
    let (clock, _) = Clock::manual();
    let builder = MemoryStore::builder().clock(clock).max_reservations(2).max_permits(1);
    let store = builder.build().unwrap();
    let policy = Policy::new("p", Quota::per_hour(9)).unwrap();
    let minute = Duration::from_secs(60);
    let mut demands = [Demand::new(&policy, b"k", 1)];
    for _ in 0..2 {
        assert!(block_on(store.reserve(&mut demands, minute)).unwrap().id.is_some());
    }
    let error = block_on(store.reserve(&mut demands, minute)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "2 reservations are open already; settle some, or raise max_reservations"
    );
    assert!(error.is_full() && error.is_transient());
    let left = block_on(store.peek(&mut [Demand::new(&policy, b"k", 0)])).unwrap();
    assert_eq!(left.remaining(), 7, "the third was given back");
}
