//! The cost above a reservation is charged, as far as a debt can go.
#![cfg(feature = "testing")]

use crate::support::ns;
use proptest::prelude::*;
use std::time::Duration;
use tollgate::{
    Algorithm, Clock, Decision, KeyedLimiter, Limiter, Quota, Reason, Tick, WhenFull,
    algorithm::{FixedWindow, Gcra, SlidingCounter, SlidingLog, Step},
    store::{Demand, MemoryStore, Policy, ReservationId, Store},
    testing::block_on,
};

const MINUTE: Duration = Duration::from_secs(60);

/// The limiter whose permits are settled.
enum Owner {
    Limiter(Limiter),
    Keyed(KeyedLimiter<str>),
    Store(MemoryStore, Policy),
}

impl Owner {
    /// One of each kind, on a manual clock.
    fn all(algorithm: Algorithm, quota: Quota) -> [(&'static str, Self); 3] {
        let (clock, hand) = Clock::manual();
        hand.advance(Duration::from_secs(100));
        let limiter = Limiter::builder(quota).algorithm(algorithm).clock(clock.clone());
        let keyed = KeyedLimiter::builder(quota).algorithm(algorithm).clock(clock.clone());
        let policy = Policy::with_algorithm("p", quota, algorithm).unwrap();
        [
            ("limiter", Self::Limiter(limiter.build().unwrap())),
            ("key", Self::Keyed(keyed.build().unwrap())),
            ("store", Self::Store(MemoryStore::builder().clock(clock).build().unwrap(), policy)),
        ]
    }

    /// Reserves and settles. Returns the decision of the settlement, if there is one.
    fn settle(&self, cost: u64, actual: u64) -> Option<Decision> {
        match self {
            Self::Limiter(limiter) => Some(limiter.reserve(cost).unwrap().settle(actual)),
            Self::Keyed(keyed) => Some(keyed.reserve("a", cost).unwrap().settle(actual)),
            Self::Store(store, policy) => {
                let mut demands = [Demand::new(policy, b"a", cost)];
                let id = block_on(store.reserve(&mut demands, MINUTE)).unwrap().id.unwrap();
                assert!(block_on(store.settle(id, &[actual])).unwrap());
                None
            }
        }
    }

    fn peek(&self, cost: u64) -> Decision {
        match self {
            Self::Limiter(limiter) => limiter.peek_n(cost),
            Self::Keyed(keyed) => keyed.peek_n("a", cost),
            Self::Store(store, policy) => {
                block_on(store.peek(&mut [Demand::new(policy, b"a", cost)])).unwrap()
            }
        }
    }

    fn force(&self, cost: u64) -> Decision {
        match self {
            Self::Limiter(limiter) => limiter.force(cost),
            Self::Keyed(keyed) => keyed.force("a", cost),
            Self::Store(store, policy) => {
                block_on(store.force(&Demand::new(policy, b"a", cost))).unwrap()
            }
        }
    }
}

fn cases() -> Vec<(Algorithm, Quota)> {
    let windows = Algorithm::ALL.into_iter().flat_map(|algorithm| {
        [Quota::per_minute(20), Quota::per_day(1), Quota::per_second(1000)]
            .map(|quota| (algorithm, quota))
    });
    let buckets = [
        Quota::once(20),
        Quota::once(1),
        Quota::once(1 << 40),
        Quota::per_year(1).burst(4),
        Quota::per_second(1_000_000),
        Quota::per_second(1_000_000_000).burst(1),
    ];
    windows.chain(buckets.map(|quota| (Algorithm::Gcra, quota))).collect()
}

#[test]
fn what_is_used_beyond_all_bounds_is_charged_as_far_as_it_goes() {
    for (algorithm, quota) in cases() {
        let limit = quota.capacity();
        // (reserved, twice the capacity or more)
        for cost in [0, 1, limit] {
            for actual in [2 * limit, 1000 * limit, 1 << 40, 1 << 62, u64::MAX - 1, u64::MAX] {
                for (owner, subject) in Owner::all(algorithm, quota) {
                    let row = format!("{algorithm} {quota}, {owner}: {cost} settled to {actual}");
                    let level = subject.settle(cost, actual);
                    let seen = subject.peek(0);
                    assert_eq!(seen.remaining(), 0, "{row}");
                    assert!(subject.peek(1).is_denied(), "{row}: it goes on");
                    if let Some(level) = level {
                        assert!(level.is_allowed(), "{row}");
                        assert!((limit..=actual).contains(&level.cost()), "{row}: {level:?}");
                        let told = (level.remaining(), level.full_at());
                        assert_eq!(told, (seen.remaining(), seen.full_at()), "{row}: not so");
                        // Either the whole cost is charged, or nothing more fits.
                        let fits = subject.force(1).is_allowed();
                        assert!(level.cost() == actual || !fits, "{row}: {level:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn more_is_never_charged_less() {
    for (algorithm, quota) in cases() {
        let (limit, mut last) = (quota.capacity(), [0; 2]);
        for actual in (0..64).map(|shift| 1_u64 << shift).filter(|actual| *actual >= limit) {
            for (index, (owner, subject)) in Owner::all(algorithm, quota).into_iter().enumerate() {
                let Some(level) = subject.settle(1, actual) else { continue };
                let row = format!("{algorithm} {quota}, {owner}: {actual}");
                assert!(level.cost() >= last[index], "{row}: {level:?}");
                last[index] = level.cost();
            }
        }
    }
}

#[test]
fn what_fits_is_charged_to_the_permit() {
    for algorithm in Algorithm::ALL {
        // actual, left
        for (actual, left) in [(0, 20), (1, 19), (5, 15), (6, 14), (20, 0), (21, 0), (40, 0)] {
            for (owner, subject) in Owner::all(algorithm, Quota::per_minute(20)) {
                let row = format!("{algorithm}, {owner}: 5 settled to {actual}");
                if let Some(level) = subject.settle(5, actual) {
                    assert_eq!((level.remaining(), level.cost()), (left, actual), "{row}");
                }
                assert_eq!(subject.peek(0).remaining(), left, "{row}");
                assert_eq!(subject.peek(0).is_denied(), actual > 20, "{row}: a debt");
            }
        }
    }
}

#[test]
fn a_debt_that_does_not_fit_is_still_refused_to_force() {
    for (algorithm, quota) in cases() {
        for (owner, subject) in Owner::all(algorithm, quota) {
            let refused = subject.force(u64::MAX);
            assert!(refused.is_never(), "{algorithm} {quota}, {owner}: {refused:?}");
            assert_eq!(subject.peek(0).remaining(), quota.capacity(), "{algorithm} {quota}");
        }
    }
}

#[test]
fn a_quota_that_came_with_the_call_is_charged_as_far_as_it_goes() {
    let policies = [Policy::ad_hoc("cell"), Policy::ad_hoc_window("window", MINUTE).unwrap()];
    let quota = Quota::per_minute(20);
    for policy in &policies {
        for actual in [40, 1000, 1 << 40, u64::MAX] {
            let (clock, _hand) = Clock::manual();
            let store = MemoryStore::builder().clock(clock).build().unwrap();
            let demand = |cost| Demand::ad_hoc(policy, b"a", cost, quota).unwrap();
            let reserved = block_on(store.reserve(&mut [demand(1)], MINUTE)).unwrap();
            let id = reserved.id.unwrap_or(ReservationId(0));
            assert!(block_on(store.settle(id, &[actual])).unwrap());
            let decision = store.acquire_now(&mut [demand(1)]).unwrap();
            assert!(decision.is_denied(), "{}: {actual} used, and it goes on", policy.name());
        }
    }
}

/// If a key no longer finds a place, its cost is charged to the budget that such keys share.
#[test]
fn the_shared_budget_of_a_full_table_is_charged_as_far_as_it_goes() {
    for fills_before in [false, true] {
        let (clock, _hand) = Clock::manual();
        let quota = Quota::per_minute(20);
        let keyed = KeyedLimiter::<u64>::builder(quota).clock(clock).bounded(64);
        let keyed = keyed.when_full(WhenFull::Share(quota)).build().unwrap();
        let key = 1 << 40;
        let fill = || (0..1000).find(|key| keyed.force(key, 1).reason() == Reason::Saturated);
        let early = (!fills_before).then(|| keyed.reserve(&key, 0).unwrap());
        assert!(fill().is_some());
        let reservation = early.unwrap_or_else(|| keyed.reserve(&key, 0).unwrap());
        let level = reservation.settle(u64::MAX);
        assert!(level.is_allowed() && level.remaining() == 0, "{fills_before}: {level:?}");
        assert!(keyed.try_acquire(&key).is_denied(), "{fills_before}");
    }
}

/// Charges some, and then tells whether the largest cost that can be charged is exact.
fn is_exact<S: Step<State: Clone>>(step: &S, costs: &[(u64, u64)]) -> Result<(), TestCaseError> {
    let (mut state, mut now) = (step.initial(Tick::ZERO), 0);
    for (gap_ns, cost) in costs {
        now += gap_ns;
        let _ = step.force(&mut state, ns(now), *cost);
        let most = step.chargeable(&state, ns(now));
        prop_assert!(most >= step.available(&state, ns(now)));
        let mut after = state.clone();
        prop_assert!(
            !step.charge(&mut after, ns(now), most.saturating_add(1)),
            "{most} is not all"
        );
        prop_assert!(step.charge(&mut after, ns(now), most), "{most} is too much");
        prop_assert_eq!(step.available(&after, ns(now)), 0);
        prop_assert_eq!(step.force_up_to(&mut state.clone(), ns(now), u64::MAX).cost(), most);
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_largest_charge_is_exact(
        (count, period_ns) in (1..1000_u64, 1_000_000..1_000_000_000_000_u64),
        costs in prop::collection::vec((0..20_000_000_000_u64, (0..64_u32, any::<u64>())), 1..8),
        epoch in 0..1_000_000_000_u64,
    ) {
        let costs: Vec<_> =
            costs.into_iter().map(|(gap, (shift, cost))| (gap, cost >> shift)).collect();
        let quota = Quota::per(count, Duration::from_nanos(period_ns));
        let epoch = Duration::from_nanos(epoch);
        is_exact(&Gcra::new(&quota).unwrap(), &costs)?;
        is_exact(&Gcra::new(&Quota::once(count)).unwrap(), &costs)?;
        is_exact(&SlidingCounter::new(&quota, epoch).unwrap(), &costs)?;
        is_exact(&SlidingLog::new(&quota).unwrap(), &costs)?;
        let windows = [FixedWindow::aligned(&quota, epoch), FixedWindow::anchored(&quota, epoch)];
        for window in windows.into_iter().flatten() {
            is_exact(&window, &costs)?;
        }
    }
}
