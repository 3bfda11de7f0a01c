//! Permits admitted while the store was away are booked once after recovery, with bounded memory.

use crate::servers::guard_support::{Flaky, Mode, drain, left, policy, take};
use std::{pin::pin, task::Context, time::Duration};
use tollgate::{
    Algorithm, ManualClock, Quota,
    store::{Demand, Policy, Store, forward_store},
    testing::block_on,
};
use tollgate_redis::{FleetSize, Guarded};

fn guarded(spends: usize) -> (Guarded<Flaky>, Flaky, ManualClock) {
    let (flaky, hand) = Flaky::new();
    let builder = Guarded::builder(flaky.clone()).fleet(FleetSize::fixed(4)).spends(spends);
    (builder.build().unwrap(), flaky, hand)
}

/// Takes one permit of each of `keys` keys.
async fn take_of_keys(store: &Guarded<Flaky>, policy: &Policy, keys: u32) {
    for key in 0..keys {
        let key = key.to_le_bytes();
        assert!(store.acquire(&mut [Demand::new(policy, &key, 1)]).await.unwrap().is_allowed());
    }
}

/// Lets other tasks work until no spend is pending.
async fn settled(store: &Guarded<Flaky>) {
    for _ in 0..1000 {
        if store.status().pending_spend == 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("still pending: {:?}", store.status());
}

/// A store that does not support booking by force.
struct WithoutForce(Flaky);

impl Store for WithoutForce {
    forward_store!(self => &self.0, except force);
}

#[test]
fn a_store_without_force_is_given_up_at_once() {
    let (flaky, _hand) = Flaky::new();
    let store = Guarded::builder(WithoutForce(flaky.clone())).build().unwrap();
    flaky.set(Mode::Down);
    assert!(block_on(take(&store, &policy("pages", Quota::per_hour(40)), 1)).is_allowed());
    flaky.set(Mode::Up);
    assert_eq!(block_on(store.carry_back()), 0);
    let status = store.status();
    assert_eq!((status.pending_spend, status.dropped_spend), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_task_books_it_as_soon_as_somebody_is_answered() {
    let (store, flaky, _hand) = guarded(100);
    let pages = policy("pages", Quota::per_hour(40));
    flaky.set(Mode::Down);
    assert_eq!(drain(&store, &pages, 6).await, 6);
    assert_eq!(store.status().pending_spend, 1);
    flaky.set(Mode::Up);
    assert!(take(&store, &pages, 1).await.is_allowed());
    settled(&store).await;
    assert_eq!((flaky.forced(), store.status().carried_back), (6, 6));
    assert_eq!(left(&flaky, &pages).await, 40 - 6 - 1);
    // A second outage has a second task.
    flaky.set(Mode::Down);
    assert!(take(&store, &pages, 1).await.is_allowed());
    flaky.set(Mode::Up);
    assert!(take(&store, &pages, 1).await.is_allowed());
    settled(&store).await;
    assert_eq!(flaky.forced(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_task_books_it_though_nobody_asks_the_store() {
    let (store, flaky, _hand) = guarded(100);
    let pages = policy("pages", Quota::per_hour(40));
    flaky.set(Mode::Down);
    assert_eq!(drain(&store, &pages, 6).await, 6);
    // While the store is away, the task probes it with harmless calls, but not often.
    let before = flaky.calls();
    let minute = tokio::time::timeout(Duration::from_secs(60), std::future::pending::<()>());
    assert!(minute.await.is_err());
    let asked = flaky.calls() - before;
    assert!((20..=61).contains(&asked), "{asked} times in a minute");
    assert_eq!((flaky.forced(), store.status().pending_spend), (0, 1));
    flaky.set(Mode::Up);
    let moment = tokio::time::timeout(Duration::from_secs(3), std::future::pending::<()>());
    assert!(moment.await.is_err());
    assert_eq!((flaky.forced(), store.status().pending_spend), (6, 0));
    assert!(!store.status().is_degraded_now);
}

/// Half of the calls fail, as if half of a cluster were away: the others succeed all the time, and
/// every spend is booked in the end.
#[tokio::test(start_paused = true)]
async fn half_a_store_takes_what_it_can() {
    let (store, flaky, _hand) = guarded(1000);
    let pages = policy("pages", Quota::per_hour(40));
    flaky.set(Mode::Down);
    take_of_keys(&store, &pages, 100).await;
    flaky.set(Mode::Half);
    let mut asked = 0;
    for _ in 0..60 {
        for _ in 0..20 {
            let _ = store.peek(&mut [Demand::new(&pages, b"alice", 0)]).await;
            tokio::task::yield_now().await;
            asked += 1;
        }
        let moment = tokio::time::timeout(Duration::from_secs(1), std::future::pending::<()>());
        assert!(moment.await.is_err());
    }
    let status = store.status();
    assert_eq!((flaky.forced(), status.pending_spend, status.dropped_spend), (100, 0, 0));
    let attempts = flaky.calls() - 100 - asked;
    assert!(attempts < 400, "{attempts} attempts for 100 spends");
}

#[test]
fn nothing_is_booked_twice_when_the_store_fails_half_way() {
    const KEYS: u32 = 100;
    // The store fails in each of these ways after so many calls; `Deaf` carries out a failing call.
    for mode in [Mode::Down, Mode::Lost, Mode::Deaf, Mode::Full, Mode::Invalid] {
        for calls in [0, 1, 15, 16, 17, 50, 99] {
            block_on(async {
                let (store, flaky, _hand) = guarded(1000);
                let pages = policy("pages", Quota::per_hour(40));
                flaky.set(Mode::Down);
                take_of_keys(&store, &pages, KEYS).await;
                flaky.set(Mode::Up);
                left(&store, &pages).await;
                flaky.set_after(calls, mode);
                let first = store.carry_back().await;
                assert_eq!(first, calls, "{mode:?} after {calls}");
                flaky.set(Mode::Up);
                left(&store, &pages).await;
                let second = store.carry_back().await;
                let status = store.status();
                assert_eq!((status.pending_spend, status.carried_back), (0, first + second));
                // A spend that was given up is either booked or not, and never twice.
                let lost = if mode == Mode::Deaf { 0 } else { status.dropped_spend };
                assert_eq!(flaky.forced() + lost, u64::from(KEYS), "{mode:?} after {calls}");
                let is_given_up = matches!(mode, Mode::Lost | Mode::Deaf | Mode::Invalid);
                assert_eq!(status.dropped_spend > 0, is_given_up, "{mode:?} after {calls}");
                for key in 0..KEYS {
                    let key = key.to_le_bytes();
                    let mut demand = [Demand::new(&pages, &key, 0)];
                    assert!(flaky.peek(&mut demand).await.unwrap().remaining() >= 39);
                }
            });
        }
    }
}

#[test]
fn one_that_is_cut_off_books_the_rest_later() {
    let (store, flaky, _hand) = guarded(1000);
    let pages = policy("pages", Quota::per_hour(40));
    flaky.set(Mode::Down);
    block_on(take_of_keys(&store, &pages, 100));
    flaky.set(Mode::Up);
    {
        let mut cut = pin!(store.carry_back());
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(cut.as_mut().poll(&mut context).is_pending());
        assert_eq!(block_on(store.carry_back()), 0, "somebody is at it already");
    }
    let status = store.status();
    assert_eq!((flaky.forced(), status.pending_spend, status.dropped_spend), (16, 84, 0));
    assert_eq!(block_on(store.carry_back()), 84);
    assert_eq!(flaky.forced(), 100);
}

#[test]
fn only_what_has_not_come_back_is_booked() {
    let hour = Duration::from_secs(3600);
    // algorithm, used, time until the store is back -> booked, of a share of 10 per hour
    for (row, (algorithm, used, later, expected)) in [
        (Algorithm::Gcra, 10, Duration::ZERO, 10),
        (Algorithm::Gcra, 10, hour / 2, 5),
        (Algorithm::Gcra, 10, hour, 0),
        (Algorithm::Gcra, 3, hour / 10, 2),
        (Algorithm::FixedWindow, 10, hour / 2, 10),
        (Algorithm::FixedWindow, 10, hour, 0),
        (Algorithm::AnchoredWindow, 4, hour / 2, 4),
        (Algorithm::SlidingLog, 4, hour / 2, 4),
        (Algorithm::SlidingLog, 4, hour, 0),
        (Algorithm::SlidingCounter, 10, 2 * hour, 0),
    ]
    .into_iter()
    .enumerate()
    {
        block_on(async {
            let (store, flaky, hand) = guarded(100);
            let pages = Policy::with_algorithm("pages", Quota::per_hour(40), algorithm).unwrap();
            flaky.set(Mode::Down);
            assert_eq!(drain(&store, &pages, used).await, used, "row {row}");
            hand.advance(later);
            flaky.set(Mode::Up);
            assert_eq!(store.carry_back().await, expected, "row {row}: {algorithm}");
            assert_eq!(flaky.forced(), expected, "row {row}: {algorithm}");
        });
    }
}

#[test]
fn at_most_the_burst_is_booked_and_a_debt_counts() {
    // forced alone -> booked, of a burst of 40
    for (cost, expected) in [(5, 5), (25, 25), (40, 40), (100, 40)] {
        block_on(async {
            let (store, flaky, _hand) = guarded(100);
            let pages = policy("pages", Quota::per_hour(40));
            flaky.set(Mode::Down);
            assert!(store.force(&Demand::new(&pages, b"alice", cost)).await.unwrap().is_allowed());
            flaky.set(Mode::Up);
            assert_eq!(store.carry_back().await, expected, "{cost}");
        });
    }
    // If a quota comes with the call, the spend keeps it.
    block_on(async {
        let (store, flaky, _hand) = guarded(100);
        let throttle = Policy::ad_hoc("throttle");
        let mut demand = [Demand::ad_hoc(&throttle, b"alice", 3, Quota::per_hour(40)).unwrap()];
        flaky.set(Mode::Down);
        assert!(store.acquire(&mut demand).await.unwrap().is_allowed());
        flaky.set(Mode::Up);
        assert_eq!(store.carry_back().await, 3);
        assert_eq!(flaky.peek(&mut demand).await.unwrap().remaining(), 34);
    });
}

#[test]
fn a_reservation_is_booked_as_it_was_settled() {
    block_on(async {
        let (store, flaky, _hand) = guarded(100);
        let pages = policy("pages", Quota::per_hour(40));
        flaky.set(Mode::Down);
        let mut demand = [Demand::new(&pages, b"alice", 8)];
        let made = store.reserve(&mut demand, Duration::from_secs(60)).await.unwrap();
        assert!(store.settle(made.id.unwrap(), &[3]).await.unwrap());
        flaky.set(Mode::Up);
        assert_eq!(store.carry_back().await, 3);
    });
}

#[test]
fn a_call_of_unknown_outcome_is_charged_once_at_most() {
    for (mode, charged) in [(Mode::Deaf, 1), (Mode::Lost, 0)] {
        block_on(async {
            let (store, flaky, _hand) = guarded(100);
            let pages = policy("pages", Quota::per_hour(40));
            flaky.set(mode);
            assert!(take(&store, &pages, 1).await.is_allowed());
            flaky.set(Mode::Up);
            assert_eq!(left(&store, &pages).await, 40 - charged, "{mode:?}");
            assert_eq!((store.carry_back().await, flaky.forced()), (0, 0), "{mode:?}");
            assert_eq!(store.status().unknown_outcomes, 1);
        });
    }
}

#[test]
fn what_finds_no_room_is_counted() {
    // capacity, keys, bytes of a key -> pending, dropped
    for (row, (room, keys, bytes, expected)) in [
        (100, 25, 8, (25, 0)),
        (10, 25, 8, (10, 15)),
        (0, 25, 8, (0, 25)),
        // 10 x 256 bytes in all.
        (10, 9, 1000, (2, 7)),
    ]
    .into_iter()
    .enumerate()
    {
        block_on(async {
            let (store, flaky, _hand) = guarded(room);
            let pages = policy("pages", Quota::per_hour(40));
            flaky.set(Mode::Down);
            for key in 0..keys {
                let key = vec![key; bytes];
                assert!(
                    store.acquire(&mut [Demand::new(&pages, &key, 1)]).await.unwrap().is_allowed()
                );
            }
            let status = store.status();
            assert_eq!((status.pending_spend, status.dropped_spend), expected, "row {row}");
            flaky.set(Mode::Up);
            assert_eq!(store.carry_back().await, expected.0, "row {row}");
        });
    }
}

#[test]
fn a_reset_key_owes_nothing() {
    block_on(async {
        let (store, flaky, _hand) = guarded(100);
        let pages = policy("pages", Quota::per_hour(40));
        flaky.set(Mode::Down);
        assert_eq!(drain(&store, &pages, 6).await, 6);
        flaky.set(Mode::Up);
        store.reset(&Demand::new(&pages, b"alice", 0)).await.unwrap();
        assert_eq!((store.status().pending_spend, store.carry_back().await), (0, 0));
        assert_eq!(left(&store, &pages).await, 40);
    });
}

/// Threads take permits while the store fails and recovers: every permit is admitted by the store,
/// or booked into it afterwards.
#[test]
fn threads_lose_nothing_and_book_nothing_twice() {
    const THREADS: u64 = 4;
    const CALLS: u64 = 2000;
    let (flaky, _hand) = Flaky::new();
    let store = Guarded::builder(flaky.clone()).build().unwrap();
    let pages = policy("pages", Quota::per_minute(1).burst(1_000_000));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..CALLS {
                    assert!(block_on(take(&store, &pages, 1)).is_allowed());
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..500 {
                flaky.set(Mode::Down);
                std::thread::yield_now();
                flaky.set(Mode::Up);
                block_on(store.carry_back());
            }
        });
    });
    flaky.set(Mode::Up);
    block_on(store.carry_back());
    let status = store.status();
    assert_eq!((status.pending_spend, status.dropped_spend), (0, 0));
    assert_eq!(status.carried_back, flaky.forced());
    assert_eq!(status.carried_back, status.local, "each local one is booked");
    assert_eq!(block_on(left(&flaky, &pages)), 1_000_000 - THREADS * CALLS);
}
