//! Leases, step by step.

use crate::servers::tier::{Away, idle};
use std::{sync::atomic::Ordering::Relaxed, time::Duration};
use tollgate::{
    Algorithm, Decision, ManualClock, Quota,
    store::{Demand, Policy, Store, StoreError},
    testing::block_on,
};
use tollgate_redis::{FleetSize, LeasePlan, LeaseSettings, TwoTier};

const SYNC: Duration = Duration::from_millis(100);

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

struct Node {
    hand: ManualClock,
    store: Away,
    fleet: FleetSize,
    tier: TwoTier<Away>,
}

/// One of eight processes; every policy leases.
fn node() -> Node {
    let hand = ManualClock::new();
    let (store, fleet) = (Away::new(&hand), FleetSize::fixed(8));
    let builder = TwoTier::builder(store.clone(), fleet.clone()).leases(LeaseSettings::new());
    Node { hand, store, fleet, tier: builder.build().unwrap() }
}

impl Node {
    fn take(&self, policy: &Policy, cost: u64) -> Decision {
        self.try_take(policy, cost).unwrap()
    }

    fn try_take(&self, policy: &Policy, cost: u64) -> Result<Decision, StoreError> {
        block_on(self.tier.acquire(&mut [Demand::new(policy, b"key", cost)]))
    }

    /// Returns the remaining permits of the store.
    fn left(&self, policy: &Policy) -> u64 {
        let mut demands = [Demand::new(policy, b"key", 0)];
        block_on(self.store.peek(&mut demands)).unwrap().remaining()
    }
}

fn api() -> Policy {
    Policy::new("api", Quota::per_second(1000)).unwrap()
}

#[test]
fn a_fresh_key_doubles_its_leases_until_they_suffice() {
    let (node, api) = (node(), api());
    let mut calls = Vec::new();
    for request in 1..=130 {
        let before = node.store.calls();
        let decision = node.take(&api, 1);
        assert!(decision.is_allowed());
        assert_eq!(decision.limit(), 1000);
        // There are no other callers: the held permits and those of the store are all permits.
        assert_eq!(decision.remaining(), 1000 - request);
        if node.store.calls() > before {
            calls.push(request);
        }
    }
    assert_eq!(calls, [1, 2, 4, 8, 16, 32, 64, 126], "62 at once are the most");
    assert_eq!(node.tier.status().allowed_by_leases, 122);
}

#[test]
fn unused_permits_end_after_two_sync_periods_or_with_their_window() {
    let window = Quota::per(1000, Duration::from_secs(1));
    // algorithm, the time of the fetch, the life of the permits
    for (row, (algorithm, at, life)) in [
        (Algorithm::Gcra, 950, 200),
        (Algorithm::FixedWindow, 950, 50),
        (Algorithm::FixedWindow, 500, 200),
        (Algorithm::SlidingLog, 950, 200),
    ]
    .into_iter()
    .enumerate()
    {
        let (node, policy) = (node(), Policy::with_algorithm("p", window, algorithm).unwrap());
        node.hand.advance(ms(at));
        (0..4).for_each(|_| assert!(node.take(&policy, 1).is_allowed()));
        let calls = node.store.calls();
        node.hand.advance(ms(life) - Duration::from_nanos(1));
        assert!(node.take(&policy, 1).is_allowed());
        assert_eq!(node.store.calls(), calls, "row {row}: held until its end");
        node.hand.advance(Duration::from_nanos(1));
        assert!(node.take(&policy, 1).is_allowed());
        assert_eq!(node.store.calls(), calls + 1, "row {row}: gone at its end");
        assert_eq!(node.tier.status().wasted, 2, "row {row}");
    }
}

#[test]
fn a_store_that_had_too_little_is_not_asked_again_for_a_pace() {
    let (node, api) = (node(), api());
    // Others have taken nearly all permits.
    block_on(node.store.force(&Demand::new(&api, b"key", 997))).map(drop).unwrap();
    let passed = (0..50).filter(|_| node.take(&api, 1).is_allowed()).count();
    assert_eq!((passed, node.store.calls()), (3, 3), "1 of 1, 2 of 2, 0 of 4");
    let refused = node.take(&api, 1);
    let wait = refused.retry_after(node.hand.now()).unwrap();
    assert!((ms(89)..=ms(111)).contains(&wait), "{wait:?}");
    assert_eq!(refused.remaining(), 0);
    node.hand.advance(wait - Duration::from_nanos(1));
    assert!(node.take(&api, 1).is_denied());
    node.hand.advance(Duration::from_nanos(1));
    assert!(node.take(&api, 1).is_allowed(), "at the time that was told");
    assert_eq!(node.store.calls(), 4);
}

#[test]
fn a_far_wait_is_told_but_the_store_is_asked_every_second() {
    let (node, daily) =
        (node(), Policy::new("daily", Quota::per_second(1000).burst(10_000)).unwrap());
    block_on(node.store.force(&Demand::new(&daily, b"key", 70_000))).map(drop).unwrap();
    let wait = node.take(&daily, 1).retry_after(node.hand.now()).unwrap();
    assert!(wait > Duration::from_secs(60), "{wait:?}");
    for _ in 0..50 {
        node.hand.advance(ms(99));
        assert!(node.take(&daily, 1).is_denied());
    }
    assert!((5..=6).contains(&node.store.calls()), "{} calls in 5 s", node.store.calls());
}

#[test]
fn several_demands_are_all_charged_or_none() {
    let (node, api) = (node(), api());
    let strict = Policy::new("strict", Quota::per_minute(2)).unwrap(); // too small to lease
    (0..4).for_each(|_| assert!(node.take(&api, 1).is_allowed()));
    let held = |node: &Node| 1000 - node.left(&api) - 4 - node.tier.status().wasted;
    assert_eq!(held(&node), 3);
    let take = || {
        let mut demands = [Demand::new(&api, b"key", 1), Demand::new(&strict, b"key", 1)];
        let decision = block_on(node.tier.acquire(&mut demands)).unwrap();
        (decision, demands.map(|demand| demand.decision().unwrap()))
    };
    let calls = node.store.calls();
    for round in 1..=2 {
        let (decision, own) = take();
        assert!(decision.is_allowed());
        assert_eq!(own[1].remaining(), 2 - round);
    }
    assert_eq!(node.store.calls(), calls + 2, "one call each, for the demand that does not lease");
    let (decision, own) = take();
    assert!(decision.is_denied() && own[0].is_allowed());
    assert_eq!(decision.refusing().collect::<Vec<_>>(), [1]);
    // The permits of the refused call went back: the third one is still there.
    let calls = node.store.calls();
    assert!(node.take(&api, 1).is_allowed());
    assert_eq!(node.store.calls(), calls);
    // The other way round: the lease is refused, so the store is not asked for the others.
    block_on(node.store.force(&Demand::new(&api, b"key", 2000))).map(drop).unwrap();
    assert!((0..200).any(|_| node.take(&api, 1).is_denied()));
    let calls = node.store.calls();
    let (decision, _) = take();
    assert!(decision.is_denied());
    assert_eq!(node.store.calls(), calls);
}

#[test]
fn what_does_not_lease_goes_to_the_store() {
    let (node, api) = (node(), api());
    let throttle = Policy::ad_hoc("throttle");
    let small = Policy::new("small", Quota::per_second(20)).unwrap();
    for calls in 1..=3 {
        assert!(node.take(&api, 63).is_allowed(), "above the largest lease");
        assert_eq!(node.store.calls(), 4 * calls - 3);
        assert!(node.take(&api, 0).is_allowed());
        assert!(node.take(&small, 1).is_allowed());
        let quota = Quota::per_second(1000);
        let mut demands = [Demand::ad_hoc(&throttle, b"key", 1, quota).unwrap()];
        assert!(block_on(node.tier.acquire(&mut demands)).unwrap().is_allowed());
        assert_eq!(node.store.calls(), 4 * calls);
    }
    assert!(node.take(&api, 62).is_allowed());
    assert!(node.take(&api, 1001).is_never());
}

#[test]
fn the_plan_and_the_fleet_change_while_it_runs() {
    let (node, api) = (node(), api());
    let hold = || (0..64).for_each(|_| assert!(node.take(&api, 1).is_allowed()));
    hold();
    assert_eq!(node.left(&api), 1000 - 63 - 62, "61 are held");
    node.fleet.set(16);
    assert_eq!(node.tier.bounds(&api).lease_max(), 31);
    let _ = node.take(&api, 1);
    assert_eq!(node.tier.status().wasted, 30, "no more than 31 are kept");
    node.tier.change_leases(LeasePlan::all(LeaseSettings::new()).of("api", None)).unwrap();
    let calls = node.store.calls();
    (0..3).for_each(|_| assert!(node.take(&api, 1).is_allowed()));
    assert_eq!(node.store.calls(), calls + 3);
    assert_eq!(node.tier.status().wasted, 60);
    assert_eq!(node.tier.bounds(&api).calls_per_request(), 1.0);
    node.tier.change_leases(LeasePlan::none().of("api", Some(LeaseSettings::new()))).unwrap();
    hold();
    assert!(node.store.calls() < calls + 20);
}

#[test]
fn a_reset_drops_what_is_held_and_a_refund_asks_again() {
    let (node, api) = (node(), api());
    (0..4).for_each(|_| assert!(node.take(&api, 1).is_allowed()));
    block_on(node.tier.reset(&Demand::new(&api, b"key", 0))).unwrap();
    assert_eq!((node.tier.status().wasted, node.left(&api)), (3, 1000));
    block_on(node.store.force(&Demand::new(&api, b"key", 1000))).map(drop).unwrap();
    assert!(node.take(&api, 1).is_denied() && node.take(&api, 1).is_denied());
    block_on(node.tier.refund(&Demand::new(&api, b"key", 10))).map(drop).unwrap();
    assert!(node.take(&api, 1).is_allowed());
}

#[test]
fn errors_pass_through_and_are_no_refusals() {
    let (node, api) = (node(), api());
    (0..4).for_each(|_| assert!(node.take(&api, 1).is_allowed()));
    node.store.is_down.store(true, Relaxed);
    for held in (0..3).rev() {
        assert!(node.take(&api, 1).is_allowed(), "{held} to go");
    }
    assert!(node.try_take(&api, 1).unwrap_err().is_transient());
    assert!(node.try_take(&api, 1).unwrap_err().is_transient());
    node.store.is_down.store(false, Relaxed);
    assert!(node.take(&api, 1).is_allowed(), "as soon as it answers");
}

#[test]
fn degraded_permits_are_marked_and_degraded_refusals_hold_for_a_pace() {
    let (node, api) = (node(), api());
    node.store.is_degraded.store(true, Relaxed);
    (0..8).for_each(|_| assert!(node.take(&api, 1).is_degraded()));
    assert_eq!(node.store.calls(), 4);
    block_on(node.store.force(&Demand::new(&api, b"key", 5000))).map(drop).unwrap();
    let refused = (0..200).map(|_| node.take(&api, 1)).find(Decision::is_denied).unwrap();
    assert!(refused.is_degraded());
    node.store.is_degraded.store(false, Relaxed);
    block_on(node.store.reset(&Demand::new(&api, b"key", 0))).unwrap();
    node.hand.advance(SYNC * 11 / 10);
    let decision = node.take(&api, 1);
    assert!(decision.is_allowed() && !decision.is_degraded());
}

#[test]
fn what_is_held_passes_on_top_of_the_burst_and_no_more() {
    let second = Duration::from_secs(1);
    let (hand, api) = (ManualClock::new(), api());
    let store = Away::new(&hand);
    let settings = LeaseSettings::new().sync(second);
    let nodes: Vec<_> = (0..8)
        .map(|_| TwoTier::builder(store.clone(), FleetSize::fixed(8)).leases(settings))
        .map(|builder| builder.build().unwrap())
        .collect();
    let take = |node: &TwoTier<Away>| {
        block_on(node.acquire(&mut [Demand::new(&api, b"key", 1)])).unwrap().is_allowed()
    };
    // Each process holds 61 afterwards; then the store refills.
    nodes.iter().for_each(|node| (0..64).for_each(|_| assert!(take(node))));
    hand.advance(second * 11 / 10);
    let passed: usize = nodes.iter().map(|node| (0..2000).filter(|_| take(node)).count()).sum();
    let bounds = nodes[0].bounds(&api);
    assert_eq!(passed, 1000 + 8 * 61, "the worst that can be");
    assert!(passed as u64 <= 1000 + bounds.over_admission());
}

#[tokio::test]
async fn many_at_once_share_one_call() {
    let (node, api) = (node(), api());
    node.store.set_latency(ms(1));
    let mut requests = Vec::new();
    for _ in 0..40 {
        let (tier, api) = (node.tier.clone(), api.clone());
        requests.push(tokio::spawn(async move {
            tier.acquire(&mut [Demand::new(&api, b"key", 1)]).await.unwrap()
        }));
    }
    idle().await;
    assert_eq!(node.store.calls(), 1, "one flight");
    let there_and_back = async || {
        for _ in 0..2 {
            node.hand.advance(ms(1));
            idle().await;
        }
    };
    there_and_back().await;
    assert_eq!(node.store.calls(), 2, "the next one brings what all others want");
    there_and_back().await;
    for request in requests {
        assert!(request.await.unwrap().is_allowed());
    }
    assert_eq!(node.store.calls(), 2);
    assert!(node.tier.status().shared_calls >= 39);
}

#[tokio::test]
async fn whoever_waits_goes_on_when_the_first_is_cancelled_or_fails() {
    for is_down in [false, true] {
        let (node, api) = (node(), api());
        node.store.set_latency(ms(1));
        let mut requests = Vec::new();
        for _ in 0..5 {
            let (tier, api) = (node.tier.clone(), api.clone());
            requests.push(tokio::spawn(async move {
                tier.acquire(&mut [Demand::new(&api, b"key", 1)]).await
            }));
            idle().await;
        }
        assert_eq!(node.store.calls(), 1);
        node.store.is_down.store(is_down, Relaxed);
        if !is_down {
            requests.remove(0).abort();
        }
        for _ in 0..8 {
            idle().await;
            node.hand.advance(ms(1));
        }
        for request in requests {
            assert_eq!(request.await.unwrap().is_err(), is_down);
        }
        // After a failure each request asks by itself; after a cancellation one asks for all.
        assert_eq!(node.store.calls(), if is_down { 5 } else { 2 });
    }
}

#[tokio::test]
async fn permits_are_fetched_ahead_so_that_nobody_waits() {
    let (node, api) = (node(), api());
    node.store.set_latency(ms(5));
    let mut waited = 0;
    for at in 0..1000 {
        let (tier, api) = (node.tier.clone(), api.clone());
        let request = tokio::spawn(async move {
            tier.acquire(&mut [Demand::new(&api, b"key", 1)]).await.unwrap()
        });
        idle().await;
        // The demand is learned in the first half.
        waited += u32::from(at >= 500 && !request.is_finished());
        for _ in 0..2 {
            node.hand.advance(ms(1));
            idle().await;
        }
    }
    let status = node.tier.status();
    assert_eq!(waited, 0, "{status:?}");
    assert!(status.refills_ahead >= 10, "{status:?}");
    assert!((ms(9)..=ms(11)).contains(&status.round_trip), "{status:?}");
}

#[test]
fn threads_share_one_call_too() {
    let (node, api) = (node(), api());
    node.store.set_latency(ms(1));
    std::thread::scope(|scope| {
        let requests: Vec<_> = (0..8).map(|_| scope.spawn(|| node.take(&api, 1))).collect();
        // All have asked: one calls, the others wait for it.
        let mut turns = 0_u64;
        while node.tier.status().shared_calls < 7 || node.store.calls() < 1 {
            turns += 1;
            assert!(turns < 50_000_000, "{:?}", node.tier.status());
            std::thread::yield_now();
        }
        assert_eq!(node.store.calls(), 1);
        while !requests.iter().all(|request| request.is_finished()) {
            turns += 1;
            assert!(turns < 50_000_000, "{:?}", node.tier.status());
            node.hand.advance(Duration::from_micros(100));
            std::thread::yield_now();
        }
        for request in requests {
            assert!(request.join().unwrap().is_allowed());
        }
    });
    assert!(node.store.calls() <= 3, "{} calls for eight", node.store.calls());
}
