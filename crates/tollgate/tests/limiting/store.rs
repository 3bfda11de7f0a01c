//! The store in memory: passes the suite of all stores, boxed and unboxed, and allocates nothing.
#![cfg(feature = "testing")]

use std::{
    collections::HashSet,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};
use tollgate::{
    Algorithm, Clock, Decision, Quota,
    store::{
        Demand, DynStore, MemoryStore, MemoryStoreBuilder, Operation, Policy, Store, StoreError,
        forward_store,
    },
    testing::{block_on, conformance},
};

fn judge(builder: impl Fn() -> MemoryStoreBuilder) {
    let report = block_on(conformance::run(async || {
        let (clock, hand) = Clock::manual();
        (builder().clock(clock).build().unwrap(), hand)
    }));
    assert!(report.is_passed(), "{report}");
    assert!(report.checks.len() >= 32 && report.unsupported.is_empty(), "{report}");
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
        (store, hand)
    }));
    assert!(report.is_passed(), "{report}");
    let boxed: Box<dyn DynStore> = Box::new(MemoryStore::new());
    let policy = Policy::new("p", Quota::per_hour(1)).unwrap();
    let mut demands = [Demand::new(&policy, b"k", 1)];
    assert!(block_on(boxed.acquire(&mut demands)).unwrap().is_allowed());
}

/// Records which operations are called.
struct Noted<'a>(MemoryStore, &'a Mutex<HashSet<Operation>>);

impl Noted<'_> {
    async fn run<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.1.lock().unwrap().insert(operation);
        call.await
    }
}

impl Store for Noted<'_> {
    forward_store!(self => &self.0, through run);
}

#[test]
fn a_wrapper_that_changes_nothing_conforms() {
    let called = Mutex::default();
    let report = block_on(conformance::run(async || {
        let (clock, hand) = Clock::manual();
        (Noted(MemoryStore::builder().clock(clock).build().unwrap(), &called), hand)
    }));
    assert!(report.is_passed(), "{report}");
    assert_eq!(called.lock().unwrap().len(), Operation::ALL.len(), "the suite calls everything");
}

/// A store that claims to have every operation, but lacks `refund`.
struct Forgetful(MemoryStore);

impl Store for Forgetful {
    forward_store!(self => &self.0, except refund);
}

#[test]
fn a_store_that_lacks_an_operation_does_not_conform_unless_it_says_so() {
    let report = block_on(conformance::run(async || {
        let (clock, hand) = Clock::manual();
        (Forgetful(MemoryStore::builder().clock(clock).build().unwrap()), hand)
    }));
    let failed: Vec<_> = report.checks.iter().filter_map(|(_, it)| it.as_ref().err()).collect();
    assert_eq!(failed.len(), 3, "{report}");
    assert!(failed.iter().all(|text| text.contains("does not support `refund`")), "{report}");
}

/// The suite can fail: a store that forgets to charge does not conform.
#[test]
fn a_store_that_is_wrong_does_not_conform() {
    let report = block_on(conformance::run(async || {
        let (clock, hand) = Clock::manual();
        // A table so small that keys lose their state.
        (MemoryStore::builder().clock(clock).bounded(1).build().unwrap(), hand)
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
        "a key of policy \"p\" has 2 open reservations, the maximum; settle or cancel some, give \
         them a shorter life, or raise max_reservations_per_key"
    );
    assert!(error.is_full() && error.is_transient());
    let left = block_on(store.peek(&mut [Demand::new(&policy, b"k", 0)])).unwrap();
    assert_eq!(left.remaining(), 7, "the third was not charged");
}

/// Makes one reservation of a key after the other, and checks which bound refuses which.
#[test]
fn reservations_are_bounded_in_all_per_policy_and_per_key() {
    let (clock, hand) = Clock::manual();
    let builder = MemoryStore::builder().clock(clock).max_reservations(5);
    let store = builder.max_reservations_per_policy(4).max_reservations_per_key(2).build().unwrap();
    let [a, b] = ["a", "b"].map(|name| Policy::new(name, Quota::per_hour(9)).unwrap());
    let minute = Duration::from_secs(60);
    let reserve = |policy: &Policy, key: &[u8], cost: u64| {
        block_on(store.reserve(&mut [Demand::new(policy, key, cost)], minute))
    };
    let ids: Vec<_> = [(&a, b"x", 0), (&a, b"x", 1), (&a, b"y", 0), (&a, b"y", 0), (&b, b"x", 1)]
        .map(|(policy, key, cost)| reserve(policy, key, cost).unwrap().id.unwrap())
        .into();
    for (row, (policy, key, setting)) in [
        (&a, b"x", "a key of policy \"a\" has 2 open reservations"),
        (&a, b"z", "policy \"a\" has 4 open reservations"),
        (&b, b"x", "the store has 5 open reservations"),
    ]
    .into_iter()
    .enumerate()
    {
        for cost in [0, 1] {
            let error = reserve(policy, key, cost).unwrap_err();
            assert!(error.is_full() && !error.is_unreachable(), "row {row}: {error}");
            assert!(error.to_string().starts_with(setting), "row {row}: {error}");
        }
    }
    let left = |policy: &Policy, key: &[u8]| {
        let looked = store.peek_at(store.clock().now(), &mut [Demand::new(policy, key, 0)]);
        looked.unwrap().remaining()
    };
    assert_eq!((left(&a, b"x"), left(&a, b"z"), left(&b, b"x")), (8, 9, 8), "refused for nothing");
    let mut lease = Demand::new(&a, b"x", 3);
    assert!(block_on(store.lease(&mut lease, minute)).unwrap_err().is_full());
    // Each limit of a reservation takes a slot, and a refusal by the quota takes none.
    assert!(block_on(store.settle(ids[4], &[1])).unwrap());
    let mut two = [Demand::new(&b, b"x", 1), Demand::new(&b, b"y", 1)];
    assert!(block_on(store.reserve(&mut two, minute)).unwrap_err().is_full());
    assert!(reserve(&b, b"y", 10).unwrap().id.is_none());
    let last = reserve(&b, b"y", 1).unwrap().id.unwrap();
    // A cancel frees a slot, and so does the end of a life.
    assert!(block_on(store.settle(ids[0], &[0])).unwrap());
    assert!(reserve(&a, b"x", 1).unwrap().id.is_some());
    hand.advance(minute);
    assert!(!block_on(store.settle(last, &[0])).unwrap(), "its life is over");
    for _ in 0..2 {
        assert!(block_on(store.reserve(&mut two, minute)).unwrap().id.is_some());
    }
}

/// If a take is undone, it gives back the permits that have not refilled, and no more.
#[test]
fn an_undone_take_gives_back_what_time_has_not() {
    let (clock, hand) = Clock::manual();
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    let policy = Policy::new("p", Quota::per_minute(2)).unwrap();
    let demand = Demand::new(&policy, b"k", 1);
    let take = || store.acquire_one_now(&policy, b"k", 1).unwrap();
    let undo = |decision: &Decision| store.undo_at(store.clock().now(), &demand, decision).unwrap();
    // It was full before, and is full again.
    for ms in [0, 1, 29_999, 30_000, 90_000] {
        let taken = take();
        hand.advance(Duration::from_millis(ms));
        undo(&taken);
        assert!(!store.contains(&demand).unwrap(), "{ms} ms");
    }
    // The take of another call stays, to the tick.
    let (taken, other) = (take(), take());
    hand.advance(Duration::from_secs(10));
    undo(&taken);
    assert!(other.is_allowed());
    let left = store.peek_at(store.clock().now(), &mut [Demand::new(&policy, b"k", 0)]).unwrap();
    assert_eq!(left.reset_after(store.clock().now()), Some(Duration::from_secs(30)));
    // A take of long ago has nothing left to give back, whatever others have taken since.
    hand.advance(Duration::from_secs(60));
    let old = take();
    hand.advance(Duration::from_secs(30));
    let _others = (take(), take());
    undo(&old);
    assert!(take().is_denied());
}

#[test]
fn bounds_of_reservations_that_contradict_each_other_are_errors() {
    let error = MemoryStore::builder().max_reservations(5).max_reservations_per_policy(6).build();
    assert_eq!(
        error.unwrap_err().to_string(),
        "a bound of 6 open reservations is above 5, which is reached first; keep \
         max_reservations_per_key <= max_reservations_per_policy <= max_reservations"
    );
    let builder = MemoryStore::builder().max_reservations_per_policy(6).max_reservations_per_key(7);
    assert!(builder.build().is_err());
    assert!(MemoryStore::builder().max_reservations(0).build().is_ok(), "none at all");
}

/// A policy that says the same as the one before is no change: what a longer quota has left counts from the
/// change to this quota on, however often the policy is made anew.
#[test]
fn a_new_policy_of_the_same_quota_is_no_change() {
    let (clock, hand) = Clock::manual();
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    let acquire = |quota, cost| {
        let policy = Policy::new("p", quota).unwrap();
        store.acquire_one_now(&policy, b"k", cost).unwrap()
    };
    assert!(acquire(Quota::per_day(1000), 1000).is_allowed());
    hand.advance(Duration::from_secs(1));
    for _ in 0..6 {
        assert!(acquire(Quota::per_minute(1000), 1).is_denied());
        hand.advance(Duration::from_millis(10));
    }
    assert!(acquire(Quota::per_minute(1000), 1).is_allowed());
    // With another quota in between, it is one.
    assert!(acquire(Quota::per_day(1000), 1).is_allowed());
}
