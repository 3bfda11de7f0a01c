//! The answers of a guarded store, call by call, while the store below works or fails.

use crate::servers::guard_support::{Flaky, Mode, drain, left, policy, take};
use std::{collections::HashSet, time::Duration};
use tollgate::{
    Algorithm, Clock, Decision, ManualClock, Quota,
    store::{Demand, MemoryStore, Operation, Permits, Policy, Store, StoreError},
    testing::{Subject, block_on, conformance},
};
use tollgate_redis::{FailurePolicy, Failures, FleetSize, Guarded};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

/// A fleet of four, whose policies "open" and "closed" are what they are called.
fn guarded() -> (Guarded<Flaky>, Flaky, ManualClock) {
    let (flaky, hand) = Flaky::new();
    let store = Guarded::builder(flaky.clone())
        .failure_of("open", FailurePolicy::Open)
        .failure_of("closed", FailurePolicy::Closed)
        .fleet(FleetSize::fixed(4))
        .build()
        .unwrap();
    (store, flaky, hand)
}

#[test]
fn a_healthy_store_is_as_good_as_without_a_guard() {
    let report = block_on(conformance::run(async || {
        let (store, _, hand) = guarded();
        (store, hand)
    }));
    assert!(report.is_passed(), "{report}");
}

/// With one process and the store away from the beginning, the local limiter is a full store.
#[test]
fn a_single_process_decides_alone_as_the_store_would() {
    let report = block_on(conformance::run(async || {
        let (flaky, hand) = Flaky::new();
        let store = Guarded::builder(flaky.clone()).build().unwrap();
        flaky.set(Mode::Down);
        (store, hand)
    }));
    // Refunds, resets and changes of quotas are the store's alone.
    let failed = report.checks.iter().filter(|(_, outcome)| outcome.is_err());
    for (name, outcome) in failed {
        let text = outcome.as_ref().unwrap_err();
        assert!(text.contains("the store is down"), "{name}: {text}");
    }
    let passed = report.checks.iter().filter(|(_, outcome)| outcome.is_ok()).count();
    assert!(passed >= 20, "{report}");
}

#[tokio::test(start_paused = true)]
async fn each_failure_policy_answers_in_its_way() {
    // Of the policy, cost -> allowed, limit, remaining, wait in ms.
    let quota = Quota::per_second(40);
    for (row, (name, cost, expected)) in [
        ("open", 1, (true, 40, 39, None)),
        ("open", 99, (true, 40, 0, None)),
        ("closed", 1, (false, 40, 0, Some(1000))),
        ("closed", 41, (false, 40, 0, None)),
        ("local", 1, (true, 10, 9, None)),
        ("local", 10, (true, 10, 0, None)),
        // Above the share, not above the quota: it may pass when the store is back.
        ("local", 11, (false, 10, 10, Some(1000))),
        ("local", 41, (false, 10, 10, None)),
    ]
    .into_iter()
    .enumerate()
    {
        let (store, flaky, _) = guarded();
        flaky.set(Mode::Down);
        let decision = take(&store, &policy(name, quota), cost).await;
        let wait = decision.retry_after(store.clock().now()).map(|wait| wait.as_millis());
        let got = (decision.is_allowed(), decision.limit(), decision.remaining(), wait);
        assert_eq!(got, expected, "row {row}: {name}, {cost}");
        assert!(decision.is_degraded(), "row {row}");
        assert_eq!(decision.is_never(), cost == 41, "row {row}");
    }
}

#[tokio::test(start_paused = true)]
async fn only_failures_of_the_store_are_answered_for() {
    // mode -> answered, counted as failure, counted as unknown
    for (mode, expected) in [
        (Mode::Up, (true, 0, 0)),
        (Mode::Down, (true, 1, 0)),
        (Mode::Deaf, (true, 1, 1)),
        (Mode::Lost, (true, 1, 1)),
        (Mode::Full, (false, 0, 0)),
        (Mode::Invalid, (false, 0, 0)),
    ] {
        let (store, flaky, _) = guarded();
        flaky.set(mode);
        let pages = policy("pages", Quota::per_second(40));
        let answer = store.acquire(&mut [Demand::new(&pages, b"alice", 1)]).await;
        let status = store.status();
        let got = (answer.is_ok(), status.store_errors, status.unknown_outcomes);
        assert_eq!(got, expected, "{mode:?}");
        assert_eq!(status.is_degraded_now, expected.1 > 0, "{mode:?}");
        assert_eq!(flaky.calls(), 1, "{mode:?}: nothing is repeated");
        if let Err(error) = answer {
            assert_eq!(
                (error.is_full(), error.is_invalid()),
                (mode == Mode::Full, mode == Mode::Invalid)
            );
        }
    }
}

/// A store that can only acquire and peek.
struct Small(MemoryStore);

impl Store for Small {
    fn clock(&self) -> &Clock {
        self.0.clock()
    }

    async fn acquire(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        self.0.acquire(demands).await
    }

    async fn peek(&self, demands: &mut [Demand<'_>]) -> Result<Decision, StoreError> {
        self.0.peek(demands).await
    }
}

struct Guarding(Guarded<Small>, ManualClock);

impl Subject for Guarding {
    type Store = Guarded<Small>;

    fn store(&self) -> &Guarded<Small> {
        &self.0
    }

    async fn advance(&self, by: Duration) {
        self.1.advance(by);
    }

    fn operations(&self) -> &[Operation] {
        &[Operation::Acquire, Operation::Peek]
    }
}

/// The suite wants every operation that is missing to say so.
#[test]
fn no_failure_policy_answers_for_an_operation_that_the_store_does_not_have() {
    for failure in [FailurePolicy::Open, FailurePolicy::Closed, FailurePolicy::Local] {
        let report = block_on(conformance::run(async || {
            let (clock, hand) = Clock::manual();
            let small = Small(MemoryStore::builder().clock(clock).build().unwrap());
            Guarding(Guarded::builder(small).failure(failure).build().unwrap(), hand)
        }));
        assert!(report.is_passed(), "{failure:?}: {report}");
        let missing: HashSet<_> = report.unsupported.iter().map(|(_, missing)| *missing).collect();
        assert_eq!(missing.len(), Operation::ALL.len() - 2, "{failure:?}: {report}");
        let store = Guarded::builder(Small(MemoryStore::new())).failure(failure).build().unwrap();
        let pages = policy("pages", Quota::per_second(40));
        let error = block_on(store.force(&Demand::new(&pages, b"alice", 1))).unwrap_err();
        assert!(error.is_unsupported() && !error.is_transient(), "{failure:?}: {error}");
        assert!(error.to_string().contains("does not support `force`; implement"), "{error}");
        let status = store.status();
        assert_eq!((status.store_errors, status.is_degraded_now), (0, false), "{failure:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_lacks_its_quota_is_refused_while_the_store_is_away_too() {
    let (store, flaky, _) = guarded();
    let throttle = Policy::ad_hoc("throttle");
    for mode in [Mode::Up, Mode::Down] {
        flaky.set(mode);
        let error = store.acquire(&mut [Demand::new(&throttle, b"alice", 1)]).await.unwrap_err();
        assert!(error.is_invalid(), "{mode:?}: {error}");
    }
}

#[tokio::test(start_paused = true)]
async fn several_demands_are_charged_all_or_none_whatever_their_failure_policies() {
    // policies -> allowed, and what the local one has left of ten
    for (names, expected) in [
        (&["local", "open"][..], (true, 9)),
        (&["open", "local", "open"], (true, 9)),
        (&["local", "closed"], (false, 10)),
        (&["closed", "local", "open"], (false, 10)),
        (&["local", "spent"], (false, 10)),
        (&["local", "local"], (true, 8)),
    ] {
        let (store, flaky, _) = guarded();
        flaky.set(Mode::Down);
        let quota = Quota::per_hour(40);
        let spent = policy("spent", quota);
        assert_eq!(drain(&store, &spent, 99).await, 10);
        let policies: Vec<Policy> = names.iter().map(|name| policy(name, quota)).collect();
        let mut demands: Vec<_> = policies.iter().map(|it| Demand::new(it, b"alice", 1)).collect();
        let decision = store.acquire(&mut demands).await.unwrap();
        let local = left(&store, &policy("local", quota)).await;
        assert_eq!((decision.is_allowed(), local), expected, "{names:?}");
        assert!(decision.is_degraded(), "{names:?}");
        for (index, (demand, name)) in demands.iter().zip(names).enumerate() {
            let own = demand.decision().unwrap();
            let refuses = ["closed", "spent"].contains(name);
            assert_eq!((own.is_denied(), own.is_degraded()), (refuses, true), "{names:?}: {name}");
            assert_eq!(decision.is_refused_by(index), refuses, "{names:?}: {name}");
        }
    }
    let (store, flaky, _) = guarded();
    flaky.set(Mode::Down);
    assert!(store.acquire(&mut []).await.unwrap_err().is_invalid());
}

#[tokio::test(start_paused = true)]
async fn what_the_store_admitted_is_gone_from_the_share_too() {
    // warm, admitted by the store before -> admitted alone afterwards
    for (warm, before, expected) in [(true, 0, 10), (true, 4, 6), (true, 40, 0), (false, 40, 10)] {
        let (flaky, _hand) = Flaky::new();
        let store = Guarded::builder(flaky.clone()).fleet(FleetSize::fixed(4)).warm(warm);
        let store = store.build().unwrap();
        let pages = policy("pages", Quota::per_hour(40));
        assert_eq!(drain(&store, &pages, before).await, before);
        flaky.set(Mode::Down);
        assert_eq!(drain(&store, &pages, 99).await, expected, "{before} before, warm {warm}");
    }
    // A cost above the rest of the share takes that rest, and leaves no debt.
    let (store, flaky, hand) = guarded();
    let pages = policy("pages", Quota::per_second(40));
    assert!(take(&store, &pages, 7).await.is_allowed());
    assert!(take(&store, &pages, 7).await.is_allowed());
    flaky.set(Mode::Down);
    assert!(take(&store, &pages, 1).await.is_denied());
    hand.advance(SECOND / 10);
    assert!(take(&store, &pages, 1).await.is_allowed());
}

#[tokio::test(start_paused = true)]
async fn windows_and_quotas_that_come_with_calls_have_shares_too() {
    for algorithm in Algorithm::ALL {
        let (store, flaky, hand) = guarded();
        let pages = Policy::with_algorithm("pages", Quota::per_minute(40), algorithm).unwrap();
        flaky.set(Mode::Down);
        assert_eq!(drain(&store, &pages, 99).await, 10, "{algorithm}");
        hand.advance(2 * MINUTE);
        assert_eq!(drain(&store, &pages, 99).await, 10, "{algorithm}");
    }
    for throttle in [Policy::ad_hoc("throttle"), Policy::ad_hoc_window("window", MINUTE).unwrap()] {
        let (store, flaky, _) = guarded();
        flaky.set(Mode::Down);
        let mut demand = [Demand::ad_hoc(&throttle, b"alice", 1, Quota::per_minute(40)).unwrap()];
        let decision = store.acquire(&mut demand).await.unwrap();
        assert_eq!((decision.limit(), decision.remaining()), (10, 9), "{throttle:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reservation_made_alone_is_settled_alone() {
    let (store, flaky, _) = guarded();
    let quota = Quota::per_hour(40);
    let (local, open, closed) =
        (policy("local", quota), policy("open", quota), policy("closed", quota));
    let mut stored = [Demand::new(&local, b"bob", 1)];
    let before = store.reserve(&mut stored, MINUTE).await.unwrap();
    flaky.set(Mode::Down);

    let mut both = [Demand::new(&open, b"alice", 5), Demand::new(&local, b"alice", 5)];
    let made = store.reserve(&mut both, MINUTE).await.unwrap();
    assert!(made.decision.is_allowed() && made.decision.is_degraded());
    assert_eq!(left(&store, &local).await, 5);
    let id = made.id.unwrap();
    assert_ne!(Some(id), before.id);
    assert!(store.settle(id, &[9, 1]).await.unwrap());
    assert_eq!(left(&store, &local).await, 9);
    assert!(!store.settle(id, &[9, 1]).await.unwrap(), "it is settled once");

    let refused = store.reserve(&mut [Demand::new(&closed, b"alice", 1)], MINUTE).await.unwrap();
    assert_eq!((refused.decision.is_allowed(), refused.id), (false, None));
    // One of the store's can only be settled there.
    assert!(store.settle(before.id.unwrap(), &[0]).await.is_err());
    flaky.set(Mode::Up);
    assert!(store.settle(before.id.unwrap(), &[0]).await.unwrap());

    // And one made alone is settled alone, though the store is back.
    flaky.set(Mode::Down);
    let made = store.reserve(&mut [Demand::new(&local, b"carol", 5)], MINUTE).await.unwrap();
    flaky.set(Mode::Up);
    assert!(store.settle(made.id.unwrap(), &[0]).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn leases_take_what_there_is() {
    // policy -> taken of 15, and whether there is something to settle
    for (name, taken) in [("local", 10), ("open", 15), ("closed", 0)] {
        let (store, flaky, _) = guarded();
        flaky.set(Mode::Down);
        let pages = policy(name, Quota::per_hour(40));
        let mut demand = Demand::new(&pages, b"alice", 15);
        let lease = store.lease(&mut demand, MINUTE).await.unwrap();
        assert!(lease.decision.is_degraded() && demand.decision().unwrap().is_degraded());
        assert_eq!(lease.decision.is_allowed(), taken > 0, "{name}");
        assert_eq!(lease.id.is_some(), taken > 0, "{name}");
        if let Some(id) = lease.id {
            assert_eq!(lease.decision.cost(), taken, "{name}");
            assert!(store.settle(id, &[0]).await.unwrap(), "{name}");
        }
        let decision = store.up_to(&mut demand).await.unwrap();
        let cost = if decision.is_allowed() { decision.cost() } else { 0 };
        assert_eq!(cost, taken, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn permits_are_let_in_by_the_failure_policy_of_their_name() {
    // name -> let in of 99
    for (name, expected) in [("local", 2), ("open", 99), ("closed", 0)] {
        let (store, flaky, hand) = guarded();
        let permits = Permits::new(name, b"alice", 8);
        let stored = store.enter(&permits, MINUTE).await.unwrap().id.unwrap();
        flaky.set(Mode::Down);
        let mut ids = Vec::new();
        for _ in 0..99 {
            let entered = store.enter(&permits, MINUTE).await.unwrap();
            assert!(entered.id.is_some() || entered.retry_after.is_some(), "{name}");
            ids.extend(entered.id);
        }
        assert_eq!(ids.len(), expected, "{name}");
        assert!(store.leave(&permits, stored).await.is_err(), "{name}: the store's own");
        assert!(store.renew(&permits, stored, MINUTE).await.is_err(), "{name}: the store's own");
        if let Some(id) = ids.pop() {
            assert!(store.renew(&permits, id, MINUTE).await.unwrap(), "{name}");
            assert!(store.leave(&permits, id).await.unwrap(), "{name}");
            assert_eq!(store.leave(&permits, id).await.unwrap(), name == "open", "{name}");
        }
        flaky.set(Mode::Up);
        hand.advance(MINUTE);
        if let Some(id) = ids.pop() {
            assert_eq!(store.renew(&permits, id, MINUTE).await.unwrap(), name == "open", "{name}");
        }
    }
    let (store, flaky, _) = guarded();
    flaky.set(Mode::Down);
    // More than the share, but not than the limit.
    let entered = store.enter(&Permits { cost: 3, ..Permits::new("many", b"", 8) }, MINUTE).await;
    assert_eq!(entered.unwrap().retry_after, Some(SECOND));
}

#[tokio::test(start_paused = true)]
async fn what_only_the_store_can_do_is_an_error() {
    let (store, flaky, _) = guarded();
    let old = policy("local", Quota::per_hour(40));
    let demand = Demand::new(&old, b"alice", 1);
    assert!(take(&store, &old, 4).await.is_allowed());
    flaky.set(Mode::Down);
    assert!(store.refund(&demand).await.is_err());
    assert!(store.reset(&demand).await.is_err());
    assert_eq!(store.status().store_errors, 2);
    assert_eq!(left(&store, &old).await, 6, "nothing has changed here either");

    // With the store, both follow.
    flaky.set(Mode::Up);
    assert_eq!(store.refund(&demand).await.unwrap(), 1);
    flaky.set(Mode::Down);
    assert_eq!(left(&store, &old).await, 7);
    flaky.set(Mode::Up);
    store.reset(&demand).await.unwrap();
    flaky.set(Mode::Down);
    assert_eq!(left(&store, &old).await, 10);
    // A debt is booked here, and later there.
    for (name, allowed) in [("local", true), ("open", true), ("closed", false)] {
        let forced = policy(name, Quota::per_hour(40));
        let forced = store.force(&Demand::new(&forced, b"alice", 25)).await.unwrap();
        assert_eq!((forced.is_allowed(), forced.is_degraded()), (allowed, true), "{name}");
    }
    assert!(take(&store, &old, 1).await.is_denied());
}

#[tokio::test(start_paused = true)]
async fn failure_policies_change_while_it_runs() {
    let (store, flaky, _) = guarded();
    flaky.set(Mode::Down);
    let pages = policy("pages", Quota::per_hour(4));
    assert_eq!(drain(&store, &pages, 99).await, 1);
    store.set_failures(Failures::default().but("pages", FailurePolicy::Open)).unwrap();
    assert_eq!(drain(&store, &pages, 99).await, 99);
    store.set_failures(Failures::all(FailurePolicy::Closed)).unwrap();
    assert_eq!(drain(&store, &pages, 99).await, 0);
    store.set_failures(Failures::default()).unwrap();
    assert_eq!(drain(&store, &pages, 99).await, 0, "what was spent is not forgotten");
    let many = (0..=Failures::NAMES_MAX).fold(Failures::default(), |failures, number| {
        failures.but(number.to_string(), FailurePolicy::Open)
    });
    assert!(store.set_failures(many).is_err());
    assert_eq!(store.failures(), Failures::default());
}

#[tokio::test(start_paused = true)]
async fn the_status_tells_how_it_goes() {
    let (store, flaky, hand) = guarded();
    hand.advance(SECOND);
    flaky.set(Mode::Down);
    for (name, times) in [("open", 1), ("closed", 2), ("local", 3)] {
        for _ in 0..times {
            let _ = take(&store, &policy(name, Quota::per_hour(40)), 1).await;
            hand.advance(SECOND);
        }
    }
    let status = store.status();
    assert_eq!((status.open, status.closed, status.local), (1, 2, 3));
    assert_eq!((status.store_errors, status.pending_spend, status.dropped_spend), (6, 1, 0));
    assert_eq!(status.since, Some(tollgate::Tick::from_millis(1000)));
    flaky.set(Mode::Up);
    let _ = take(&store, &policy("open", Quota::per_hour(40)), 1).await;
    assert_eq!((store.status().is_degraded_now, store.status().since), (false, None));
}

#[test]
fn nonsense_is_refused_and_says_what_to_do() {
    let builder = || Guarded::builder(Flaky::new().0);
    for (built, text) in [
        (
            builder().fraction(0.0).build(),
            "the share 0 of a process is not above 0 and at most 1; leave it out for one over the \
             number of processes",
        ),
        (
            builder().fraction(f64::NAN).build(),
            "the share NaN of a process is not above 0 and at most 1; leave it out for one over the \
             number of processes",
        ),
        (
            builder().retry_after(Duration::ZERO).build(),
            "a denial cannot ask for a wait of 0ns; use more than zero and at most an hour",
        ),
        (
            builder().spends(usize::MAX).build(),
            "the spend of 18446744073709551615 keys is too much to remember; use at most 10000000",
        ),
    ] {
        assert_eq!(built.unwrap_err().to_string(), text);
    }
    assert!(builder().local_keys(0).build().is_err());
    assert!(builder().fraction(1.0).build().is_ok());
}
