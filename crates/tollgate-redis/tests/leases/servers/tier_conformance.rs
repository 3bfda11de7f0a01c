//! Two tiers conform like any store, and remembered refusals keep their guarantees.

use crate::servers::tier::Away;
use std::{sync::atomic::Ordering::Relaxed, time::Duration};
use tollgate::{
    Algorithm, Clock, ManualClock, Quota,
    store::{Demand, MemoryStore, Policy, Store},
    testing::{Subject, block_on, conformance},
};
use tollgate_redis::{FleetSize, LeasePlan, LeaseSettings, TierError, TwoTier};

struct Tiered(TwoTier<MemoryStore>, ManualClock);

impl Subject for Tiered {
    type Store = TwoTier<MemoryStore>;

    fn store(&self) -> &Self::Store {
        &self.0
    }

    async fn advance(&self, by: Duration) {
        self.1.advance(by);
    }

    /// The wait of a call with a higher cost than the refused one is rounded up.
    fn rounding(&self) -> Duration {
        Duration::from_nanos(1)
    }
}

fn tiered(settings: Option<LeaseSettings>, cap: Duration) -> Tiered {
    let (clock, hand) = Clock::manual();
    let store = MemoryStore::builder().clock(clock).build().unwrap();
    let mut builder = TwoTier::builder(store, FleetSize::fixed(1)).deny_cap(cap);
    if let Some(settings) = settings {
        builder = builder.leases(settings);
    }
    Tiered(builder.build().unwrap(), hand)
}

#[test]
fn conforms_with_remembered_refusals() {
    for cap in [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(3600)] {
        let report = block_on(conformance::run(async || tiered(None, cap)));
        assert!(report.is_passed(), "{cap:?}: {report}");
    }
}

/// With leases, the held permits determine the remaining permits and the retry time: the checks
/// that compare those with the store's own numbers cannot pass. All others do.
#[test]
fn conforms_with_leases_but_for_what_remains() {
    let settings = LeaseSettings::new().sync(Duration::from_secs(10));
    let report =
        block_on(conformance::run(async || tiered(Some(settings), Duration::from_secs(1))));
    let failed: Vec<_> =
        report.checks.iter().filter(|(_, outcome)| outcome.is_err()).map(|(it, _)| it).collect();
    println!("{report}");
    let known = [
        "overlapping sets at once leave no trace of refusals", // peeks at the store's permits
        "decides as the core does",                            // compares the remaining permits
    ];
    assert!(failed.iter().all(|name| known.contains(&name.as_str())), "{report}");
}

fn away() -> (Away, ManualClock) {
    let hand = ManualClock::new();
    (Away::new(&hand), hand)
}

#[test]
fn a_flood_needs_one_call_per_wait() {
    for algorithm in Algorithm::ALL {
        let (store, hand) = away();
        let tier = TwoTier::builder(store.clone(), FleetSize::fixed(1)).build().unwrap();
        let policy = Policy::with_algorithm("p", Quota::per_second(10), algorithm).unwrap();
        let mut passed = 0;
        for _ in 0..10_000 {
            hand.advance(Duration::from_micros(1000));
            let decision = block_on(tier.acquire(&mut [Demand::new(&policy, b"key", 1)])).unwrap();
            passed += u64::from(decision.is_allowed());
        }
        assert!((100..=111).contains(&passed), "{algorithm}: {passed} passed");
        // Each admission is a call, and each wait one more.
        assert!(store.calls() <= 2 * passed + 10, "{algorithm}: {} calls", store.calls());
        assert_eq!(tier.status().refused_by_memory, 10_000 - store.calls());
    }
}

#[test]
fn what_this_process_gives_back_counts_at_once() {
    type Give = fn(&TwoTier<Away>, &Policy);
    let gives: [(&str, Give); 3] = [
        ("refund", |tier, policy| {
            block_on(tier.refund(&Demand::new(policy, b"key", 5))).map(drop).unwrap();
        }),
        ("reset", |tier, policy| {
            block_on(tier.reset(&Demand::new(policy, b"key", 0))).unwrap();
        }),
        ("settle", |tier, policy| {
            let mut other = [Demand::new(policy, b"other", 1), Demand::new(policy, b"other2", 1)];
            let life = Duration::from_secs(9);
            let reserved = block_on(tier.reserve(&mut other, life)).unwrap();
            block_on(tier.settle(reserved.id.unwrap(), &[1, 1])).unwrap();
            block_on(tier.refund(&Demand::new(policy, b"key", 1))).map(drop).unwrap();
        }),
    ];
    for (name, give) in gives {
        let (store, _hand) = away();
        let tier = TwoTier::builder(store.clone(), FleetSize::fixed(1)).build().unwrap();
        let policy = Policy::new("p", Quota::per_minute(5)).unwrap();
        let take = || block_on(tier.acquire(&mut [Demand::new(&policy, b"key", 1)])).unwrap();
        for _ in 0..5 {
            assert!(take().is_allowed());
        }
        let (first, second) = (take(), take());
        assert!(first.is_denied() && first == second, "{name}: {first:?} {second:?}");
        assert_eq!(store.calls(), 6, "{name}");
        give(&tier, &policy);
        assert!(take().is_allowed(), "{name}: refused by memory");
    }
}

#[test]
fn another_quota_is_not_refused_by_memory() {
    let (store, _hand) = away();
    let tier = TwoTier::builder(store.clone(), FleetSize::fixed(1)).build().unwrap();
    let of = |n| Policy::with_algorithm("p", Quota::per_minute(n), Algorithm::FixedWindow).unwrap();
    let (old, new) = (of(5), of(6));
    let take = |policy| block_on(tier.acquire(&mut [Demand::new(policy, b"key", 1)])).unwrap();
    assert!((0..5).all(|_| take(&old).is_allowed()));
    assert!(take(&old).is_denied() && take(&old).is_denied());
    assert_eq!(store.calls(), 6);
    assert!(take(&new).is_allowed() && take(&new).is_denied());
}

#[test]
fn a_reservation_that_is_settled_for_less_lets_its_key_pass() {
    let (store, _hand) = away();
    let tier = TwoTier::builder(store, FleetSize::fixed(1)).build().unwrap();
    let policy = Policy::new("tokens", Quota::per_hour(100)).unwrap();
    let life = Duration::from_secs(60);
    let reserved = block_on(tier.reserve(&mut [Demand::new(&policy, b"key", 100)], life)).unwrap();
    let take = || block_on(tier.acquire(&mut [Demand::new(&policy, b"key", 1)])).unwrap();
    assert!(take().is_denied() && take().is_denied());
    assert!(block_on(tier.settle(reserved.id.unwrap(), &[10])).unwrap());
    assert!(take().is_allowed());
}

#[test]
fn what_others_give_back_is_noticed_after_the_cap() {
    let (store, hand) = away();
    let tier = TwoTier::builder(store.clone(), FleetSize::fixed(2)).build().unwrap();
    let policy = Policy::new("p", Quota::per_hour(5)).unwrap();
    let take = || block_on(tier.acquire(&mut [Demand::new(&policy, b"key", 5)])).unwrap();
    assert!(take().is_allowed());
    let refused = take();
    block_on(store.reset(&Demand::new(&policy, b"key", 0))).unwrap();
    hand.advance(Duration::from_millis(999));
    assert_eq!(take().retry_at(), refused.retry_at(), "the wait is the store's, not the cap");
    hand.advance(Duration::from_millis(1));
    assert!(take().is_allowed());
}

#[test]
fn a_cheaper_call_is_asked_for_and_a_dearer_one_is_not() {
    let (store, hand) = away();
    let tier = TwoTier::builder(store.clone(), FleetSize::fixed(1)).build().unwrap();
    let policy = Policy::new("p", Quota::per_second(10)).unwrap();
    let take = |cost| block_on(tier.acquire(&mut [Demand::new(&policy, b"key", cost)])).unwrap();
    assert!(take(8).is_allowed());
    let wait = |cost| take(cost).retry_after(hand.now());
    assert_eq!(wait(4), Some(Duration::from_millis(200)));
    assert_eq!(
        (wait(4), wait(6)),
        (Some(Duration::from_millis(200)), Some(Duration::from_millis(400)))
    );
    assert_eq!(store.calls(), 2);
    hand.advance(Duration::from_millis(100));
    assert_eq!(take(4).remaining(), 3, "one has come back");
    assert!(take(11).is_never(), "asked for");
    assert_eq!(store.calls(), 3);
    assert!(take(3).is_allowed(), "asked for");
    assert_eq!(wait(4), Some(Duration::from_millis(400)), "the take made the old wait stale");
}

#[test]
fn several_demands_are_refused_by_the_one_that_is_known() {
    let (store, _hand) = away();
    let tier = TwoTier::builder(store.clone(), FleetSize::fixed(1)).build().unwrap();
    let all = Policy::new("all", Quota::per_minute(100)).unwrap();
    let each = Policy::new("each", Quota::per_minute(1)).unwrap();
    let take = || {
        let mut demands = [Demand::new(&all, b"", 1), Demand::new(&each, b"key", 1)];
        let decision = block_on(tier.acquire(&mut demands)).unwrap();
        (decision, demands.map(|demand| demand.decision().unwrap()))
    };
    assert!(take().0.is_allowed());
    let (asked, _) = take();
    let (known, own) = take();
    assert_eq!(store.calls(), 2);
    assert_eq!(known.refusing().collect::<Vec<_>>(), [1]);
    assert_eq!(known.retry_at(), asked.retry_at());
    assert!(own[0].is_allowed() && own[1].is_denied());
    // Only the demand that is refused by itself is remembered: the other key passes.
    let mut other = [Demand::new(&all, b"", 1), Demand::new(&each, b"other", 1)];
    assert!(block_on(tier.acquire(&mut other)).unwrap().is_allowed());
    // A key that appears twice is charged the sum, which says nothing about a single demand.
    let mut twice = [Demand::new(&all, b"", 60), Demand::new(&all, b"", 60)];
    assert!(block_on(tier.acquire(&mut twice)).unwrap().is_denied());
    assert!(block_on(tier.acquire(&mut [Demand::new(&all, b"", 60)])).unwrap().is_allowed());
}

#[test]
fn degraded_and_never_are_not_remembered() {
    let (store, _hand) = away();
    let tier = TwoTier::builder(store.clone(), FleetSize::fixed(1)).build().unwrap();
    let policy = Policy::new("p", Quota::per_minute(1)).unwrap();
    let take = |cost| block_on(tier.acquire(&mut [Demand::new(&policy, b"key", cost)])).unwrap();
    store.is_degraded.store(true, Relaxed);
    let _ = take(1);
    assert!(take(1).is_degraded() && take(1).is_denied());
    assert!(take(2).is_never() && take(2).is_never());
    assert_eq!(store.calls(), 5);
    assert_eq!(tier.status().deny_entries, 0);
}

#[test]
fn memory_is_bounded_under_a_flood_of_keys() {
    let (store, _hand) = away();
    let builder = TwoTier::builder(store, FleetSize::fixed(1)).leases(LeaseSettings::new());
    let tier = builder.deny_entries(500).lease_entries(300).build().unwrap();
    let small = Policy::new("small", Quota::per_minute(1)).unwrap();
    let large = Policy::new("large", Quota::per_second(1000)).unwrap();
    for key in 0..3000_u32 {
        for policy in [&small, &small, &large] {
            let key = key.to_le_bytes();
            let _ = block_on(tier.acquire(&mut [Demand::new(policy, &key, 1)])).unwrap();
        }
    }
    let status = tier.status();
    assert!((300..=500).contains(&status.deny_entries), "{status:?}");
    assert!((200..=300).contains(&status.lease_entries), "{status:?}");
}

#[test]
fn nonsense_is_refused_with_a_way_out() {
    let builder = || TwoTier::builder(MemoryStore::new(), FleetSize::fixed(1));
    let hour = Duration::from_secs(3601);
    let sync = LeaseSettings::new().sync(Duration::ZERO);
    for (built, expected) in [
        (builder().leases(sync).build(), TierError::Sync(Duration::ZERO)),
        (builder().leases_of("p", Some(sync)).build(), TierError::Sync(Duration::ZERO)),
        (builder().deny_cap(hour).build(), TierError::DenyCap(hour)),
        (builder().deny_entries(0).build(), TierError::Entries(0)),
        (builder().lease_entries(usize::MAX).build(), TierError::Entries(usize::MAX)),
    ] {
        assert_eq!(built.err(), Some(expected.clone()));
        assert!(expected.to_string().contains(';'), "{expected} names a way out");
    }
    let tier = builder().build().unwrap();
    assert!(tier.change_leases(LeasePlan::all(sync)).is_err());
}
