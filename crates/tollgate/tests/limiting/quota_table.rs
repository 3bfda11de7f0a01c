//! When an exhausted key passes next after a change of its quota, as the table in docs/keys.md says.
#![cfg(feature = "testing")]

use std::time::Duration;
use tollgate::{
    Algorithm, Clock, KeyedLimiter, ManualClock, Quota, Tick,
    store::{Demand, MemoryStore, Policy, Store},
    testing::block_on,
};

#[path = "../../../../rig/src/quota_changes.rs"]
#[allow(unreachable_pub, reason = "of another crate")]
mod quota_changes;

use quota_changes::quota_changes;

/// A whole number of all windows: nothing is used, and they have just begun.
const START: Duration = Duration::from_secs(86_400);

/// Checks that a call passes after `wait`, and not a nanosecond earlier.
fn passes_after(
    wait: Duration,
    hand: &ManualClock,
    about: &str,
    mut take: impl FnMut() -> (bool, Option<Tick>),
) {
    if wait > Duration::ZERO {
        assert_eq!(
            take(),
            (false, Some(hand.now().saturating_add(wait))),
            "{about}: denied until then"
        );
        hand.advance(wait - Duration::from_nanos(1));
        assert!(!take().0, "{about}: too early");
        hand.advance(Duration::from_nanos(1));
    }
    assert!(take().0, "{about}: too late");
}

#[test]
fn an_exhausted_key_passes_next_as_documented() {
    for change in quota_changes() {
        let algorithm: Algorithm = change.algorithm.parse().unwrap();
        let [before, after]: [Quota; 2] = change.quotas.each_ref().map(|it| it.parse().unwrap());
        for is_bounded in [false, true] {
            let (clock, hand) = Clock::manual();
            hand.advance(START);
            let builder = KeyedLimiter::<str>::builder(before).algorithm(algorithm).clock(clock);
            let builder = if is_bounded { builder.bounded(1000) } else { builder };
            let limiter = builder.build().unwrap();
            assert!(limiter.try_acquire_n("key", before.capacity()).is_allowed());
            limiter.set_quota(after).unwrap();
            passes_after(change.wait, &hand, &format!("{change:?}, {is_bounded}"), || {
                let decision = limiter.try_acquire("key");
                (decision.is_allowed(), decision.retry_at())
            });
        }
    }
}

#[test]
fn an_exhausted_key_of_a_store_passes_next_as_documented() {
    for change in quota_changes() {
        let algorithm: Algorithm = change.algorithm.parse().unwrap();
        let (clock, hand) = Clock::manual();
        hand.advance(START);
        let store = MemoryStore::builder().clock(clock).build().unwrap();
        let [before, after] = change
            .quotas
            .each_ref()
            .map(|it| Policy::with_algorithm("policy", it.parse().unwrap(), algorithm).unwrap());
        let take = |policy: &Policy, cost| {
            let mut demands = [Demand::new(policy, b"key", cost)];
            let decision = block_on(store.acquire(&mut demands)).unwrap();
            (decision.is_allowed(), decision.retry_at())
        };
        assert!(take(&before, before.quota().capacity()).0);
        passes_after(change.wait, &hand, &format!("{change:?}"), || take(&after, 1));
    }
}
