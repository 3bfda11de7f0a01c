//! Compares reservations with those of the store in memory: the same permits remain after every
//! step, whichever permits are given back, and in whatever order.

use crate::servers::patient::patient;
use std::time::Duration;
use tollgate::{
    Algorithm, Clock, Quota,
    store::{Demand, MemoryStore, Policy, ReservationId, Store},
};
use tollgate_redis::{Link, RedisStore};
use tollgate_rig::{Flavor, Redis};

const LIFE: Duration = Duration::from_secs(100_000);

async fn trace(link: &Link, algorithm: Algorithm, seed: u64) {
    let ((clock, hand), (twin_clock, twin_hand)) = (Clock::manual(), Clock::manual());
    for clock in [&clock, &twin_clock] {
        clock.set_wall_offset(Duration::from_secs(1_800_000_000));
    }
    let builder = RedisStore::builder(link.clone()).prefix(format!("{algorithm}{seed}"));
    let store = builder.given_time(clock).build().unwrap();
    let twin = MemoryStore::builder().clock(twin_clock).build().unwrap();
    let quotas = [Quota::per_second(5), Quota::per_minute(7)];
    let policies: Vec<_> = ["one", "two"]
        .into_iter()
        .zip(quotas)
        .map(|(name, quota)| Policy::with_algorithm(name, quota, algorithm).unwrap())
        .collect();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut open: Vec<(ReservationId, ReservationId, usize)> = Vec::new();
    for step in 0..250 {
        let about = format!("{algorithm}, seed {seed}, step {step}");
        if random.u8(0..2) == 0 {
            let by = Duration::from_micros(100 * random.u64(0..4000));
            hand.advance(by);
            twin_hand.advance(by);
        }
        let costs = [random.u64(0..4), random.u64(0..4)];
        let mut demands: Vec<_> =
            policies.iter().zip(costs).map(|(it, cost)| Demand::new(it, b"key", cost)).collect();
        demands.truncate(1 + random.usize(0..2));
        match random.u8(0..10) {
            0..4 => {
                let one = store.reserve(&mut demands, LIFE).await.unwrap();
                let two = twin.reserve(&mut demands, LIFE).await.unwrap();
                assert_eq!(one.id.is_some(), two.id.is_some(), "{about}: reserved");
                open.extend(one.id.zip(two.id).map(|(one, two)| (one, two, demands.len())));
            }
            4..8 if !open.is_empty() => {
                let (one, two, count) = open.swap_remove(random.usize(0..open.len()));
                let most = if random.u8(0..10) == 0 { 40 } else { 5 };
                let actual: Vec<_> = (0..count).map(|_| random.u64(0..most)).collect();
                assert!(store.settle(one, &actual).await.unwrap(), "{about}");
                assert!(twin.settle(two, &actual).await.unwrap(), "{about}");
            }
            8 => {
                let given = store.refund(&demands[0]).await.unwrap();
                assert_eq!(given, twin.refund(&demands[0]).await.unwrap(), "{about}: refund");
            }
            _ => {
                let seen = store.acquire(&mut demands).await.unwrap();
                let expected = twin.acquire(&mut demands).await.unwrap();
                assert_eq!(seen.is_allowed(), expected.is_allowed(), "{about}: allowed");
            }
        }
        for policy in &policies {
            let mut look = [Demand::new(policy, b"key", 0)];
            let seen = store.peek(&mut look).await.unwrap();
            let expected = twin.peek(&mut look).await.unwrap();
            let left = [seen, expected].map(|it| it.remaining());
            assert_eq!(left[0], left[1], "{about}: left of {}", policy.name());
            let waits = [seen, expected].map(|it| it.retry_after(it.at()));
            // The wait is the only visible sign of a debt.
            let is_rounded = [Algorithm::Gcra, Algorithm::SlidingCounter].contains(&algorithm);
            assert!(
                is_rounded || waits[0] == waits[1],
                "{about}: {} waits {waits:?}",
                policy.name()
            );
        }
    }
}

#[tokio::test]
async fn what_is_given_back_is_what_the_library_gives_back() {
    let redis = Redis::start(Flavor::Redis);
    let link = patient(&redis.url());
    link.ready(Duration::from_secs(20)).await.unwrap();
    for algorithm in Algorithm::ALL {
        for seed in 0..6 {
            trace(&link, algorithm, seed).await;
        }
    }
}

/// Reserved in one process, settled in another; a settled reservation is gone.
#[tokio::test]
async fn any_process_can_settle() {
    let redis = Redis::start(Flavor::Redis);
    let [here, there] = [patient(&redis.url()), patient(&redis.url())];
    here.ready(Duration::from_secs(20)).await.unwrap();
    let [here, there] = [here, there].map(|link| RedisStore::new(link).unwrap());
    let policy = Policy::new("jobs", Quota::per_hour(100)).unwrap();
    let mut demand = [Demand::new(&policy, b"key", 60)];
    let id = here.reserve(&mut demand, LIFE).await.unwrap().id.unwrap();
    assert!(there.settle(id, &[20]).await.unwrap());
    assert!(!here.settle(id, &[0]).await.unwrap());
    let left = there.peek(&mut [Demand::new(&policy, b"key", 0)]).await.unwrap();
    assert_eq!(left.remaining(), 80);
}

/// The number of claims on a key is bounded: a claim beyond the bound takes no permits.
#[tokio::test]
async fn open_claims_are_bounded() {
    let redis = Redis::start(Flavor::Redis);
    let link = patient(&redis.url());
    link.ready(Duration::from_secs(20)).await.unwrap();
    let store = RedisStore::builder(link).max_claims(3).build().unwrap();
    let policy = Policy::new("jobs", Quota::per_hour(100)).unwrap();
    for round in 0..5 {
        let free = store.reserve(&mut [Demand::new(&policy, b"free", 0)], LIFE).await;
        assert_eq!(free.is_ok(), round < 3, "a reservation of nothing is one, too");
        let mut demand = [Demand::new(&policy, b"key", 1)];
        match store.reserve(&mut demand, LIFE).await {
            Ok(reserved) => assert!(reserved.id.is_some() && round < 3),
            Err(error) => assert!(error.is_full() && round >= 3, "{error}"),
        }
        let lease = store.lease(&mut Demand::new(&policy, b"other", 1), LIFE).await;
        assert_eq!(lease.is_ok(), round < 3);
    }
    for key in [&b"key"[..], b"other"] {
        let left = store.peek(&mut [Demand::new(&policy, key, 0)]).await.unwrap();
        assert_eq!(left.remaining(), 97);
    }
}

/// However often a debt was booked and given back, the next one is charged as far as possible.
#[tokio::test]
async fn a_log_is_charged_however_much_was_booked_before() {
    let redis = Redis::start(Flavor::Redis);
    let link = patient(&redis.url());
    link.ready(Duration::from_secs(20)).await.unwrap();
    let policy =
        Policy::with_algorithm("log", Quota::per_minute(20), Algorithm::SlidingLog).unwrap();
    for shift in [10, 39, 40, 45, 46, 50, 60] {
        let (clock, hand) = Clock::manual();
        clock.set_wall_offset(Duration::from_secs(1_800_000_000));
        let store = RedisStore::builder(link.clone()).given_time(clock).build().unwrap();
        let key = format!("{shift}").into_bytes();
        for round in 0..4 {
            let mut demand = [Demand::new(&policy, &key, 1)];
            let id = store.reserve(&mut demand, LIFE).await.unwrap().id;
            let id = id.unwrap_or_else(|| panic!("2^{shift}, round {round}: refused"));
            assert!(store.settle(id, &[(1 << shift) - 10]).await.unwrap());
            hand.advance(Duration::from_secs(91));
            let left = store.peek(&mut [Demand::new(&policy, &key, 0)]).await.unwrap();
            assert_eq!(left.remaining(), 0, "2^{shift}, round {round}: it is carried");
            let _ = store.refund(&Demand::new(&policy, &key, u64::MAX)).await.unwrap();
        }
    }
}

/// Regression: a settled entry was written again with the next window of the debt.
#[tokio::test]
async fn a_settled_entry_of_a_log_that_owes_does_not_come_back() {
    let redis = Redis::start(Flavor::Redis);
    let link = patient(&redis.url());
    link.ready(Duration::from_secs(20)).await.unwrap();
    let (clock, hand) = Clock::manual();
    clock.set_wall_offset(Duration::from_secs(1_800_000_000));
    let store = RedisStore::builder(link).given_time(clock).build().unwrap();
    let policy =
        Policy::with_algorithm("log", Quota::per_minute(10), Algorithm::SlidingLog).unwrap();
    let demand = |cost| Demand::new(&policy, b"key", cost);
    let id = store.reserve(&mut [demand(10)], LIFE).await.unwrap().id.unwrap();
    assert!(store.force(&demand(12)).await.unwrap().is_allowed());
    hand.advance(Duration::from_secs(30));
    assert!(store.settle(id, &[0]).await.unwrap());
    // Ten of the twelve count from now, two later.
    for (secs, left) in [(0, 0), (59, 0), (1, 8), (59, 8), (1, 10)] {
        hand.advance(Duration::from_secs(secs));
        assert_eq!(store.peek(&mut [demand(0)]).await.unwrap().remaining(), left, "{secs} s");
    }
    assert_eq!(store.refund(&demand(100)).await.unwrap(), 0, "all is paid off");
}

/// A script that goes through the windows of a debt one by one, or waits for a sum that is never
/// reached, would block the server.
#[tokio::test]
async fn a_damaged_log_stops_no_script() {
    let redis = Redis::start(Flavor::Redis);
    let link = patient(&redis.url());
    link.ready(Duration::from_secs(20)).await.unwrap();
    let (clock, hand) = Clock::manual();
    clock.set_wall_offset(Duration::from_secs(1_800_000_000));
    let store = RedisStore::builder(link).given_time(clock).build().unwrap();
    let now = 1_800_000_000_000_000.0;
    let huge = f64::MAX;
    // The sum of the entries that have left and the debt; then each entry as its time and sum.
    for (row, entries) in [
        vec![[0.0, 5.0], [now, 0.0]],
        vec![[0.0, 5.0], [now, -3.0]],
        vec![[7.0, 1e15], [now, 7.0], [now, 7.0]],
        vec![[0.0, 1e15], [0.0, 1.0]],
        vec![[0.0, 1e15], [now, 1.0], [0.0, 2.0]],
        vec![[0.0, huge], [now, 1.0]],
        vec![[0.0, f64::INFINITY], [now, 1.0]],
        vec![[0.0, f64::NAN], [f64::NAN, f64::NAN]],
        vec![[0.0, 5.0]],
    ]
    .into_iter()
    .enumerate()
    {
        let policy =
            Policy::with_algorithm("log", Quota::per_minute(10), Algorithm::SlidingLog).unwrap();
        let key = format!("{row}").into_bytes();
        let demand = |cost| Demand::new(&policy, &key, cost);
        let _ = store.acquire(&mut [demand(1)]).await.unwrap();
        let name = redis.cli(&["KEYS", "*"]).trim().to_owned();
        assert_eq!(redis.cli(&["DEL", &name]).trim(), "1", "row {row}: the state is the only key");
        for entry in &entries {
            let hex = entry.iter().flat_map(|part| part.to_le_bytes());
            let text: String = hex.map(|byte| format!("\\{byte:03}")).collect();
            let push = format!("return redis.call('RPUSH', KEYS[1], '{text}')");
            assert!(redis.cli(&["EVAL", &push, "1", &name]).trim().parse::<u8>().is_ok());
        }
        for _ in 0..3 {
            // An error is as good as an answer, as long as it arrives.
            let _ = store.acquire(&mut [demand(1)]).await;
            let _ = store.force(&demand(3)).await;
            let _ = store.refund(&demand(2)).await;
            hand.advance(Duration::from_secs(3600));
        }
        store.reset(&demand(0)).await.unwrap();
        assert!(store.acquire(&mut [demand(1)]).await.unwrap().is_allowed(), "row {row}");
        store.reset(&demand(0)).await.unwrap();
    }
}

/// Free permits can be booked, even if the budget takes nearly as long to refill as a debt may.
#[tokio::test]
async fn a_budget_of_years_can_be_forced_as_far_as_it_goes() {
    let redis = Redis::start(Flavor::Redis);
    let link = patient(&redis.url());
    link.ready(Duration::from_secs(20)).await.unwrap();
    let store = RedisStore::new(link).unwrap();
    let policy = Policy::new("budget", Quota::per_year(1).burst(4)).unwrap();
    for (row, (cost, is_allowed, left)) in
        [(2, true, 2), (1, true, 1), (4, false, 1), (1, true, 0), (1, false, 0)]
            .into_iter()
            .enumerate()
    {
        let forced = store.force(&Demand::new(&policy, b"key", cost)).await.unwrap();
        assert_eq!((forced.is_allowed(), forced.remaining()), (is_allowed, left), "row {row}");
    }
}
